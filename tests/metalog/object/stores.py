"""Stores that count, delay and fail requests, and a clock that a test moves."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from penstock.metalog import MetadataRecord, ObjectMetadataLog, PartitionStart
from penstock.metalog.change_signal import ChangeSignal
from penstock.metalog.object.format import encode
from penstock.storage import ObjectStore
from penstock.storage.object_store import Data, DeleteResult, Object, ObjectMeta

_T = TypeVar("_T")


class WatchedStore:
    """A store that keeps a list of what it was asked for; `before` and `after` are called with each, and may raise."""

    def __init__(self, below: ObjectStore) -> None:
        self.below = below
        self.asked: list[tuple[str, str]] = []
        self.before: Callable[[str, str], object] = lambda operation, path: None
        self.after: Callable[[str, str], object] = lambda operation, path: None

    @property
    def url(self) -> str:
        return self.below.url

    def count(self) -> Counter[str]:
        """How often each operation was asked for."""
        return Counter(operation for operation, _ in self.asked)

    def gets(self) -> list[str]:
        return [path for operation, path in self.asked if operation == "get"]

    def get(self, path: str) -> Object:
        return self._do("get", path, lambda: self.below.get(path))

    def head(self, path: str) -> ObjectMeta:
        return self._do("head", path, lambda: self.below.head(path))

    def put(self, path: str, data: Data) -> str:
        return self._do("put", path, lambda: self.below.put(path, data))

    def put_if_absent(self, path: str, data: Data) -> str:
        return self._do("put_if_absent", path, lambda: self.below.put_if_absent(path, data))

    def put_if_match(self, path: str, data: Data, version: str) -> str:
        return self._do("put_if_match", path, lambda: self.below.put_if_match(path, data, version))

    def list_objects(self, prefix: str = "") -> Iterator[ObjectMeta]:
        return self._do("list_objects", prefix, lambda: self.below.list_objects(prefix))

    def delete(self, paths: Iterable[str]) -> list[DeleteResult]:
        return self.below.delete(paths)

    def _do(self, operation: str, path: str, call: Callable[[], _T]) -> _T:
        self.asked.append((operation, path))
        self.before(operation, path)
        answer = call()
        self.after(operation, path)
        return answer


class Clock:
    """A clock that `sleep` moves on."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class TimedSignal(ChangeSignal):
    """A signal whose waits take no time, but let the clock go on; it knows how long each was."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self.waits: list[float] = []
        self._lock = threading.Lock()

    def wait(self, changes: int, timeout: float) -> None:
        with self._lock:
            self.waits.append(timeout)
            self._clock.now += timeout


def plant(store: ObjectStore, partition: int, count: int, *, start: int = 0, number: int = 0) -> None:
    """Write objects of one record each, as another process would have."""
    for at in range(count):
        data = encode(start + at, number + at, b"%016d" % (start + at), [b"%d" % (start + at)])
        store.put_if_absent(f"{partition}/{start + at:020d}", data)


def objects_of(store: ObjectStore, partition: int = 0) -> list[str]:
    """The names of a partition's objects, without its hint and roll-ups."""
    names = [meta.path.split("/") for meta in store.list_objects(str(partition))]
    return sorted(name[1] for name in names if len(name) == 2 and name[1] != "hint")


def roll_ups_of(store: ObjectStore, partition: int = 0) -> list[str]:
    return sorted(meta.path.rpartition("/")[2] for meta in store.list_objects(f"{partition}/rollups"))


def read_all(log: ObjectMetadataLog, partition: int = 0, start: int = 0, *, end: int | None = None) -> list[bytes]:
    """Everything from an offset up to the end, by a subscription; its offsets are checked on the way."""
    end = log.high_water_marks()[partition] if end is None else end
    found: list[MetadataRecord] = []
    with log.subscribe([PartitionStart(partition, start)]) as records:
        while start + len(found) < end:
            found.append(next(records))
    assert [record.offset for record in found] == list(range(start, end))
    return [record.payload for record in found]
