"""A directory's `.penstock`, opened once and used by its descriptor, so that no link can lead out of it.

A path is looked up anew by every system call. One that was checked for links may be a link by the time it is used. What
is reached through the descriptor of an open directory is in that directory, and nothing here follows a link in it.
"""

from __future__ import annotations

import errno
import os
import stat

from penstock.errors import InvalidInput

INTERNAL_NAME = ".penstock"
_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_LINK = os.O_NOFOLLOW | os.O_CLOEXEC


class InternalDirectory:
    """An open directory of a store's own files. Its user closes `descriptor` by `os.close`, in a `finally`.

    (A finalizer would swallow the exception that a signal raises as it is entered.)

    Raises `FileNotFoundError` where there is none, and `InvalidInput` for a link or a file in its place.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self.descriptor = os.open(path, _OPEN_DIRECTORY)
        except OSError as error:
            if error.errno not in {errno.ENOTDIR, errno.ELOOP}:
                raise
            if not _is_there(path):  # a part of the path before it is an object
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from error
            raise _refused(path, "it is not a directory but a link or a file") from error

    def open(self, name: str, flags: int, mode: int = 0) -> int:
        """Open a file of it. Raises `InvalidInput` for a link."""
        try:
            return os.open(name, flags | _NO_LINK, mode, dir_fd=self.descriptor)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise _refused(os.path.join(self.path, name), "it is a link") from error
            raise

    def find(self, name: str) -> os.stat_result | None:
        """What is known of a plain file of it; None where there is none."""
        try:
            found = os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None
        return found if stat.S_ISREG(found.st_mode) else None

    def has(self, name: str) -> bool:
        """Whether it has a plain file of this name. Raises `InvalidInput` for a link."""
        try:
            found = os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return False
        if stat.S_ISLNK(found.st_mode):
            raise _refused(os.path.join(self.path, name), "it is a link")
        return stat.S_ISREG(found.st_mode)

    def holds(self, name: str, descriptor: int) -> bool:
        """Whether an open file is the one under this name, now. Raises `FileNotFoundError` if the directory is gone."""
        mine = os.fstat(descriptor)
        try:
            there = os.stat(os.path.join(self.path, name), follow_symlinks=False)
        except FileNotFoundError:
            there = None
        if there is not None and (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino):
            return True
        own, now = os.fstat(self.descriptor), os.stat(self.path, follow_symlinks=False)
        if (own.st_dev, own.st_ino) != (now.st_dev, now.st_ino):
            raise FileNotFoundError(errno.ENOENT, "it was replaced meanwhile", self.path)
        return False

    def names(self) -> list[str]:
        """The names of all that is in it."""
        return os.listdir(self.descriptor)

    def move(self, name: str, target: str) -> None:
        """Move a file of it to a path elsewhere, over what is there."""
        os.rename(name, target, src_dir_fd=self.descriptor)

    def remove(self, name: str) -> bool:
        """Remove a file of it; say whether it was there."""
        try:
            os.unlink(name, dir_fd=self.descriptor)
        except FileNotFoundError:
            return False
        return True

    def sync(self) -> None:
        """Make its entries durable."""
        os.fsync(self.descriptor)


def open_internal(directory: str) -> InternalDirectory | None:
    """Open the internal directory of a directory; None where it has none."""
    try:
        return InternalDirectory(os.path.join(directory, INTERNAL_NAME))
    except FileNotFoundError:
        return None


def _is_there(path: str) -> bool:
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _refused(path: str, problem: str) -> InvalidInput:
    return InvalidInput(
        f"{path!r} is refused: {problem}, and in its place a store keeps files of its own; find out what put it "
        "there, and remove it"
    )
