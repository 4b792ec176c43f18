"""A task is cancelled at each await of each twin: nothing is lost, nothing comes twice, and no task is left."""

from __future__ import annotations

import asyncio

import pytest

from penstock import DurableEvent, DurableEventQueue, EventQueue
from tests.support.cancelling import Outcome, cancel_at_each_suspension
from tests.support.processes import PATIENCE
from tests.support.queue_folder import ids_of


def test_a_cancelled_poll_takes_nothing_and_the_next_one_gets_the_event(queue: DurableEventQueue[bytes]) -> None:
    async def cancelled() -> None:
        queue.push_many([b"first", b"second"])

        async def check(outcome: Outcome[DurableEvent[bytes] | None]) -> None:
            if not outcome.was_cancelled:
                assert outcome.answer is not None
                await queue.nack_async(outcome.answer.id)
            found = await queue.poll_async(PATIENCE)
            assert found == DurableEvent(0, b"first"), outcome
            assert await asyncio.to_thread(queue.ready_len) == 1, outcome
            await queue.nack_async(0)

        assert await cancel_at_each_suspension(lambda: queue.poll_async(PATIENCE), check) >= 3

    asyncio.run(cancelled())


def test_a_poll_that_is_cancelled_while_it_waits_leaves_its_wake_to_another(queue: DurableEventQueue[bytes]) -> None:
    async def cancelled() -> None:
        waiting = [asyncio.create_task(queue.poll_async(None)) for _ in range(20)]
        await asyncio.sleep(0)
        for number in range(10):
            await queue.push_async(bytes([number]))
            waiting[number].cancel()
        found = [one for one in await asyncio.gather(*waiting[:10], return_exceptions=True) if one is not None]
        heard = {one.id for one in found if isinstance(one, DurableEvent)}
        while len(heard) < 10:
            done, _ = await asyncio.wait(waiting[10:], return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE)
            heard |= {event.id for one in done if (event := one.result()) is not None}
            waiting[10:] = [one for one in waiting[10:] if one not in done]
            assert done
        for one in waiting[10:]:
            one.cancel()
        await asyncio.wait(waiting[10:])
        assert heard == set(range(10))

    asyncio.run(asyncio.wait_for(cancelled(), PATIENCE))


def test_a_cancelled_push_many_has_pushed_all_or_nothing(queue: DurableEventQueue[bytes]) -> None:
    async def cancelled() -> None:
        before = 0

        async def check(outcome: Outcome[list[DurableEvent[bytes]]]) -> None:
            nonlocal before
            await queue.push_many_async([b"next"])  # it is written after what was under way
            now = await asyncio.to_thread(len, queue)
            assert now - before in ({1, 4} if outcome.was_cancelled else {4}), outcome
            before = now

        assert await cancel_at_each_suspension(lambda: queue.push_many_async([b"a", b"b", b"c"]), check) >= 3

    asyncio.run(cancelled())


def test_a_cancelled_ack_can_be_tried_again(queue: DurableEventQueue[bytes]) -> None:
    async def cancelled() -> None:
        pushed = queue.push_many([b"x"] * 20)
        numbers = iter(range(20))

        async def ack() -> None:
            await queue.ack_many_async([pushed[next(numbers)].id])

        calls = 0

        async def check(outcome: Outcome[None]) -> None:
            nonlocal calls
            calls += 1
            await queue.ack_async(calls - 1)
            assert await asyncio.to_thread(ids_of, queue) == list(range(calls, 20)), outcome

        assert await cancel_at_each_suspension(ack, check) >= 4

    asyncio.run(cancelled())


def test_a_cancelled_nack_can_be_tried_again(queue: DurableEventQueue[bytes]) -> None:
    async def cancelled() -> None:
        queue.push(b"x")
        queue.pop()

        async def check(outcome: Outcome[None]) -> None:
            await queue.nack_async(0)
            assert await queue.pop_async() == DurableEvent(0, b"x"), outcome

        assert await cancel_at_each_suspension(lambda: queue.nack_async(0), check) >= 3

    asyncio.run(cancelled())


def test_thousands_of_polls_wait_at_once_and_each_gets_an_event(queue: DurableEventQueue[bytes]) -> None:
    async def poll() -> list[DurableEvent[bytes] | None]:
        waiting = [asyncio.create_task(queue.poll_async(None)) for _ in range(5000)]
        await queue.push_many_async([b"x"] * 5000)
        return await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE)

    assert sorted(event.id for event in asyncio.run(poll()) if event is not None) == list(range(5000))


@pytest.mark.parametrize("is_push", [True, False], ids=["push", "poll"])
def test_a_cancelled_call_of_a_queue_in_memory_has_done_nothing(is_push: bool) -> None:
    async def cancelled() -> None:
        queue = EventQueue[str](maxsize=1)
        if is_push:
            queue.push("first")
        waiting = asyncio.create_task(queue.push_async("second") if is_push else _polled(queue))
        await asyncio.sleep(0)
        waiting.cancel()
        (outcome,) = await asyncio.gather(waiting, return_exceptions=True)
        assert isinstance(outcome, asyncio.CancelledError)
        if not is_push:
            await queue.push_async("first")
        assert (await queue.poll_async(), await queue.poll_async(0)) == ("first", None)

    asyncio.run(cancelled())


async def _polled(queue: EventQueue[str]) -> None:
    await queue.poll_async(None)
