"""Reading what is left in the database of a damaged durable queue. No file of it is changed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core import get_logger
from penstock.errors import CorruptData, PenstockError
from penstock.queue.checking import read_totals
from penstock.queue.damage import named
from penstock.queue.log_file import check_log_files, framed, intact_records
from penstock.queue.rocks import TIMES, cannot_open, is_database_file, open_read_only, repair_database
from penstock.queue.totals import Totals

if TYPE_CHECKING:
    from rocksdict import Rdict, RdictIter

_log = get_logger(__name__)

_ID_BYTES = 8
_IDS = 1 << 64
_MOST_LOOKUPS = 10_000_000  # ids looked for one by one, where an iterator meets damage

Item = tuple[bytes, bytes]


class Unreadable(Exception):
    """An iterator of RocksDB finds no way around the damage."""


@dataclass(slots=True)
class Remains:
    """What can be read of a damaged queue: the totals that were written last, and the keys with their values.

    `has_other_tables`: there are tables that RocksDB's list does not name. A crash has left them, or the list is cut.
    """

    database: Rdict
    totals: tuple[bytes, Totals] | None
    has_other_tables: bool = False

    def close(self) -> None:
        """Let go of the files."""
        self.database.close()

    def times(self) -> Iterator[Item]:
        """The marks of time, as far as they can be read."""
        with suppress(Exception):  # they are for metrics alone
            family = self.database.get_column_family(TIMES)
            yield from family.items()

    def events(self, end: int) -> Iterator[Item]:
        """Every key and value among the events, in order. Around damage, each id before `end` is looked for by itself.

        Raises `Unreadable`.
        """
        read, start = self.database.iter(), 0
        read.seek_to_first()
        while True:
            for key, value in _readable(read):
                yield key, value
                start = int.from_bytes(key) + 1 if len(key) == _ID_BYTES else start
            if _is_at_end(read):
                return
            beyond = _readable_from(read, start)
            stop = beyond if beyond - start <= _MOST_LOOKUPS else min(beyond, end)
            if stop - start > _MOST_LOOKUPS:
                raise Unreadable
            yield from self._one_by_one(start, stop)
            if beyond >= _IDS:
                return
            start = beyond
            read.seek(_key(start))

    def _one_by_one(self, start: int, stop: int) -> Iterator[Item]:
        for identifier in range(start, stop):
            try:
                value = self.database.get(_key(identifier))
            except Exception:  # noqa: BLE001, S112  this one is in the damage
                continue
            if value is not None:
                yield _key(identifier), value


def use_remains(path: str, work: str, use: Callable[[Remains], None]) -> bool:
    """Let something be done with what is left of a queue; from the start again if that raises `Unreadable`.

    It is read from a copy in the folder `work`, in which the logs have intact records alone. If RocksDB cannot read
    that either, it is what RocksDB's own repair makes of it. False: nothing is left.
    """
    _copy_intact(path, work)
    for is_repaired in (False, True):
        try:
            if is_repaired:
                _repair(work)
            remains = _opened(work)
            remains.has_other_tables = not is_repaired and _has_other_tables(work, remains.database)
        except CorruptData as error:
            _log.info("of %s, this way nothing can be read: %s", named(path), error)
            continue
        try:
            use(remains)
        except Unreadable:
            _log.info("of %s, this way not everything can be read", named(path))
        else:
            return True
        finally:
            remains.close()
    return False


def _opened(where: str) -> Remains:
    check_log_files(where)
    database = open_read_only(where, skips_damage=True)
    try:
        totals = read_totals(where, database)
    except PenstockError:
        totals = None
    return Remains(database, totals)


def _has_other_tables(where: str, database: Rdict) -> bool:
    listed = {os.path.basename(file["name"]) for file in database.live_files()}
    return any(name.endswith(".sst") and name not in listed for name in os.listdir(where))


def _copy_intact(path: str, work: str) -> None:
    """Copy a database, with what is intact of its logs. Tables are linked: RocksDB never changes one that is there."""
    os.mkdir(work)
    for name in os.listdir(path):
        source, target = os.path.join(path, name), os.path.join(work, name)
        if is_database_file(name) and name.endswith(".log"):
            with open(source, "rb") as log, open(target, "wb") as clean:
                clean.write(framed(intact_records(log.read())))
        elif is_database_file(name) and not name.startswith("LOG"):
            _copy(source, target, may_link=name.endswith(".sst"))


def _repair(work: str) -> None:
    """Let RocksDB make a database of the tables and the logs; not of the list of them, which it could not read."""
    for name in os.listdir(work):
        if name == "CURRENT" or name.startswith("MANIFEST-"):
            os.unlink(os.path.join(work, name))
    try:
        repair_database(work)
    except Exception as error:
        raise cannot_open(work, error) from error


def _copy(source: str, target: str, *, may_link: bool) -> None:
    try:
        if may_link:
            os.link(source, target)
            return
    except OSError:
        pass  # a file system without links
    shutil.copyfile(source, target)


def _readable(read: RdictIter) -> Iterator[Item]:
    while read.valid():
        yield read.key(), read.value()
        read.next()


def _readable_from(read: RdictIter, start: int) -> int:
    """The smallest id after `start` from which the iterator can go on; 2^64 if there is none."""
    step = 1
    while start + step < _IDS and not _can_read(read, start + step):
        step *= 2
    low, high = start + step // 2, min(start + step, _IDS)
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _can_read(read, middle) else (middle, high)
    return high


def _can_read(read: RdictIter, identifier: int) -> bool:
    read.seek(_key(identifier))
    return read.valid() or _is_at_end(read)


def _is_at_end(read: RdictIter) -> bool:
    try:
        read.status()
    except Exception:  # noqa: BLE001  damage
        return False
    return True


def _key(identifier: int) -> bytes:
    return identifier.to_bytes(_ID_BYTES)
