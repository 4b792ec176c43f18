"""The RocksDB database of a durable queue: what lies in it, and how it is opened, read, written and synced.

Everything but `write` is called with the queue's lock held; `write` by one thread at a time. Nothing of RocksDB leaves
this module: an iterator that outlives its database crashes the process.
"""

from __future__ import annotations

import math
import os
import struct
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.core import get_logger, never_free_in_child, printable
from penstock.errors import Closed, InvalidInput, OutcomeUnknown, StorageError
from penstock.queue.checking import Whole, check_end, check_open, check_queue, read_totals
from penstock.queue.damage import named, shown
from penstock.queue.lock import QueueLock, lock_queue
from penstock.queue.mark import MarkFile, MarkRecord, create_mark, read_mark
from penstock.queue.places import FOLDER_MARK, is_queue
from penstock.queue.rocks import TIMES, TOTALS, cannot_open, cannot_read, disk, memtable_bytes, open_for_writing
from penstock.queue.totals import Totals, packed
from penstock.storage import sync_directory

if TYPE_CHECKING:
    from rocksdict import ColumnFamily, Rdict, RdictIter, WriteOptions

_log = get_logger(__name__)

Answer = TypeVar("Answer")

_MIB = 1 << 20
_MAX_REASON_CHARACTERS = 500  # of RocksDB's own message
_MAX_STALL_SECONDS = 60.0
_STALL_PAUSE_SECONDS = 0.001
_MAX_FILES_TO_FLUSH = 10  # RocksDB slows down at 20
_FREE_SPACE_VALID_SECONDS = 0.05
DIRECTORY_MODE = 0o750  # RocksDB makes its files readable for all users: this keeps them from the events
_NUMBER = struct.Struct(">Q")
_ID_BYTES = _NUMBER.size
_QUEUE_ID_BYTES = 16

key_of = _NUMBER.pack
"""The key of an event id."""


class Changes:
    """What one write does, all of it or nothing.

    `events` get the ids before `next_id`. `totals` are those after it; every event before the id `oldest` is acked.
    `time` is an id and the Unix milliseconds of its push, `old_times` are the ids of those that are not needed any
    more.
    """

    __slots__ = ("acked", "events", "next_id", "old_times", "oldest", "time", "totals")

    def __init__(self, totals: Totals) -> None:
        self.next_id = totals.next_id
        self.totals = totals
        self.oldest = 0
        self.events: list[bytes] = []
        self.acked: Collection[int] = ()
        self.time: tuple[int, int] | None = None
        self.old_times: Sequence[int] = ()

    @property
    def has_totals(self) -> bool:
        """Whether the totals are written too: those of pushes alone follow from their keys."""
        return bool(self.acked) or self.time is not None


def size_of(data: bytes) -> int:
    """How much memory an event takes beside others, with its id, before it is decoded."""
    return len(data) + 120


@dataclass(slots=True)
class _Handles:
    """What `rocksdict` gives for an open database. As long as any of it lives, the database is locked.

    So nothing else may hold on to a part of it, not even the traceback of an error: that may be kept for long.
    """

    events: Rdict
    totals: ColumnFamily
    times: Rdict
    times_family: ColumnFamily
    without_waiting: WriteOptions

    def release(self) -> None:
        """Close the database.

        First without its background work: to close would write files, and wait for it, and on a full disk for ever.
        Everything is in the log.
        """
        try:
            self.events.cancel_all_background(True)
            for name in ("times", "events"):  # by name: the traceback of an interrupt would keep a variable
                with suppress(Exception):  # that it could not write files
                    getattr(self, name).close()
        finally:
            del self.times, self.times_family, self.totals, self.events


class Stalled(OutcomeUnknown):
    """RocksDB does not write any more: its files could not be written in the background. Nothing has happened."""


