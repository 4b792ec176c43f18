"""A lock between processes (and threads) that a killed holder never leaves behind."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_open: set[int] = set()
_guard = threading.RLock()  # a signal's handler may come to write, too, in the thread that it interrupts


def _drop_inherited() -> None:
    # A forked child shares its parent's descriptors: if the parent dies while holding a lock, the child's copy
    # would keep it for as long as the child lives.
    _guard.release()
    for descriptor in _open:
        os.close(descriptor)
    _open.clear()


os.register_at_fork(before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_drop_inherited)


@contextmanager
def locked(path: str) -> Iterator[int]:
    """Wait for the lock of a lock file, hold it, and hand out its descriptor.

    Each call opens the file anew, so threads of one process exclude each other too. The file is made if it is not
    there, and never deleted; should someone delete it all the same, the one that is under the name now counts.
    """
    descriptor = _acquire(path, fcntl.LOCK_EX)
    try:
        yield descriptor
    finally:
        _release(descriptor)


@contextmanager
def locked_if_free(path: str) -> Iterator[int | None]:
    """Hold the lock if nobody else does, without waiting; hand out None if somebody does."""
    try:
        descriptor = _acquire(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield None
        return
    try:
        yield descriptor
    finally:
        _release(descriptor)


def _acquire(path: str, how: int) -> int:
    while True:
        with _guard:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
            _open.add(descriptor)
        try:
            fcntl.flock(descriptor, how)
            if _is_at(descriptor, path):
                return descriptor
        except BaseException:
            _close(descriptor)
            raise
        _close(descriptor)


def _release(descriptor: int) -> None:
    try:
        # Closing is not enough: a child forked meanwhile shares this lock until it has closed its copy.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        _close(descriptor)


def _close(descriptor: int) -> None:
    with _guard:
        _open.discard(descriptor)
        os.close(descriptor)


def _is_at(descriptor: int, path: str) -> bool:
    mine = os.fstat(descriptor)
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)
