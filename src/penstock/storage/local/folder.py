"""One directory of a local store: its durability, its locks, its litter. The order of writes is in the design note."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from io import FileIO

from penstock.core import get_logger
from penstock.errors import OutcomeUnknown
from penstock.storage.local.lock import locked, locked_if_free
from penstock.storage.local.permissions import DEFAULT_PERMISSIONS, Permissions
from penstock.storage.local.reserve import Spares, is_full
from penstock.storage.local.room import ROOM, Room, room_of

log = get_logger(__name__)

STRIPES = 64
_MARKED, _CLEAN = b"\x01", b"\x00"
_STAMP = struct.Struct("<q")
_SYNCED = "synced"
_READ_LOCK = os.O_RDONLY | os.O_NONBLOCK  # a pipe planted here must not block a reader

Step = Callable[[str], None]


def stripe_of(name: str) -> str:
    """Say which lock of its directory an object's file name falls under.

    >>> stripe_of("manifest")
    '00'
    """
    return f"{zlib.crc32(name.encode()) % STRIPES:02}"


class Folder:
    """A directory that objects lie in, and its room `.penstock` with locks, temporary files and the reserve.

    Everything that enters the room raises `InvalidInput` if that, or a file in it, is a link.
    """

    def __init__(self, path: str, *, sync: bool, step: Step, permissions: Permissions = DEFAULT_PERMISSIONS) -> None:
        self.path = path
        self._room = os.path.join(path, ROOM)
        self.sync = sync
        self.step = step
        self.permissions = permissions

    def is_prepared(self) -> bool:
        """Whether all is as `prepare` left it; someone may have removed the directory and made it again."""
        return self._was_synced() if self.sync else os.path.exists(self._room)

    def prepare(self) -> None:
        """Make the directory, durably, and clear away what killed writers left. Doing it again is cheap."""
        if not os.path.isdir(self.path):
            self.permissions.make_directories(self.path)
            self.step("directory made")
        if self.sync and not self._was_synced():
            # Also where the directory was there: who made it may have been killed before syncing it.
            self._sync_ancestors()
            self.step("ancestors synced")
        with suppress(FileExistsError):
            os.mkdir(self._room, self.permissions.directory_mode)
        room = Room(self._room)
        try:
            if self.sync:
                self._note_sync(room)
            self.step("room made")
            self._sweep(room)
        finally:
            os.close(room.descriptor)

    def hold(self, stripe: str) -> Held:
        """Wait for the lock of a stripe. What a killed holder was writing is removed first.

        The caller closes both the file that it gets, which releases the lock, and the descriptor of its room.
        """
        room, held = Room(self._room), None
        try:
            held = locked(room, _lock(stripe), Held, self.permissions.file_mode)
            self.step("locked")
            held.room = room
            held.allocate()
            # Named after the lock file itself: should someone delete that one, the holder of the next cannot
            # write into what the holder of this one is about to move into place.
            held.temporary = f"{stripe}-{os.fstat(held.fileno()).st_ino:x}.tmp"
            room.remove(held.temporary)
        except BaseException:
            if held is not None:
                held.close()
            os.close(room.descriptor)
            raise
        return held

    @contextmanager
    def changing(self, held: Held) -> Iterator[None]:
        """Around a change to the directory's entries: mark it, make it durable, take the mark off.

        Raises `OutcomeUnknown` where the change happened, and may not be durable.
        """
        if not self.sync:
            yield
            return
        marked_before = held.is_marked()
        held.mark()
        self.step("marked")
        try:
            yield
        except OSError:
            if not marked_before:
                held.unmark()
            raise
        try:
            sync_directory(self.path)
        except OSError as error:
            raise OutcomeUnknown(
                f"a change in {self.path!r} happened, and may not be durable: the directory could not be synced "
                f"({error}). The next read of it syncs again before it answers"
            ) from error
        self.step("directory synced")
        with suppress(OSError):  # a mark that stays makes readers sync once more than needed, nothing else
            held.unmark()

    def spares(self, room: Room) -> Spares:
        """The spares of the directory's reserve, in its open room."""
        return Spares(room, self.permissions.file_mode, sync=self.sync, step=self.step)

    def give_up_spare(self) -> bool:
        """Remove one spare, so that its blocks and its inode are free; say whether there was one."""
        room = room_of(self.path)
        if room is None:
            return False
        try:
            spares = self.spares(room)
            return spares.exist() and spares.give_up_one()
        finally:
            os.close(room.descriptor)

    def sweep(self) -> None:
        """Remove what killed writers left behind, without waiting for anyone who is writing."""
        try:
            room = room_of(self.path)
        except OSError:
            return  # there is none that this process may look into: then it cannot tidy up either
        if room is not None:
            try:
                self._sweep(room)
            finally:
                os.close(room.descriptor)

    def settle(self, stripe: str) -> None:
        """Before answering a reader: if a change in this stripe may not be durable yet, make it so."""
        if not self.sync:
            return
        room = room_of(self.path)
        if room is None:
            return  # nothing was ever written here
        try:
            if self._is_marked(room, stripe):
                self._settle(room, stripe)
        finally:
            os.close(room.descriptor)

    def _is_marked(self, room: Room, stripe: str) -> bool:
        try:
            descriptor = room.open(_lock(stripe), _READ_LOCK)
        except FileNotFoundError:
            return False
        try:
            return os.pread(descriptor, 1, 0) == _MARKED
        finally:
            os.close(descriptor)

    def _settle(self, room: Room, stripe: str) -> None:
        log.debug("syncing %r before answering: its last change may not be durable yet", self.path)
        sync_directory(self.path)
        # The mark may be taken off only under the lock. Where a writer holds it, that one will do so.
        mode = self.permissions.file_mode
        with suppress(OSError), locked_if_free(room, _lock(stripe), Held, mode) or nullcontext() as held:
            if held is not None:
                sync_directory(self.path)
                held.unmark()

    def _was_synced(self) -> bool:
        path = os.path.join(self._room, _SYNCED)
        return os.path.exists(path) and not os.path.islink(path)  # what a link leads to says nothing of this directory

    def _note_sync(self, room: Room) -> None:
        try:
            os.close(room.open(_SYNCED, os.O_WRONLY | os.O_CREAT | os.O_EXCL, self.permissions.file_mode))
        except FileExistsError:
            room.has(_SYNCED)  # which refuses a link
        except OSError as error:
            if not is_full(error):  # on a full disk the next process syncs the same directories again
                raise

    def _sweep(self, room: Room) -> None:
        try:
            litter = [name for name in room.names() if name.endswith(".tmp")]
        except OSError:
            return
        for name in litter:
            lock, mode = _lock(name.partition("-")[0]), self.permissions.file_mode
            with suppress(OSError), locked_if_free(room, lock, Held, mode) or nullcontext() as held:
                if held is not None and room.remove(name):
                    log.info("removed %r of %r, which a killed writer had left", name, room.path)

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

    room: Room
    """Where the lock file lies."""

    temporary = ""
    """The one temporary file that the holder of this lock may have, in the room."""

    def allocate(self) -> None:
        """Give a new lock file its block, so that to mark and to stamp need none, not even on a full disk."""
        if os.fstat(self.fileno()).st_size < len(_CLEAN) + _STAMP.size:
            os.pwrite(self.fileno(), bytes(len(_CLEAN) + _STAMP.size), 0)

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


def _lock(stripe: str) -> str:
    return f"{stripe}.lock"
