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


async def has_come(gate: Gate) -> None:
    """Wait, without blocking the loop, until a write is held up."""
    await asyncio.to_thread(gate.wait_for_somebody)


async def pass_the_loop() -> None:
    """Let every task go on until it waits for something that is not of the loop."""
    for _ in range(3):
        await asyncio.sleep(0)


# What push does


def test_an_awaited_push_returns_the_event_with_its_id(queue: DurableEventQueue[bytes]) -> None:
    assert asyncio.run(queue.push_async(b"x")) == DurableEvent(0, b"x") == queue.pop()


def test_an_awaited_push_is_on_disk(place: Place) -> None:
    with place.open() as queue:
        asyncio.run(queue.push_async(b"x"))
    assert place.ids() == [0]


def test_an_awaited_push_has_been_synced(queue: DurableEventQueue[bytes], writes: Writes) -> None:
    asyncio.run(queue.push_async(b"x"))
    assert writes.sizes == [1]


def test_an_awaited_push_wakes_a_poll(queue: DurableEventQueue[bytes]) -> None:
    polling = Background(lambda: queue.poll(None))
    wait_for_waiting_threads()
    asyncio.run(queue.push_async(b"x"))
    assert polling.result() == DurableEvent(0, b"x")


def test_pushes_that_are_awaited_one_by_one_have_ids_in_order(queue: DurableEventQueue[bytes]) -> None:
    async def push() -> list[int]:
        return [(await queue.push_async(b"x")).id for _ in range(5)]

    assert asyncio.run(push()) == [0, 1, 2, 3, 4]


def test_pushes_of_both_kinds_share_the_ids(queue: DurableEventQueue[bytes]) -> None:
    async def push() -> list[int]:
        return [queue.push(b"a").id, (await queue.push_async(b"b")).id, queue.push(b"c").id]

    assert asyncio.run(push()) == [0, 1, 2]


# Many at once


def test_a_hundred_pushes_at_once_have_ids_in_the_order_they_were_made(queue: DurableEventQueue[bytes]) -> None:
    async def push() -> list[DurableEvent[bytes]]:
        return await asyncio.gather(*(queue.push_async(bytes([number])) for number in range(100)))

    assert asyncio.run(push()) == [DurableEvent(number, bytes([number])) for number in range(100)]


def test_pushes_that_come_while_one_is_written_share_the_next_sync(
    queue: DurableEventQueue[bytes], writes: Writes
) -> None:
    gate = writes.gate = Gate()

    async def push() -> None:
        first = asyncio.create_task(queue.push_async(b"first"))
        await has_come(gate)
        others = [asyncio.create_task(queue.push_async(b"other")) for _ in range(99)]
        await pass_the_loop()
        gate.open()
        await asyncio.gather(first, *others)

    asyncio.run(push())
    assert writes.sizes == [1, 99]


def test_a_push_of_a_thread_shares_a_sync_with_those_of_a_loop(queue: DurableEventQueue[bytes], writes: Writes) -> None:
    gate = writes.gate = Gate()
    pushing = Background(lambda: queue.push(b"thread"))
    gate.wait_for_somebody()

    async def push() -> None:
        others = [asyncio.create_task(queue.push_async(b"loop")) for _ in range(5)]
        await pass_the_loop()
        gate.open()
        await asyncio.gather(*others)

    asyncio.run(push())
    assert pushing.result().id == 0
    assert writes.sizes == [1, 5]


# The loop goes on


def test_the_loop_goes_on_while_a_push_is_written(queue: DurableEventQueue[bytes], writes: Writes) -> None:
    gate = writes.gate = Gate()

    async def push() -> DurableEvent[bytes]:
        pushing = asyncio.create_task(queue.push_async(b"x"))
        await has_come(gate)
        assert not pushing.done()
        gate.open()  # which happens only if the loop came here while the write was held up
        return await asyncio.wait_for(pushing, PATIENCE)

    assert asyncio.run(push()).id == 0


def test_a_push_is_not_to_be_seen_before_it_is_reported(queue: DurableEventQueue[bytes], writes: Writes) -> None:
    """RocksDB shows what is written before it is synced."""
    gate = writes.gate_after = Gate()

    async def push() -> list[Any]:
        pushing = asyncio.create_task(queue.push_async(b"x"))
        await has_come(gate)
        seen = [len(queue), queue.pop(), queue.get(0), list(queue.iterate())]
        with pytest.raises(UnknownEvent):
            queue.nack(0)
        gate.open()
        await pushing
        return seen

    assert asyncio.run(push()) == [0, None, None, []]
    assert queue.pop() == DurableEvent(0, b"x")


