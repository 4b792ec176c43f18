"""RocksDB for a durable queue: its column families, its options, its files, and how it is opened."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from typing import TYPE_CHECKING

from penstock.core import current, printable
from penstock.errors import CorruptData, StorageError
from penstock.queue.damage import damaged, named
from penstock.queue.lock import ONE_PROCESS

if TYPE_CHECKING:
    from rocksdict import DBRecoveryMode, Options, Rdict

EVENTS, TOTALS, TIMES = "default", "totals", "times"
"""The column families."""

_MIB = 1 << 20
_LARGEST_MEMTABLE = 16 * _MIB  # on a disk of 1 GiB and more; on a smaller one, a 64th of it
_MAX_REASON_CHARACTERS = 500  # of RocksDB's own message
_FILES = re.compile(
    r"\d+\.(log|sst|ldb|blob|dbtmp)|CURRENT|IDENTITY|(MANIFEST|OPTIONS)-\d+(\.dbtmp)?|LOG(\.old\.\d+)?|rocksdict-config\.json"
)
_DATA_FILES = re.compile(r"\d+\.(log|sst)|CURRENT|MANIFEST-\d+")
_used_in: list[int] = []  # the first of them is the process that has used RocksDB first
_OF_DAMAGE = ("Corruption", "Invalid argument", "IO error: No such file")  # how RocksDB's messages of it begin


def _end_without_rocksdb() -> None:
    """Let a forked child end without RocksDB's exit handler, which joins threads that the child has not.

    That would crash the child, or never return. Handlers run in the reverse order of their registration: this one runs
    first, after Python has ended its own affairs, and ends the process with the status that it has.
    """
    libc = ctypes.CDLL(None)
    if "rocksdict" in sys.modules and hasattr(libc, "on_exit"):  # glibc has it
        libc.on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None)


os.register_at_fork(after_in_child=_end_without_rocksdb)


def is_database_file(name: str) -> bool:
    """Whether a file of this name is one of RocksDB's; its lock file is not: that is never moved.

    >>> is_database_file("000012.sst"), is_database_file("MANIFEST-000004"), is_database_file("notes.txt")
    (True, True, False)
    """
    return _FILES.fullmatch(name) is not None


def holds_events(path: str) -> bool:
    """Whether a directory has files in which RocksDB keeps data, or their list."""
    return any(_DATA_FILES.fullmatch(name) for name in os.listdir(path))


def open_read_only(path: str, *, skips_damage: bool = False) -> Rdict:
    """Open a database without changing any file. `skips_damage` goes past records of the log that are damaged."""
    from rocksdict import AccessType, DBRecoveryMode, Rdict

    mode = DBRecoveryMode.skip_any_corrupted_record() if skips_damage else _strict()
    check_process(path)
    try:
        families = {name: options(path, mode) for name in set(Rdict.list_cf(path)) - {EVENTS}}
        return Rdict(path, options(path, mode), families, access_type=AccessType.read_only(False))
    except Exception as error:
        raise cannot_open(path, error) from error


def open_for_writing(path: str, *, create: bool) -> Rdict:
    """Open a database, and make it if it is not there and `create` says so."""
    from rocksdict import Rdict

    check_process(path)
    try:
        families = {TOTALS, TIMES} if create else set[str]()
        if os.path.exists(os.path.join(path, "CURRENT")):
            families |= set(Rdict.list_cf(path)) - {EVENTS}
        of_events = options(path, _strict(), create=create)
        return Rdict(path, of_events, {name: options(path, _strict(), create=create) for name in sorted(families)})
    except Exception as error:
        raise cannot_open(path, error) from error


def check_process(path: str) -> None:
    """Refuse a child that was forked after RocksDB was used: it has none of RocksDB's threads, and waits for them."""
    if not _used_in:
        _used_in.append(current.number)
    if _used_in[0] != current.number:
        raise StorageError(
            f"{named(path)} cannot be opened in this forked child ({current.number}): its parent ({_used_in[0]}) had "
            "opened a queue before the fork, and RocksDB's threads are not in the child. Open queues in a process that "
            "is started anew (multiprocessing: spawn or forkserver), or fork before the first queue is opened"
        )


def repair_database(path: str) -> None:
    """Let RocksDB put together what is left of the tables and logs of the events. It throws files away: use a copy."""
    from rocksdict import Rdict

    Rdict.repair(path, options(path, _strict(), create=True))


def cannot_open(path: str, error: Exception) -> StorageError | CorruptData:
    """What to raise for what RocksDB raised when it was to open a database."""
    reason = printable(str(error), _MAX_REASON_CHARACTERS)
    if "lock hold by current process" in reason:
        return StorageError(f"{named(path)} is open in this process already: close it there, or share it")
    if "LOCK" in reason and ("Resource temporarily unavailable" in reason or "No locks" in reason):
        return StorageError(f"{named(path)} is open in another process: {ONE_PROCESS}")
    if reason.startswith(_OF_DAMAGE):
        return damaged(path, f"it cannot be opened: {reason}")
    return StorageError(f"{named(path)} cannot be opened: {reason}")


def cannot_read(path: str, error: Exception) -> CorruptData | StorageError:
    """What to raise for what RocksDB raised when it was to read."""
    reason = printable(str(error), _MAX_REASON_CHARACTERS)
    if reason.startswith(_OF_DAMAGE):
        return damaged(path, f"it could not be read: {reason}")
    return StorageError(f"{named(path)} could not be read: {reason}")


def disk(path: str) -> tuple[int, int]:
    """How many bytes are free on the disk of a queue, and how many there are."""
    try:
        found = os.statvfs(path)
    except OSError as error:
        raise StorageError(f"{named(path)} is not to be found: {error.strerror}") from error
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def memtable_bytes(disk_bytes: int) -> int:
    """How large a memtable is, on a disk of this size: what one fills must not be much of it."""
    return min(max(disk_bytes // 64, _MIB // 4), _LARGEST_MEMTABLE)


def options(path: str, mode: DBRecoveryMode, *, create: bool = False) -> Options:
    """The options of each column family."""
    from rocksdict import BlockBasedOptions, Cache, DBCompressionType, Options

    memtable = memtable_bytes(disk(path)[1])
    options = Options(raw_mode=True)
    options.create_if_missing(create)
    options.create_missing_column_families(create)
    options.set_wal_recovery_mode(mode)
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


def _strict() -> DBRecoveryMode:
    """Damage in the log is an error. Its default would open the queue with what comes before the damage, and no more.

    A log that ends in the middle of a record is one that a crash has torn, in this mode too.
    """
    from rocksdict import DBRecoveryMode

    return DBRecoveryMode.tolerate_corrupted_tail_records()
