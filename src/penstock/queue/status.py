"""Looking at a durable queue without opening it: what its mark says, how large it is, and which process has it.

It takes no lock and writes nothing, so it is never in the way of a process that opens the queue at the same time.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
import time
from contextlib import suppress
from dataclasses import dataclass

from penstock.errors import CorruptData, NotFound, StorageError
from penstock.queue.checking import REPAIR_BEGUN, REPAIR_READY
from penstock.queue.damage import named, reason_of, shown
from penstock.queue.lock import process_with_lock
from penstock.queue.mark import MARK_NAME, MarkRecord, read_mark
from penstock.queue.places import is_of_worker, is_queue
from penstock.queue.rocks import holds_events
from penstock.storage import local_path

_LOCK_OF_ROCKSDB = "LOCK"
_FLOCK = struct.Struct("@hhqqi4x")  # Linux on 64 bits: type, whence, start, length, process
_READS = 5  # of a mark that is written at the same time


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A durable queue, seen from outside: as of its last write that was reported.

    `not_acked` counts its events; None where its mark cannot be read. `bytes_on_disk` is of all its files; RocksDB
    frees those of acked events later. `is_open` is None where this system does not say; `process` has the queue open,
    and is None too where it is not to be seen from here (another container). `damage` is what shows without opening the
    queue, or why this user cannot look at it.
    """

    path: str
    of_worker: bool
    not_acked: int | None
    bytes_on_disk: int
    seconds_since_write: float | None
    is_open: bool | None
    process: int | None
    damage: str | None


def queue_status(where: str | os.PathLike[str]) -> QueueStatus:
    """Look at a queue, also while a process has it open. Raises `NotFound` where there is none.

    >>> import tempfile
    >>> from penstock import DurableEventQueue
    >>> with DurableEventQueue(tempfile.mkdtemp()) as queue:
    ...     _ = queue.push_many([b"one", b"two"])
    ...     queue_status(queue.path).not_acked
    2
    """
    path = os.path.realpath(local_path(where))
    if not is_queue(path):
        raise NotFound(f"there is no durable queue in {shown(path)}")
    process = process_with_lock(path)
    mark, damage = _mark_of(path)
    totals = None if mark is None else mark.totals
    return QueueStatus(
        path,
        of_worker=is_of_worker(path),
        not_acked=totals.on_disk if totals else None if damage else 0,
        bytes_on_disk=_bytes_in(path),
        seconds_since_write=_seconds_since_write(path),
        is_open=_is_open(path) if process is None else True,
        process=process,
        damage=damage,
    )


def _mark_of(path: str) -> tuple[MarkRecord | None, str | None]:
    """The mark of a queue, or how the queue is damaged; neither where it is still being made."""
    if any(os.path.isdir(os.path.join(path, name)) for name in (REPAIR_BEGUN, REPAIR_READY)):
        return None, "a repair of it was interrupted, and must be run again"
    for _ in range(_READS):
        try:
            mark = read_mark(path)
        except CorruptData as error:
            damage = reason_of(error)
            continue
        except StorageError as error:  # it is of another user
            return None, str(error).removeprefix(f"{named(path)}: ")
        if mark is None and _holds_events(path):
            return None, f"its file {MARK_NAME} is missing"
        return mark, None
    return None, damage.partition("is damaged: ")[2]


def _holds_events(path: str) -> bool:
    with suppress(FileNotFoundError):  # it is being removed
        return holds_events(path)
    return False


def _is_open(path: str) -> bool | None:
    """Whether a process has RocksDB's lock, also one of another container: to ask for it does not take it."""
    if sys.platform != "linux":
        return None
    try:
        file = os.open(os.path.join(path, _LOCK_OF_ROCKSDB), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind: int = _FLOCK.unpack(fcntl.fcntl(file, fcntl.F_GETLK, asked))[0]
    except OSError:
        return None
    finally:
        os.close(file)  # a process that has the queue open must not close this file, and does not come here
    return kind != fcntl.F_UNLCK


def _bytes_in(path: str) -> int:
    size = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):  # RocksDB deletes files at any time
                size += os.stat(os.path.join(folder, name), follow_symlinks=False).st_blocks * 512
    return size


def _seconds_since_write(path: str) -> float | None:
    with suppress(OSError):  # it is not made yet, or of another user
        return max(time.time() - os.stat(os.path.join(path, MARK_NAME)).st_mtime, 0.0)
    return None
