"""One directory of a local store: its durability, its locks, its litter. The order of writes is in the design note."""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from penstock.storage.local.lock import locked, locked_if_free

log = logging.getLogger(__name__)

ROOM = ".penstock"
STRIPES = 64
_MARKED, _CLEAN = b"\x01", b"\x00"

Step = Callable[[str], None]


def stripe_of(name: str) -> str:
    """Say which lock of its directory an object's file name falls under.

    >>> stripe_of("manifest")
    '00'
    """
    return f"{zlib.crc32(name.encode()) % STRIPES:02}"


class Folder:
    """A directory that objects lie in, and its room `.penstock` with locks and temporary files."""

    def __init__(self, path: str, *, sync: bool, step: Step) -> None:
        self.path = path
        self._room = os.path.join(path, ROOM)
        self._sync = sync
        self._step = step

    def is_prepared(self) -> bool:
        """Whether the room is still there; someone may have removed the whole directory."""
        return os.path.isdir(self._room)

    def prepare(self) -> None:
        """Make the directory, durably, and clear away what killed writers left. Doing it again is cheap."""
        if not os.path.isdir(self.path):
            os.makedirs(self.path, exist_ok=True)
            self._step("directory made")
        synced = os.path.join(self._room, "synced")
        if self._sync and not os.path.exists(synced):
            # Also where the directory was there: who made it may have been killed before syncing it.
            self._sync_ancestors()
            self._step("ancestors synced")
        os.makedirs(self._room, exist_ok=True)
        if self._sync:
            with suppress(FileExistsError):
                os.close(os.open(synced, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        self._step("room made")
        self.sweep()

    @contextmanager
    def writing(self, stripe: str) -> Iterator[Mark]:
        """Hold the lock of a stripe. What a killed holder was writing is removed first."""
        with locked(self._lock(stripe)) as descriptor:
            self._step("locked")
            _remove(self.temporary(stripe))
            yield Mark(descriptor)

    def temporary(self, stripe: str) -> str:
        """Name the one temporary file that the holder of a stripe's lock may have."""
        return os.path.join(self._room, f"{stripe}.tmp")

    def sweep(self) -> None:
        """Remove what killed writers left behind, without waiting for anyone who is writing."""
        try:
            litter = [entry.name[:-4] for entry in os.scandir(self._room) if entry.name.endswith(".tmp")]
        except (FileNotFoundError, PermissionError):
            return
        for stripe in litter:
            with suppress(PermissionError), locked_if_free(self._lock(stripe)) as descriptor:
                if descriptor is not None and _remove(self.temporary(stripe)):
                    log.info("removed %s, which a killed writer had left", self.temporary(stripe))

    def sync(self) -> None:
        """Make every change to the directory's entries durable, if this store syncs at all."""
        if self._sync:
            sync_directory(self.path)

    def settle(self, stripe: str) -> None:
        """Before answering a reader: if a change in this stripe may not be durable yet, make it so."""
        if not self._sync:
            return
        try:
            descriptor = os.open(self._lock(stripe), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # nobody has ever written here
        try:
            marked = os.pread(descriptor, 1, 0) == _MARKED
        finally:
            os.close(descriptor)
        if not marked:
            return
        log.debug("syncing %s before answering: its last change may not be durable yet", self.path)
        sync_directory(self.path)
        # The mark may be taken off only under the lock. Where a writer holds it, that one will do so.
        with suppress(PermissionError), locked_if_free(self._lock(stripe)) as held:
            if held is not None:
                sync_directory(self.path)
                Mark(held).clear()

    def _lock(self, stripe: str) -> str:
        return os.path.join(self._room, f"{stripe}.lock")

    def _sync_ancestors(self) -> None:
        directory, device = self.path, os.stat(self.path).st_dev
        while True:
            try:
                sync_directory(directory)
            except PermissionError:
                return  # above the store, in directories that are not ours to open and were there before
            above = os.path.dirname(directory)
            if above == directory or os.stat(above).st_dev != device:
                return
            directory = above


class Mark:
    """The byte of a lock file that says: what you see in this stripe may not be durable yet."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def set(self) -> None:
        """From here on readers sync before they answer."""
        os.pwrite(self._descriptor, _MARKED, 0)

    def clear(self) -> None:
        """Everything is durable again."""
        os.pwrite(self._descriptor, _CLEAN, 0)

    def is_set(self) -> bool:
        """Whether an earlier holder did not get as far as its sync."""
        return os.pread(self._descriptor, 1, 0) == _MARKED


def sync_directory(path: str) -> None:
    """Make the entries of a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: str) -> bool:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True
