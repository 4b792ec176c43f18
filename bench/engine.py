"""The engine on this machine's disk, synced, with events of about 60 bytes.

Pass-through stands beside what one would write without it: a loop over batches with a consumer and a producer, and
a loop over records. None of those leases memory, routes dead letters, or knows how large a block may be.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bench.buffer import events
from bench.side_by_side import ROUNDS, Contest, show
from penstock import Consumer, ConsumerConfig, DurableEventQueue, Producer, ProducerConfig, metrics
from penstock.engine import BatchEngine, BufferReceiver, BufferSender, SelfRegulation, WorkBatch, ship

MANY = 3_000_000
BACKLOG = 9_000_000
FEW = 300_000
LIST = 1000
NO_GC = ConsumerConfig(gc=False)

Source = Callable[[int], Path]


def passed_through(root: Path, source: Source, regulation: SelfRegulation | None) -> Callable[[int], None]:
    def work(size: int) -> None:
        with (
            Consumer(source(size), NO_GC) as consumer,
            BufferReceiver(consumer) as receiver,
            BufferSender(_fresh(root)) as sender,
        ):
            stats = BatchEngine(regulation=regulation).run(receiver, lambda batch: batch, sender.send, until_idle=True)
        assert stats.processed == size

    return work


def passed_through_async(root: Path, source: Source, regulation: SelfRegulation | None) -> Callable[[int], None]:
    def work(size: int) -> None:
        with (
            Consumer(source(size), NO_GC) as consumer,
            BufferReceiver(consumer) as receiver,
            BufferSender(_fresh(root)) as sender,
        ):
            engine = BatchEngine(regulation=regulation)
            stats = asyncio.run(engine.run_async(receiver, lambda batch: batch, sender.send, until_idle=True))
        assert stats.processed == size

    return work


def moved_by_hand(root: Path, source: Source) -> Callable[[int], None]:
    """A batch at a time, acked when it is durable."""

    def work(size: int) -> None:
        rows = 0
        with Consumer(source(size), NO_GC) as consumer, Producer(_fresh(root)) as producer:
            for batch in consumer:
                handle = producer.produce(batch.arrow)
                producer.flush()
                handle.result()
                consumer.ack_through(batch.sequence)
                rows += batch.arrow.num_rows
        assert rows == size

    return work


def moved_record_by_record(root: Path, source: Source) -> Callable[[int], None]:
    def work(size: int) -> None:
        rows = 0
        with Consumer(source(size), NO_GC) as consumer, Producer(_fresh(root)) as producer:
            for batch in consumer:
                for value in batch.entries:
                    producer.produce(value)
                    rows += 1
                producer.flush()
                consumer.ack_through(batch.sequence)
        assert rows == size

    return work


def drained(source: Source, regulation: SelfRegulation | None, budgets: list[float]) -> Callable[[int], None]:
    def work(size: int) -> None:
        rows = 0

        def count(batch: WorkBatch) -> None:
            nonlocal rows
            rows += len(batch)

        with Consumer(source(size), NO_GC) as consumer, BufferReceiver(consumer) as receiver:
            BatchEngine(regulation=regulation).run(receiver, work_on, count, until_idle=True)
        assert rows == size
        budgets.append(metrics.byte_budget._value.get())

    return work


def work_on(batch: WorkBatch) -> WorkBatch:
    """Some work in columns: cut a number out of each payload, and put a new payload together."""
    texts = batch.arrow.column("value").cast(pa.string())
    users = pc.utf8_slice_codeunits(texts, 9, 17).cast(pa.int64())
    pages = pc.replace_substring(texts, "/products/", "/p/")
    join: Any = pc.binary_join_element_wise  # its stub knows no scalars among columns
    values = join(pc.add(users, 1).cast(pa.string()), pages, " ").cast(pa.binary())
    return WorkBatch(pa.RecordBatch.from_arrays([values], ["value"]), batch.commit_tokens)


def shipped(root: Path, queues: Iterator[Path]) -> Callable[[int], None]:
    def work(size: int) -> None:
        assert ship(next(queues), _fresh(root), until_idle=True).processed == size

    return work


def popped_and_produced(root: Path, queues: Iterator[Path]) -> Callable[[int], None]:
    """What an application's own thread would do: take some, produce them, wait, ack them."""

    def work(size: int) -> None:
        rows = 0
        with DurableEventQueue(next(queues)) as queue, Producer(_fresh(root)) as producer:
            while popped := [event for event in (queue.pop() for _ in range(100 * LIST)) if event is not None]:
                producer.produce([event.event for event in popped])
                producer.flush()
                queue.ack_many([event.id for event in popped])
                rows += len(popped)
        assert rows == size

    return work


def _fresh(root: Path) -> Path:
    """A new directory for each round; all of them are removed at the end."""
    return Path(tempfile.mkdtemp(dir=root))


def _sources(root: Path, lists: list[list[bytes]], sizes: list[int], flush_size_bytes: int) -> Source:
    """Buffers by the number of their events. Each round gets a copy: links to the data, and a manifest of its own."""
    sources = {}
    for size in sizes:
        sources[size] = _fresh(root)
        with Producer(sources[size], ProducerConfig(flush_size_bytes=flush_size_bytes)) as producer:
            for number in range(size // LIST):
                producer.produce(lists[number % len(lists)])

    def copy_or_link(old: str, new: str) -> None:
        shutil.copy(old, new) if "manifest" in old else os.link(old, new)

    return lambda size: Path(shutil.copytree(sources[size], _fresh(root) / "source", copy_function=copy_or_link))


def _full_queues(root: Path, lists: list[list[bytes]], size: int, count: int) -> Iterator[Path]:
    places = [_fresh(root) / "queue" for _ in range(count)]
    for place in places:
        with DurableEventQueue(place) as queue:
            for number in range(size // LIST):
                queue.push_many(lists[number % len(lists)])
    return iter(places)


def run() -> None:
    lists = [events(LIST) for _ in range(50)]
    budgets: list[float] = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        root = Path(name)
        source = _sources(root, lists, [MANY, FEW], 64 << 20)
        small_batches = _sources(root, lists, [BACKLOG], 4 << 20)
        contests = [
            Contest(
                "pass through, buffer to buffer",
                MANY,
                {
                    "Penstock": passed_through(root, source, SelfRegulation()),
                    "Penstock, run_async": passed_through_async(root, source, SelfRegulation()),
                    "Penstock, not regulated": passed_through(root, source, None),
                    "a loop over batches": moved_by_hand(root, source),
                    "a loop over records": moved_record_by_record(root, source),
                },
                " events/s",
                fewer={"a loop over records": FEW},
            ),
            Contest(
                "work off a backlog, in columns",
                BACKLOG,
                {
                    "Penstock": drained(small_batches, SelfRegulation(), budgets),
                    "Penstock, not regulated": drained(small_batches, None, []),
                },
                " events/s",
            ),
            Contest(
                "ship, queue to buffer",
                FEW,
                {
                    "Penstock": shipped(root, _full_queues(root, lists, FEW, ROUNDS + 1)),
                    "pop, produce, ack": popped_and_produced(root, _full_queues(root, lists, FEW, ROUNDS + 1)),
                },
                " events/s",
            ),
        ]
        show("The engine, on a local disk, synced", contests)
    print(f"The budget at the end of a backlog: {budgets[-1] / (1 << 20):.0f} MiB")
