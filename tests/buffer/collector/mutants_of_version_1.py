"""Mutants of the rules of version 1 that lose data, which the simulation must find."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from ulid import ULID

from penstock.buffer import ConsumerConfig, ProducerConfig, Written
from penstock.buffer.locations import Names
from penstock.buffer.manifest.cas import Versioned
from penstock.buffer.manifest.formats import Formats
from penstock.buffer.manifest.state import Collecting, CycleClock, QueueState
from penstock.buffer.manifest.v1.state import OpenDataCollecting, OpenDataState
from penstock.buffer.manifest.v2.segments import Segments
from penstock.buffer.producer.pending_batch import PendingBatch
from penstock.errors import OutcomeUnknown
from penstock.storage import ObjectMeta, ObjectStore
from tests.buffer.collector.conditions import DEADLINE, GRACE
from tests.buffer.collector.simulation import Clock, QueueWith, Rules, SimulatedShipper


class UlidOlderThanGrace(OpenDataCollecting):
    """Deletes what is not referenced and has a ULID older than the grace period, by the host's clock."""

    def is_old(self, meta: ObjectMeta, clock: CycleClock) -> bool:
        name = meta.path.rpartition("/")[2].removesuffix(".batch")
        return ULID.from_str(name).milliseconds / 1000 <= clock.clock() - clock.grace


class AgainstTheHostsClock(OpenDataCollecting):
    """Compares the object's time with the host's clock, and not with the manifest's time."""

    def is_old(self, meta: ObjectMeta, clock: CycleClock) -> bool:
        return meta.last_modified.timestamp() <= clock.clock() - clock.grace


class ManifestBeforeListing(OpenDataCollecting):
    """Reads the manifest first, lists the objects then, and looks no more."""

    def kept(
        self, found: Versioned[QueueState], listed: Mapping[str, ObjectMeta], is_over: Callable[[], bool]
    ) -> set[str]:
        return set()


class ChecksBeforeReading(SimulatedShipper):
    """Checks the deadline before it reads the manifest, and not after."""

    def __init__(
        self, store: ObjectStore, config: ProducerConfig, queue_with: QueueWith, names: Names, uptime: Clock
    ) -> None:
        super().__init__(store, config, queue_with, names, uptime)
        self.uptime = uptime

    def enqueue(self, run: Sequence[PendingBatch]) -> Iterator[tuple[PendingBatch, Written | OutcomeUnknown]]:
        now = self.uptime()
        for batch in run:
            if now >= batch.deadline:
                yield batch, OutcomeUnknown("too late")
        in_time = [batch for batch in run if now < batch.deadline]
        for batch in in_time:
            batch.deadline = math.inf
        yield from super().enqueue(in_time)


class ChecksOnlyOnce(SimulatedShipper):
    """Checks the deadline after the first read of the manifest, and not again when it has lost and reads again."""

    def __init__(
        self, store: ObjectStore, config: ProducerConfig, queue_with: QueueWith, names: Names, uptime: Clock
    ) -> None:
        self.first_look: float | None = None

        def once() -> float:
            if self.first_look is None:
                self.first_look = uptime()
            return self.first_look

        super().__init__(store, config, lambda _: queue_with(once), names, uptime)

    def enqueue(self, run: Sequence[PendingBatch]) -> Iterator[tuple[PendingBatch, Written | OutcomeUnknown]]:
        self.first_look = None
        yield from super().enqueue(run)


class CountsFromAfterTheWrite(SimulatedShipper):
    """Counts the deadline from when the data object is written, and not from before."""

    def __init__(
        self, store: ObjectStore, config: ProducerConfig, queue_with: QueueWith, names: Names, uptime: Clock
    ) -> None:
        super().__init__(store, config, queue_with, names, uptime)
        self.deadline: Clock = lambda: uptime() + config.enqueue_deadline

    def put(self, batch: PendingBatch, floor: int | None = None) -> None:
        super().put(batch, floor)
        batch.deadline = self.deadline()


def collecting(rules: type[OpenDataCollecting]) -> Rules:
    """Collectors that go by other rules."""

    class Collected(OpenDataState):
        def collecting(self, clock: CycleClock, segments: Segments) -> Collecting:
            return rules(self, clock, segments)

    return Rules(formats=Formats(opendata=Collected))


def with_grace(seconds: float) -> Rules:
    """A grace period that is right only for producers with a shorter deadline."""
    assert seconds < GRACE
    return Rules(config=ConsumerConfig(gc=False, gc_grace_period=seconds, enqueue_deadline=min(seconds / 2, DEADLINE)))


BY_ULID = collecting(UlidOlderThanGrace)
BY_THE_HOSTS_CLOCK = collecting(AgainstTheHostsClock)
MANIFEST_FIRST = collecting(ManifestBeforeListing)
DEADLINE_BEFORE_READING = Rules(shipper=ChecksBeforeReading)
DEADLINE_ONCE = Rules(shipper=ChecksOnlyOnce)
DEADLINE_FROM_AFTER_THE_WRITE = Rules(shipper=CountsFromAfterTheWrite)
