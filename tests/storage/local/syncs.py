"""An `os.fsync` that a test can watch, and make fail."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

_fsync = os.fsync

Inode = tuple[int, int]


def inode_of(path: str | os.PathLike[str]) -> Inode:
    """Name a file or directory in a way that does not change when it is moved."""
    found = os.stat(path)
    return found.st_dev, found.st_ino


def is_directory(found: os.stat_result) -> bool:
    """Whether a sync is one of a directory."""
    return stat.S_ISDIR(found.st_mode)


def is_file(found: os.stat_result) -> bool:
    """Whether a sync is one of a file."""
    return stat.S_ISREG(found.st_mode)


def never(found: os.stat_result) -> bool:
    """No sync at all."""
    return False


class Syncs:
    """What was synced, in order; the syncs of those that `fails` says yes to end in an I/O error."""

    def __init__(self, fails: Callable[[os.stat_result], bool] = never) -> None:
        self.fails = fails
        self.done: list[Inode] = []
        self.failed: list[Inode] = []

    def __call__(self, descriptor: int) -> None:
        """Stand in for `os.fsync`."""
        found = os.fstat(descriptor)
        inode = found.st_dev, found.st_ino
        if self.fails(found):
            self.failed.append(inode)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        _fsync(descriptor)
        self.done.append(inode)


@contextmanager
def watched_syncs(fails: Callable[[os.stat_result], bool] = never) -> Iterator[Syncs]:
    """Watch every sync of this process, and make some of them fail."""
    syncs = Syncs(fails)
    with mock.patch.object(os, "fsync", syncs):
        yield syncs
