"""The reserve of a directory: spare files that occupy space, for the few writes that must work on a full disk.

A spare has its blocks, its inode and its name already. A write that may use the reserve fills a spare and renames it
over the object, which needs nothing new of the file system. A spare was never an object: no reader has it open. The
order of writes is in `docs/design/local-disk.md`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from io import FileIO

from penstock.storage.local.internal_directory import InternalDirectory
from penstock.storage.local.lock import locked

LOCK = "reserve.lock"
SPARE_BYTES = 256 << 10
"""The size of a spare: twice what the head of a manifest needs at most. For a larger object two spares are larger."""

_SPARES = 4
_LARGE_SPARES = 2
_SMALLEST_SPARE_BYTES = 4 << 10
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_FALLOCATE = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})

Step = Callable[[str], None]


def is_full(error: BaseException) -> bool:
    """Whether an error says that a disk, or a user's part of it, is full."""
    return isinstance(error, OSError) and error.errno in _FULL


def sizes_for(length: int) -> list[int]:
    """How large the spares are in a directory whose largest object of the reserve has `length` bytes.

    >>> sizes_for(1000) == [SPARE_BYTES] * 4
    True
    """
    large = max(SPARE_BYTES, 1 << max(length - 1, 0).bit_length())
    return [large] * _LARGE_SPARES + [SPARE_BYTES] * (_SPARES - _LARGE_SPARES)


class Spares:
    """The spares of one directory. To fill or to use them takes the lock of the reserve, after that of an object."""

    def __init__(self, internal: InternalDirectory, mode: int, *, sync: bool, step: Step) -> None:
        self._internal = internal
        self._mode = mode
        self._sync = sync
        self._step = step

    def exist(self) -> bool:
        """Whether a reserve is kept here. Raises `InvalidInput` for a link in the place of its lock."""
        return self._internal.has(LOCK)

    def are_complete(self, length: int) -> bool:
        """Whether every spare is there, and large enough for an object of `length` bytes."""
        return all(self._size(number) >= size for number, size in enumerate(sizes_for(length)))

    def lock(self) -> FileIO:
        """Wait for the lock of the reserve; closing the file releases it."""
        return locked(self._internal, LOCK, FileIO, self._mode)

    def fill(self, length: int, *, as_far_as_possible: bool = False) -> None:
        """Allocate what is missing. The caller holds the lock.

        Raises `OSError` where there is no space; with `as_far_as_possible` a spare is then as large as there is space
        for, down to `length`, or not there.
        """
        for number, size in enumerate(sizes_for(length)):
            while self._size(number) < size:
                try:
                    self._allocate(number, size)
                except OSError as error:
                    if not is_full(error) or not as_far_as_possible:
                        raise
                    size //= 2  # the next try is for half of it
                    if size < max(length, _SMALLEST_SPARE_BYTES):
                        break
        if self._sync:
            self._internal.sync()
        self._step("reserve filled")

    def choose(self, length: int) -> str | None:
        """The spare to use: the smallest that is large enough, or else the largest; None where there is none.

        Only spares of this user count, for a file's time can be set by its owner alone. The caller holds the lock.
        """
        spares = []
        for number in range(_SPARES):
            found = self._internal.find(_name(number))
            if found is not None and os.geteuid() in {0, found.st_uid} and found.st_nlink == 1:
                spares.append((found.st_size < length, abs(found.st_size - length), _name(number)))
        return min(spares)[2] if spares else None

    def give_up_one(self) -> bool:
        """Remove one spare, so that its blocks and its inode are free; say whether there was one."""
        with self.lock():
            return any(self._internal.remove(_name(number)) for number in reversed(range(_SPARES)))

    def _size(self, number: int) -> int:
        found = self._internal.find(_name(number))
        return -1 if found is None or found.st_nlink != 1 else found.st_size

    def _allocate(self, number: int, size: int) -> None:
        name = _name(number)
        if self._size(number) < 0:
            self._internal.remove(name)  # a link, or a file with a second name: its bytes may be needed elsewhere
        descriptor = self._open(name)
        try:
            _allocate(descriptor, size)
        finally:
            os.close(descriptor)
        self._step("spare allocated")

    def _open(self, name: str) -> int:
        try:
            return self._internal.open(name, os.O_WRONLY | os.O_CREAT, self._mode)
        except PermissionError:  # of another user, and too short: it can be replaced, though not written to
            self._internal.remove(name)
        return self._internal.open(name, os.O_WRONLY | os.O_CREAT, self._mode)


def _name(number: int) -> str:
    return f"reserve-{number}"


def _allocate(descriptor: int, size: int) -> None:
    with suppress(AttributeError):  # not on every system
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            if error.errno not in _NO_FALLOCATE:
                raise
        else:
            return
    written = 0
    while written < size:
        written += os.pwrite(descriptor, bytes(min(size - written, 1 << 20)), written)
