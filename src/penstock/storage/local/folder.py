"""One directory of a local store: its durability, its locks, and what killed writers leave in it."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from io import FileIO
from itertools import takewhile
from pathlib import Path

from penstock.core import get_logger
from penstock.errors import OutcomeUnknown
from penstock.storage.local.internal_directory import INTERNAL_NAME, InternalDirectory, open_internal
from penstock.storage.local.lock import locked, locked_if_free
from penstock.storage.local.permissions import DEFAULT_PERMISSIONS, Permissions
from penstock.storage.local.reserve import Spares, is_full

_log = get_logger(__name__)

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
    """A directory of objects, and its internal directory `.penstock`: locks, temporary files and the reserve.

    Everything that opens that directory raises `InvalidInput` if that, or a file in it, is a link.
    """

    def __init__(self, path: str, *, sync: bool, step: Step, permissions: Permissions = DEFAULT_PERMISSIONS) -> None:
        self.path = path
        self._internal = os.path.join(path, INTERNAL_NAME)
        self.sync = sync
        self.step = step
        self.permissions = permissions

    def is_prepared(self) -> bool:
        """Whether all is as `prepare` left it; the directory may have been removed and made again."""
        return self._was_synced() if self.sync else os.path.exists(self._internal)

    def prepare(self) -> None:
        """Make the directory, durably, and clear away what killed writers left. Doing it again is cheap."""
        if not os.path.isdir(self.path):
            self.permissions.make_directories(self.path)
            self.step("directory made")
        if self.sync and not self._was_synced():
            # Also where the directory was there: who made it may have been killed before syncing it.
            sync_upwards(self.path)
            self.step("ancestors synced")
        with suppress(FileExistsError):
            os.mkdir(self._internal, self.permissions.directory_mode)
        internal = InternalDirectory(self._internal)
        try:
            if self.sync:
                self._note_sync(internal)
            self.step("internal directory made")
            self._sweep(internal)
        finally:
            os.close(internal.descriptor)

    def hold(self, stripe: str) -> Held:
        """Wait for the lock of a stripe. What a killed holder was writing is removed first.

        The caller closes the file that it gets, which releases the lock, and the descriptor of its internal directory.
        """
        internal, held = InternalDirectory(self._internal), None
        try:
            held = locked(internal, _lock(stripe), Held, self.permissions.file_mode)
            self.step("locked")
            held.internal = internal
            held.allocate()
            # Named after the lock file itself: if that one is deleted, the holder of the next cannot
            # write into what the holder of this one is about to move into place.
            held.temporary = f"{stripe}-{os.fstat(held.fileno()).st_ino:x}.tmp"
            internal.remove(held.temporary)
        except BaseException:
            if held is not None:
                held.close()
            os.close(internal.descriptor)
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

    def spares(self, internal: InternalDirectory) -> Spares:
        """The spares of the directory's reserve, in its open internal directory."""
        return Spares(internal, self.permissions.file_mode, sync=self.sync, step=self.step)

    def give_up_spare(self) -> bool:
        """Remove one spare, so that its blocks and its inode are free; say whether there was one."""
        internal = open_internal(self.path)
        if internal is None:
            return False
        try:
            spares = self.spares(internal)
            return spares.exist() and spares.give_up_one()
        finally:
            os.close(internal.descriptor)

    def sweep(self) -> None:
        """Remove what killed writers left behind, without waiting for a writer."""
        try:
            internal = open_internal(self.path)
        except OSError:
            return  # there is none that this process may look into: then it cannot tidy up either
        if internal is not None:
            try:
                self._sweep(internal)
            finally:
                os.close(internal.descriptor)

    def settle(self, stripe: str) -> None:
        """Before answering a reader: if a change in this stripe may not be durable yet, make it so."""
        if not self.sync:
            return
        internal = open_internal(self.path)
        if internal is None:
            return  # nothing was ever written here
        try:
            if self._is_marked(internal, stripe):
                self._settle(internal, stripe)
        finally:
            os.close(internal.descriptor)

    def _is_marked(self, internal: InternalDirectory, stripe: str) -> bool:
        try:
            descriptor = internal.open(_lock(stripe), _READ_LOCK)
        except FileNotFoundError:
            return False
        try:
            return os.pread(descriptor, 1, 0) == _MARKED
        finally:
            os.close(descriptor)

    def _settle(self, internal: InternalDirectory, stripe: str) -> None:
        _log.debug("syncing %r before answering: its last change may not be durable yet", self.path)
        sync_directory(self.path)
        # The mark may be taken off only under the lock. Where a writer holds it, that one will do so.
        mode = self.permissions.file_mode
        with suppress(OSError), locked_if_free(internal, _lock(stripe), Held, mode) or nullcontext() as held:
            if held is not None:
                sync_directory(self.path)
                held.unmark()

    def _was_synced(self) -> bool:
        path = os.path.join(self._internal, _SYNCED)
        return os.path.exists(path) and not os.path.islink(path)  # what a link leads to says nothing of this directory

    def _note_sync(self, internal: InternalDirectory) -> None:
        try:
            os.close(internal.open(_SYNCED, os.O_WRONLY | os.O_CREAT | os.O_EXCL, self.permissions.file_mode))
        except FileExistsError:
            internal.has(_SYNCED)  # which refuses a link
        except OSError as error:
            if not is_full(error):  # on a full disk the next process syncs the same directories again
                raise

    def _sweep(self, internal: InternalDirectory) -> None:
        try:
            leftovers = [name for name in internal.names() if name.endswith(".tmp")]
        except OSError:
            return
        for name in leftovers:
            lock, mode = _lock(name.partition("-")[0]), self.permissions.file_mode
            with suppress(OSError), locked_if_free(internal, lock, Held, mode) or nullcontext() as held:
                if held is not None and internal.remove(name):
                    _log.info("removed %r of %r, which a killed writer had left", name, internal.path)


class Held(FileIO):
    """A stripe whose lock is held. Its lock file keeps a mark, and the last stamp given to an object of it.

    The mark says: what you see in this stripe may not be durable yet. The stamp outlives the objects, and stores with
    other roots on the same directory see it too.
    """

    internal: InternalDirectory
    """Where the lock file lies."""

    temporary = ""
    """The one temporary file that the holder of this lock may have, in the internal directory."""

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


def sync_upwards(path: str) -> None:
    """Make the entries of a directory durable, and those of the directories above it on the same disk."""
    disk = os.stat(path).st_dev
    with suppress(PermissionError):  # a directory above that is not ours to open, and was there before
        for directory in takewhile(lambda one: os.stat(one).st_dev == disk, (path, *map(str, Path(path).parents))):
            sync_directory(directory)


def _lock(stripe: str) -> str:
    return f"{stripe}.lock"
