"""The files of a Delta table that a task writes: where they are, and what Delta's log says of them.

In Delta the log says which values the partition columns of a file have, and its path says nothing. They are in
directories named as Hive's are all the same: Polars takes the values from there.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from math import isinf
from typing import Any
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidInput
from penstock.spark.tables.column_statistics import ColumnStatistics
from penstock.spark.tables.destinations import InStore
from penstock.spark.tables.rows_by_partition import Values
from penstock.spark.tables.rows_in_parquet import MAX_HELD_BYTES, TARGET_FILE_BYTES, RowsInParquet, WrittenFile
from penstock.spark.tables.upserts import check_merge_bytes
from penstock.storage import ObjectStore

STAGING = "_penstock_staging"
"""Where the rows of a block wait that is merged into the table. Delta leaves alone what begins with an underscore."""

_MAX_FOLDERS = 200  # characters of the directories' names, of which a file system takes 255 each
_ZONED = re.compile(r"^(\d{4,}-\d\d-\d\d)T(\d\d:\d\d:\d\d\.\d{6})Z$")
_MAX_TEXT = 32  # characters of a bound, as other writers of Delta cut them
_LAST_CHARACTER = "\U0010ffff"
_DOWN, _UP = Context(prec=15, rounding=ROUND_FLOOR), Context(prec=15, rounding=ROUND_CEILING)

_json = msgspec.json.Encoder(decimal_format="number")


class StagedFile(msgspec.Struct, frozen=True):
    """What a task tells the driver of a file that it wrote."""

    path: str
    size: int
    rows: int
    values: tuple[str | None, ...]
    bytes_in_memory: int
    stats: str
    """As they are in Delta's log."""


@dataclass(frozen=True, slots=True)
class DeltaWriter:
    """Writes the rows of a block. It is pickled to the executors."""

    store: ObjectStore
    schema: pa.Schema
    """The columns of the rows, as Spark gives them."""
    file_schema: pa.Schema
    """The same columns, as the table has them, all nullable."""
    required: tuple[str, ...]
    """Columns that the table wants in every row."""
    partition_by: tuple[str, ...]
    folder: str = ""
    max_bytes: int | None = None
    """Of the rows of a task in memory, for a block that the driver merges."""

    def open(self, task: int) -> DeltaFiles:
        """Begin the files of a task."""
        return DeltaFiles(self, task)


class DeltaFiles:
    """The files that one task writes."""

    def __init__(self, writer: DeltaWriter, task: int) -> None:
        self._writer = writer
        self._task = task
        self._files = RowsInParquet(
            InStore(writer.store),
            self._place,
            writer.partition_by,
            to_text=partition_text,
            with_statistics=True,
            max_held_bytes=TARGET_FILE_BYTES + MAX_HELD_BYTES,  # so that a file can become as large as it should
        )
        self._bytes = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Write rows. Raises `InvalidInput` for a null where the table takes none."""
        cast = rows.cast(self._writer.file_schema)
        for name in self._writer.required:
            if cast.column(name).null_count:
                raise InvalidInput(f"the column {name!r} is NOT NULL in the table, and a row has null there")
        self._bytes += cast.nbytes
        check_merge_bytes(self._bytes, self._writer.max_bytes)
        self._files.add(cast)

    def close(self) -> list[bytes]:
        """Finish the files, durably, and describe them."""
        return [_json.encode(_described(file)) for file in self._files.close()]

    def abort(self) -> None:
        """Remove what was written."""
        self._files.abort()

    def _place(self, values: Values) -> str:
        above = [self._writer.folder] if self._writer.folder else []
        folders = list(map(_folder, self._writer.partition_by, values))
        if sum(map(len, folders)) > _MAX_FOLDERS:
            folders = []  # a file system would not take them, and to Delta the place of a file is all the same
        return "/".join([*above, *folders, f"part-{self._task:05d}-{uuid.uuid4()}.zstd.parquet"])


def decode_files(descriptions: Iterable[bytes]) -> list[StagedFile]:
    """Read what tasks returned."""
    return [msgspec.json.decode(one, type=StagedFile) for one in descriptions]


def partition_text(values: pa.Array[Any]) -> pa.Array[Any]:
    """Values of a partition column as Delta's log has them. Empty text is null there."""
    if pa.types.is_timestamp(values.type) and values.type.tz:
        # With its zone: without one, each reader would take it for its own.
        plain = values.cast(pa.timestamp("us")).cast(pa.string())
        zoned: pa.Array[Any] = pc.replace_substring_regex(plain, "^(.*) (.*)$", r"\1T\2Z")
        return zoned
    text = values.cast(pa.string())
    found: pa.Array[Any] = pc.if_else(pc.equal(text, pa.scalar("")), pa.scalar(None, pa.string()), text)
    return found


