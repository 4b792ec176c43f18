"""Whether a durable queue is whole: its keys, its totals and its mark are compared. Nothing is changed.

The lock of the queue is held. See "Damage" in the design note.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from penstock.queue.damage import damaged, some_events
from penstock.queue.log_file import check_log_files
from penstock.queue.mark import MARK_NAME, MarkRecord, read_mark
from penstock.queue.rocks import TIMES, TOTALS, cannot_read, holds_events, open_read_only
from penstock.queue.totals import Totals, unpacked

if TYPE_CHECKING:
    from rocksdict import Rdict

REPAIR_BEGUN, REPAIR_READY = "repair.new", "repair.ready"
"""Folders of a repair that must be brought to its end."""

_ID_BYTES = 8
_KEYS_PER_READ = 4096


@dataclass(frozen=True, slots=True)
class Inventory:
    """What the keys of the events say.

    How many ids there are, the sum of them modulo 2^64, the first, the one after the last; the keys that are no ids.
    """

    count: int
    id_sum: int
    first_id: int | None
    next_id: int
    bad_keys: list[bytes]


@dataclass(frozen=True, slots=True)
class Whole:
    """A queue that nothing is missing of."""

    totals: Totals
    inventory: Inventory


def check_queue(path: str) -> Whole | None:
    """Read all that must be right. None: there is no queue yet, or one that is still being made.

    Raises `CorruptData` if events are missing, or cannot be read.
    """
    if any(os.path.isdir(os.path.join(path, name)) for name in (REPAIR_BEGUN, REPAIR_READY)):
        raise damaged(path, "a repair of it was interrupted, and must be run again")
    mark = read_mark(path)
    if mark is None and holds_events(path):
        raise damaged(path, f"its file {MARK_NAME} is missing, so it is not known whether events are missing too")
    check_log_files(path)
    if mark is None or mark.is_new:
        return None
    database = open_read_only(path)
    try:
        return check_open(path, database, mark)
    finally:
        database.close()


def check_open(path: str, database: Rdict, mark: MarkRecord) -> Whole:
    """Do the same with a database that is open."""
    inventory = take_inventory(path, database)
    stored = read_totals(path, database)
    _read_times(path, database)
    if stored is None:
        raise damaged(path, f"its database has no totals, though {MARK_NAME} counts {_count(mark.totals)}")
    queue_id, totals = stored
    if queue_id != mark.queue_id:
        raise damaged(path, f"its file {MARK_NAME} is that of another queue")
    totals = totals.with_run(inventory.next_id)
    _compare_with_keys(path, totals, inventory)
    _compare_with_mark(path, totals, mark.totals)
    return Whole(totals, inventory)


def take_inventory(path: str, database: Rdict) -> Inventory:
    """Read every key of the events, and no value. Raises `CorruptData`, also for what RocksDB takes for the end."""
    count, id_sum, first, last, bad = 0, 0, b"", b"", list[bytes]()
    key = b""
    try:
        keys: Iterator[Any] = iter(database.keys())
        while some := list(islice(keys, _KEYS_PER_READ)):
            key = some[-1]
            if set(map(len, some)) != {_ID_BYTES}:
                bad += [one for one in some if len(one) != _ID_BYTES]
                some = [one for one in some if len(one) == _ID_BYTES]
            if some:
                first, last = first or some[0], some[-1]
                count += len(some)
                id_sum += sum(struct.unpack(f">{len(some)}Q", b"".join(some)))
        check_end(database, key)
    except Exception as error:
        raise cannot_read(path, error) from error
    return Inventory(
        count,
        id_sum % (1 << 64),
        int.from_bytes(first) if first else None,
        int.from_bytes(last) + 1 if last else 0,
        bad,
    )


def check_end(family: Rdict, last: bytes) -> None:
    """Raise what RocksDB raises if this key, the last that was read, is not the last: damage looks like the end."""
    read = family.iter()
    try:
        read.seek(last)
        if read.valid() and read.key() == last:
            read.next()
        if not read.valid():
            read.status()
    finally:
        del read


def read_totals(path: str, database: Rdict) -> tuple[bytes, Totals] | None:
    """The queue's id and its totals, as they were written last; None if they never were."""
    try:
        family = database.get_column_family(TOTALS)
    except Exception:  # noqa: BLE001  there is none: it is not a queue's, or RocksDB has repaired it
        return None
    try:
        data = family.get(TOTALS.encode())
    except Exception as error:
        raise cannot_read(path, error) from error
    finally:
        del family  # to close it would write the memtables to files
    if data is None:
        return None
    found = unpacked(data)
    if found is None:
        raise damaged(path, f"its totals cannot be read ({data[:20]!r})")
    return found


def _read_times(path: str, database: Rdict) -> None:
    """Read all times. A damaged one would stop a push much later, when an old time is looked for."""
    try:
        family = database.get_column_family(TIMES)
    except Exception as error:
        raise damaged(path, f"its database has no column family {TIMES}") from error
    try:
        last: Any = b""
        for last in family.keys():  # noqa: B007, SIM118  it is no dict
            pass
        check_end(family, last)
    except Exception as error:
        raise cannot_read(path, error) from error
    finally:
        del family


def _compare_with_keys(path: str, totals: Totals, inventory: Inventory) -> None:
    if (inventory.count, inventory.id_sum) == (totals.on_disk, totals.id_sum):
        return
    missing = totals.on_disk - inventory.count
    if missing > 0:
        raise damaged(
            path,
            f"at least {some_events(missing)} {_are(missing)} missing: its totals count {_count(totals)}, and its keys "
            f"are {inventory.count:,}",
        )
    raise damaged(
        path,
        f"its events are not those that were pushed and not acked: its totals count {_count(totals)}, and its keys are "
        f"{inventory.count:,}, with others among them. An unknown number of events is missing",
    )


def _compare_with_mark(path: str, totals: Totals, mark: Totals) -> None:
    pushes, acks = mark.next_id - totals.next_id, mark.acks - totals.acks
    if pushes <= 0 and acks <= 0:
        return
    if pushes <= 0:
        raise damaged(path, f"{acks:,} acks are missing, so up to {some_events(acks)} would come again")
    most = min(pushes, mark.on_disk)
    least = min(max(pushes - max(acks, 0), 0), most)
    how_many = f"{some_events(most)}" if least == most else f"{least:,} to {some_events(most)}"
    raise damaged(
        path,
        f"{how_many} {_are(most)} missing: ids up to {mark.next_id - 1} were given, and its database knows of "
        + (f"those up to {totals.next_id - 1}" if totals.next_id else "none")
        + (f"; {acks:,} acks are missing too" if acks > 0 else ""),
    )


def _count(totals: Totals) -> str:
    return f"{some_events(totals.on_disk)} on disk and {totals.acks:,} acks"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
