"""Repairing a damaged durable queue: what can be read goes into a new database, the damaged files are kept aside."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from penstock.core import printable
from penstock.errors import CorruptData, NotFound, StorageError
from penstock.queue.checking import check_queue
from penstock.queue.damage import named, reason_of, shown
from penstock.queue.database import Database
from penstock.queue.lock import lock_queue
from penstock.queue.mark import MarkRecord, create_mark, read_mark
from penstock.queue.places import is_queue
from penstock.queue.replacing import finish_replacing, is_replacing, replace_files
from penstock.queue.report import Count, QueueRepair
from penstock.queue.rocks import TIMES, TOTALS, disk, is_database_file, open_for_writing
from penstock.queue.salvage import Item, Remains, Unreadable, use_remains
from penstock.queue.totals import Totals, packed
from penstock.storage import local_path

if TYPE_CHECKING:
    from rocksdict import ColumnFamily, Rdict, WriteBatch

_PARTIAL = "repair.partial"
_JUMP = 1 << 32  # the next id after a repair is a multiple of this
_LAST_ID = (1 << 64) - 1  # never given
_ID_BYTES, _QUEUE_ID_BYTES = 8, 16
_BATCH_BYTES = 1 << 20
_SPARE_BYTES = 1 << 20  # of free disk, beside twice the size of the damaged files


def repair_queue(where: str | os.PathLike[str]) -> QueueRepair:
    """Make of a damaged queue one that opens, with every event that can be read, and say what is missing.

    The damaged files are moved into a folder `damaged-N` inside the queue's own. No id is used again. A queue that is
    whole is left as it is. Raises `NotFound` if there is no queue, and `StorageError` if it is open, or its disk has
    not enough free space; it is as it was then.
    """
    path = os.path.realpath(local_path(where))
    if not is_queue(path):
        raise NotFound(f"there is no durable queue in {shown(path)}")
    try:
        database = Database(path)
    except CorruptData as error:
        damage = reason_of(error)
    else:
        try:
            return QueueRepair.of_whole(path, database.whole)
        finally:
            database.close()
    lock = lock_queue(path)
    try:
        return finish_replacing(path) if is_replacing(path) else _repair(path, damage)
    except OSError as error:
        raise StorageError(f"{named(path)} could not be repaired: {error.strerror or error}") from error
    finally:
        lock.release()


def _repair(path: str, damage: str) -> QueueRepair:
    _check_free_space(path)
    work = os.path.join(path, _PARTIAL)
    shutil.rmtree(work, ignore_errors=True)
    os.mkdir(work)
    try:
        new = _NewQueue(path, os.path.join(work, "new"), QueueRepair(path, damage))
        if not use_remains(path, os.path.join(work, "copy"), new.fill):
            new.fill(None)
        check_queue(new.folder)
        return replace_files(path, new.folder, new.report)
    finally:
        shutil.rmtree(work, ignore_errors=True)


class _NewQueue:
    """The queue that takes the place of a damaged one."""

    def __init__(self, path: str, folder: str, report: QueueRepair) -> None:
        self.folder = folder
        self.report = report
        self._mark = _readable_mark(path)

    def fill(self, remains: Remains | None) -> None:
        """Write everything that remains. It may be called again, and begins anew then. Raises `Unreadable`."""
        shutil.rmtree(self.folder, ignore_errors=True)
        os.mkdir(self.folder)
        mark, stored = self._mark, remains.totals if remains else None
        known = max(mark.totals.next_id if mark else 0, stored[1].next_id if stored else 0)
        database = open_for_writing(self.folder, create=True)
        try:
            count = Count(mark.oldest if mark else 0)
            if remains is not None:
                _write(database, None, self._kept(remains.events(known or _LAST_ID), count))
                _write(database, database.get_column_family_handle(TIMES), remains.times())
            next_id = _next_id(max(known, count.totals.next_id))
            acks = max(mark.totals.acks if mark else 0, stored[1].acks if stored else 0)
            totals = Totals(next_id, count.totals.on_disk, count.totals.id_sum, acks)
            queue_id = mark.queue_id if mark else stored[0] if stored else os.urandom(_QUEUE_ID_BYTES)
            record = [(TOTALS.encode(), packed(queue_id, totals))]
            _write(database, database.get_column_family_handle(TOTALS), record)
        finally:
            database.close()
        create_mark(self.folder, MarkRecord(queue_id, totals, next_id if count.first is None else count.first))
        self.report = count.report(self.report, mark, stored[1] if stored else None, next_id)
        if self.report.lost_at_least and remains is not None and remains.has_other_tables:
            raise Unreadable  # the tables may have what is missing

    def _kept(self, items: Iterable[Item], count: Count) -> Iterator[Item]:
        """What goes into the new queue: events that are not known to be acked, and keys that are no ids."""
        oldest = self._mark.oldest if self._mark else 0
        for key, value in items:
            if len(key) == _ID_BYTES:
                identifier = int.from_bytes(key)
                if not oldest <= identifier < _LAST_ID:
                    continue
                count.add(identifier)
            yield key, value


def _write(database: Rdict, family: ColumnFamily | None, items: Iterable[Item]) -> None:
    """Write and sync keys and values, some at a time."""
    from rocksdict import WriteBatch

    batch, size = WriteBatch(raw_mode=True), 0
    for key, value in items:
        batch.put(key, value, family)
        size += len(key) + len(value)
        if size > _BATCH_BYTES:
            _append(database, batch)
            batch, size = WriteBatch(raw_mode=True), 0
    _append(database, batch)


def _append(database: Rdict, batch: WriteBatch) -> None:
    try:
        database.write(batch)
        database.flush_wal(sync=True)
    except Exception as error:
        raise StorageError(f"a repaired queue could not be written: {printable(str(error), 500)}") from error


def _next_id(known: int) -> int:
    """The id to go on with: above all that may have been given, also by writes that no mark knows of."""
    jumped = (known // _JUMP + 1) * _JUMP
    return jumped if jumped <= _LAST_ID else min(known, _LAST_ID)


def _readable_mark(path: str) -> MarkRecord | None:
    try:
        mark = read_mark(path)
    except CorruptData:
        return None
    return None if mark is None or mark.is_new else mark


def _check_free_space(path: str) -> None:
    size = sum(entry.stat().st_size for entry in os.scandir(path) if is_database_file(entry.name))
    needed = 2 * size + _SPARE_BYTES
    if disk(path)[0] < needed:
        raise StorageError(
            f"{named(path)} could not be repaired: that takes {needed:,} bytes of free disk. Nothing was changed"
        )
