"""Stores that pass every call on, and change or record one thing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TypeVar

from penstock.storage import DeleteResult, Object, ObjectMeta, ObjectStore
from penstock.storage.object_store import Data

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class StoreCall:
    """One call of a store. Of a deletion `path` has all paths; `version` is the one that `put_if_match` expects."""

    operation: str
    path: str
    content: Data = field(default=b"", repr=False)
    version: str | None = None

    @property
    def data(self) -> bytes:
        """What is to be written. A copy is made only here: some tests look at how much memory a write takes."""
        return bytes(self.content)

    def is_conditional(self) -> bool:
        """Whether it is a write that may lose."""
        return self.operation in {"put_if_absent", "put_if_match"}


class ThinStore:
    """Passes every call on, through `around`: for tests that change one call, or do something around all of them."""

    def __init__(self, store: ObjectStore) -> None:
        self.below = store

    @property
    def url(self) -> str:
        return self.below.url

    def around(self, call: StoreCall, pass_on: Callable[[], Answer]) -> Answer:
        """Pass a call on, and return its answer."""
        return pass_on()

    def get(self, path: str) -> Object:
        return self.around(StoreCall("get", path), lambda: self.below.get(path))

    def head(self, path: str) -> ObjectMeta:
        return self.around(StoreCall("head", path), lambda: self.below.head(path))

    def put(self, path: str, data: Data) -> str:
        return self.around(StoreCall("put", path, data), lambda: self.below.put(path, data))

    def put_if_absent(self, path: str, data: Data) -> str:
        call = StoreCall("put_if_absent", path, data)
        return self.around(call, lambda: self.below.put_if_absent(path, data))

    def put_if_match(self, path: str, data: Data, version: str) -> str:
        call = StoreCall("put_if_match", path, data, version)
        return self.around(call, lambda: self.below.put_if_match(path, data, version))

    def list_objects(self, prefix: str = "") -> Iterator[ObjectMeta]:
        return self.around(StoreCall("list_objects", prefix), lambda: self.below.list_objects(prefix))

    def delete(self, paths: Iterable[str]) -> list[DeleteResult]:
        listed = list(paths)
        return self.around(StoreCall("delete", " ".join(listed)), lambda: self.below.delete(listed))


class RecordingStore(ThinStore):
    """Records the calls, in order, but for those of `head`; a listing when it has ended."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.calls: list[tuple[str, str]] = []
        self.deletes: list[list[str]] = []

    def around(self, call: StoreCall, pass_on: Callable[[], Answer]) -> Answer:
        if call.operation == "delete":
            self.deletes.append(call.path.split(" "))
        if call.operation not in {"head", "list_objects"}:
            self.calls.append((call.operation, call.path.split(" ")[0]))
        return pass_on()

    def list_objects(self, prefix: str = "") -> Iterator[ObjectMeta]:
        yield from super().list_objects(prefix)
        self.calls.append(("listed", prefix))


class RedatedStore(ThinStore):
    """Changes the dates of some objects, until they are written again."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self._dates: dict[str, datetime] = {}

    def date(self, path: str, when: datetime) -> None:
        """Date this object."""
        self._dates[path] = when

    def get(self, path: str) -> Object:
        found = super().get(path)
        return replace(found, last_modified=self._dates.get(path, found.last_modified))

    def head(self, path: str) -> ObjectMeta:
        return self._redated(super().head(path))

    def around(self, call: StoreCall, pass_on: Callable[[], Answer]) -> Answer:
        answer = pass_on()
        if call.operation.startswith("put"):
            self._dates.pop(call.path, None)
        return answer

    def list_objects(self, prefix: str = "") -> Iterator[ObjectMeta]:
        return map(self._redated, super().list_objects(prefix))

    def _redated(self, meta: ObjectMeta) -> ObjectMeta:
        return replace(meta, last_modified=self._dates.get(meta.path, meta.last_modified))


class BusyStore(ThinStore):
    """Runs an action right after each listing, or right before each deletion."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        after_listing: Callable[[], object] = lambda: None,
        before_deleting: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(store)
        self._after_listing = after_listing
        self._before_deleting = before_deleting

    def list_objects(self, prefix: str = "") -> Iterator[ObjectMeta]:
        yield from super().list_objects(prefix)
        self._after_listing()

    def delete(self, paths: Iterable[str]) -> list[DeleteResult]:
        self._before_deleting()
        return super().delete(paths)
