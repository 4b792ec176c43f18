"""The RocksDB database of a durable queue: what lies in it, and how it is opened, read, written and synced.

Everything but `write` is called with the queue's lock held; `write` by one thread at a time. Nothing of RocksDB leaves
this module: an iterator that outlives its database crashes the process.
"""

from __future__ import annotations

import ctypes
import logging
import math
import os
import struct
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.errors import Closed, CorruptData, OutcomeUnknown, StorageError
from penstock.storage.local.folder import sync_directory

if TYPE_CHECKING:
    from rocksdict import ColumnFamily, Options, Rdict, RdictIter, WriteBatch, WriteOptions

_log = logging.getLogger(__name__)

EVENTS, NEXT_ID, TIMES = "default", "next_id", "times"
"""The column families."""

Answer = TypeVar("Answer")

_MIB = 1 << 20
_MEMTABLE = 16 * _MIB  # on a disk of 1 GiB and more; on a smaller one, a 64th of it
_LONGEST_STALL, _STALL_PAUSE = 60.0, 0.001  # seconds
_FEW_FILES = 10  # RocksDB slows down at 20
_LOOK_AGAIN = 0.05  # seconds after which the free space is looked at again
_NUMBER = struct.Struct(">Q")
_ID_BYTES = _NUMBER.size
_LAST = (1 << 64) - 1

key_of = _NUMBER.pack
"""The key of an event id."""


class Changes:
    """What one write does, all of it or nothing.

    `events` get the ids before `next_id`. `time` is an id and the Unix milliseconds of its push, `old_times` are the
    ids of those that are not needed any more.
    """

    __slots__ = ("acked", "events", "next_id", "old_times", "time")

    def __init__(self, next_id: int) -> None:
        self.next_id = next_id
        self.events: list[bytes] = []
        self.acked: list[int] = []
        self.time: tuple[int, int] | None = None
        self.old_times: Sequence[int] = ()


def size_of(data: bytes) -> int:
    """How much memory an event takes beside others, with its id, as long as nobody has decoded it."""
    return len(data) + 120


@dataclass(frozen=True, slots=True)
class Inventory:
    """What the keys say: how many events there are, the id after the largest, and the keys that are no ids."""

    count: int
    next_id: int
    bad_keys: list[bytes]


@dataclass(slots=True)
class _Handles:
    """What `rocksdict` gives for an open database. As long as any of it lives, the database is locked.

    So nothing else may hold on to a part of it, not even the traceback of an error: that may be kept for long.
    """

    events: Rdict
    next_id: ColumnFamily
    times: Rdict
    times_family: ColumnFamily
    at_once: WriteOptions

    def release(self) -> None:
        """Close the database.

        First without its background work: to close would write files, and wait for it, and on a full disk for ever.
        Everything is in the log.
        """
        try:
            self.events.cancel_all_background(True)
            for one in (self.times, self.events):
                with suppress(Exception):  # that it could not write files
                    one.close()
        finally:
            del self.times, self.times_family, self.next_id, self.events

    def leak(self) -> None:
        """Never free it, in this process."""
        for one in (self.events, self.next_id, self.times, self.times_family):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))


class Stalled(OutcomeUnknown):
    """RocksDB does not write any more: its files could not be written in the background. Nothing has happened."""


