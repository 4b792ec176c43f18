"""The loop runs while thousands push, poll and ack, and the disk takes 2 s for a write."""

from __future__ import annotations

import asyncio
import threading

import pytest

from penstock import DurableEvent, EventQueue
from tests.queue.writes import Writes
from tests.support.loop_gap import LONGEST_GAP_SECONDS, SLOW_SECONDS, LoopGap, all_of
from tests.support.queue_folder import Place


@pytest.mark.slow
@pytest.mark.parametrize("lazy", [True])
@pytest.mark.usefixtures("quiet_collector")
def test_thousands_of_calls_of_a_queue_on_a_slow_disk_let_the_loop_run(place: Place, writes: Writes) -> None:
    found = list[DurableEvent[bytes] | None]()

    async def main() -> None:
        async with place.open() as queue:
            await queue.ack_async((await queue.push_async(b"what is loaded when it is used first is loaded")).id)

            async def poll(_: int) -> None:
                found.append(await queue.poll_async(None))

            async def ack(number: int) -> None:
                event = found[number]
                assert event is not None
                await queue.ack_async(event.id)

            async with LoopGap() as gap:
                for first, second in ((poll, lambda number: queue.push_async(b"%d" % number)), (ack, None)):
                    threading.Timer(SLOW_SECONDS, writes.hold(1).open).start()
                    calls = [asyncio.ensure_future(all_of(call, 5000)) for call in (first, second) if call is not None]
                    for one in calls:
                        await one
            assert gap.longest < LONGEST_GAP_SECONDS
            assert await asyncio.to_thread(len, queue) == 0

    asyncio.run(main())
    assert len({event.id for event in found if event is not None}) == 5000


@pytest.mark.usefixtures("quiet_collector")
def test_thousands_of_calls_of_a_full_queue_in_memory_let_the_loop_run() -> None:
    queue = EventQueue[int](maxsize=100)
    found = list[int | None]()

    async def poll(_: int) -> None:
        found.append(await queue.poll_async(None))

    async def main() -> None:
        async with LoopGap() as gap:
            pushes = asyncio.ensure_future(all_of(queue.push_async, 5000))
            await asyncio.sleep(0.01)
            await all_of(poll, 5000)
            await pushes
        assert gap.longest < LONGEST_GAP_SECONDS

    asyncio.run(main())
    assert sorted(one for one in found if one is not None) == list(range(5000))
