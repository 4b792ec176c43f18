"""A lock between processes (and threads) that a killed holder never leaves behind.

A held lock is an open file, and `with` closes it. A file and not a bare descriptor, and no generator in between: an
exception that a signal raises (Ctrl-C, a time limit) can come as any Python function is entered, the one that would
release the lock too, in a process that then lives on. A `FileIO` is closed by C code, or when nothing refers to it.
"""

from __future__ import annotations

import fcntl
import os
import threading
from io import FileIO
from typing import TypeVar
from weakref import ref

from penstock.storage.local.internal_directory import InternalDirectory
from penstock.storage.local.permissions import DEFAULT_PERMISSIONS

L = TypeVar("L", bound=FileIO)

_open: list[ref[FileIO]] = []
_guard = threading.RLock()  # a signal's handler may come to write, too, in the thread that it interrupts


def _drop_inherited() -> None:
    # A forked child shares its parent's descriptors: if the parent dies while holding a lock, the child's copy
    # would keep it for as long as the child lives.
    _guard.release()
    for file in _still_open():
        file.close()


os.register_at_fork(before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_drop_inherited)


def locked(internal: InternalDirectory, name: str, kind: type[L], mode: int = DEFAULT_PERMISSIONS.file_mode) -> L:
    """Wait for the lock of a lock file, and return the file, of that kind; closing it releases the lock.

    Each call opens the file anew, so threads of one process exclude each other too. The file is created if it is not
    there, and never deleted; if it is deleted from outside, the one that is under the name now counts. Raises
    `InvalidInput` for a link under the name, and `FileNotFoundError` if the directory is gone.
    """
    return _acquire(internal, name, kind, fcntl.LOCK_EX, mode)


def locked_if_free(
    internal: InternalDirectory, name: str, kind: type[L], mode: int = DEFAULT_PERMISSIONS.file_mode
) -> L | None:
    """Take the lock if it is free, without waiting; return None if it is held."""
    try:
        return _acquire(internal, name, kind, fcntl.LOCK_EX | fcntl.LOCK_NB, mode)
    except BlockingIOError:
        return None


def _acquire(internal: InternalDirectory, name: str, kind: type[L], how: int, mode: int) -> L:
    while True:
        with _guard:
            file = kind(name, "r+", opener=lambda name, flags: internal.open(name, flags | os.O_CREAT, mode))
            _open[:] = [*map(ref, _still_open()), ref(file)]
        try:
            fcntl.flock(file.fileno(), how)
            if internal.holds(name, file.fileno()):
                return file
        except BaseException:
            file.close()
            raise
        file.close()


def _still_open() -> list[FileIO]:
    files = [found() for found in _open]
    return [file for file in files if file is not None and not file.closed]