def _folder(name: str, value: str | None) -> str:
    """The directory of a value, as delta-rs names it: a time there is in UTC, and has no zone.

    >>> _folder("at", "2026-01-31T12:00:00.000000Z"), _folder("event", "a/b"), _folder("event", None)
    ('at=2026-01-31%2012%3A00%3A00.000000', 'event=a%2Fb', 'event=__HIVE_DEFAULT_PARTITION__')
    """
    text = "__HIVE_DEFAULT_PARTITION__" if value is None else _ZONED.sub(r"\1 \2", value)
    return f"{quote(name, safe='')}={quote(text, safe='')}"


def _described(file: WrittenFile) -> StagedFile:
    stats: dict[str, Any] = {
        "numRecords": file.rows,
        "nullCount": {name: one.nulls for name, one in file.statistics.items() if one.nulls is not None},
    }
    bounds = _all_bounds(file)
    if bounds:
        stats["minValues"] = {name: least for name, (least, _) in bounds.items()}
        stats["maxValues"] = {name: greatest for name, (_, greatest) in bounds.items()}
    return StagedFile(file.path, file.size, file.rows, file.values, file.bytes_in_memory, _json.encode(stats).decode())


def _all_bounds(file: WrittenFile) -> dict[str, tuple[Any, Any]]:
    """The bounds of all columns that have values, or none at all.

    Where the bounds of some columns are missing, delta-rs's reader takes them for null, and filters by such a column
    find nothing.
    """
    found = {}
    for name, known in file.statistics.items():
        if known.nulls == file.rows or isinstance(known.least, bytes):
            continue
        bounds = _bounds(known)
        if None in bounds:
            return {}
        found[name] = bounds
    return found


def _bounds(known: ColumnStatistics) -> tuple[Any, Any]:
    """The bounds of a column as Delta's log has them, never tighter than the values. None: there are no such bounds."""
    least, greatest = known.least, known.greatest
    if isinstance(least, str):
        return least[:_MAX_TEXT], _upper_text(greatest)
    if isinstance(least, datetime):
        return _milliseconds(least, up=False), _milliseconds(greatest, up=True)
    if isinstance(least, Decimal):
        # Readers take them for floats, so they are cut to the digits that a float has.
        return _DOWN.create_decimal(least), _UP.create_decimal(greatest)
    if isinstance(least, float) and (isinf(least) or isinf(greatest)):
        return None, None  # JSON has no such numbers
    return least, greatest


def _upper_text(text: str) -> str | None:
    if len(text) <= _MAX_TEXT:
        return text
    return None if text[_MAX_TEXT] == _LAST_CHARACTER else text[:_MAX_TEXT] + _LAST_CHARACTER


def _milliseconds(at: datetime, *, up: bool) -> str | None:
    """Readers compare milliseconds, so a bound is rounded away from the values."""
    try:
        rounded = at + timedelta(microseconds=-at.microsecond % 1000 if up else -(at.microsecond % 1000))
    except OverflowError:
        return None
    zone = "" if at.tzinfo is None else "Z"
    plain = rounded if at.tzinfo is None else rounded.astimezone(UTC).replace(tzinfo=None)
    return plain.isoformat(timespec="milliseconds") + zone
