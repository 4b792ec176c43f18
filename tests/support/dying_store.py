"""A process that ends before, or after, one of its writes to object stores: as if it had been killed there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from penstock.storage import DeleteResult, ObjectStore
from penstock.testing import FaultyStore

T = TypeVar("T")


class Killed(BaseException):
    """Stands for the end of the process."""


class Writes:
    """Counts the writes of one process, over all its stores, and ends it before, or after, one of them."""

    def __init__(self, until: int, *, after: bool) -> None:
        self._count, self._until, self._after = 0, until, after

    def do(self, write: Callable[[], T]) -> T:
        self._count += 1
        if self._count > self._until and not self._after:
            raise Killed
        done = write()
        if self._count > self._until:
            raise Killed
        return done


class Dying(FaultyStore):
    """A store of a process that ends."""

    def __init__(self, below: ObjectStore, writes: Writes) -> None:
        super().__init__(below, rates={})
        self._writes = writes

    def put(self, path: str, data: Any) -> str:
        return self._writes.do(lambda: FaultyStore.put(self, path, data))

    def put_if_absent(self, path: str, data: Any, **more: Any) -> str:
        return self._writes.do(lambda: FaultyStore.put_if_absent(self, path, data, **more))

    def put_if_match(self, path: str, data: Any, version: str, **more: Any) -> str:
        return self._writes.do(lambda: FaultyStore.put_if_match(self, path, data, version, **more))

    def delete(self, paths: Iterable[str]) -> list[DeleteResult]:
        return self._writes.do(lambda: FaultyStore.delete(self, paths))
