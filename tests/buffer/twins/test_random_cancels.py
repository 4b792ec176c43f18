"""Tasks are cancelled at random: what is in the buffer, the queue and the log is what the calls reported.

A call that was cancelled may have happened where its contract allows it; one that returned has, and none twice.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from penstock import Consumer, ConsumerConfig, DurableEventQueue, EventQueue, ObjectStore, Producer, ProducerConfig
from penstock.metalog import InProcessMetadataLog, ObjectMetadataLog, PartitionStart
from penstock.storage import open_store
from tests.support.buffer_contents import entries
from tests.support.hooked_store import HookedStore
from tests.support.processes import PATIENCE
from tests.support.waiting import Background

MANIFESTS = ("native",)  # the twins are the same on both versions
NO_COLLECTOR = ConsumerConfig(gc=False)


class Chaos:
    """Runs calls as tasks, and cancels some: after some turns or some time, once or twice, alone or in a group."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.counts = Counter[str]()

    async def run(self, make: Callable[[int], Coroutine[Any, Any, object]], count: int, *, share: float = 0.5) -> None:
        """Run so many, and cancel about this share of them. Raises what one of them raised by itself."""
        numbers = list(range(count))
        while numbers:
            some = [numbers.pop(0) for _ in range(min(len(numbers), self.dice.randrange(1, 20)))]
            tasks = [asyncio.ensure_future(self._one(make, number, share)) for number in some]
            for _ in range(self.dice.randrange(3)):
                await asyncio.sleep(0)
            for task in self.dice.sample(tasks, len(tasks)):
                if self.dice.random() < share / 2:
                    task.cancel()
                    if self.dice.random() < 0.3:
                        await asyncio.sleep(0)
                        task.cancel()
            done, _ = await asyncio.wait(tasks, timeout=PATIENCE)
            assert len(done) == len(tasks), f"these tasks hang: {[task for task in tasks if not task.done()]}"
            for task in tasks:
                if not task.cancelled():
                    task.result()
                self.counts["cancelled" if task.cancelled() else "ended"] += 1
        behind = asyncio.all_tasks() - {asyncio.current_task()}
        assert not behind

    async def _one(self, make: Callable[[int], Coroutine[Any, Any, object]], number: int, share: float) -> None:
        try:
            if self.dice.random() > share / 2:
                await make(number)
                return
            seconds = self.dice.choice((0, 0.0001, 0.001, 0.003))
            if self.dice.random() < 0.5:
                async with asyncio.timeout(seconds):
                    await make(number)
            else:
                await asyncio.wait_for(make(number), seconds)
        except TimeoutError:
            self.counts["timed out"] += 1

    def delay(self) -> None:
        """Take up to 2 ms, as a store does."""
        if self.dice.random() < 0.3:
            time.sleep(self.dice.random() * 0.002)


def slow(store: ObjectStore, chaos: Chaos) -> HookedStore:
    hooked = HookedStore(store)
    for step in ("write data", "read data", "read manifest", "write manifest"):
        hooked.before(step, chaos.delay)
    return hooked


async def produce_and_compare(chaos: Chaos, store: ObjectStore, folder: Path) -> None:
    taken = Counter[bytes]()
    config = ProducerConfig(max_buffered_inputs=chaos.dice.randrange(1, 20), flush_interval=0.001)
    async with Producer(slow(store, chaos), config) as producer:

        async def produce(number: int) -> None:
            event = b"%d" % number
            handle = await producer.produce_async(event if number % 2 else [event])
            taken[event] += 1
            await (producer.flush_async() if chaos.dice.random() < 0.1 else handle)

        def produce_in_thread() -> None:
            for number in range(20):
                producer.produce(b"thread %d" % number)

        thread = Background(produce_in_thread)
        await chaos.run(produce, 200)
        await asyncio.to_thread(thread.result)
        await producer.produce_async(b"last", timeout=PATIENCE)  # no space has leaked
    assert Counter(entries(store)) == taken + Counter([b"last", *(b"thread %d" % number for number in range(20))])


async def consume_and_compare(chaos: Chaos, store: ObjectStore, folder: Path) -> None:
    count = 60
    with Producer(store, ProducerConfig(flush_size_bytes=1)) as producer:
        for number in range(count):
            producer.produce(b"%d" % number)
    read, acked = list[int](), -1
    async with Consumer(slow(store, chaos), NO_COLLECTOR) as consumer:

        async def consume(_: int) -> None:
            way = chaos.dice.randrange(4)
            if way == 0:
                read.extend(one.sequence for one in await consumer.next_descriptors_async(chaos.dice.randrange(1, 4)))
            elif way == 1:
                async for batch in consumer.follow_async(timeout=0.0):
                    read.append(batch.sequence)
                    if chaos.dice.random() < 0.5:
                        break
            else:
                found = await consumer.next_batch_async()
                read.extend([] if found is None else [found.sequence])

        async def ack(_: int) -> None:
            nonlocal acked
            async with one_at_a_time:
                if acked + 1 in read and len(read) > acked + 1:
                    way = consumer.ack_async if chaos.dice.random() < 0.7 else consumer.ack_through_async
                    if set(range(acked + 2)) <= set(read):
                        await way(acked + 1)
                        acked += 1

        one_at_a_time = asyncio.Lock()
        while len(read) < count:
            await chaos.run(consume, 20)
            await chaos.run(ack, 20)
            if chaos.dice.random() < 0.1 and len(read) == acked + 1:
                consumer.rewind()
        while acked < count - 1:
            await chaos.run(ack, 20)
    assert sorted(read) == list(range(count))
    assert entries(store) == []


