"""A buffer on any kind of store, in which a test says when each object was written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from penstock.buffer import ConsumerConfig, GarbageCollector, GcReport
from penstock.buffer.descriptors import NewEntry
from penstock.buffer.opendata_queue import OpenDataQueue
from penstock.storage import DeleteResult, Object, ObjectMeta, ObjectStore
from penstock.storage.object_store import Data

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


class ThinStore:
    """Hands every call on: for tests that change one of them."""

    def __init__(self, store: ObjectStore) -> None:
        self.below = store

    @property
    def url(self) -> str:
        return self.below.url

    def get(self, path: str) -> Object:
        return self.below.get(path)

    def head(self, path: str) -> ObjectMeta:
        return self.below.head(path)

    def put(self, path: str, data: Data) -> str:
        return self.below.put(path, data)

    def put_if_absent(self, path: str, data: Data) -> str:
        return self.below.put_if_absent(path, data)

    def put_if_match(self, path: str, data: Data, version: str) -> str:
        return self.below.put_if_match(path, data, version)

    def list_objects(self, prefix: str = "") -> Iterator[ObjectMeta]:
        return self.below.list_objects(prefix)

    def delete(self, paths: Iterable[str]) -> list[DeleteResult]:
        return self.below.delete(paths)


class RecordingStore(ThinStore):
    """Notes what was asked for, in order."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.calls: list[tuple[str, str]] = []
        self.deletes: list[list[str]] = []

    def get(self, path: str) -> Object:
        self.calls.append(("get", path))
        return super().get(path)

    def put(self, path: str, data: Data) -> str:
        self.calls.append(("put", path))
        return super().put(path, data)

    def put_if_absent(self, path: str, data: Data) -> str:
        self.calls.append(("put_if_absent", path))
        return super().put_if_absent(path, data)

    def put_if_match(self, path: str, data: Data, version: str) -> str:
        self.calls.append(("put_if_match", path))
        return super().put_if_match(path, data, version)

    def list_objects(self, prefix: str = "") -> Iterator[ObjectMeta]:
        yield from super().list_objects(prefix)
        self.calls.append(("listed", prefix))

    def delete(self, paths: Iterable[str]) -> list[DeleteResult]:
        asked = list(paths)
        self.calls.append(("delete", asked[0]))
        self.deletes.append(asked)
        return super().delete(asked)


class RedatedStore(ThinStore):
    """Says of some objects that they were written at another time, until they are written again."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self._dates: dict[str, datetime] = {}

    def date(self, path: str, when: datetime) -> None:
        """Say from now on that this object was written then."""
        self._dates[path] = when

    def get(self, path: str) -> Object:
        found = super().get(path)
        return replace(found, last_modified=self._dates.get(path, found.last_modified))

    def head(self, path: str) -> ObjectMeta:
        return self._redated(super().head(path))

    def put(self, path: str, data: Data) -> str:
        self._dates.pop(path, None)
        return super().put(path, data)

    def put_if_absent(self, path: str, data: Data) -> str:
        version = super().put_if_absent(path, data)
        self._dates.pop(path, None)
        return version

    def put_if_match(self, path: str, data: Data, version: str) -> str:
        version = super().put_if_match(path, data, version)
        self._dates.pop(path, None)
        return version

    def list_objects(self, prefix: str = "") -> Iterator[ObjectMeta]:
        return map(self._redated, super().list_objects(prefix))

    def _redated(self, meta: ObjectMeta) -> ObjectMeta:
        return replace(meta, last_modified=self._dates.get(meta.path, meta.last_modified))