class Database:
    """One database, open until `close`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._handles: _Handles | None = None
        self._is_closed = False
        self._looked = -math.inf
        self._room = 0
        _make_directory(path)
        self._open()

    def write(self, changes: Changes) -> None:
        """Write and sync. Raises `OutcomeUnknown`: it happened or not, and RocksDB may refuse to go on."""
        at = self._open()
        try:
            self._append(at, changes)
            # Not one write that syncs: rocksdict would hold the interpreter's lock until the disk is done.
            at.events.flush_wal(sync=True)
        except OutcomeUnknown:
            raise
        except Exception as error:
            raise OutcomeUnknown(
                f"the queue in {self.path} could not be written: {error}. What was not reported as done is not kept, "
                "unless this process ends before its next write to the queue"
            ) from error

    def _append(self, at: _Handles, changes: Changes) -> None:
        """Write, without a sync. Where RocksDB would wait, wait here: it would keep the interpreter's lock."""
        one = len(changes.events) == 1 and not changes.acked and changes.time is None
        until = time.monotonic() + _LONGEST_STALL
        while True:
            try:
                if one:
                    return at.events.put(key_of(changes.next_id - 1), changes.events[0], at.at_once)
                return at.events.write(_batch(at, changes), at.at_once)  # a new one each time: it is used up by a try
            except Exception as error:
                if "Write stall" not in str(error):
                    raise
                # Its files cannot be written as fast as this, or not at all: then it would wait for ever.
                if at.events.property_int_value("rocksdb.background-errors") or time.monotonic() > until:
                    raise Stalled(
                        f"the queue in {self.path} cannot be written: RocksDB has no room, or is stuck"
                    ) from error
            time.sleep(_STALL_PAUSE)

    def get(self, identifier: int) -> bytes | None:
        """The bytes of an event."""
        if not 0 <= identifier < 1 << 64:
            return None
        at = self._open()
        try:
            data: bytes | None = at.events.get(key_of(identifier))
        except Exception as error:
            raise self._unreadable(error) from error
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
            raise self._unreadable(error) from error
        self._check_end(key_of(start) if key is None else key)
        return found, stop, size

    def first_id(self, start: int, stop: int) -> int | None:
        """The first id from `start` to before `stop` that is there."""
        _, identifier, _ = self.scan(start, stop, -1)
        return None if identifier == stop else identifier

    def take_inventory(self) -> Inventory:
        """Read every key, and no value."""
        count, bad = 0, list[bytes]()
        key: Any = b""
        last = b""
        at = self._open()
        try:
            for key in at.events.keys():  # noqa: SIM118  it is no dict
                if len(key) == _ID_BYTES:
                    count += 1
                    last = key
                else:
                    bad.append(key)
        except Exception as error:
            raise self._unreadable(error) from error
        self._check_end(key)
        return Inventory(count, _NUMBER.unpack(last)[0] + 1 if last else 0, bad)

    def next_id(self) -> int:
        """The next id as it was written down; 0 if none was."""
        at = self._open()
        try:
            written = at.events.get_column_family(NEXT_ID).get(NEXT_ID.encode())
        except Exception as error:
            raise self._unreadable(error) from error
        if written is None:
            return 0
        if len(written) != _NUMBER.size:
            raise CorruptData(
                f"the queue in {self.path} has no readable next id ({written[:20]!r}): pushing could use an id twice. "
                f"Put the right one into the column family {NEXT_ID}, as 8 bytes big-endian"
            )
        return int(_NUMBER.unpack(written)[0])

    def note_next_id(self, next_id: int) -> None:
        """Write the next id down, if that can be: the last event's key says it too, unless somebody spoils that."""
        try:
            if self.next_id() < min(next_id, _LAST):
                at, value = self._open(), _NUMBER.pack(min(next_id, _LAST))
                at.events.get_column_family(NEXT_ID).put(NEXT_ID.encode(), value, at.at_once)
                at.events.flush_wal(sync=True)
        except Exception as error:  # noqa: BLE001  closing goes on
            _log.info("the next id of the queue in %s could not be written down on closing: %s", self.path, error)

    def time_of(self, identifier: int) -> tuple[int, int] | None:
        """The last mark of time at or before an event: its id, and Unix milliseconds."""

        def look(read: RdictIter) -> tuple[int, int] | None:
            read.seek_for_prev(key_of(identifier))
            return _mark(read.key(), read.value()) if read.valid() else None

        return self._walk(TIMES, look)

    def old_times(self, before: int, most: int) -> list[int]:
        """The ids of the first marks of time, up to `most` of them, that come before an id."""

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

    def has_room_for(self, size: int, now: float) -> bool:
        """Whether a push of so many bytes, now, leaves on the disk what acks and compaction need."""
        if size > self._room or not 0 <= now - self._looked < _LOOK_AGAIN:
            free, total = self._disk()
            # Two memtables may have to be written yet. The rest is for acks (the delete of a small event takes as much
            # as the event, until both are compacted away), and for compaction.
            self._looked, self._room = now, free - 8 * _memtable(total)
        if size > self._room:
            return False
        self._room -= size
        return True

    def reopen(self) -> None:
        """Open anew, after a write failed. Raises `StorageError`, and stays open, if there is no room for that."""
        needed = _MIB // 4  # and opening writes what is in the logs to files of its own
        for entry in os.scandir(self.path):
            with suppress(FileNotFoundError):
                needed += entry.stat().st_size if entry.name.endswith(".log") else 0
        if self._disk()[0] < needed:
            raise StorageError(
                f"the queue in {self.path} takes {needed} bytes of free disk to go on after a write that failed"
            )
        self._release()
        self._open()

    def tidy(self) -> None:
        """Let RocksDB free the space of what was acked; it does so in the background.

        Deletes take so little room that they would stay in memory, and what they delete on disk, until many more come.
        """
        at = self._open()
        try:
            size, files, errors = (
                at.events.property_int_value(f"rocksdb.{name}") or 0
                for name in ("total-sst-files-size", "num-files-at-level0", "background-errors")
            )
            if size > _MIB and files < _FEW_FILES and not errors:  # else it would wait for RocksDB
                at.events.flush(wait=False)
        except Exception as error:  # noqa: BLE001  nothing depends on it
            _log.info("tidying up the queue in %s: %s", self.path, error)

    def _disk(self) -> tuple[int, int]:
        """How many bytes are free on the disk, and how many there are."""
        try:
            disk = os.statvfs(self.path)
        except OSError as error:
            raise StorageError(f"the queue in {self.path} is not to be found: {error.strerror}") from error
        return disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize

    def close(self) -> None:
        """Release it: after this, another process may open it."""
        self._is_closed = True
        self._release()

    def _open(self) -> _Handles:
        """Open it, unless it is open: it may have been impossible the last time."""
        if self._handles is not None:
            return self._handles
        if self._is_closed:
            raise Closed(f"the queue in {self.path} is closed")
        from rocksdict import Rdict, WriteOptions

        path = self.path
        try:
            families = {NEXT_ID, TIMES}
            if os.path.exists(os.path.join(path, "CURRENT")):
                families |= set(Rdict.list_cf(path)) - {EVENTS}
            memtable = _memtable(self._disk()[1])
            events = Rdict(path, _options(memtable), {name: _options(memtable) for name in sorted(families)})
            self._handles = _Handles(
                events,
                events.get_column_family_handle(NEXT_ID),
                events.get_column_family(TIMES),
                events.get_column_family_handle(TIMES),
                WriteOptions(),
            )
            self._handles.at_once.no_slowdown = True
        except Exception as error:
            raise self._cannot_open(error) from error
        _living.add(self)
        return self._handles

    def _release(self) -> None:
        handles, self._handles = self._handles, None
        if handles is not None:
            handles.release()

    def _cannot_open(self, error: Exception) -> StorageError | CorruptData:
        said = str(error)
        if self.path in _open_at_a_fork:
            return StorageError(
                f"the queue in {self.path} was open in the parent process when this child was forked, and cannot be "
                "opened in it any more: open it in a process that is started anew"
            )
        if "lock hold by current process" in said:
            return StorageError(
                f"the queue in {self.path} is open in this process already: close it there, or share it"
            )
        if "LOCK" in said and ("Resource temporarily unavailable" in said or "No locks" in said):
            who = _holder(self.path)
            return StorageError(
                f"the queue in {self.path} is open in another process{who}: one process at a time has a queue open"
            )
        if said.startswith("Corruption"):
            return CorruptData(f"the queue in {self.path} cannot be opened: {said}")
        return StorageError(f"the queue in {self.path} cannot be opened: {said}")

    def _check_end(self, last: bytes) -> None:
        """Raise `CorruptData` if the last key that was read is not the last: what is unreadable looks like the end."""

        def look(read: RdictIter) -> None:
            read.seek(last)
            if read.valid() and read.key() == last:
                read.next()

        self._walk(EVENTS, look)

    def _walk(self, family: str, look: Callable[[RdictIter], Answer]) -> Answer:
        """Let somebody use an iterator. Raises what stopped it, if that was not the end."""
        at = self._open()
        read = (at.times if family == TIMES else at.events).iter()
        try:
            answer = look(read)
            if not read.valid():
                read.status()
        except Exception as error:
            raise self._unreadable(error) from error
        finally:
            del read
        return answer

    def _unreadable(self, error: Exception) -> CorruptData | StorageError:
        kind = CorruptData if str(error).startswith("Corruption") else StorageError
        return kind(f"the queue in {self.path} could not be read: {error}")

    def leak(self) -> None:
        """Never free it: this is a forked child, without RocksDB's threads; it would wait for them for ever."""
        if self._handles is not None:
            self._handles.leak()
            _open_at_a_fork.add(self.path)


