"""A store whose every call is a step of an actor, and the store below it, which tracks changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from penstock.storage import DeleteResult, MemoryStore, ObjectMeta, ObjectStore
from penstock.storage.object_store import Data
from tests.support.minimal_stores import Answer, StoreCall, ThinStore

_VERBS = {"put_if_absent": "create", "put_if_match": "replace", "list_objects": "list"}


class Step(Protocol):
    """Called before a step: what it is, and the path that it is about."""

    def __call__(self, what: str, path: str = "") -> None: ...


class InterleavedStore(ThinStore):
    """Calls `step` before every call, and `check` after it. A long call is several steps."""

    def __init__(self, store: ObjectStore, step: Step, check: Callable[[], None]) -> None:
        super().__init__(store)
        self._step = step
        self._check = check

    def around(self, call: StoreCall, pass_on: Callable[[], Answer]) -> Answer:
        self._step(f"{_VERBS.get(call.operation, call.operation)} {_kind(call.path)}", call.path)
        try:
            return pass_on()
        finally:
            self._check()

    def list_objects(self, prefix: str = "") -> Iterator[ObjectMeta]:
        """List in two pages, as a bucket does. Each shows what is there when it is requested."""
        first = self._page(prefix, "")
        half = first[: len(first) // 2]
        yield from half
        yield from self._page(prefix, half[-1].path if half else "")

    def delete(self, paths: Iterable[str]) -> list[DeleteResult]:
        return [super(InterleavedStore, self).delete([path])[0] for path in paths]

    def _page(self, prefix: str, after: str) -> list[ObjectMeta]:
        found = self.around(StoreCall("list_objects", prefix), lambda: list(self.below.list_objects(prefix)))
        return sorted((meta for meta in found if meta.path > after), key=lambda meta: meta.path)


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
