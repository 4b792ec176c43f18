"""What a cancelled task of a consumer leaves, when the next call is cancelled too, or comes before it is known."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Literal

import pytest

from penstock import Consumer, ConsumerConfig, ObjectStore, Producer
from penstock.buffer.consumer.cursors import NOTHING, Cursors
from penstock.buffer.descriptors import BatchDescriptor
from tests.buffer.twins.conftest import Run, fill
from tests.support.buffer_contents import entries
from tests.support.hooked_store import HookedStore
from tests.support.waiting import A_WHILE, Background, Gate, wait_until

NO_COLLECTOR = ConsumerConfig(gc=False)


def is_acking() -> bool:
    """Whether a thread that acks for coroutines is in a call of a consumer."""
    ackers = [thread.ident for thread in threading.enumerate() if thread.name.startswith("penstock-consumer-ack")]
    frames: list[FrameType | None] = [frame for ident, frame in sys._current_frames().items() if ident in ackers]
    while frames:
        frame = frames.pop()
        if frame is not None:
            if frame.f_code.co_filename == inspect.getsourcefile(Consumer):
                return True
            frames.append(frame.f_back)
    return False


async def cancel_unheard(consumer: Consumer, *sequences: int) -> None:
    """Ack, and be cancelled after that has happened and before the task knows."""
    tasks = [asyncio.ensure_future(consumer.ack_async(sequence)) for sequence in sequences]
    await asyncio.sleep(0)
    wait_until(lambda: consumer.last_acked_sequence == sequences[-1] and not is_acking())  # the loop does not run
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)


@pytest.mark.parametrize("twin", ["ack_async", "ack_through_async"])
def test_an_ack_that_was_cancelled_twice_can_be_tried_again(run: Run, twin: str, memory: ObjectStore) -> None:
    fill(memory, 2)
    store, gate = HookedStore(memory), Gate()

    async def main() -> None:
        async with Consumer(store, NO_COLLECTOR) as consumer:
            await consumer.next_descriptors_async(2)
            await cancel_unheard(consumer, 0)
            store.before("write manifest", gate, times=1)
            flushing = Background(consumer.flush)
            gate.wait_for_arrival()  # the consumer's lock is held
            task = asyncio.ensure_future(getattr(consumer, twin)(0))
            await asyncio.sleep(0)
            wait_until(is_acking)  # and waits for the lock
            task.cancel()
            await asyncio.wait([task])
            gate.open()
            flushing.result()
            await getattr(consumer, twin)(0)
            await consumer.ack_through_async(1)

    run(main())


def test_acks_that_were_cancelled_together_can_each_be_tried_again(run: Run, memory: ObjectStore) -> None:
    fill(memory, 3)

    async def main() -> None:
        async with Consumer(memory, NO_COLLECTOR) as consumer:
            await consumer.next_descriptors_async(3)
            await cancel_unheard(consumer, 0, 1, 2)
            for sequence in range(3):
                await consumer.ack_async(sequence)
            assert consumer.last_acked_sequence == 2

    run(main())


def test_a_read_that_is_cancelled_after_a_rewind_skips_nothing(run: Run, memory: ObjectStore) -> None:
    fill(memory, 4)
    store, gate = HookedStore(memory), Gate()

    async def main() -> None:
        async with Consumer(store, NO_COLLECTOR) as consumer:
            await consumer.next_descriptors_async(2)
            store.before("read data", gate, times=1)
            reading = asyncio.ensure_future(consumer.next_batch_async())
            await asyncio.to_thread(gate.wait_for_arrival)
            gate.open()
            consumer.rewind()  # it waits for the read to end; its task has not heard of the batch
            reading.cancel()
            await asyncio.wait([reading])
            assert reading.cancelled()
            assert [batch.sequence async for batch in consumer] == [0, 1, 2, 3]

    run(main())


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads that take turns very often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty")
def test_what_is_given_back_during_a_read_is_not_lost() -> None:
    first, count = 5000, 6000
    cursors = Cursors(NOTHING)
    cursors.hand_out([BatchDescriptor(count - 1, "last")])
    cursors.note_unheard_read(list(range(first)))

    def give_back() -> None:
        for number in range(first, count):
            cursors.note_unheard_read([number])

    giving = Background(give_back)
    while not giving.has_ended_within(0):
        cursors.next_to_read(0, 1)
    assert giving.error() is None
    assert cursors.next_to_read(0, count) == (0, count)


def test_what_is_given_back_while_a_read_begins_is_not_lost_with_that_read() -> None:
    cursors = Cursors(NOTHING)
    cursors.hand_out([BatchDescriptor(0, "first")])
    before = cursors.state()
    cursors.note_unheard_read([0])  # in the loop's thread
    assert cursors.next_to_read(0, 1) == (0, 1)
    cursors.hand_out([BatchDescriptor(0, "first")])
    cursors.restore(before)  # this task was cancelled as well
    assert cursors.next_to_read(0, 1) == (0, 1)


@pytest.mark.parametrize("step", ["write data", "write manifest"], ids=["producer", "consumer"])
def test_a_second_close_waits_for_one_whose_task_was_cancelled(
    run: Run, memory: ObjectStore, step: Literal["write data", "write manifest"]
) -> None:
    fill(memory, 1)
    store, gate = HookedStore(memory), Gate()

    async def opened() -> Producer | Consumer:
        if step == "write data":
            producer = Producer(store)
            await producer.produce_async(b"x")
            return producer
        consumer = Consumer(store, NO_COLLECTOR)
        await consumer.next_descriptors_async(1)
        await consumer.ack_async(0)
        return consumer

    async def main() -> None:
        store.before(step, gate, skip=int(step == "write manifest"), times=1)  # to open a consumer is a write too
        one = await opened()
        closing = asyncio.ensure_future(one.close_async())
        await asyncio.to_thread(gate.wait_for_arrival)
        closing.cancel()
        await asyncio.wait([closing])
        assert closing.cancelled()
        again = Background(one.close)
        assert not again.has_ended_within(A_WHILE)
        gate.open()
        again.result()

    run(main())
    assert len(entries(memory)) == (2 if step == "write data" else 0)
