"""Objects in this process's memory, shared by name. For tests, and for pipelines that need no durability."""

from __future__ import annotations

import itertools
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from penstock import metrics
from penstock.errors import AlreadyExists, Conflict, InvalidInput, NotFound
from penstock.storage.measuring import measured, measured_listing
from penstock.storage.object_store import (
    Data,
    DeleteResult,
    Object,
    ObjectMeta,
    PathRange,
    as_data,
    as_version,
    is_in_range,
)
from penstock.storage.paths import check_path, check_paths, check_prefix, is_below


@dataclass
class _Space:
    """What all the stores of one name share. Its versions never repeat."""

    objects: dict[str, Object] = field(default_factory=dict)
    versions: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    lock: threading.Lock = field(default_factory=threading.Lock)


_EVERYTHING: Sequence[PathRange] = [("", "")]
_ANY_VERSION = ""
_spaces: dict[str, _Space] = {}
_spaces_lock = threading.Lock()
_process = uuid.uuid4().hex  # not its number, which can come again


def _begin_anew() -> None:
    """Let a forked child begin without its parent's objects: a copy would look like the store, and not be it."""
    global _process, _spaces_lock
    _process = uuid.uuid4().hex
    _spaces_lock = threading.Lock()  # another thread of the parent may have held the one before
    _spaces.clear()


os.register_at_fork(after_in_child=_begin_anew)


class MemoryStore:
    """A store in memory: `memory://name` is the same one everywhere in this process, and nowhere else.

    >>> store = MemoryStore("example")
    >>> version = store.put("greeting", b"hello")
    >>> store.get("greeting").data
    b'hello'
    """

    def __init__(self, name: str, *, clock: Callable[[], float] = time.time) -> None:
        if not name:
            raise InvalidInput("a memory store needs a name, for example memory://events")
        if not name.isprintable():
            raise InvalidInput(f"the name of a memory store must be printable characters, not {name!r:.200}")
        self._name = name
        self._clock = clock
        self._home = _process
        with _spaces_lock:
            self._space = _spaces.setdefault(name, _Space())

    @property
    def url(self) -> str:
        """Where the store is."""
        return f"memory://{self._name}"

    def __repr__(self) -> str:
        return f"MemoryStore({self.url})"

    def __reduce__(self) -> tuple[Callable[[str, str], MemoryStore], tuple[str, str]]:
        return _unpickle, (self._name, self._home)

    @measured
    def get(self, path: str) -> Object:
        """Read a whole object. Raises `NotFound` if there is none."""
        return self._find(check_path(path))

    @measured
    def head(self, path: str) -> ObjectMeta:
        """Describe an object. Raises `NotFound` if there is none."""
        return _meta(path, self._find(check_path(path)))

    @measured
    def put(self, path: str, data: Data) -> str:
        """Replace an object, and return its new version."""
        return self._write(path, data, _ANY_VERSION)

    @measured
    def put_if_absent(self, path: str, data: Data) -> str:
        """Create an object, and return its version. Raises `AlreadyExists` if there is one."""
        return self._write(path, data, None)

    @measured
    def put_if_match(self, path: str, data: Data, version: str) -> str:
        """Replace the object that is at `version`. Raises `Conflict` if it is not any more, or is gone."""
        return self._write(path, data, as_version(version))

    @measured_listing
    def list_objects(self, prefix: str = "") -> Iterator[ObjectMeta]:
        """List every object below the prefix, as it is now."""
        return self._list(check_prefix(prefix), _EVERYTHING)

    @measured_listing
    def list_ranges(self, prefix: str, ranges: Sequence[PathRange]) -> Iterator[ObjectMeta]:
        """List the objects below the prefix whose paths are in one of the ranges, as they are now."""
        return self._list(check_prefix(prefix), ranges)

    def _list(self, prefix: str, ranges: Sequence[PathRange]) -> Iterator[ObjectMeta]:
        with self._own_space().lock:
            found = [
                _meta(path, found)
                for path, found in self._space.objects.items()
                if is_below(path, prefix) and is_in_range(path, ranges)
            ]
        return iter(found)

    @measured
    def delete(self, paths: Iterable[str]) -> list[DeleteResult]:
        """Delete objects; one result for each path."""
        checked = check_paths(paths)
        with self._own_space().lock:
            for path in checked:
                self._space.objects.pop(path, None)
        return [DeleteResult(path) for path in checked]

    def _find(self, path: str) -> Object:
        with self._own_space().lock:
            found = self._space.objects.get(path)
        if found is None:
            raise NotFound(f"there is no object {path!r} in {self.url}", location=path)
        return found

    def _write(self, path: str, data: Data, expected: str | None) -> str:
        """Write an object over the expected version; None: where there is none."""
        check_path(path)
        content = data if isinstance(data, bytes) else bytes(as_data(data))
        space = self._own_space()
        with space.lock:
            current = space.objects.get(path)
            if expected is None and current is not None:
                raise AlreadyExists(f"there is an object {path!r} in {self.url} already")
            if expected and (current is None or current.version != expected):
                raise Conflict(f"the object {path!r} in {self.url} is not at version {expected!r} any more")
            version = str(next(space.versions))
            now = datetime.fromtimestamp(self._clock(), UTC)
            space.objects[path] = Object(content, version, now)
        metrics.storage_bytes_written.labels(self.url).inc(len(content))
        return version

    def _own_space(self) -> _Space:
        if self._home != _process:
            raise InvalidInput(_crossed(self._name))
        return self._space


def _meta(path: str, found: Object) -> ObjectMeta:
    return ObjectMeta(path, len(found.data), found.last_modified, found.version)


def _unpickle(name: str, home: str) -> MemoryStore:
    if home != _process:
        raise InvalidInput(_crossed(name))
    return MemoryStore(name)


def _crossed(name: str) -> str:
    return (
        f"memory://{name} lives in the process that made it and cannot be used in another; "
        "use a directory (file:///...) or a bucket to share objects between processes"
    )