class Database:
    """One database, open until `close`, and the mark beside it.

    Raises `CorruptData` if events are missing, or cannot be read: then it was not opened for writing, and no file was
    changed.
    """

    def __init__(self, path: str, lock: QueueLock | None = None) -> None:
        """Open it. A `lock` that is held already is its own from here on."""
        self.path = path
        self._handles: _Handles | None = None
        self._is_closed = False
        self._looked = -math.inf
        self._free_bytes = 0
        self.whole: Whole  # what was found when it was opened last
        self._mark: MarkFile | None = None
        self._stored: Totals | None = None  # the totals that were written last
        if lock is None:
            _check_place(path)
            make_directory(path)
        self._lock: QueueLock = lock or lock_queue(path)
        never_free_in_child(self, Database._parts)
        # A queue may be dropped without having been closed. But at exit it may still be used: a `Shipper` drains it.
        weakref.finalize(self, self._lock.close).atexit = False
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def write(self, changes: Changes) -> None:
        """Write and sync, and note it in the mark: in this order, or a crash in between would look like a loss.

        Raises `OutcomeUnknown`: it happened or not, and RocksDB may refuse to go on.
        """
        at, mark = self._open(), self._open_mark()
        until = time.monotonic() + _MAX_STALL_SECONDS
        try:
            while (stall := self._append(at, mark.queue_id, changes)) is not None:
                self._wait_out(stall, at, until)
            # Not one write that syncs: rocksdict would hold the interpreter's lock until the disk is done.
            at.events.flush_wal(sync=True)
            if changes.has_totals:
                self._stored = changes.totals
            mark.write(changes.totals, changes.oldest)
        except OutcomeUnknown:
            raise
        except Exception as error:
            reason = printable(str(error), _MAX_REASON_CHARACTERS)
            raise OutcomeUnknown(
                f"{named(self.path)} could not be written: {reason}. What was not reported as done is not kept, "
                "unless this process ends before its next write to the queue"
            ) from error

    def set_mark_back(self, totals: Totals) -> None:
        """Let the mark forget a write that was not reported, before that is undone."""
        self._open_mark().write_through(totals)

    def _append(self, at: _Handles, queue_id: bytes, changes: Changes) -> Exception | None:
        """Write, without a sync. Where RocksDB would wait, return its error: it would keep the interpreter's lock."""
        try:
            if len(changes.events) == 1 and not changes.has_totals:
                at.events.put(key_of(changes.next_id - 1), changes.events[0], at.without_waiting)
                return None
            from rocksdict import WriteBatch

            batch = WriteBatch(raw_mode=True)
            for identifier, data in enumerate(changes.events, changes.next_id - len(changes.events)):
                batch.put(key_of(identifier), data)
            for identifier in changes.acked:
                batch.delete(key_of(identifier))
            if changes.has_totals:
                batch.put(TOTALS.encode(), packed(queue_id, changes.totals), at.totals)
            if changes.time is not None:
                batch.put(key_of(changes.time[0]), _NUMBER.pack(changes.time[1]), at.times_family)
            for identifier in changes.old_times:
                batch.delete(key_of(identifier), at.times_family)
            at.events.write(batch, at.without_waiting)
        except Exception as error:
            if "Write stall" not in str(error):
                raise
            return error
        return None

    def _wait_out(self, stall: Exception, at: _Handles, until: float) -> None:
        """Let RocksDB write its files, which cannot be written as fast as this, or not at all: then raise `Stalled`."""
        if at.events.property_int_value("rocksdb.background-errors") or time.monotonic() > until:
            raise Stalled(f"{named(self.path)} cannot be written: the disk is full, or RocksDB is stuck") from stall
        time.sleep(_STALL_PAUSE_SECONDS)

    def get(self, identifier: int) -> bytes | None:
        """The bytes of an event."""
        if not 0 <= identifier < 1 << 64:
            return None
        at = self._open()
        try:
            data: bytes | None = at.events.get(key_of(identifier))
        except Exception as error:
            raise cannot_read(self.path, error) from error
        return data

    def has(self, identifier: int) -> bool:
        """Whether an event is there."""
        return self.get(identifier) is not None

    def scan(self, start: int, stop: int, most: float) -> tuple[deque[tuple[int, bytes]], int, int]:
        """Events in order, from the id `start` to before `stop`, until they take `most` bytes of memory.

        Returns them, the id to go on from, and how many bytes they take.
        """
        found, size = deque[tuple[int, bytes]](), 0
        if start >= stop:
            return found, stop, 0
        key: Any = None
        at = self._open()
        try:
            for key, data in at.events.items(from_key=key_of(start)):
                if len(key) != _ID_BYTES:
                    continue
                identifier: int = _NUMBER.unpack(key)[0]
                if identifier >= stop:
                    return found, stop, size
                if size > most:
                    return found, identifier, size
                found.append((identifier, data))
                size += size_of(data)
        except Exception as error:
            raise cannot_read(self.path, error) from error
        try:
            check_end(at.events, key_of(start) if key is None else key)
        except Exception as error:
            raise cannot_read(self.path, error) from error
        return found, stop, size

    def first_id(self, start: int, stop: int) -> int | None:
        """The first id from `start` to before `stop` that is there."""
        _, identifier, _ = self.scan(start, stop, -1)
        return None if identifier == stop else identifier

    def settle(self, totals: Totals) -> None:
        """Write totals and mark before closing, if that can be: what comes after the last ones says them too."""
        try:
            at, mark = self._open(), self._open_mark()
            if self._stored != totals:
                _write_totals(at, mark.queue_id, totals)
            mark.write_through(totals)
        except Exception as error:  # noqa: BLE001  closing goes on
            _log.info("the totals of %s could not be written on closing: %s", named(self.path), error)

    def time_of(self, identifier: int) -> tuple[int, int] | None:
        """The last time stored at or before an event: its id, and Unix milliseconds."""

        def look(read: RdictIter) -> tuple[int, int] | None:
            read.seek_for_prev(key_of(identifier))
            return _mark(read.key(), read.value()) if read.valid() else None

        return self._walk(TIMES, look)

    def old_times(self, before: int, most: int) -> list[int]:
        """The ids of the first times stored, up to `most` of them, that come before an id."""

        def look(read: RdictIter) -> list[int]:
            found: list[int] = []
            read.seek_to_first()
            while read.valid() and len(found) < most:
                mark = _mark(read.key(), read.value())
                if mark is not None and mark[0] >= before:
                    break
                found += [] if mark is None else [mark[0]]
                read.next()
            return found

        return self._walk(TIMES, look)

    def ids(self, start: int) -> list[int]:
        """Every id from `start` on."""
        found = list[int]()
        while start < 1 << 64:
            events, start, _ = self.scan(start, 1 << 64, _MIB)
            found += [identifier for identifier, _ in events]
        return found

    def has_space_for(self, size: int, now: float) -> bool:
        """Whether a push of so many bytes, now, leaves on the disk what acks and compaction need."""
        if size > self._free_bytes or not 0 <= now - self._looked < _FREE_SPACE_VALID_SECONDS:
            free, total = disk(self.path)
            # Two memtables may have to be written yet. The rest is for acks (the delete of a small event takes as much
            # as the event, until both are compacted away), and for compaction.
            self._looked, self._free_bytes = now, free - 8 * memtable_bytes(total)
        if size > self._free_bytes:
            return False
        self._free_bytes -= size
        return True

    def reopen(self) -> None:
        """Open anew, after a write failed. Raises `StorageError`, and stays open, if there is no space for that."""
        needed = _MIB // 4  # and opening writes what is in the logs to files of its own
        for entry in os.scandir(self.path):
            with suppress(FileNotFoundError):
                needed += entry.stat().st_size if entry.name.endswith(".log") else 0
        if disk(self.path)[0] < needed:
            raise StorageError(
                f"{named(self.path)} takes {needed} bytes of free disk to go on after a write that failed"
            )
        self._release()
        self._open()

    def tidy(self) -> None:
        """Let RocksDB free the space of what was acked; it does so in the background.

        Deletes take so little space that they would stay in memory, and what they delete on disk, until many more come.
        """
        at = self._open()
        try:
            size, files, errors = (
                at.events.property_int_value(f"rocksdb.{name}") or 0
                for name in ("total-sst-files-size", "num-files-at-level0", "background-errors")
            )
            if size > _MIB and files < _MAX_FILES_TO_FLUSH and not errors:  # else it would wait for RocksDB
                at.events.flush(wait=False)
        except Exception as error:  # noqa: BLE001  nothing depends on it
            _log.info("tidying up %s: %s", named(self.path), error)

    def close(self) -> None:
        """Release it: after this, another process may open it."""
        self._is_closed = True
        try:
            self._release()
        finally:
            if self._mark is not None:
                self._mark.close()
            self._lock.release()

    def _open(self) -> _Handles:
        """What is open. If it could not be opened anew after a failed write, that is tried again."""
        return self._handles or self._open_checked()

    def _open_checked(self) -> _Handles:
        """Open it, if nothing is missing."""
        if self._is_closed:
            raise Closed(f"{named(self.path)} is closed")
        whole = check_queue(self.path)
        if whole is None and read_mark(self.path) is None:
            create_mark(self.path, MarkRecord(os.urandom(_QUEUE_ID_BYTES), is_new=True))
        self._handles = self._handles_of(open_for_writing(self.path, create=whole is None))
        try:
            self.whole = self._finish_making(self._handles) if whole is None else whole
            self._open_mark().write_through(self.whole.totals, self._oldest(self.whole))
        except BaseException:
            self._release()
            raise
        return self._handles

    def _handles_of(self, events: Rdict) -> _Handles:
        from rocksdict import WriteOptions

        try:
            handles = _Handles(
                events,
                events.get_column_family_handle(TOTALS),
                events.get_column_family(TIMES),
                events.get_column_family_handle(TIMES),
                WriteOptions(),
            )
        except Exception as error:
            raise cannot_open(self.path, error) from error
        handles.without_waiting.no_slowdown = True
        return handles

    def _finish_making(self, at: _Handles) -> Whole:
        """Give a new database its totals, unless it has them. Only then the mark says that the queue is there."""
        record = self._open_mark().record
        if read_totals(self.path, at.events) is None:
            try:
                _write_totals(at, record.queue_id, Totals())
            except Exception as error:
                raise cannot_open(self.path, error) from error
        return check_open(self.path, at.events, record)

    def _open_mark(self) -> MarkFile:
        if self._mark is None:
            self._mark = MarkFile(self.path)
        return self._mark

    def _oldest(self, whole: Whole) -> int:
        first = whole.inventory.first_id
        return whole.totals.next_id if first is None else first

    def _release(self) -> None:
        try:
            if self._handles is not None:
                self._handles.release()
        finally:
            if self._handles is not None and hasattr(self._handles, "events"):
                self._handles.release()  # an interrupt came before it had begun
            self._handles = None

    def _walk(self, family: str, look: Callable[[RdictIter], Answer]) -> Answer:
        """Use an iterator in one call. Raises what stopped it, if that was not the end."""
        at = self._open()
        read = (at.times if family == TIMES else at.events).iter()
        try:
            answer = look(read)
            if not read.valid():
                read.status()
        except Exception as error:
            raise cannot_read(self.path, error) from error
        finally:
            del read
        return answer

    def _parts(self) -> Iterable[object]:
        """What a forked child must never free: that would wait for RocksDB's threads, which the child does not have."""
        at = self._handles
        return () if at is None else (at.events, at.totals, at.times, at.times_family)


