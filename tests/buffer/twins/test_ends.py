"""Loops that end, coroutines that are dropped, forks and several loops: nothing waits for what never goes on."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
import tracemalloc
from collections.abc import Coroutine
from typing import Any

import pytest

from penstock import Consumer, ConsumerConfig, DurableEventQueue, EventQueue, ObjectStore, Producer, ProducerConfig
from penstock.errors import InvalidInput
from penstock.metalog import InProcessMetadataLog, PartitionStart
from tests.buffer.twins.conftest import Run, fill
from tests.support.buffer_contents import entries
from tests.support.hooked_store import HookedStore
from tests.support.processes import PATIENCE
from tests.support.waiting import Background, Gate

NO_COLLECTOR = ConsumerConfig(gc=False)
ONE_CALL = ProducerConfig(max_buffered_inputs=1)


def leave_waiting(waiting: Coroutine[Any, Any, object]) -> asyncio.Task[object]:
    """Begin something on a loop, until it waits, and close the loop."""
    loop = asyncio.new_event_loop()

    async def begin() -> asyncio.Task[object]:
        task = asyncio.ensure_future(waiting)
        for _ in range(5):
            await asyncio.sleep(0)
        return task

    task = loop.run_until_complete(begin())
    loop.close()
    assert not task.done()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    return task


def test_a_call_on_a_loop_that_is_closed_is_not_waited_for_by_those_behind_it(memory: ObjectStore) -> None:
    store, gate = HookedStore(memory), Gate()
    store.before("write data", gate)
    with Producer(store, ONE_CALL) as producer:
        producer.produce(b"first")
        gate.wait_for_arrival()
        left = leave_waiting(producer.produce_async(b"never taken"))
        gate.open()
        producer.produce(b"second", timeout=PATIENCE)
        assert not left.done()
    assert entries(memory) == [b"first", b"second"]


def test_a_call_that_is_collected_while_the_producer_is_busy_does_not_wait_for_it(memory: ObjectStore) -> None:
    collects = list[bool]()

    def clock() -> float:  # called in the middle of a call
        if collects:
            collects.clear()
            gc.collect()
        return time.time()

    store, gate = HookedStore(memory), Gate()
    store.before("write data", gate)
    with Producer(store, ONE_CALL, clock=clock) as producer:
        handle = producer.produce(b"first")
        gate.wait_for_arrival()
        gc.disable()
        try:
            leave_waiting(producer.produce_async(b"never taken"))
            gate.open()
            handle.result()
            collects.append(True)
            Background(producer.produce, [b"second"], b"", PATIENCE).result()
            assert not collects
        finally:
            gc.enable()
    assert entries(memory) == [b"first", b"second"]


def test_an_event_goes_past_a_poll_on_a_loop_that_is_closed() -> None:
    queue = EventQueue[str]()
    left = leave_waiting(queue.poll_async(None))
    polling = Background(queue.poll, None)
    while not polling.has_ended_within(0.01):
        if queue.is_empty:
            queue.push("event")
    assert polling.result() == "event"
    assert not left.done()


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_a_coroutine_that_is_never_awaited_has_taken_nothing(memory: ObjectStore) -> None:
    with Producer(memory, ONE_CALL) as producer:
        for _ in range(100):
            _ = producer.produce_async(b"never taken")
            del _
        producer.produce(b"taken", timeout=PATIENCE)
    with Consumer(memory, NO_COLLECTOR) as consumer:
        _ = consumer.next_batch_async()
        del _
        gc.collect()
        assert [batch.entries for batch in consumer] == [[b"taken"]]


def test_a_handle_is_awaited_by_many_twice_and_on_a_later_loop(run: Run, memory: ObjectStore) -> None:
    store, gate = HookedStore(memory), Gate()
    store.before("write data", gate, times=1)
    with Producer(store) as producer:

        async def produce() -> None:
            handles.append(await producer.produce_async(b"x"))
            early = [asyncio.ensure_future(_of(handles[0])) for _ in range(10)]
            await asyncio.sleep(0)
            for task in early:
                task.cancel()

        async def wait() -> None:
            asyncio.get_running_loop().call_later(0.01, gate.open)
            assert {one.sequence for one in await asyncio.gather(*(_of(handles[0]) for _ in range(100)))} == {0}
            assert (await handles[0]).sequence == 0

        handles = list[Any]()
        run(produce())
        run(wait())
        run(wait())


async def _of(handle: Any) -> Any:
    return await handle


@pytest.mark.slow
def test_a_handle_that_is_polled_keeps_nothing_of_each_poll(run: Run, memory: ObjectStore) -> None:
    store, gate = HookedStore(memory), Gate()
    store.before("write data", gate, times=1)

    async def main() -> None:
        async with Producer(store) as producer:
            handle = await producer.produce_async(b"x")
            for polls in (100, 2000):
                before = tracemalloc.get_traced_memory()[0]
                for _ in range(polls):
                    polling = asyncio.ensure_future(_of(handle))
                    await asyncio.sleep(0)
                    polling.cancel()
                    await asyncio.wait([polling])
                del polling
                gc.collect()
                grown = tracemalloc.get_traced_memory()[0] - before
            gate.open()
            assert grown < 100_000

    tracemalloc.start()
    try:
        run(main())
    finally:
        tracemalloc.stop()


def test_two_loops_and_a_thread_share_one_of_each(memory: ObjectStore, tmp_path: Any) -> None:
    count = 200
    in_memory = EventQueue[int](maxsize=5)
    with (
        Producer(memory, ProducerConfig(max_buffered_inputs=5, flush_interval=0.001)) as producer,
        DurableEventQueue(tmp_path / "queue") as queue,
        InProcessMetadataLog(1) as log,
        log.subscribe([PartitionStart(0)]) as records,
    ):

        async def work(name: str) -> list[Any]:
            found = list[Any]()
            for number in range(count):
                event = f"{name} {number}".encode()
                await producer.produce_async(event)
                await queue.push_async(event)
                await in_memory.push_async(number)
                await log.publish_async(0, event)
                found.append(await in_memory.poll_async(PATIENCE))
                popped = await queue.poll_async(PATIENCE)
                record = await records.poll_async(PATIENCE)
                assert popped is not None
                assert record is not None
                found += [popped.event, record.payload]
                await queue.ack_async(popped.id)
            return found

        def block() -> list[Any]:
            found = list[Any]()
            for number in range(count):
                event = b"thread %d" % number
                producer.produce(event)
                queue.push(event)
                in_memory.push(number)
                log.publish(0, event)
                popped, record = queue.poll(PATIENCE), records.poll(PATIENCE)
                assert popped is not None
                assert record is not None
                found += [in_memory.poll(PATIENCE), popped.event, record.payload]
                queue.ack(popped.id)
            return found

        working = [Background(lambda name=name: asyncio.run(work(name))) for name in ("one", "two")]  # type: ignore[misc]
        found = block() + [one for thread in working for one in thread.result()]
        every = sorted(f"{name} {number}".encode() for name in ("one", "two", "thread") for number in range(count))
        assert sorted(one for one in found if isinstance(one, int)) == sorted([*range(count)] * 3)
        assert sorted(one for one in found if isinstance(one, bytes)) == sorted(every * 2)
        assert queue.is_empty
    assert sorted(entries(memory)) == every

    with Producer(memory, ProducerConfig(flush_size_bytes=1)) as producer:
        for number in range(150):
            producer.produce(b"%d" % number)
    with Consumer(memory, NO_COLLECTOR) as consumer:
        begin = consumer.next_descriptors(consumer.next_sequence - 150)[-1].sequence + 1
        seen = list[int]()

        async def read_some() -> None:
            for _ in range(50):
                batch = await consumer.next_batch_async()
                assert batch is not None
                seen.append(batch.sequence)

        reading = [Background(lambda: asyncio.run(read_some())) for _ in range(2)]
        for _ in range(50):
            batch = consumer.next_batch()
            assert batch is not None
            seen.append(batch.sequence)
        for one in reading:
            one.result()
        assert sorted(seen) == [*range(begin, begin + 150)]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_that_is_forked_by_a_running_loop_is_told_what_to_do(memory: ObjectStore, tmp_path: Any) -> None:
    fill(memory, 1)

    async def main() -> int:
        async with (
            Producer(memory) as producer,
            Consumer(memory, NO_COLLECTOR) as consumer,
            DurableEventQueue(tmp_path / "queue") as queue,
            InProcessMetadataLog(1) as log,
            log.subscribe([PartitionStart(0)]) as records,
        ):
            in_memory = EventQueue[int]()
            handle = await producer.produce_async(b"x")
            waiting = [
                asyncio.ensure_future(one)
                for one in (queue.poll_async(None), records.poll_async(None), in_memory.poll_async(None))
            ]
            await asyncio.sleep(0.01)
            calls = (
                lambda: producer.produce_async(b"y"),
                producer.flush_async,
                consumer.next_batch_async,
                lambda: consumer.ack_async(0),
                consumer.flush_async,
                lambda: queue.push_async(b"y"),
                queue.poll_async,
                lambda: queue.ack_async(0),
                lambda: queue.nack_async(0),
                lambda: log.publish_async(0, b"y"),
                log.high_water_marks_async,
                records.poll_async,
                in_memory.poll_async,
                lambda: in_memory.push_async(1),
                lambda: _of(handle),
            )
            child = os.fork()
            if not child:
                refused = 0
                for call in calls:
                    try:
                        asyncio.run(asyncio.wait_for(call(), 10))
                    except InvalidInput:
                        refused += 1
                    except BaseException as error:
                        sys.stderr.write(f"{error!r}\n")
                os._exit(len(calls) - refused)
            status = await asyncio.to_thread(os.waitpid, child, 0)
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)
            return os.waitstatus_to_exitcode(status[1])

    assert asyncio.run(main()) == 0
    assert entries(memory) == [b"event 0", b"x"]
