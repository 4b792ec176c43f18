"""A task is cancelled at each of its awaits: nothing is lost, nothing comes twice, and nothing is left behind."""

from __future__ import annotations

import asyncio
import threading

import pytest

from penstock import BatchDescriptor, ConsumedBatch, Consumer, ConsumerConfig, ObjectStore, Producer, ProducerConfig
from tests.buffer.twins.conftest import Run, fill
from tests.support.buffer_contents import entries
from tests.support.cancelling import Outcome, cancel_at_each_suspension
from tests.support.hooked_store import HookedStore
from tests.support.processes import PATIENCE
from tests.support.waiting import Gate


def test_a_cancelled_read_loses_no_entry(run: Run, memory: ObjectStore) -> None:
    fill(memory, 6)

    async def main() -> None:
        async with Consumer(memory, ConsumerConfig(gc=False)) as consumer:
            read = list[int]()

            def check(outcome: Outcome[ConsumedBatch | None]) -> None:
                if outcome.answer is not None:
                    read.append(outcome.answer.sequence)
                assert consumer.last_handed_out_sequence == (read[-1] if read else None)

            for _ in range(3):
                assert await cancel_at_each_suspension(consumer.next_batch_async, check) > 2
            assert read == [0, 1, 2, 3, 4, 5]
            assert await consumer.next_batch_async() is None

    run(main())


def test_cancelled_descriptors_come_again(run: Run, memory: ObjectStore) -> None:
    fill(memory, 5)

    async def main() -> None:
        async with Consumer(memory, ConsumerConfig(gc=False)) as consumer:
            read = list[int]()

            def check(outcome: Outcome[list[BatchDescriptor]]) -> None:
                read.extend(entry.sequence for entry in outcome.answer or ())

            await cancel_at_each_suspension(lambda: consumer.next_descriptors_async(3), check)
            assert read == [0, 1, 2, 3, 4]

    run(main())


@pytest.mark.parametrize("twin", ["ack_async", "ack_through_async"])
def test_a_cancelled_ack_can_be_tried_again(run: Run, twin: str, memory: ObjectStore) -> None:
    fill(memory, 4)

    async def main() -> None:
        async with Consumer(memory, ConsumerConfig(gc=False)) as consumer:
            await consumer.next_descriptors_async(4)
            acked = -1

            def check(outcome: Outcome[None]) -> None:
                nonlocal acked
                assert outcome.was_cancelled or outcome.error is None
                assert consumer.last_acked_sequence in {None if acked < 0 else acked, acked + 1}
                acked += not outcome.was_cancelled

            await cancel_at_each_suspension(lambda: getattr(consumer, twin)(acked + 1), check)
            assert (acked, consumer.last_acked_sequence) == (1, 1)

    run(main())
    assert entries(memory) == [b"event 2", b"event 3"]


@pytest.mark.parametrize("twin", ["flush_async", "close_async"])
def test_a_cancelled_flush_or_close_leaves_everything_on_its_way(run: Run, twin: str, memory: ObjectStore) -> None:
    async def main() -> None:
        produced = 0
        opened = list[Producer]()

        async def produce_and_end() -> None:
            nonlocal produced
            producer = Producer(memory, ProducerConfig(flush_interval=3600))
            opened.append(producer)
            await producer.produce_async(b"%d" % produced)
            produced += 1
            await getattr(producer, twin)()

        async def check(_: Outcome[None]) -> None:
            await opened.pop().close_async()

        await cancel_at_each_suspension(produce_and_end, check)
        assert entries(memory) == [b"%d" % number for number in range(produced)]

    run(main())


def test_a_cancelled_produce_that_waits_for_space_has_taken_nothing(run: Run, memory: ObjectStore) -> None:
    async def main() -> None:
        taken, number, hold = list[bytes](), 0, threading.Event()
        store = HookedStore(memory)
        store.before("write data", lambda: hold.wait(60))
        async with Producer(store, ProducerConfig(max_buffered_inputs=1)) as producer:

            async def produce() -> bytes:
                nonlocal number
                await producer.flush_async()
                hold.clear()
                await producer.produce_async(b"full")
                taken.append(b"full")
                number += 1
                asyncio.get_running_loop().call_later(0.001, hold.set)
                await producer.produce_async([b"%d" % number])
                return b"%d" % number

            async def check(outcome: Outcome[bytes]) -> None:
                hold.set()
                taken.extend([outcome.answer] if outcome.answer is not None else [])
                await producer.flush_async()
                assert entries(memory) == taken, outcome

            assert await cancel_at_each_suspension(produce, check) >= 4

    run(main())


def test_what_a_cancelled_open_has_opened_is_closed(run: Run, memory: ObjectStore) -> None:
    async def main() -> None:
        async def check(outcome: Outcome[Consumer]) -> None:
            if outcome.answer is not None:
                await outcome.answer.close_async()

        await cancel_at_each_suspension(lambda: Consumer.open_async(memory), check)

    run(main())
    join_threads("penstock-open", "penstock-close", "penstock-collector")


def test_a_cancelled_open_does_not_fence_one_that_was_opened_later(run: Run, memory: ObjectStore) -> None:
    fill(memory, 1)
    slow, has_read = HookedStore(memory), Gate()
    slow.after("read manifest", has_read, times=1)

    async def main() -> None:
        opening = asyncio.create_task(Consumer.open_async(slow))
        await asyncio.to_thread(has_read.wait_for_arrival)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        async with await Consumer.open_async(memory) as later:
            has_read.open()
            await asyncio.to_thread(join_threads, "penstock-open")
            assert [batch.sequence async for batch in later] == [0]

    run(main())


def join_threads(*names: str) -> None:
    for thread in threading.enumerate():
        if thread.name.startswith(names):
            thread.join(PATIENCE)
            assert not thread.is_alive(), thread


def test_a_consumer_that_follows_can_be_cancelled_at_any_await(run: Run, memory: ObjectStore) -> None:
    fill(memory, 4)

    async def main() -> None:
        async with Consumer(memory, ConsumerConfig(gc=False)) as consumer:
            read = list[int]()

            async def follow() -> None:
                async for batch in consumer.follow_async(timeout=0.001):
                    read.append(batch.sequence)

            await cancel_at_each_suspension(follow, lambda _: None)
            assert read == [0, 1, 2, 3]

    run(main())
