"""Buffers for a consumer to read: how tests fill them, and what they check afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from prometheus_client import REGISTRY

from penstock.buffer import (
    ConsumedBatch,
    Consumer,
    ConsumerConfig,
    Manifest,
    Metadata,
    Producer,
    ProducerConfig,
    Written,
)
from penstock.buffer.descriptors import BatchDescriptor, NewEntry
from penstock.buffer.manifest.queue import BufferQueue
from penstock.buffer.producer.pending_batch import Entries
from penstock.storage import ObjectStore
from tests.support import enqueuing

MANIFEST = "ingest/manifest"
PATIENCE = 60.0  # seconds until a wait counts as stuck

USES: dict[str, Callable[[Consumer], object]] = {
    "next_batch": lambda consumer: consumer.next_batch(),
    "next_descriptors": lambda consumer: consumer.next_descriptors(1),
    "ack_through": lambda consumer: consumer.ack_through(0),
    "flush": lambda consumer: consumer.flush(),
    "iteration": lambda consumer: next(iter(consumer)),
    "follow": lambda consumer: next(consumer.follow()),
}
"""Every call that raises `Fenced` on a fenced consumer."""


class Cursors(NamedTuple):
    """The three cursors of a consumer."""

    acked: int | None
    fetched: int | None
    handed_out: int | None


def no_gc() -> ConsumerConfig:
    """A consumer that does not collect."""
    return ConsumerConfig(gc=False)


def each_alone() -> ProducerConfig:
    """A producer that writes each call of `produce` as a batch of its own."""
    return ProducerConfig(flush_size_bytes=1)


def fill(
    store: ObjectStore,
    *batches: Entries,
    config: ProducerConfig | None = None,
    metadata: bytes = b"",
    clock: Callable[[], float] = time.time,
) -> list[Written]:
    """Produce batches, and return when all of them are enqueued."""
    with Producer(store, config or each_alone(), clock=clock) as producer:
        handles = [producer.produce(batch, metadata) for batch in batches]
        return [handle.result(PATIENCE) for handle in handles]


def queue_up(store: ObjectStore, count: int) -> None:
    """Enqueue `count` entries in one write, without data objects: for tests that read the manifest only."""
    entries = [NewEntry(f"ingest/no-data-{number}", (Metadata(0, 0),)) for number in range(count)]
    enqueue(store, entries)


def enqueue(store: ObjectStore, entries: Sequence[NewEntry]) -> None:
    """Enqueue entries as they are, in one write."""
    enqueuing.enqueue(BufferQueue(store, MANIFEST, "producer"), entries)


def consume(
    store: ObjectStore,
    last_acked_sequence: int | None = None,
    *,
    clock: Callable[[], float] = time.time,
    uptime: Callable[[], float] = time.monotonic,
) -> Consumer:
    """A consumer without a collector, which needs no close. It does not wait between its tries."""
    return Consumer(store, no_gc(), last_acked_sequence, clock=clock, uptime=uptime, queue=without_waits(store, clock))


def without_waits(store: ObjectStore, clock: Callable[[], float] = time.time) -> BufferQueue:
    """A queue that does not wait between its tries."""
    return BufferQueue(store, MANIFEST, "consumer", prefix="ingest", clock=clock, sleep=lambda _: None)


def kept(store: ObjectStore) -> list[int]:
    """The sequences in the manifest."""
    return sequences(Manifest.read(store).entries)


def epoch(store: ObjectStore) -> int:
    return Manifest.read(store).epoch


def sequences(entries: Iterable[BatchDescriptor | ConsumedBatch]) -> list[int]:
    return [entry.sequence for entry in entries]


def cursors(consumer: Consumer) -> Cursors:
    return Cursors(consumer.last_acked_sequence, consumer.last_fetched_sequence, consumer.last_handed_out_sequence)


def read(consumer: Consumer) -> ConsumedBatch:
    """The next batch, which is there."""
    batch = consumer.next_batch()
    assert batch is not None
    return batch


def metric(name: str, buffer: str, **labels: str) -> float | None:
    """The value of a buffer's metric, as Prometheus reads it; None where there is none."""
    # Of this one metric only: the registry has the metrics of the stores of all tests.
    whole, wanted = f"penstock_buffer_{name}", {"buffer": buffer, **labels}
    families = REGISTRY.restricted_registry([whole]).collect()
    found = [sample.value for family in families for sample in family.samples if sample.labels == wanted]
    return found[0] if found else None
