"""A store with somebody in between, who sees every call, and may do something before it and after it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from penstock.storage import DeleteResult, Object, ObjectMeta, ObjectStore
from penstock.storage.object_store import Data

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a store. `version` is the one that `put_if_match` expects."""

    operation: str
    path: str
    data: bytes = field(default=b"", repr=False)
    version: str | None = None

    def is_conditional(self) -> bool:
        """Whether it is a write that may lose."""
        return self.operation in {"put_if_absent", "put_if_match"}


class InBetween(Protocol):
    """Makes the call and returns its answer; and whatever else it likes to do."""

    def __call__(self, call: Call, make: Callable[[], Answer]) -> Answer:
        """Be in between."""
        ...


class Between:
    """A store that sends each of its calls through `somebody`."""

    def __init__(self, store: ObjectStore, somebody: InBetween, url: str | None = None) -> None:
        self._store = store
        self._somebody = somebody
        self._url = url

    @property
    def url(self) -> str:
        """Where the store below is, unless it has a name of its own."""
        return self._url or self._store.url

    def get(self, path: str) -> Object:
        """Read."""
        return self._somebody(Call("get", path), lambda: self._store.get(path))

    def head(self, path: str) -> ObjectMeta:
        """Describe."""
        return self._somebody(Call("head", path), lambda: self._store.head(path))

    def put(self, path: str, data: Data) -> str:
        """Replace."""
        return self._somebody(Call("put", path, bytes(data)), lambda: self._store.put(path, data))

    def put_if_absent(self, path: str, data: Data) -> str:
        """Create."""
        call = Call("put_if_absent", path, bytes(data))
        return self._somebody(call, lambda: self._store.put_if_absent(path, data))

    def put_if_match(self, path: str, data: Data, version: str) -> str:
        """Compare and set."""
        call = Call("put_if_match", path, bytes(data), version)
        return self._somebody(call, lambda: self._store.put_if_match(path, data, version))

    def list_objects(self, prefix: str = "") -> Iterator[ObjectMeta]:
        """List."""
        return self._somebody(Call("list_objects", prefix), lambda: self._store.list_objects(prefix))

    def delete(self, paths: Iterable[str]) -> list[DeleteResult]:
        """Delete."""
        listed = list(paths)
        return self._somebody(Call("delete", " ".join(listed)), lambda: self._store.delete(listed))
