"""Parses the payloads of a block at once: into objects, or into columns.

Every value is checked before anything else: it is exactly one JSON object, or one MessagePack map with string keys,
nested no deeper than 64. The others are errors, one each, and never an exception. Objects are made when somebody asks
for them, and so are the columns of JSON; the check of MessagePack makes its columns on the way.

Where this differs from `json.loads`, on purpose: a byte-order mark, `NaN`, `Infinity` and lone surrogates (as escapes
or in UTF-8) are errors, for they are not JSON, or not Unicode; an integer of more than 4,000 digits is infinite, where
Python refuses it.

May import: `errors`, `records`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Protocol, cast

import pyarrow as pa

from penstock.engine.parsing.column_kinds import ColumnKinds, max_fields
from penstock.engine.parsing.json_columns import TooWide, read_lines, read_lines_as
from penstock.engine.parsing.json_values import check_json, decode_json, json_lines, repeated_key
from penstock.engine.parsing.msgpack_values import MsgpackCheck, check_msgpack, decode_msgpack
from penstock.engine.parsing.parse_errors import ParseError, parse_error
from penstock.records import bytes_of

__all__ = ["ParseError", "ParseFormat", "ParsedValues", "parse_values"]


class ParseFormat(StrEnum):
    """What payloads are written in."""

    JSON = "json"
    MSGPACK = "msgpack"


class ParsedValues:
    """The values of a block that parsed, and the errors of those that did not, in row order."""

    def __init__(self, total: int, bad: dict[int, str], rows: _Rows, limit: int) -> None:
        self.errors: tuple[ParseError, ...] = tuple(parse_error(row, bad[row]) for row in sorted(bad))
        self._good = _others(self.errors, total)
        self._rows = rows
        self._limit = limit
        self._objects: list[dict[str, Any]] | None = None
        self._columns: tuple[pa.RecordBatch, tuple[ParseError, ...]] | None = None

    def __len__(self) -> int:
        return len(self._good)

    @property
    def good(self) -> Sequence[int]:
        """The rows, in the values that were given, that parsed: ascending, and a range when all did."""
        return self._good

    @property
    def objects(self) -> list[dict[str, Any]]:
        """A dict for each good row; made on first use, and then kept."""
        if self._objects is None:
            self._objects = self._rows.objects()
        return self._objects

    def columns(self) -> tuple[pa.RecordBatch, tuple[ParseError, ...]]:
        """The good rows as columns, in the order in which their fields appear; and those that do not fit in.

        A field has one type in a block. The first row that has it settles which: a row with another is an error, and
        not in the columns. Integers and floats fit together, and null fits everything. A JSON object that has a key
        twice is an error too, and so is a row with a field more than a block may have: 4,000, or fewer where there are
        so many rows that their columns would take far more memory than the payloads. Text is text, also where it looks
        like a timestamp. Made once, and then kept.
        """
        if self._columns is None:
            batch, misfits = (self._rows.read() if self._good else None) or self._fit_together()
            self._columns = batch, tuple(parse_error(self._good[at], misfits[at]) for at in sorted(misfits))
        return self._columns

    def _fit_together(self) -> tuple[pa.RecordBatch, dict[int, str]]:
        misfits: dict[int, str] = {}
        kinds = _learn(self.objects, misfits, self._limit)
        batch = self._rows.read_without(misfits, kinds.schema)
        if batch is None:
            # From the start again, for a row that is refused must not have settled what the others are.
            misfits = self._rows.refused()
            kinds = _learn(self.objects, misfits, self._limit)
            batch = kinds.to_arrow([row for at, row in enumerate(self.objects) if at not in misfits])
        return batch, misfits


def parse_values(values: pa.Array[Any], form: ParseFormat) -> ParsedValues:
    """Parse a column of payloads. A value that does not parse becomes an error of the result; nothing is raised for it.

    >>> parsed = parse_values(pa.array([b'{"id": 1}', b"oops"], pa.binary()), ParseFormat.JSON)
    >>> parsed.objects, [error.index for error in parsed.errors]
    ([{'id': 1}], [1])
    """
    limit = max_fields(len(values), bytes_of(values))
    if form == ParseFormat.JSON:
        checked = check_json(values)
        good = _without(values, checked.bad)
        rows = _JsonRows(good, limit, one_line_each=checked.one_line_each)
        return ParsedValues(len(values), checked.bad, rows, limit)
    unpacked = check_msgpack(values)
    return ParsedValues(len(values), unpacked.bad, _MsgpackRows(values, unpacked), limit)


class _Rows(Protocol):
    """The good rows of a block, in their format. Rows are counted among the good ones here."""

    def objects(self) -> list[dict[str, Any]]:
        """A dict for each."""

    def read(self) -> tuple[pa.RecordBatch, dict[int, str]] | None:
        """The columns by the quick way, and the rows that do not fit in; None if it does not take these rows."""

    def read_without(self, misfits: dict[int, str], schema: pa.Schema, /) -> pa.RecordBatch | None:
        """The columns of all rows but some, whose types are known, by the quick way, if that takes these rows."""

    def refused(self) -> dict[int, str]:
        """Rows that no column may hold, though their types fit, and why."""


class _JsonRows:
    def __init__(self, values: pa.Array[Any], limit: int, *, one_line_each: bool) -> None:
        self._values = values
        self._limit = limit
        self._one_line_each = one_line_each
        self._is_refused = False

    def objects(self) -> list[dict[str, Any]]:
        return decode_json(self._values)

    def read(self) -> tuple[pa.RecordBatch, dict[int, str]] | None:
        lines = json_lines(self._values)
        if lines is None:
            return None
        try:
            batch = read_lines(lines, len(self._values), self._limit, one_line_each=self._one_line_each)
        except TooWide:
            return None
        self._is_refused = batch is None
        return None if batch is None else (batch, {})

    def read_without(self, misfits: dict[int, str], schema: pa.Schema) -> pa.RecordBatch | None:
        if not misfits and self._is_refused:
            return None  # then it is not the types that were refused
        rest = _without(self._values, misfits)
        lines = json_lines(rest)
        if not len(rest) or lines is None:
            return None
        return read_lines_as(schema, lines, len(rest), one_line_each=self._one_line_each)

    def refused(self) -> dict[int, str]:
        payloads = cast("list[bytes]", self._values.to_pylist())
        found = ((at, repeated_key(value)) for at, value in enumerate(payloads))
        return {at: f"the key {key[:60]!r} is there twice" for at, key in found if key is not None}


class _MsgpackRows:
    def __init__(self, values: pa.Array[Any], checked: MsgpackCheck) -> None:
        self._values = values
        self._checked = checked

    def objects(self) -> list[dict[str, Any]]:
        if self._checked.objects is not None:
            return self._checked.objects
        return decode_msgpack(_without(self._values, self._checked.bad))

    def read(self) -> tuple[pa.RecordBatch, dict[int, str]] | None:
        return None if self._checked.columns is None else (self._checked.columns, self._checked.misfits)

    def read_without(self, _misfits: dict[int, str], _schema: pa.Schema, /) -> pa.RecordBatch | None:
        return None

    def refused(self) -> dict[int, str]:
        return {}


def _learn(objects: Sequence[dict[str, Any]], misfits: dict[int, str], limit: int) -> ColumnKinds:
    """Learn the kinds of all rows that are not misfits, and add those that turn out to be."""
    kinds = ColumnKinds(limit)
    for at, row in enumerate(objects):
        if at not in misfits:
            why = kinds.misfit(row)
            if why is not None:
                misfits[at] = why
    return kinds


def _others(errors: Sequence[ParseError], total: int) -> Sequence[int]:
    if not errors:
        return range(total)
    good: list[int] = []
    for start, end in _between([error.index for error in errors], total):
        good.extend(range(start, end))
    return good


def _without(values: pa.Array[Any], rows: dict[int, str]) -> pa.Array[Any]:
    if not rows:
        return values
    parts = [values.slice(start, end - start) for start, end in _between(sorted(rows), len(values)) if start < end]
    return pa.concat_arrays(parts) if parts else values.slice(0, 0)


def _between(rows: Sequence[int], total: int) -> Sequence[tuple[int, int]]:
    return list(zip([0, *(row + 1 for row in rows)], [*rows, total], strict=True))