_living: weakref.WeakSet[Database] = weakref.WeakSet()


_open_at_a_fork = set[str]()  # RocksDB in the child believes that it has them open itself


def _leak_all() -> None:
    for database in list(_living):
        database.leak()


os.register_at_fork(after_in_child=_leak_all)


def _batch(at: _Handles, changes: Changes) -> WriteBatch:
    from rocksdict import WriteBatch

    batch = WriteBatch(raw_mode=True)
    put, delete = batch.put, batch.delete
    for identifier, data in enumerate(changes.events, changes.next_id - len(changes.events)):
        put(key_of(identifier), data)
    for identifier in changes.acked:
        delete(key_of(identifier))
    # While the last event is there, its key says what the next id is. It must be written down when that may go.
    if changes.acked or changes.time is not None:
        put(NEXT_ID.encode(), _NUMBER.pack(min(changes.next_id, _LAST)), at.next_id)
    if changes.time is not None:
        put(key_of(changes.time[0]), _NUMBER.pack(changes.time[1]), at.times_family)
    for identifier in changes.old_times:
        delete(key_of(identifier), at.times_family)
    return batch


def _memtable(disk: int) -> int:
    """How large a memtable is, on a disk of this size: what one fills must not be much of it."""
    return min(max(disk // 64, _MIB // 4), _MEMTABLE)


def _options(memtable: int) -> Options:
    from rocksdict import BlockBasedOptions, Cache, DBCompressionType, Options

    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    # Memory: two memtables, a small cache, and the indexes of so many files, however much lies on disk.
    options.set_write_buffer_size(memtable)
    options.set_target_file_size_base(4 * memtable)
    options.set_max_open_files(256)
    table = BlockBasedOptions()
    table.set_block_cache(Cache(8 * _MIB))
    table.set_block_size(16 << 10)
    options.set_block_based_table_factory(table)
    options.set_compression_type(DBCompressionType.lz4())
    # The families live and die together: else the small ones would hold on to logs that the events do not need.
    options.set_atomic_flush(True)
    # A queue is mostly deletes: files that are full of them are compacted, so that a drained queue frees its disk.
    options.add_compact_on_deletion_collector_factory(1024, 512, 0.5)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(_MIB)
    return options


def _make_directory(path: str) -> None:
    """Make it and all above it, durably: RocksDB syncs what is in it, and nothing above."""
    missing: list[str] = []
    above = path
    while not os.path.isdir(above):
        missing.append(above)
        above = os.path.dirname(above)
    try:
        os.makedirs(path, exist_ok=True)
        for made in missing:
            sync_directory(os.path.dirname(made))
    except OSError as error:
        raise StorageError(f"a queue cannot be made in {path}: {error.strerror or error}") from error


def _holder(path: str) -> str:
    """Who has the lock, where the system says so. Not by opening the lock file: closing it would drop our own lock."""
    with suppress(OSError, ValueError, IndexError):
        file = os.stat(os.path.join(path, "LOCK"))
        name = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
        with open("/proc/locks") as locks:
            for line in locks:
                words = line.split()
                if words[5] == name:
                    return f" (process {int(words[4])})"
    return ""


def _mark(key: bytes, value: bytes) -> tuple[int, int] | None:
    if len(key) != _NUMBER.size or len(value) != _NUMBER.size:
        return None
    return _NUMBER.unpack(key)[0], _NUMBER.unpack(value)[0]
