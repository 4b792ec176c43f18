"""A buffer on any kind of store, in which a test says when each object was written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NoReturn
from uuid import UUID

from ulid import ULID

from penstock.buffer import ConsumerConfig, GarbageCollector, GcReport
from penstock.buffer.descriptors import NewEntry
from penstock.buffer.manifest.ownership import Owner
from penstock.buffer.manifest.queue import BufferQueue
from penstock.storage import ObjectStore

PREFIX = "ingest"
MANIFEST = "ingest/manifest"
OWNER = "ingest/.owner"
GRACE = ConsumerConfig().gc_grace_period
NOW = datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)  # the store's; what the host's clock says is another matter
NOW_MS = round(NOW.timestamp() * 1000)
GRACE_MS = round(GRACE * 1000)


def named_at(milliseconds: int, number: int = 0) -> str:
    """A ULID of a time."""
    return f"{str(ULID.from_timestamp(milliseconds))[:10]}{number:016}"


def data_path(number: int, prefix: str = PREFIX) -> str:
    """The path of a data object. By its name 0 is of `NOW`, and all others are as old as `Place.write` makes them.

    So 0 can be referred to while the others are collected, on a manifest of version 2 too, which goes by names.
    """
    return f"{prefix}/{named_at(NOW_MS if number == 0 else NOW_MS - 2 * GRACE_MS, number)}.batch"


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
        queue_of(self.store, manifest).enqueue(entries, all_in_time, never_again)
        self.date(manifest, NOW)

    def dequeue(self, through: int, manifest: str = MANIFEST) -> None:
        """Take the entries up to a sequence out of the manifest, which is dated `NOW`."""
        queue = queue_of(self.store, manifest)
        queue.dequeue(queue.look().epoch, through)
        self.date(manifest, NOW)

    def ripen(self, **config: object) -> None:
        """On a manifest of version 2, let a cycle set the floor; a grace period after this what is old can go."""
        if self._is_native(config):
            self._collector(self.store, NOW.timestamp(), config).collect_once()

    def collector(self, store: ObjectStore | None = None) -> GarbageCollector:
        """A collector for which all that is ripe can go."""
        return self._collector(store or self.store, NOW.timestamp() + GRACE, {})

    def collect(self, **config: object) -> GcReport:
        """Run a cycle, after one that sets the floor where there is one to set."""
        self.ripen(**config)
        return self._collector(self.store, NOW.timestamp() + GRACE, config).collect_once()

    def own(self, buffer_id: UUID | None = None, manifest: str = MANIFEST) -> None:
        """Let the prefix belong to a buffer: the one that is here, unless an id is given."""
        found = buffer_id or queue_of(self.store, manifest).identify(create=True)
        assert found is not None
        self.store.put(OWNER, Owner(found, manifest, PREFIX).encode())

    def paths(self) -> set[str]:
        """Everything that is there."""
        return {meta.path for meta in self.store.list_objects()}

    def data(self) -> set[str]:
        """The data objects that are there."""
        return {path for path in self.paths() if path.endswith(".batch")}

    def _is_native(self, config: dict[str, object]) -> bool:
        queue = queue_of(self.store, str(config.get("manifest_path", MANIFEST)))
        return queue.look().version is not None and queue.native is not None

    def _collector(self, store: ObjectStore, now: float, config: dict[str, object]) -> GarbageCollector:
        return GarbageCollector(store, ConsumerConfig(**config), clock=lambda: now)  # type: ignore[arg-type]


def queue_of(store: ObjectStore, manifest: str = MANIFEST) -> BufferQueue:
    """The queue behind a manifest, which never waits. Where there is none yet, the test says which it gets."""
    return BufferQueue(store, manifest, "producer", sleep=lambda _: None)


def all_in_time(entries: Sequence[NewEntry]) -> Sequence[NewEntry]:
    """Nobody is ever late."""
    return entries


def never_again(entry: NewEntry, floor: int) -> NoReturn:
    """For those who never name what is below a floor."""
    raise AssertionError(f"{entry.location} is to be written again, above {floor}")
