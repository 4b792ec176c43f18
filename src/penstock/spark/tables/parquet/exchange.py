"""What a compaction on a local file system needs of it: a lock between processes, and an exchange of two directories.

A lock is an open directory: closing it releases the lock, and so does the end of the process, however it ends.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import sys

from penstock.errors import InvalidInput, StorageError

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EBADF)
_NOT_SUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EXDEV)


class DirectoryLock:
    """A directory that is open and locked, until it is closed."""

    def __init__(self, path: str, *, shared: bool = False, wait: bool = True) -> None:
        """Lock a directory, which is created if need be. Raises `BlockingIOError` if it is held and `wait` is False."""
        how = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
        while True:
            os.makedirs(path, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                self._lock(how, shared)
                if self._is_at(path):
                    return
            except BaseException:
                self.close()
                raise
            self.close()  # it was removed from outside: the directory that has the name now counts

    def close(self) -> None:
        """Release the lock."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> DirectoryLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lock(self, how: int, shared: bool) -> None:
        try:
            fcntl.flock(self._descriptor, how)
        except BlockingIOError:
            raise
        except OSError as error:
            # Where there are no locks nothing is compacted, for that needs one that is not shared.
            if not shared or error.errno not in _NO_LOCKS:
                raise

    def _is_at(self, path: str) -> bool:
        try:
            return os.path.samestat(os.fstat(self._descriptor), os.stat(path))
        except FileNotFoundError:
            return False


def exchange(one: str, other: str) -> None:
    """Give two directories each other's names, in one step. Raises `OSError`."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if sys.platform == "linux" else None
    if function is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if function(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def check_exchange(top: str, url: str) -> None:
    """Raise `InvalidInput` where directories cannot be exchanged, by trying it with two in a new directory."""
    try:
        os.makedirs(f"{top}/one")
        os.makedirs(f"{top}/other")
        exchange(f"{top}/one", f"{top}/other")
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise StorageError(f"could not try an exchange of directories in {top}: {error.strerror}") from error
        raise InvalidInput(
            f"{url} cannot be compacted: its file system, or this system, cannot exchange two directories in one step "
            f"(renameat2 with RENAME_EXCHANGE: {error.strerror}). Linux has it on ext4, xfs, btrfs and tmpfs, and not "
            "on NFS; elsewhere, write the table to an object store, or as Delta or Iceberg"
        ) from error
    finally:
        shutil.rmtree(top, ignore_errors=True)
