"""What the processes of these tests do: write, stop at a chosen step, look at a store with fresh eyes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import penstock.storage.local.mounts
from penstock.errors import Conflict
from penstock.storage.local import LocalStore
from penstock.storage.local.internal_directory import INTERNAL_NAME
from tests.support.processes import Parent

_SOURCES = os.path.dirname(penstock.storage.local.__file__)
# It reads the host's table of mounts line by line, and changes nothing; other tests mount file systems meanwhile.
_MOUNT_TABLE = penstock.storage.local.mounts.__file__


class StopAt:
    """A step hook that tells the test when a step is reached, and stays there until the test says go (or kills)."""

    def __init__(self, parent: Parent, name: str, occurrence: int = 1) -> None:
        self._parent = parent
        self._name = name
        self._remaining = occurrence

    def __call__(self, name: str) -> None:
        """Stop if this is the one."""
        if name != self._name:
            return
        self._remaining -= 1
        if self._remaining == 0:
            self._parent.tell(name)
            self._parent.wait()


class Lines:
    """Calls `at` with the number of each line of the store's sources, right before the line runs.

    The same write takes the same number of lines in every process.
    """

    def __init__(self, at: Callable[[int], None]) -> None:
        self._at = at
        self._count = 0

    def watch(self, work: Callable[[], object]) -> int:
        """Do the work, and return how many lines it took."""
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            work()
        finally:
            sys.settrace(before)
        return self._count

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        source = frame.f_code.co_filename
        return self._line if source.startswith(_SOURCES) and source != _MOUNT_TABLE else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
        if event == "line":
            self._count += 1
            self._at(self._count)
        return self._line


def contents_of(root: str) -> dict[str, bytes]:
    """Everything that a store lists, as it reads."""
    store = LocalStore(root)
    found = {}
    for meta in store.list_objects():
        there = store.get(meta.path)
        assert (there.version, len(there.data)) == (meta.version, meta.size), meta
        found[meta.path] = there.data
    return found


def read_unlisted(root: str) -> dict[str, bytes]:
    """Everything that lies under an object's name, as it reads; without the listing, which tidies up."""
    store = LocalStore(root)
    names = [path for path in files_below(root) if INTERNAL_NAME not in path.split("/")]
    return {path: store.get(path).data for path in names}


def files_below(root: str, ending: str = "") -> set[str]:
    """Every file that lies below a directory, a store's own ones too, by its path from there."""
    return {
        os.path.relpath(os.path.join(directory, name), root)
        for directory, _, names in os.walk(root)
        for name in names
        if name.endswith(ending)
    }


def put(parent: Parent, root: str, path: str, data: bytes, sync: bool = True) -> str:
    """Write one object and return its version."""
    return LocalStore(root, sync=sync).put(path, data)


def put_and_stop(parent: Parent, root: str, path: str, data: bytes, step: str, sync: bool = True) -> str:
    """Write one object, stopping at a step on the way; return its version."""
    return LocalStore(root, sync=sync, step=StopAt(parent, step)).put(path, data)


def put_and_stop_twice(parent: Parent, root: str, path: str, data: bytes, first: str, second: str) -> str:
    """Write one object, stopping at two steps on the way; return its version."""
    stops = StopAt(parent, first), StopAt(parent, second)

    def step(name: str) -> None:
        for stop in stops:
            stop(name)

    return LocalStore(root, step=step).put(path, data)


def delete_and_stop(parent: Parent, root: str, path: str, step: str) -> bool:
    """Delete one object, stopping at a step on the way; return whether that went well."""
    return LocalStore(root, step=StopAt(parent, step)).delete([path])[0].ok


def increment(parent: Parent, root: str, path: str, times: int, sync: bool = True) -> int:
    """When the test says so, count an object up by compare-and-set, and return how many conflicts there were."""
    store = LocalStore(root, sync=sync)
    parent.tell("ready")
    parent.wait()
    conflicts = 0
    for _ in range(times):
        while True:
            seen = store.get(path)
            try:
                store.put_if_match(path, b"%d" % (int(seen.data) + 1), seen.version)
                break
            except Conflict:
                conflicts += 1
    return conflicts