# To cancel


def test_a_push_that_is_cancelled_before_its_write_began_writes_nothing(place: Place, writes: Writes) -> None:
    gate = writes.gate = Gate()

    async def push(queue: DurableEventQueue[bytes]) -> DurableEvent[bytes]:
        first = asyncio.create_task(queue.push_async(b"first"))
        await has_come(gate)
        cancelled = asyncio.create_task(queue.push_async(b"cancelled"))
        await pass_the_loop()
        last = asyncio.create_task(queue.push_async(b"last"))
        await pass_the_loop()
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        gate.open()
        await first
        return await last

    with place.open() as queue:
        assert asyncio.run(push(queue)) == DurableEvent(1, b"last")
        assert len(queue) == 2
    assert place.ids() == [0, 1]


def test_when_all_that_wait_were_cancelled_the_queue_goes_on(queue: DurableEventQueue[bytes], writes: Writes) -> None:
    gate = writes.gate = Gate()

    async def push() -> DurableEvent[bytes]:
        first = asyncio.create_task(queue.push_async(b"first"))
        await has_come(gate)
        cancelled = asyncio.create_task(queue.push_async(b"cancelled"))
        await pass_the_loop()
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        gate.open()
        await first
        return await queue.push_async(b"next")

    assert asyncio.run(push()).id == 1
    assert writes.sizes == [1, 1]


def test_a_push_that_is_cancelled_while_it_is_written_is_written(
    queue: DurableEventQueue[bytes], writes: Writes
) -> None:
    gate = writes.gate = Gate()

    async def push() -> None:
        cancelled = asyncio.create_task(queue.push_async(b"x"))
        await has_come(gate)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        gate.open()

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


def test_what_the_disk_refuses_is_raised_in_each_push_that_shared_the_write(
    queue: DurableEventQueue[bytes], writes: Writes
) -> None:
    gate = writes.gate = Gate()

    async def push() -> list[Any]:
        first = asyncio.create_task(queue.push_async(b"first"))
        await has_come(gate)
        others = [asyncio.create_task(queue.push_async(b"other")) for _ in range(3)]
        await pass_the_loop()
        writes.error = OutcomeUnknown("the disk has a bad moment")
        gate.open()
        return await asyncio.gather(first, *others, return_exceptions=True)

    errors = asyncio.run(push())
    assert [type(error) for error in errors] == [OutcomeUnknown] * 4
    assert len({id(error) for error in errors}) == 4


def test_after_a_failed_push_the_next_one_has_its_id(place: Place, writes: Writes) -> None:
    with place.open() as queue:
        writes.error = OutcomeUnknown("the disk has a bad moment")
        with pytest.raises(OutcomeUnknown, match="a bad moment"):
            asyncio.run(queue.push_async(b"x"))
        writes.error = None
        assert asyncio.run(queue.push_async(b"y")) == DurableEvent(0, b"y")
        assert queue.pop() == DurableEvent(0, b"y")
    assert place.ids() == [0]


def test_an_awaited_push_to_a_closed_queue_says_so(queue: DurableEventQueue[bytes]) -> None:
    asyncio.run(queue.push_async(b"x"))
    queue.close()
    with pytest.raises(Closed):
        asyncio.run(queue.push_async(b"y"))


def test_a_close_waits_for_what_was_pushed(place: Place, writes: Writes) -> None:
    gate = writes.gate = Gate()
    queue = place.open()

    async def push() -> list[int]:
        pushing = [asyncio.create_task(queue.push_async(b"x"))]
        await has_come(gate)
        pushing += [asyncio.create_task(queue.push_async(b"x")) for _ in range(3)]
        await pass_the_loop()
        closing = Background(queue.close)
        await asyncio.to_thread(wait_for_waiting_threads)
        gate.open()
        pushed = [one.id for one in await asyncio.gather(*pushing)]
        closing.result()
        return pushed

    assert asyncio.run(push()) == [0, 1, 2, 3]
    assert place.ids() == [0, 1, 2, 3]
