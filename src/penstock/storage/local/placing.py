"""Puts content under an object's name, under its lock: by a new file, or on a full disk by a spare of the reserve."""

from __future__ import annotations

import os
from contextlib import suppress

from penstock.errors import StorageError
from penstock.storage.local.folder import Folder, Held
from penstock.storage.local.reserve import is_full
from penstock.storage.object_store import Reserve

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL

Content = bytes | memoryview


def keep_reserve(folder: Folder, held: Held, length: int, reserve: Reserve | None) -> None:
    """Before a write that may not use the reserve: fill it, so that the write cannot have what belongs to that.

    Raises `OSError` where there is no space for the reserve.
    """
    spares = folder.spares(held.internal)
    if reserve is Reserve.USE or (reserve is None and not spares.exist()):
        return
    if reserve is None:
        length = 0  # another object, which is not the one that the reserve is for
    if not spares.are_complete(length):
        with spares.lock():
            spares.fill(length)


def place(folder: Folder, held: Held, target: str, content: Content, stamp: int, reserve: Reserve | None) -> str:
    """Put content in the place of what is there, and return its version. Raises `OSError`, and `OutcomeUnknown`."""
    try:
        written = _place_new_file(folder, held, target, content, stamp)
    except OSError as error:
        if reserve is not Reserve.USE or not is_full(error):
            raise
        return _place_spare(folder, held, target, content, stamp, error)
    spares = folder.spares(held.internal)
    if reserve is Reserve.USE and not spares.are_complete(len(content)):
        with suppress(OSError), spares.lock():
            spares.fill(len(content), as_far_as_possible=True)
    return written


def _place_new_file(folder: Folder, held: Held, target: str, content: Content, stamp: int) -> str:
    try:
        written = _fill(folder, held, held.temporary, _CREATE, content, stamp)
        with folder.changing(held):
            held.internal.move(held.temporary, target)
            folder.step("moved")
    except BaseException:
        held.internal.remove(held.temporary)
        raise
    return written


def _place_spare(folder: Folder, held: Held, target: str, content: Content, stamp: int, full: OSError) -> str:
    """Raises `full` where there is no spare to use."""
    spares = folder.spares(held.internal)
    if not spares.exist():
        raise full
    with spares.lock():
        folder.step("reserve locked")
        spare = spares.choose(len(content))
        if spare is None:
            raise full
        written = _fill(folder, held, spare, os.O_WRONLY, content, stamp)
        with folder.changing(held):
            held.internal.move(spare, target)
            folder.step("moved")
        with suppress(OSError):  # what the object occupied before is free now, unless a reader has it open
            spares.fill(len(content), as_far_as_possible=True)
    return written


def _fill(folder: Folder, held: Held, name: str, flags: int, content: Content, stamp: int) -> str:
    """Write content to a file of the internal, and return the version of the object that it will be."""
    descriptor = held.internal.open(name, flags, folder.permissions.file_mode)
    try:
        folder.step("temporary file made" if flags & os.O_CREAT else "spare opened")
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        if not flags & os.O_CREAT:
            os.ftruncate(descriptor, len(content))
        folder.step("written")
        os.utime(descriptor, ns=(stamp * 1_000, stamp * 1_000))
        folder.step("stamped")
        if folder.sync:
            os.fsync(descriptor)
        folder.step("synced")
        written = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    if written.st_mtime_ns != stamp * 1_000:
        raise StorageError(
            f"the file system under {folder.path} does not keep modification times to the microsecond, and "
            "versions need that: use another one (ext4, xfs, btrfs, tmpfs, APFS do)"
        )
    return version_of(written)


def version_of(found: os.stat_result) -> str:
    """The version of the object in a file."""
    return f"{found.st_mtime_ns:x}-{found.st_ino:x}-{found.st_size:x}"
