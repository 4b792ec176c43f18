"""Mutants of the rules of version 1 that lose data, which the simulation must find."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from ulid import ULID

from penstock.buffer import ConsumerConfig, GarbageCollector, GcReport, Written
from penstock.buffer.descriptors import NewEntry
from penstock.buffer.manifest.queue import BufferQueue
from penstock.buffer.manifest.state import Enqueued, InTime, QueueManifest, QueueView, Rewrite
from penstock.buffer.producer.pending_batch import PendingBatch
from penstock.storage import ObjectMeta, ObjectStore
from tests.buffer.collector.conditions import DEADLINE, GRACE
from tests.buffer.collector.simulation import Clock, Rules, ThreadlessProducer
from tests.support.dated_buffer import never_again


class _WithClock(GarbageCollector):
    """A collector that goes by the clock of its host."""

    def __init__(self, store: ObjectStore, config: ConsumerConfig, clock: Clock) -> None:
        super().__init__(store, config, clock=clock)

    def _is_old(self, meta: ObjectMeta, view: QueueView) -> bool:
        return self._written_at(meta) <= self._clock() - self._config.gc_grace_period

    def _written_at(self, meta: ObjectMeta) -> float:
        raise NotImplementedError


class UlidOlderThanGrace(_WithClock):
    """Deletes what is not referenced and has a ULID older than the grace period."""

    def _written_at(self, meta: ObjectMeta) -> float:
        name = meta.path.rpartition("/")[2].removesuffix(".batch")
        return ULID.from_str(name).milliseconds / 1000


class AgainstTheHostsClock(_WithClock):
    """Compares the object's time with the host's clock, and not with the manifest's time."""

    def _written_at(self, meta: ObjectMeta) -> float:
        return meta.last_modified.timestamp()


class ManifestBeforeListing(GarbageCollector):
    """Reads the manifest first, and lists the objects then."""

    def __init__(self, store: ObjectStore, config: ConsumerConfig, _: Clock) -> None:
        super().__init__(store, config)

    def collect_once(self, *, budget: float | None = None, dry_run: bool = False) -> GcReport:
        """Read the manifest, and run a cycle that does not read it again."""
        queue = self._queue
        self._queue = cast(BufferQueue, _AsItWas(queue, queue.look()))
        try:
            return super().collect_once(budget=budget, dry_run=dry_run)
        finally:
            self._queue = queue


class _AsItWas:
    def __init__(self, queue: BufferQueue, view: QueueView) -> None:
        self.own_prefix = queue.own_prefix
        self._view = view

    def look(self) -> QueueView:
        return self._view


class ChecksBeforeReading(ThreadlessProducer):
    """Checks the deadline before it reads the manifest, and not after."""

    def _enqueue(self, run: list[PendingBatch]) -> None:
        now = self._uptime()
        for batch in run:
            if now >= batch.deadline:
                self._fail(batch, self._too_late(batch.entry()))
        batches = {batch.location: batch for batch in run if now < batch.deadline}
        if not batches:
            return
        enqueued = self._queue.enqueue([batch.entry() for batch in batches.values()], _always_in_time, never_again)
        for location, sequence in enqueued.sequences.items():
            self._succeed(batches[location], Written(sequence, location))


class ChecksOnlyOnce(ThreadlessProducer):
    """Checks the deadline after the first read of the manifest, and not after the next ones."""

    def _enqueue(self, run: list[PendingBatch]) -> None:
        real = self._queue
        self._queue = cast(QueueManifest, _OneCheck(real))
        try:
            super()._enqueue(run)
        finally:
            self._queue = real


class _OneCheck:
    def __init__(self, queue: QueueManifest) -> None:
        self._queue = queue

    def enqueue(self, entries: Sequence[NewEntry], in_time: InTime, rewrite: Rewrite) -> Enqueued:
        checks = iter([in_time])
        return self._queue.enqueue(entries, lambda some: next(checks, _always_in_time)(some), rewrite)


class CountsFromAfterTheWrite(ThreadlessProducer):
    """Counts the deadline from when the data object is written, and not from before."""

    def _write(self, batch: PendingBatch) -> None:
        super()._write(batch)
        batch.deadline = self._uptime() + self._config.enqueue_deadline


def _always_in_time(entries: Sequence[NewEntry]) -> Sequence[NewEntry]:
    return entries


def with_grace(seconds: float) -> Rules:
    """A grace period that is right only for producers with a shorter deadline."""
    assert seconds < GRACE
    return Rules(config=ConsumerConfig(gc=False, gc_grace_period=seconds, enqueue_deadline=min(seconds / 2, DEADLINE)))


BY_ULID = Rules(collector=UlidOlderThanGrace)
BY_THE_HOSTS_CLOCK = Rules(collector=AgainstTheHostsClock)
MANIFEST_FIRST = Rules(collector=ManifestBeforeListing)
DEADLINE_BEFORE_READING = Rules(producer=ChecksBeforeReading)
DEADLINE_ONCE = Rules(producer=ChecksOnlyOnce)
DEADLINE_FROM_AFTER_THE_WRITE = Rules(producer=CountsFromAfterTheWrite)
