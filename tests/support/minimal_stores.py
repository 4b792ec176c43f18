"""Stores that pass every call on, and change or record one thing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime

from penstock.storage import DeleteResult, Object, ObjectMeta, ObjectStore
from penstock.storage.object_store import Data


class ThinStore:
    """Passes every call on: for tests that change one of them."""

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
    """Records the calls, in order."""

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
