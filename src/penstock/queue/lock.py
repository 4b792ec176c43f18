"""The lock of a durable queue: one process at a time has it open, or repairs it."""

from __future__ import annotations

import os
from contextlib import suppress
from io import FileIO
from weakref import WeakValueDictionary

from penstock.core import current
from penstock.errors import InvalidInput, StorageError
from penstock.queue.damage import named
from penstock.storage import InternalDirectory, locked_if_free

LOCK_NAME = "penstock-lock"
ONE_PROCESS = (
    "one process at a time has a queue open. Workers of a server each open one of their own, by "
    "`DurableEventQueue.for_worker(folder)`"
)


class QueueLock(FileIO):
    """A held lock. It has no `__del__`: that is a call that an interrupt can hit, wherever garbage is collected.

    It stands for the directory of its queue: `DurableEventQueue(lock)` opens the queue, and releases the lock at the
    end.
    """

    path = ""

    def __fspath__(self) -> str:
        return self.path

    def release(self) -> None:
        """Let another process have the queue."""
        _held.pop(self.path, None)
        self.close()


_held = WeakValueDictionary[str, QueueLock]()
_held_at_a_fork = set[str]()  # RocksDB in the child believes that it has them open itself


def lock_queue(path: str) -> QueueLock:
    """Lock the queue in a directory, which exists. Raises `StorageError`, at once, if it is open somewhere."""
    if path in _held_at_a_fork:
        raise StorageError(
            f"{named(path)} was open in the parent process when this child was forked, and cannot be opened in it any "
            "more: open it in a process that is started anew"
        )
    try:
        lock = _locked(path)
    except OSError as error:
        raise _cannot_lock(path, error) from error
    if lock is None and path in _held:
        raise StorageError(f"{named(path)} is open in this process already: close it there, or share it")
    if lock is None:
        process = process_with_lock(path)
        holder = "" if process is None else f" (process {process})"
        raise StorageError(f"{named(path)} is open in another process{holder}: {ONE_PROCESS}")
    return lock


def lock_if_free(path: str) -> QueueLock | None:
    """Lock the queue in a directory; None if it is open somewhere, or the directory is gone. Raises `StorageError`."""
    if path in _held_at_a_fork:
        return None
    try:
        return _locked(path)
    except FileNotFoundError:
        return None
    except (OSError, InvalidInput) as error:  # also a link in place of the lock
        raise _cannot_lock(path, error) from error


def process_with_lock(path: str) -> int | None:
    """Which process has the lock, where the system says so."""
    if path in _held:
        return current.number
    with suppress(OSError, ValueError, IndexError):
        file = os.stat(os.path.join(path, LOCK_NAME))
        name = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
        with open("/proc/locks") as locks:
            for line in locks:
                words = line.split()
                if words[5] == name:
                    return int(words[4])
    return None


def _locked(path: str) -> QueueLock | None:
    internal = InternalDirectory(os.path.realpath(path))  # the queue may be behind a link; its lock may not be one
    try:
        lock = locked_if_free(internal, LOCK_NAME, QueueLock)
    finally:
        os.close(internal.descriptor)
    if lock is not None:
        lock.path = path
        _held[path] = lock
    return lock


def _cannot_lock(path: str, error: OSError | InvalidInput) -> StorageError:
    reason = error.strerror if isinstance(error, OSError) else None
    return StorageError(f"{named(path)} cannot be locked: {reason or error}")


def _note_fork() -> None:
    _held_at_a_fork.update(_held)
    _held.clear()


os.register_at_fork(after_in_child=_note_fork)
