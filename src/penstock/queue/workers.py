"""A folder with a queue for each worker process of a server: made, found again, and removed when they are drained.

What must hold, the order of the steps, and what a kill after each leaves is in `docs/design/worker-queues.md`.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import suppress

from penstock.core import get_logger
from penstock.errors import InvalidInput, PenstockError, StorageError
from penstock.queue.checking import check_queue
from penstock.queue.damage import shown
from penstock.queue.database import DIRECTORY_MODE, make_directory
from penstock.queue.lock import LOCK_NAME, QueueLock, lock_if_free
from penstock.queue.mark import MARK_NAME
from penstock.queue.places import (
    FOLDER_MARK,
    REMOVED_NAME,
    WORKER_MARK,
    WORKER_NAME,
    is_of_worker,
    is_queue,
    queues_in,
)
from penstock.queue.rocks import check_process, is_database_file
from penstock.storage import local_path, sync_directory

_FILES = frozenset({LOCK_NAME, MARK_NAME, f"{MARK_NAME}.tmp", WORKER_MARK, "LOCK"})
_OF_FOLDER = b"DurableEventQueue.for_worker makes a queue for each worker process here.\n"
_OF_QUEUE = (
    b"DurableEventQueue.for_worker has made this queue for a worker process. When that has ended, another worker goes\n"
    b"on with the queue, or `penstock ship` on the folder above ships what is in it, and removes it.\n"
)

_log = get_logger(__name__)


class WorkerQueues:
    """The queues that `DurableEventQueue.for_worker` has made in a folder. It opens none of them.

    What has no mark of `for_worker` is never removed: not a queue that an application has put into the folder.

    >>> import tempfile
    >>> from penstock import DurableEventQueue
    >>> folder = tempfile.mkdtemp()
    >>> with DurableEventQueue.for_worker(folder) as queue:
    ...     queues = WorkerQueues(folder)
    ...     queues.places() == [queue.path], queues.claim(queue.path)
    (True, None)
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = os.path.realpath(local_path(folder))

    @property
    def exist(self) -> bool:
        """Whether queues of workers were ever made in the folder, though there may be none any more."""
        return os.path.exists(os.path.join(self._folder, FOLDER_MARK))

    def places(self) -> list[str]:
        """The directories of the queues, by name. Raises `OSError` where there is no folder."""
        return [place for place in queues_in(self._folder) if self.has(place)]

    def has(self, place: str) -> bool:
        """Whether a directory has a queue of a worker."""
        name = os.path.basename(place)
        path = os.path.join(self._folder, name)
        return WORKER_NAME.fullmatch(name) is not None and is_of_worker(path) and not os.path.islink(path)

    def claim(self, place: str) -> os.PathLike[str] | None:
        """Lock the queue of a worker that has ended; None while its worker lives, and where it is gone.

        `DurableEventQueue(claimed)` opens it, and releases the lock when it is closed. Raises `StorageError`.
        """
        return self._locked(os.path.basename(place))

    def remove(self, place: str) -> bool:
        """Remove the queue of a worker that has ended, if it is empty; say whether it is gone.

        Raises `CorruptData` where it is damaged: what is left of it is not removed.
        """
        name = os.path.basename(place)
        lock = self._locked(name)
        if lock is None:
            return not os.path.exists(os.path.join(self._folder, name))
        try:
            whole = check_queue(lock.path)
            if whole is not None and whole.totals.on_disk:
                return False  # another worker has had it meanwhile
            others = [f"the key {key.hex()}, which is no id" for key in whole.inventory.bad_keys] if whole else []
            if others := others + [entry for entry in os.listdir(lock.path) if not _is_of_queue(entry)]:
                _log.warning(
                    "the queue in %s is drained, and is not removed: it also has %s", lock.path, ", ".join(others)
                )
                return False
            removed = f"{lock.path}.removed"
            os.rename(lock.path, removed)
            _delete(removed)
        except OSError as error:
            raise StorageError(
                f"the queue in {shown(lock.path)} could not be removed: {error.strerror or error}"
            ) from error
        finally:
            lock.release()
        return True

    def tidy(self) -> None:
        """Remove what a kill left: directories that were being removed, or in which no queue was made yet."""
        for name in os.listdir(self._folder):
            path = os.path.join(self._folder, name)
            with suppress(OSError, StorageError):
                entries = set(os.listdir(path)) if not os.path.islink(path) else {name}
                if REMOVED_NAME.fullmatch(name) and (WORKER_MARK in entries or not entries):
                    _delete(path)
                elif WORKER_NAME.fullmatch(name) and entries <= {LOCK_NAME}:
                    _delete_if_unmade(path)

    def free(self) -> Iterator[QueueLock]:
        """Lock one queue after the other that has no worker. The caller opens it.

        Raises `StorageError`, and `InvalidInput` for a folder that is a queue itself.
        """
        check_process(self._folder)
        if is_queue(self._folder):
            raise InvalidInput(
                f"{shown(self._folder)} is a durable queue itself: give for_worker another folder, and ship what is in "
                "this one by `penstock ship`"
            )
        try:
            places = self.places()
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._cannot_make(error) from error
        for place in places:
            try:
                lock = self._locked(os.path.basename(place))
            except StorageError as error:  # it may be of another user
                _log.warning("%s", error)
                continue
            if lock is not None:
                yield lock

    def make(self) -> QueueLock:
        """Make a directory for a new queue, and hold its lock. Raises `StorageError`."""
        check_process(self._folder)
        make_directory(self._folder)
        try:
            _write(os.path.join(self._folder, FOLDER_MARK), _OF_FOLDER)
            while True:
                lock = self._made()
                if lock is not None:
                    return lock
        except OSError as error:
            raise self._cannot_make(error) from error

    def unmake(self, place: str) -> None:
        """Remove a queue that was made just now, and could not be opened: each new start would leave one more."""
        with suppress(PenstockError):
            self.remove(place)

    def _made(self) -> QueueLock | None:
        """A new directory, locked. None if a shipper has come between the two, and removes it. Raises `OSError`."""
        path = os.path.join(self._folder, f"worker-{secrets.token_hex(8)}")
        os.mkdir(path, DIRECTORY_MODE)
        lock = None
        try:
            lock = lock_if_free(path)
            if lock is not None:
                _write(os.path.join(path, WORKER_MARK), _OF_QUEUE)
                sync_directory(path)
                sync_directory(self._folder)
        except BaseException:
            with suppress(OSError):
                _delete_unmade(path)
            if lock is not None:
                lock.release()
            raise
        return lock

    def _cannot_make(self, error: OSError) -> StorageError:
        return StorageError(f"a queue for a worker cannot be made in {shown(self._folder)}: {error.strerror or error}")

    def _locked(self, name: str) -> QueueLock | None:
        path = os.path.join(self._folder, name)
        return lock_if_free(path) if self.has(path) else None


