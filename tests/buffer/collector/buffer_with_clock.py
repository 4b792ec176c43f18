"""A buffer of version 2 whose producers, consumers and collectors have one clock, which a test moves on."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.buffer import (
    Consumer,
    ConsumerConfig,
    GarbageCollector,
    GcReport,
    Manifest,
    Written,
)
from penstock.buffer.locations import Names
from penstock.buffer.manifest.formats import Formats
from penstock.buffer.manifest.queue import BufferQueue
from penstock.buffer.manifest.state import Limits
from penstock.buffer.manifest.v2.head import Head
from penstock.storage import MemoryStore, ObjectStore
from tests.buffer.manifest.auditor import Auditor
from tests.support.dated_buffer import GRACE, MANIFEST, NOW_MS, PREFIX, named_at
from tests.support.filled_buffers import no_gc
from tests.support.producing import produce_step_by_step

DAY = 86_400.0
MILLISECOND = 0.001
FOLDER = f"{MANIFEST}.d/"


@dataclass
class Time:
    """A clock that a test moves on, in seconds after `NOW`."""

    seconds: float = 0.0

    def __call__(self) -> float:
        return (NOW_MS + round(self.seconds * 1000)) / 1000

    def passes(self, seconds: float) -> None:
        self.seconds += seconds


@dataclass
class Buffer:
    """A buffer, and the clock of everything that uses it."""

    store: ObjectStore
    time: Time = field(default_factory=Time)
    limits: Limits = field(default_factory=Limits)

    def produce(self, *entries: bytes, skew: float = 0.0, store: ObjectStore | None = None) -> list[Written]:
        """Produce entries, a batch each, by a clock that is wrong by `skew` seconds."""

        def clock() -> float:
            return self.time() + skew

        names = Names(clock)
        return produce_step_by_step(store or self.store, entries, self.queue(names, store), names, clock)

    def queue(self, names: Names, store: ObjectStore | None = None) -> BufferQueue:
        """A queue that seals with these names."""
        formats = Formats(limits=self.limits)
        return BufferQueue(store or self.store, MANIFEST, "producer", prefix=PREFIX, names=names, formats=formats)

    def fill(self, count: int) -> None:
        """Produce `count` entries, each a second younger than the one before."""
        for number in range(count):
            self.produce(b"%d" % number)
            self.time.passes(1)

    def ack(self, count: int, group: str = "default") -> None:
        """Consume `count` entries, and ack them."""
        with Consumer(self.store, ConsumerConfig(gc=False, group=group), clock=self.time) as consumer:
            for descriptor in consumer.next_descriptors(count):
                consumer.ack(descriptor.sequence)

    def orphan(self, seconds: float = 0.0, number: int = 0) -> str:
        """Write an object that is never enqueued, named as of `seconds` from now."""
        path = f"{PREFIX}/{named_at(round((self.time() + seconds) * 1000), number)}.batch"
        self.store.put(path, b"data")
        return path

    def collect(self, store: ObjectStore | None = None, skew: float = 0.0) -> GcReport:
        """Run a cycle, by a clock that is wrong by `skew` seconds."""
        return GarbageCollector(store or self.store, clock=lambda: self.time() + skew).collect_once()

    def collect_all(self) -> None:
        """Run the cycles that it takes to delete what can be deleted now."""
        for _ in range(3):
            self.collect()
            self.time.passes(GRACE)

    @property
    def head(self) -> Head:
        found = Manifest.read(self.store).head
        assert found is not None
        return found

    def paths(self) -> set[str]:
        return {meta.path for meta in self.store.list_objects()}

    def data(self) -> set[str]:
        return {path for path in self.paths() if path.endswith(".batch")}

    def segments(self) -> set[str]:
        return {path for path in self.paths() if path.startswith(FOLDER)}

    def named(self) -> set[str]:
        """Every data object and segment that the head names, in its segments too."""
        assert isinstance(self.store, MemoryStore)
        return set(Auditor(self.store).named(self.head))

    def rest(self) -> list[bytes]:
        """What can still be consumed."""
        with Consumer(self.store, no_gc()) as consumer:
            return [entry for batch in consumer for entry in batch.entries]
