"""One directory of a local store: its durability, its locks, its litter. The order of writes is in the design note."""

from __future__ import annotations

import logging
import os
import struct
import zlib
from collections.abc import Callable
from contextlib import nullcontext, suppress
from io import FileIO

from penstock.storage.local.lock import locked, locked_if_free

log = logging.getLogger(__name__)

ROOM = ".penstock"
STRIPES = 64
_MARKED, _CLEAN = b"\x01", b"\x00"
_STAMP = struct.Struct("<q")

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
        self._synced = os.path.join(self._room, "synced")
        self._sync = sync
        self._step = step

    def is_prepared(self) -> bool:
        """Whether all is as `prepare` left it; someone may have removed the directory and made it again."""
        return os.path.exists(self._synced if self._sync else self._room)

    def prepare(self) -> None:
        """Make the directory, durably, and clear away what killed writers left. Doing it again is cheap."""
        if not os.path.isdir(self.path):
            os.makedirs(self.path, exist_ok=True)
            self._step("directory made")
        if self._sync and not os.path.exists(self._synced):
            # Also where the directory was there: who made it may have been killed before syncing it.
            self._sync_ancestors()
            self._step("ancestors synced")
        os.makedirs(self._room, exist_ok=True)
        if self._sync:
            with suppress(FileExistsError):
                os.close(os.open(self._synced, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        self._step("room made")
        self.sweep()

    def hold(self, stripe: str) -> Held:
        """Wait for the lock of a stripe. What a killed holder was writing is removed first."""
        held = locked(self._lock(stripe), Held)
        try:
            self._step("locked")
            # Named after the lock file itself: should someone delete that one, the holder of the next cannot
            # write into what the holder of this one is about to move into place.
            held.temporary = os.path.join(self._room, f"{stripe}-{os.fstat(held.fileno()).st_ino:x}.tmp")
            _remove(held.temporary)
        except BaseException:
            held.close()
            raise
        return held

    def sweep(self) -> None:
        """Remove what killed writers left behind, without waiting for anyone who is writing."""
        try:
            with os.scandir(self._room) as entries:
                litter = [entry.path for entry in entries if entry.name.endswith(".tmp")]
        except OSError:
            return  # there is no room, or none that this process may look into: then it cannot tidy up either
        for path in litter:
            stripe = os.path.basename(path).partition("-")[0]
            with suppress(OSError), locked_if_free(self._lock(stripe), Held) or nullcontext() as held:
                if held is not None and _remove(path):
                    log.info("removed %s, which a killed writer had left", path)

    def settle(self, stripe: str) -> None:
        """Before answering a reader: if a change in this stripe may not be durable yet, make it so."""
        if not self._sync:
            return
        try:
            descriptor = os.open(self._lock(stripe), os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
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
        with suppress(OSError), locked_if_free(self._lock(stripe), Held) or nullcontext() as held:
            if held is not None:
                sync_directory(self.path)
                held.unmark()

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


class Held(FileIO):
    """A stripe whose lock is held. Its lock file keeps a mark, and the last stamp given to an object of it.

    The mark says: what you see in this stripe may not be durable yet. The stamp outlives the objects, and stores with
    other roots on the same directory see it too.
    """

    temporary = ""
    """The one temporary file that the holder of this lock may have."""

    def mark(self) -> None:
        """From here on readers sync before they answer."""
        os.pwrite(self.fileno(), _MARKED, 0)

    def unmark(self) -> None:
        """Everything is durable again."""
        os.pwrite(self.fileno(), _CLEAN, 0)

    def is_marked(self) -> bool:
        """Whether an earlier holder did not get as far as its sync."""
        return os.pread(self.fileno(), 1, 0) == _MARKED

    def above_last(self, stamp: int) -> int:
        """Raise a stamp above the last one of this stripe, if it is not, and keep it as the last."""
        content = os.pread(self.fileno(), _STAMP.size, len(_MARKED))
        if len(content) == _STAMP.size:
            stamp = max(stamp, _STAMP.unpack(content)[0] + 1)
        os.pwrite(self.fileno(), _STAMP.pack(stamp), len(_MARKED))
        return stamp


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