def _delete_if_unmade(path: str) -> None:
    lock = lock_if_free(path)
    if lock is None:
        return
    try:
        if set(os.listdir(path)) == {LOCK_NAME}:
            _delete_unmade(path)
    finally:
        lock.release()


def _delete_unmade(path: str) -> None:
    """Delete a directory in which no queue was made. The mark comes first: without it this is no queue of a worker."""
    for name in (WORKER_MARK, LOCK_NAME):
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(path, name))
    os.rmdir(path)


def _is_of_queue(name: str) -> bool:
    return name in _FILES or is_database_file(name)


def _delete(removed: str) -> None:
    """Delete a directory that was renamed for it, its mark last. It has no events. Another process may do the same."""
    # Else a loss of power could undo the rename and not the deletes: that looks like a damaged queue.
    sync_directory(os.path.dirname(removed))
    with suppress(FileNotFoundError):
        for name in os.listdir(removed):
            if _is_of_queue(name) and name != WORKER_MARK:
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(removed, name))
        # Else it could undo these deletes, and not that of the mark: `tidy` would pass it over.
        sync_directory(removed)
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(removed, WORKER_MARK))
        os.rmdir(removed)


def _write(path: str, text: bytes) -> None:
    """Make a mark, durably, if it is not there."""
    try:
        with open(path, "xb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        pass