async def queue_and_compare(chaos: Chaos, store: ObjectStore, folder: Path) -> None:
    pushed, polled, count = set[bytes](), Counter[bytes](), 150
    opened: DurableEventQueue[bytes] = await DurableEventQueue.open_async(folder / "queue")
    async with opened as queue:

        async def push(number: int) -> None:
            event = b"%d" % number
            await (queue.push_async(event) if number % 2 else queue.push_many_async([event]))
            pushed.add(event)

        async def poll(_: int) -> None:
            if chaos.dice.random() < 0.5:
                event = await queue.poll_async(chaos.dice.choice((0, 0.001, 0.01)))
                found = [] if event is None else [event]
            else:
                found = await queue.poll_bytes_async(chaos.dice.randrange(1, 5), timeout=0.001)
            polled.update(one.event for one in found)
            waiting.extend(one.id for one in found)

        async def ack(_: int) -> None:
            if waiting:
                ids = chaos.dice.sample(waiting, 1)
                await (queue.ack_many_async(ids) if chaos.dice.random() < 0.5 else queue.ack_async(ids[0]))
                waiting.remove(ids[0]) if ids[0] in waiting else None

        waiting = list[int]()
        await asyncio.gather(chaos_of(chaos, push, count), chaos_of(chaos, poll, count))
        await queue.push_async(b"last")  # after what a cancelled push may still write
        while found := await queue.poll_async(0.05):
            polled[found.event] += 1
            waiting.append(found.id)
        await chaos.run(ack, count)
        while waiting:
            await queue.ack_async(waiting.pop())
        assert await asyncio.to_thread(len, queue) == 0
    assert set(polled.values()) == {1}
    assert pushed | {b"last"} <= polled.keys() <= {b"last", *(b"%d" % number for number in range(count))}


async def chaos_of(chaos: Chaos, make: Callable[[int], Coroutine[Any, Any, object]], count: int) -> None:
    """Chaos beside another one: what is left behind is checked afterwards."""
    beside = Chaos(chaos.dice.randrange(1 << 30))
    others = asyncio.all_tasks()
    tasks = [asyncio.ensure_future(make(number)) for number in range(count)]
    for task in beside.dice.sample(tasks, count):
        if beside.dice.random() < 0.5:
            await asyncio.sleep(beside.dice.choice((0, 0, 0, 0.0005)))
            task.cancel()
    await asyncio.wait(tasks, timeout=PATIENCE)
    assert all(task.done() for task in tasks)
    assert not set(tasks) & (asyncio.all_tasks() - others)
    for task in tasks:
        if not task.cancelled():
            task.result()
        chaos.counts["cancelled" if task.cancelled() else "ended"] += 1


async def memory_and_compare(chaos: Chaos, store: ObjectStore, folder: Path) -> None:
    pushed, polled, count = Counter[int](), Counter[int](), 300
    queue = EventQueue[int](maxsize=chaos.dice.choice((1, 3, 1000)))

    async def push(number: int) -> None:
        await queue.push_async(number, chaos.dice.choice((None, PATIENCE)))
        pushed[number] += 1

    async def poll(_: int) -> None:
        found = await queue.poll_async(chaos.dice.choice((0, 0.001, 0.05)))
        polled.update([] if found is None else [found])

    async def drain() -> None:
        while not pushing.done() or not queue.is_empty:
            await poll(0)

    pushing = asyncio.ensure_future(chaos_of(chaos, push, count))
    await chaos_of(chaos, poll, count // 2)
    await asyncio.wait_for(drain(), PATIENCE)
    await pushing
    assert polled == pushed


async def log_and_compare(chaos: Chaos, store: ObjectStore, folder: Path) -> None:
    published, read, count = dict[int, bytes](), list[tuple[int, bytes]](), 100
    opened = InProcessMetadataLog(1) if chaos.dice.random() < 0.3 else ObjectMetadataLog(store, 1, poll_interval=0.001)
    async with opened as log:
        with log.subscribe([PartitionStart(0)]) as records:

            async def publish(number: int) -> None:
                payload = b"%d" % number
                published[await log.publish_async(0, payload)] = payload

            async def poll(_: int) -> None:
                record = await records.poll_async(chaos.dice.choice((0, 0.001, 0.02)))
                read.extend([] if record is None else [(record.offset, record.payload)])

            await asyncio.gather(chaos_of(chaos, publish, count), chaos_of(chaos, poll, count))
            await publish(count)
            (end,) = await log.high_water_marks_async()
            while len(read) < end:
                await chaos.run(poll, 10)
    assert [offset for offset, _ in read] == list(range(end))
    assert len({payload for _, payload in read}) == end
    assert published.items() <= set(read)


ALL = [produce_and_compare, consume_and_compare, queue_and_compare, memory_and_compare, log_and_compare]


@pytest.mark.parametrize(
    ("rounds", "seed"),
    [(2, 1), pytest.param(20, 2, marks=pytest.mark.slow), pytest.param(600, 3, marks=pytest.mark.chaos)],
)
@pytest.mark.parametrize("compare", ALL)
@pytest.mark.timeout(1800)
def test_what_is_there_is_what_calls_reported_however_they_are_cancelled(
    compare: Callable[[Chaos, ObjectStore, Path], Coroutine[Any, Any, None]],
    rounds: int,
    seed: int,
    fresh_name: str,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    counts = Counter[str]()
    for number in range(rounds):
        chaos = Chaos(1000 * seed + number)
        folder = tmp_path / str(number)
        folder.mkdir()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop if number % 2 else None) as runner:
            runner.run(compare(chaos, open_store(f"memory://{fresh_name}-{number}"), folder))
        counts += chaos.counts
    assert counts["cancelled"]
    record_property("calls", dict(counts))