def _write_totals(at: _Handles, queue_id: bytes, totals: Totals) -> None:
    """Write and sync totals alone."""
    from rocksdict import WriteBatch

    batch = WriteBatch(raw_mode=True)
    batch.put(TOTALS.encode(), packed(queue_id, totals), at.totals)
    at.events.write(batch, at.without_waiting)
    at.events.flush_wal(sync=True)


def _check_place(path: str) -> None:
    """Refuse a folder of workers' queues: with one in the folder itself, those in it would not be seen any more."""
    if os.path.exists(os.path.join(path, FOLDER_MARK)) and not is_queue(path):
        raise InvalidInput(
            f"{shown(path)} has the queues of workers: open one of them by `DurableEventQueue.for_worker`, or give "
            "another directory"
        )


def make_directory(path: str) -> None:
    """Make it and all above it, durably: RocksDB syncs what is in it, and nothing above."""
    missing: list[str] = []
    above = path
    while not os.path.isdir(above):
        missing.append(above)
        above = os.path.dirname(above)
    try:
        os.makedirs(path, DIRECTORY_MODE, exist_ok=True)
        for directory in missing:
            sync_directory(os.path.dirname(directory))
    except OSError as error:
        raise StorageError(f"a queue cannot be made in {shown(path)}: {error.strerror or error}") from error


def _mark(key: bytes, value: bytes) -> tuple[int, int] | None:
    if len(key) != _NUMBER.size or len(value) != _NUMBER.size:
        return None
    return _NUMBER.unpack(key)[0], _NUMBER.unpack(value)[0]
