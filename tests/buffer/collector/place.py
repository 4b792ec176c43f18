"""A buffer on any kind of store, in which a test says when each object was written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from penstock.buffer import ConsumerConfig, GarbageCollector, GcReport
from penstock.buffer.descriptors import NewEntry
from penstock.buffer.opendata_queue import OpenDataQueue
from penstock.storage import ObjectStore

PREFIX = "ingest"
MANIFEST = "ingest/manifest"
OWNER = "ingest/.owner"
GRACE = ConsumerConfig().gc_grace_period
NOW = datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)  # the store's; what the host's clock says is another matter


def data_path(number: int, prefix: str = PREFIX) -> str:
    """The path of a data object."""
    return f"{prefix}/{number:026}.batch"


@dataclass(frozen=True)
class Place:
    """A store, and a way to date its objects."""

    store: ObjectStore
    date: Callable[[str, datetime], None]

    def write(self, *paths: str, age: float = 2 * GRACE) -> None:
        """Write objects as they would have been written so many seconds before `NOW`."""
        for path in paths:
            self.store.put(path, b"data")
            self.date(path, NOW - timedelta(seconds=age))

    def enqueue(self, *locations: str, manifest: str = MANIFEST) -> None:
        """Append locations to the manifest, which makes one where there is none; it is dated `NOW`."""
        entries = [NewEntry(location, (), float("inf")) for location in locations]
        queue_of(self.store, manifest).enqueue(entries, lambda some: some)
        self.date(manifest, NOW)

    def dequeue(self, through: int, manifest: str = MANIFEST) -> None:
        """Take the entries up to a sequence out of the manifest, which is dated `NOW`."""
        queue = queue_of(self.store, manifest)
        queue.dequeue(queue.look().epoch, through)
        self.date(manifest, NOW)

    def collect(self, **config: object) -> GcReport:
        """Run a cycle."""
        return GarbageCollector(self.store, ConsumerConfig(**config)).collect_once()  # type: ignore[arg-type]

    def paths(self) -> set[str]:
        """Everything that is there."""
        return {meta.path for meta in self.store.list_objects()}

    def data(self) -> set[str]:
        """The data objects that are there."""
        return {path for path in self.paths() if path.endswith(".batch")}


def queue_of(store: ObjectStore, manifest: str = MANIFEST) -> OpenDataQueue:
    """The queue behind a manifest, which never waits."""
    return OpenDataQueue(store, manifest, store.url, "producer", sleep=lambda _: None)
