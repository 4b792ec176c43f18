"""`push_async`: what `push` does, while the loop goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import DurableEvent, DurableEventQueue
from penstock.errors import Closed, IdOverflow, InvalidInput, OutcomeUnknown, UnknownEvent
from tests.queue.writes import Writes
from tests.support.codecs import StrictCodec
from tests.support.processes import PATIENCE
from tests.support.queue_folder import LAST, Place, begin_at
from tests.support.waiting import Background, Gate, wait_for_waiting_threads


async def arrival(held: Gate) -> None:
    """Wait, without blocking the loop, until a write is held up."""
    await asyncio.to_thread(held.wait_for_arrival)


async def begin_pushes(queue: DurableEventQueue[bytes], *events: bytes) -> list[asyncio.Task[DurableEvent[bytes]]]:
    """Begin pushes, and return when each waits for its write."""
    pushing = [asyncio.create_task(queue.push_async(event)) for event in events]
    for _ in range(3):
        await asyncio.sleep(0)
    return pushing


async def cancel(pushing: asyncio.Task[DurableEvent[bytes]]) -> None:
    pushing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pushing


# What push does


def test_an_awaited_push_returns_the_event_with_its_id_and_has_been_synced(place: Place, writes: Writes) -> None:
    with place.open() as queue:
        before = writes.count
        assert asyncio.run(queue.push_async(b"x")) == DurableEvent(0, b"x") == queue.pop()
        assert writes.count - before == 1
    assert place.ids() == [0]


def test_an_awaited_push_wakes_a_poll(queue: DurableEventQueue[bytes]) -> None:
    polling = Background(lambda: queue.poll(None))
    wait_for_waiting_threads()
    asyncio.run(queue.push_async(b"x"))
    assert polling.result() == DurableEvent(0, b"x")


def test_pushes_of_both_kinds_get_ids_in_one_order(queue: DurableEventQueue[bytes]) -> None:
    async def push() -> list[int]:
        return [queue.push(b"a").id, *[(await queue.push_async(b"b")).id for _ in range(3)], queue.push(b"c").id]

    assert asyncio.run(push()) == [0, 1, 2, 3, 4]


# Many at once


def test_a_hundred_pushes_at_once_have_ids_in_the_order_they_were_made(queue: DurableEventQueue[bytes]) -> None:
    async def push() -> list[DurableEvent[bytes]]:
        return await asyncio.gather(*(queue.push_async(bytes([number])) for number in range(100)))

    assert asyncio.run(push()) == [DurableEvent(number, bytes([number])) for number in range(100)]


def test_pushes_that_come_while_one_is_written_share_the_next_sync(
    queue: DurableEventQueue[bytes], writes: Writes
) -> None:
    before = writes.count
    held = writes.hold()

    async def push() -> None:
        first = await begin_pushes(queue, b"first")
        await arrival(held)
        thread = Background(queue.push, b"thread")
        await asyncio.to_thread(wait_for_waiting_threads)
        others = await begin_pushes(queue, *[b"other"] * 98)
        held.open()
        await asyncio.gather(*first, *others)
        thread.result()

    asyncio.run(push())
    assert (writes.count - before, len(queue)) == (2, 100)


# The loop goes on


def test_the_loop_goes_on_while_a_push_is_written(queue: DurableEventQueue[bytes], writes: Writes) -> None:
    held = writes.hold()

    async def push() -> DurableEvent[bytes]:
        (pushing,) = await begin_pushes(queue, b"x")
        await arrival(held)
        assert not pushing.done()
        held.open()  # only a loop that is not blocked by the write comes here
        return await asyncio.wait_for(pushing, PATIENCE)

    assert asyncio.run(push()).id == 0


def test_a_push_cannot_be_seen_before_it_is_reported(queue: DurableEventQueue[bytes], writes: Writes) -> None:
    """RocksDB shows what is written before it is synced."""
    held = writes.hold(is_after_sync=True)

    async def push() -> list[Any]:
        (pushing,) = await begin_pushes(queue, b"x")
        await arrival(held)
        seen = [len(queue), queue.pop(), queue.get(0), list(queue.iterate())]
        with pytest.raises(UnknownEvent):
            queue.nack(0)
        held.open()
        await pushing
        return seen

    assert asyncio.run(push()) == [0, None, None, []]
    assert queue.pop() == DurableEvent(0, b"x")


# To cancel


@pytest.mark.parametrize("others", [[], [b"last"]], ids=["no other waits", "another waits behind it"])
def test_a_push_that_is_cancelled_before_its_write_began_writes_nothing(
    place: Place, writes: Writes, others: list[bytes]
) -> None:
    async def push(queue: DurableEventQueue[bytes]) -> list[DurableEvent[bytes]]:
        held = writes.hold()
        (first,) = await begin_pushes(queue, b"first")
        await arrival(held)
        cancelled, *last = await begin_pushes(queue, b"cancelled", *others)
        await cancel(cancelled)
        held.open()
        return [await pushing for pushing in (first, *last)] + [await queue.push_async(b"next")]

    with place.open() as queue:
        pushed = asyncio.run(push(queue))
        assert list(queue.iterate()) == pushed
    assert place.ids() == list(range(2 + len(others)))


def test_a_push_that_is_cancelled_while_it_is_written_is_written(
    queue: DurableEventQueue[bytes], writes: Writes
) -> None:
    held = writes.hold()

    async def push() -> None:
        (cancelled,) = await begin_pushes(queue, b"x")
        await arrival(held)
        await cancel(cancelled)
        held.open()

    asyncio.run(push())
    assert queue.push(b"y").id == 1
    assert queue.pop() == DurableEvent(0, b"x")


# Errors


def test_an_event_that_cannot_be_encoded_is_refused(place: Place) -> None:
    queue = place.open(codec=StrictCodec())
    with pytest.raises(InvalidInput, match="no such thing"):
        asyncio.run(queue.push_async(b"bad"))
    assert asyncio.run(queue.push_async(b"good")).id == 0


def test_an_awaited_push_at_the_last_id_overflows(place: Place) -> None:
    begin_at(place.path, LAST - 1)
    place.holding(b"x")
    with place.open() as queue, pytest.raises(IdOverflow):
        asyncio.run(queue.push_async(b"y"))
    assert place.ids() == [LAST - 1]


def test_an_error_of_the_disk_is_raised_in_each_push_that_shared_the_write(place: Place, writes: Writes) -> None:
    async def push(queue: DurableEventQueue[bytes]) -> list[Any]:
        held = writes.hold(before=OSError("the disk failed"))
        (first,) = await begin_pushes(queue, b"first")
        await arrival(held)
        writes.fail(error=OSError("the disk failed again"))
        others = await begin_pushes(queue, *[b"other"] * 3)
        held.open()
        return await asyncio.gather(first, *others, return_exceptions=True)

    with place.open() as queue:
        errors = asyncio.run(push(queue))
        assert [type(error) for error in errors] == [OutcomeUnknown] * 4
        assert len({id(error) for error in errors}) == 4
        assert asyncio.run(queue.push_async(b"y")) == DurableEvent(0, b"y") == queue.pop()
    assert place.ids() == [0]


def test_an_awaited_push_to_a_closed_queue_raises_closed(queue: DurableEventQueue[bytes]) -> None:
    asyncio.run(queue.push_async(b"x"))
    queue.close()
    with pytest.raises(Closed):
        asyncio.run(queue.push_async(b"y"))


def test_close_waits_for_pushes_that_have_begun(place: Place, writes: Writes) -> None:
    queue = place.open()
    held = writes.hold()

    async def push() -> list[int]:
        first = await begin_pushes(queue, b"x")
        await arrival(held)
        others = await begin_pushes(queue, *[b"x"] * 3)
        closing = Background(queue.close)
        await asyncio.to_thread(wait_for_waiting_threads)
        held.open()
        pushed = [one.id for one in await asyncio.gather(*first, *others)]
        closing.result()
        return pushed

    assert asyncio.run(push()) == [0, 1, 2, 3]
    assert place.ids() == [0, 1, 2, 3]
