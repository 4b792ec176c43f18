"""Writes to a file system that is nearly full take turns, whichever of its directories they are for.

A write from the reserve frees blocks and an inode a moment before the reserve has them back. Each directory has a
reserve of its own, so only this keeps the producers of another buffer on the same disk from taking them.
"""

from __future__ import annotations

import fcntl
import os
import time

_MIN_FREE_BYTES = 4 << 20
_MIN_FREE_INODES = 64
_MAX_WAIT_SECONDS = 5.0  # a process that can read the top directory could hold its lock for ever
_PAUSE_SECONDS = 0.001


def take_turn(directory: str, length: int) -> int | None:
    """Wait for a turn to write so many bytes: None where there is enough space, or a descriptor to close afterwards.

    The lock is that of the top directory of the file system: it is there, and nothing has to be created for it.
    """
    try:
        directory = _existing(directory)
        found = os.statvfs(directory)
        has_inodes = found.f_favail >= _MIN_FREE_INODES or not found.f_files  # some file systems do not count them
        if has_inodes and found.f_bavail * found.f_frsize >= length + _MIN_FREE_BYTES:
            return None
        descriptor = os.open(_top_of(directory), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None  # it may not be looked at: the write goes on, and meets whatever there is to meet
    try:
        _wait(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _wait(descriptor: int) -> None:
    until = time.monotonic() + _MAX_WAIT_SECONDS
    while time.monotonic() < until:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_PAUSE_SECONDS)
        except OSError:
            return None  # a file system without such locks
    return None


def _existing(directory: str) -> str:
    while not os.path.isdir(directory) and directory != os.path.dirname(directory):
        directory = os.path.dirname(directory)
    return directory


def _top_of(directory: str) -> str:
    directory = os.path.realpath(directory)
    device = os.stat(directory).st_dev
    while (above := os.path.dirname(directory)) != directory and os.stat(above).st_dev == device:
        directory = above
    return directory
