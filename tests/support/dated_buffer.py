"""A buffer on any kind of store, in which a test dates each object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from ulid import ULID

from penstock.buffer import ConsumerConfig, GarbageCollector, GcReport
from penstock.buffer.descriptors import NewEntry
from penstock.buffer.manifest.ownership import Owner
from penstock.buffer.manifest.queue import BufferQueue
from penstock.storage import ObjectStore
from tests.support.enqueuing import enqueue

PREFIX = "ingest"
MANIFEST = "ingest/manifest"
OWNER = "ingest/.owner"
GRACE = ConsumerConfig().gc_grace_period
NOW = datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)  # by the store's clock, which the host's clock has nothing to do with
NOW_MS = round(NOW.timestamp() * 1000)
GRACE_MS = round(GRACE * 1000)


def named_at(milliseconds: int, number: int = 0) -> str:
    """A ULID of a time."""
    return f"{str(ULID.from_timestamp(milliseconds))[:10]}{number:016}"


def data_path(number: int, prefix: str = PREFIX) -> str:
    """The path of a data object. By its name, 0 is of `NOW`, and all others are as old as `write` dates them.

    So 0 can be in the manifest while the others are collected, also on version 2, where names decide.
    """
    return f"{prefix}/{named_at(NOW_MS if number == 0 else NOW_MS - 2 * GRACE_MS, number)}.batch"


@dataclass(frozen=True)
class DatedBuffer:
    """A store, and a way to date its objects."""

    store: ObjectStore
    date: Callable[[str, datetime], None]

    def write(self, *paths: str, age: float = 2 * GRACE) -> None:
        """Write objects, dated `age` seconds before `NOW`."""
        for path in paths:
            self.store.put(path, b"data")
            self.date(path, NOW - timedelta(seconds=age))

    def enqueue(self, *locations: str, manifest: str = MANIFEST) -> None:
        """Append locations to the manifest, which is created where there is none, and dated `NOW`."""
        enqueue(queue_of(self.store, manifest), [NewEntry(location, ()) for location in locations])
        self.date(manifest, NOW)

    def dequeue(self, through: int, manifest: str = MANIFEST) -> None:
        """Dequeue the entries up to a sequence; the manifest is dated `NOW`."""
        queue = queue_of(self.store, manifest)
        queue.dequeue(queue.look().epoch, through)
        self.date(manifest, NOW)

    def set_floor(self, **config: object) -> None:
        """On version 2, run a cycle that sets the floor; a grace period later what is old can be deleted."""
        if self._is_native(config):
            self._collector(self.store, NOW.timestamp(), config).collect_once()

    def collector(self, store: ObjectStore | None = None) -> GarbageCollector:
        """A collector that runs a grace period after `NOW`."""
        return self._collector(store or self.store, NOW.timestamp() + GRACE, {})

    def collect(self, **config: object) -> GcReport:
        """Run a cycle; on version 2 after one that sets the floor."""
        self.set_floor(**config)
        return self._collector(self.store, NOW.timestamp() + GRACE, config).collect_once()

    def own(self, buffer_id: UUID | None = None, manifest: str = MANIFEST) -> None:
        """Let the prefix belong to a buffer: to this one, unless an id is given."""
        found = buffer_id or queue_of(self.store, manifest).identify(create=True)
        assert found is not None
        self.store.put(OWNER, Owner(found, manifest, PREFIX).encode())

    def paths(self) -> set[str]:
        """All paths in the store."""
        return {meta.path for meta in self.store.list_objects()}

    def data(self) -> set[str]:
        """The paths of all data objects."""
        return {path for path in self.paths() if path.endswith(".batch")}

    def _is_native(self, config: dict[str, object]) -> bool:
        queue = queue_of(self.store, str(config.get("manifest_path", MANIFEST)))
        return queue.look().version is not None and queue.guards_new_objects

    def _collector(self, store: ObjectStore, now: float, config: dict[str, object]) -> GarbageCollector:
        return GarbageCollector(store, ConsumerConfig(**config), clock=lambda: now)  # type: ignore[arg-type]


def queue_of(store: ObjectStore, manifest: str = MANIFEST) -> BufferQueue:
    """The queue of a manifest, without back-off. A new one is of the version that the test is about."""
    return BufferQueue(store, manifest, "producer", sleep=lambda _: None)
