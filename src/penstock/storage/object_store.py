"""The contract of a store, the values it answers with, and the two keywords that another's store may leave out."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

from penstock.errors import CorruptData, InvalidInput, StorageError

Data: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Object:
    """A whole object, with the version its data belongs to."""

    data: bytes = field(repr=False)
    version: str
    last_modified: datetime


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """What is known of an object without reading it."""

    path: str
    size: int
    last_modified: datetime
    version: str


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """How the deletion of one path ended: `error` is None when the object is gone."""

    path: str
    error: StorageError | None = None

    @property
    def ok(self) -> bool:
        """Whether the object is gone."""
        return self.error is None


class Reserve(StrEnum):
    """What a conditional write has to do with the reserve that a local disk keeps for the time when it is full."""

    KEEP = "keep"
    """The reserve is filled before the write, which is refused where there is no space for that."""

    USE = "use"
    """The write may use the reserve if the disk is full."""


@runtime_checkable
class ObjectStore(Protocol):
    """One small interface to every place that keeps objects. Safe to share between threads, cheap to pickle.

    A path is relative, made of segments between slashes; one that would leave the store is `InvalidInput`. A version
    is opaque: compare it, hand it back, never read it. Every method raises `StorageError` when the store fails.

    A conditional write that does not succeed raises `Conflict` or `AlreadyExists` (another write was first,
    possibly one's own earlier try) or `OutcomeUnknown` (it may have happened, and may still happen late). Then
    re-read, and decide by evidence that no other writer could have written: never by a number or by equal content.

    A store may take two more keywords. `get(path, max_bytes=n)` raises `CorruptData` for a larger object, and does not
    read it. `put_if_absent` and `put_if_match` with `reserve=Reserve.KEEP` or `Reserve.USE` are for a disk that can be
    full. Callers pass them by `get_at_most` and `replace_with_reserve`, which work with a store that has neither.
    """

    @property
    def url(self) -> str:
        """Where the store is, without credentials."""
        ...

    def get(self, path: str) -> Object:
        """Read a whole object. Raises `NotFound` if there is none."""
        ...

    def head(self, path: str) -> ObjectMeta:
        """Say how large, how old and at which version an object is. Raises `NotFound` if there is none."""
        ...

    def put(self, path: str, data: Data) -> str:
        """Replace an object atomically, and return its new version: readers see the old or the new one, whole."""
        ...

    def put_if_absent(self, path: str, data: Data) -> str:
        """Create an object, and return its version. Raises `AlreadyExists` if there is one."""
        ...

    def put_if_match(self, path: str, data: Data, version: str) -> str:
        """Replace the object that is at `version`. Raises `Conflict` if it is not any more, or is gone."""
        ...

    def list_objects(self, prefix: str = "") -> Iterator[ObjectMeta]:
        """List every object below the prefix, by whole path segments, in no promised order."""
        ...

    def delete(self, paths: Iterable[str]) -> list[DeleteResult]:
        """Delete objects; one result for each path, in order. Deleting what is gone is a success."""
        ...


PathRange: TypeAlias = tuple[str, str]
"""The paths above the first and below the second, compared as strings. An empty bound is none."""


@runtime_checkable
class ListsRanges(Protocol):
    """A store that lists a part of what is below a prefix by its paths, without looking at the rest."""

    def list_ranges(self, prefix: str, ranges: Sequence[PathRange]) -> Iterator[ObjectMeta]:
        """List the objects below the prefix whose paths are in one of the ranges, in no promised order.

        No two ranges have a path in common. What comes or goes meanwhile may be in the listing or not.
        """
        ...


def is_in_range(path: str, ranges: Sequence[PathRange]) -> bool:
    """Say whether a path is in one of the ranges.

    >>> is_in_range("b", [("a", "c")]), is_in_range("b", [("b", ""), ("", "b")]), is_in_range("b", [("", "")])
    (True, False, True)
    """
    for after, before in ranges:  # noqa: SIM110  no generator: an interrupt in one would be lost
        if path > after and (not before or path < before):
            return True
    return False


def as_data(data: object) -> bytes | memoryview:
    """Accept what can be written as it is; raise `InvalidInput` for anything else."""
    if isinstance(data, bytes):
        return data
    if isinstance(data, bytearray | memoryview):
        view = memoryview(data)
        return view.cast("B") if view.contiguous else view.tobytes()
    raise InvalidInput(f"data must be bytes, a bytearray or a memoryview, not {type(data).__name__}")


def as_version(version: object) -> str:
    """Accept a version that a store gave out; raise `InvalidInput` for anything else."""
    if isinstance(version, str) and version:
        return version
    raise InvalidInput(f"version must be one that this store returned, not {version!r}")


def check_size(path: str, url: str, size: int, max_bytes: int | None) -> None:
    """Raises `CorruptData` for an object that is larger than its reader allows."""
    if max_bytes is not None and size > max_bytes:
        raise CorruptData(
            f"the object {path!r} in {url} has {size} bytes, and what is expected there has at most {max_bytes}: it is "
            "damaged, or not what its name says"
        )


def get_at_most(store: ObjectStore, path: str, max_bytes: int) -> Object:
    """Read a whole object of at most `max_bytes`. Raises `CorruptData` for a larger one, and what `get` raises.

    A store that takes `max_bytes` does not read the larger one. Of another store it is read, and then refused.

    >>> from penstock.storage import MemoryStore
    >>> store = MemoryStore("doctest-get-at-most")
    >>> version = store.put("greeting", b"hello")
    >>> get_at_most(store, "greeting", 5).data
    b'hello'
    """
    if _takes(store.get, "max_bytes"):
        return cast("Object", cast("Any", store).get(path, max_bytes=max_bytes))
    found = store.get(path)
    check_size(path, str(getattr(store, "url", type(store).__name__)), len(found.data), max_bytes)
    return found


def replace_with_reserve(
    store: ObjectStore, path: str, data: Data, version: str | None, reserve: Reserve | None
) -> str:
    """Write over a version, or with None where there is no object, and say what the write has to do with the reserve.

    Raises what `put_if_match` and `put_if_absent` raise. Only a local disk has a reserve; to other stores this is an
    ordinary conditional write.
    """
    write: Callable[..., str] = store.put_if_absent if version is None else store.put_if_match
    given = (path, data) if version is None else (path, data, version)
    return write(*given, reserve=reserve) if _takes(write, "reserve") else write(*given)


def _takes(method: Callable[..., Any], keyword: str) -> bool:
    return _declares(
        getattr(method, "__func__", method), keyword
    )  # one for all stores of a class: the cache stays small


@lru_cache(maxsize=256)
def _declares(function: Callable[..., Any], keyword: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False  # written in another language, and silent about its arguments
    return keyword in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())
