"""Which files match a pattern, which of them are known already, and where a known one is now."""

from __future__ import annotations

import errno
import glob as globbing
import os
import stat
from collections.abc import Iterable, Mapping
from io import FileIO
from typing import NamedTuple, TypeAlias

from penstock.engine.transports.file_state import KnownFile, digest
from penstock.errors import StorageError

Key: TypeAlias = tuple[int, int]
"""Device and inode."""

_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip", ".z")
_MAX_LISTINGS = 10
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


class FoundFile(NamedTuple):
    """A file that a scan found. They sort by time, then by name."""

    modified_ns: int
    path: str


def matching(pattern: str, own: Iterable[str]) -> tuple[dict[Key, FoundFile], list[str]]:
    """The files that match, but for a receiver's own; and paths of compressed ones, which are not read."""
    found, compressed = dict[Key, FoundFile](), list[str]()
    own_keys = {(about.st_dev, about.st_ino) for path in own if (about := _stat(path))}
    for path in globbing.glob(pattern, recursive=True):
        about = _stat(path)
        if about is None or not stat.S_ISREG(about.st_mode) or (about.st_dev, about.st_ino) in own_keys:
            continue
        if path.lower().endswith(_COMPRESSED):
            compressed.append(path)
        else:
            found[about.st_dev, about.st_ino] = FoundFile(about.st_mtime_ns, path)
    return found, compressed


def renumbered(known: KnownFile, found: Mapping[Key, FoundFile]) -> Key | None:
    """The key of a file whose device has another number now, as after a mount: the inode and the content are the same.

    None where there is none, and for a file of which nothing is remembered.
    """
    for key, one in found.items():
        if key[1] == known.inode and known.head_bytes and _has_content_of(one.path, known):
            return key
    return None


def find(known: KnownFile) -> str | None:
    """Where a file is now: at its path, or under another name in that folder or in the one that its link leads to."""
    about = _stat(known.path)
    if about is not None and (about.st_dev, about.st_ino) == known.key:
        return known.path
    for folder in dict.fromkeys((os.path.dirname(known.path), os.path.dirname(os.path.realpath(known.path)))):
        for _ in range(_MAX_LISTINGS):
            before = _stat(folder)
            path = _listed(folder, known.inode)
            after = _stat(folder)
            if path is not None:
                return path
            # A file that is renamed while its folder is listed may be missing in the list.
            if before is None or after is None or before.st_mtime_ns == after.st_mtime_ns:
                break
    return None


def _listed(folder: str, inode: int) -> str | None:
    try:
        with os.scandir(folder) as entries:
            return next(
                (one.path for one in entries if one.inode() == inode and one.is_file(follow_symlinks=False)), None
            )
    except OSError as error:
        if error.errno in _NOT_THERE:
            return None
        raise


def open_file(path: str) -> FileIO | None:
    """The file; None where it is gone since. Raises `StorageError` where it cannot be opened."""
    try:
        return FileIO(path)
    except OSError as error:
        if error.errno in _NOT_THERE:
            return None
        raise StorageError(f"{path} matches, and cannot be opened: {error.strerror or error}") from error


def default_state(pattern: str) -> str:
    """A hidden file in the folder that the pattern is below, named after the pattern."""
    folder = os.path.dirname(pattern)
    while globbing.has_magic(folder):
        folder = os.path.dirname(folder)
    return os.path.join(folder, f".penstock-{digest(pattern.encode())}.json")


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError as error:
        if error.errno in _NOT_THERE:
            return None
        raise


def _has_content_of(path: str, known: KnownFile) -> bool:
    file = open_file(path)
    if file is None:
        return False
    with file:
        head = os.pread(file.fileno(), known.head_bytes, 0)
        tail = os.pread(file.fileno(), known.tail_bytes, known.offset - known.tail_bytes) if known.tail_bytes else b""
    return digest(head) == known.head and (not known.tail_bytes or digest(tail) == known.tail)
