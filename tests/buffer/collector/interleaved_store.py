"""A store whose every call is a step of an actor, and the store below it, which tracks changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from penstock.storage import DeleteResult, MemoryStore, Object, ObjectMeta, ObjectStore
from penstock.storage.object_store import Data

Answer = TypeVar("Answer")


class Step(Protocol):
    """Called before a step: what it is, and the path that it is about."""

    def __call__(self, what: str, path: str = "") -> None: ...


class InterleavedStore:
    """Calls `step` before every call, and `check` after it. A long call is several steps."""

    def __init__(self, store: ObjectStore, step: Step, check: Callable[[], None]) -> None:
        self._store = store
        self._step = step
        self._check = check

    @property
    def url(self) -> str:
        return self._store.url

    def get(self, path: str) -> Object:
        return self._call("get", path, lambda: self._store.get(path))

    def head(self, path: str) -> ObjectMeta:
        return self._call("head", path, lambda: self._store.head(path))

    def put(self, path: str, data: Data) -> str:
        return self._call("put", path, lambda: self._store.put(path, data))

    def put_if_absent(self, path: str, data: Data) -> str:
        return self._call("create", path, lambda: self._store.put_if_absent(path, data))

    def put_if_match(self, path: str, data: Data, version: str) -> str:
        return self._call("replace", path, lambda: self._store.put_if_match(path, data, version))

    def list_objects(self, prefix: str = "") -> Iterator[ObjectMeta]:
        """List in two pages, as a bucket does. Each shows what is there when it is requested."""
        first = self._page(prefix, "")
        half = first[: len(first) // 2]
        yield from half
        yield from self._page(prefix, half[-1].path if half else "")

    def delete(self, paths: Iterable[str]) -> list[DeleteResult]:
        return [self._delete(path) for path in paths]

    def _delete(self, path: str) -> DeleteResult:
        return self._call("delete", path, lambda: self._store.delete([path])[0])

    def _page(self, prefix: str, after: str) -> list[ObjectMeta]:
        found = self._call("list", prefix, lambda: list(self._store.list_objects(prefix)))
        return sorted((meta for meta in found if meta.path > after), key=lambda meta: meta.path)

    def _call(self, operation: str, path: str, call: Callable[[], Answer]) -> Answer:
        self._step(f"{operation} {_kind(path)}", path)
        try:
            return call()
        finally:
            self._check()


class ChangeTrackingMemory(MemoryStore):
    """A store in memory that tracks whether anything changed: `changed` is reset by its reader."""

    changed = True

    def put(self, path: str, data: Data) -> str:
        """Replace an object."""
        self.changed = True
        return super().put(path, data)

    def put_if_absent(self, path: str, data: Data) -> str:
        """Create an object."""
        self.changed = True
        return super().put_if_absent(path, data)

    def put_if_match(self, path: str, data: Data, version: str) -> str:
        """Replace the object at a version."""
        self.changed = True
        return super().put_if_match(path, data, version)

    def delete(self, paths: Iterable[str]) -> list[DeleteResult]:
        """Delete objects."""
        self.changed = True
        return super().delete(paths)


def _kind(path: str) -> str:
    if path.endswith(".seg"):
        return "segment"
    return "data" if path.endswith(".batch") else path.rpartition("/")[2]
