"""The loop runs while a store is slow: its longest gap, with a store that takes 2 s for a request."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
from collections.abc import Iterator

import pytest

from penstock import Consumer, ConsumerConfig, ObjectStore, Producer, ProducerConfig
from tests.support.buffer_contents import entries
from tests.support.hooked_store import HookedStore, Step
from tests.support.loop_gap import LONGEST_GAP_SECONDS, SLOW_SECONDS, LoopGap, all_of

MANIFESTS = ("native",)  # waiting for a store is the same on both versions


@pytest.fixture(autouse=True)
def nothing_else_to_collect() -> Iterator[None]:
    """The garbage collector looks at what a test makes, and not at all that the suite has in memory."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def slow(store: ObjectStore, *steps: Step, skip: int = 0) -> HookedStore:
    """A store whose first request of each of these kinds takes long."""
    hooked = HookedStore(store)
    for step in steps:
        hooked.before(step, lambda: threading.Event().wait(SLOW_SECONDS), skip=skip, times=1)
    return hooked


def test_five_thousand_produces_wait_for_a_full_buffer_while_the_loop_runs(memory: ObjectStore) -> None:

    async def main() -> None:
        store, tasks = slow(memory, "write data", skip=1), list[asyncio.Task[None]]()
        async with await Producer.open_async(store, ProducerConfig(max_buffered_inputs=1500)) as producer:

            async def produce(number: int) -> None:
                await (await producer.produce_async(b"%d" % number))

            await (await producer.produce_async(b"-1"))  # what is loaded when it is used first is loaded
            async with LoopGap() as gap:
                for number in range(5000):
                    tasks.append(asyncio.ensure_future(produce(number)))
                    if not number % 100:
                        await asyncio.sleep(0)  # to create so many tasks takes time too
                for task in tasks:
                    await task
            assert gap.longest < LONGEST_GAP_SECONDS
        assert sorted(entries(memory), key=int) == [b"%d" % number for number in range(-1, 5000)]

    asyncio.run(main())


@pytest.mark.slow
def test_a_consumer_of_a_slow_store_lets_the_loop_run(memory: ObjectStore) -> None:
    with Producer(memory) as producer:
        producer.produce(b"event")

    async def main() -> None:
        store = slow(memory, "read data", "write manifest")
        async with LoopGap() as gap:
            consumer = await Consumer.open_async(store, ConsumerConfig(gc=False))
            async with consumer:
                batch = await consumer.next_batch_async()
                assert batch is not None
                await batch.ack_async()
        assert gap.longest < LONGEST_GAP_SECONDS

    asyncio.run(main())
    assert entries(memory) == []


@pytest.mark.usefixtures("quiet_collector")
def test_thousands_that_are_cancelled_while_they_wait_for_a_full_buffer_let_the_loop_run(memory: ObjectStore) -> None:
    async def main() -> None:
        store, tasks = HookedStore(memory), list[asyncio.Task[object]]()
        gate = threading.Event()
        store.before("write data", lambda: gate.wait(60))
        async with await Producer.open_async(store, ProducerConfig(max_buffered_inputs=1)) as producer:
            await producer.produce_async(b"x")
            for number in range(5000):
                tasks.append(asyncio.ensure_future(producer.produce_async(b"never taken")))
                if not number % 100:
                    await asyncio.sleep(0)
            for _ in range(5000 // 256 + 5):
                await asyncio.sleep(0)
            random.Random(1).shuffle(tasks)
            async with LoopGap() as gap:
                for number, task in enumerate(tasks):
                    task.cancel()
                    if not number % 100:
                        await asyncio.sleep(0)
                await asyncio.wait(tasks)
            gate.set()
        assert gap.longest < LONGEST_GAP_SECONDS
        assert all(task.cancelled() for task in tasks)
        assert entries(memory) == [b"x"]

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.usefixtures("quiet_collector")
def test_thousands_of_reads_and_acks_let_the_loop_run(memory: ObjectStore) -> None:
    count = 500  # batches, each of which several tasks ask for
    with Producer(memory, ProducerConfig(flush_size_bytes=1)) as producer:
        for number in range(count):
            producer.produce(b"%d" % number)

    async def main() -> None:
        store, read = slow(memory, "read data", "write manifest"), list[int]()
        async with await Consumer.open_async(store, ConsumerConfig(gc=False)) as consumer:

            async def read_one(_: int) -> None:
                batch = await consumer.next_batch_async()
                read.extend([] if batch is None else [batch.sequence])

            async with LoopGap() as gap:
                await all_of(read_one, 5000)
                await all_of(consumer.ack_async, count)
                await consumer.flush_async()
        assert gap.longest < LONGEST_GAP_SECONDS
        assert read == list(range(count))

    asyncio.run(main())
    assert entries(memory) == []
