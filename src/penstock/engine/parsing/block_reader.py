"""A block of payloads in JSON or MessagePack into columns, piece by piece, each in the quickest way that takes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import pyarrow as pa

from penstock.engine.parsing.arrow_json import arrow_reader
from penstock.engine.parsing.column_kinds import ColumnKinds
from penstock.engine.parsing.json_payloads import JsonPayloads
from penstock.engine.parsing.parse_options import STRICT, ParseOptions
from penstock.engine.parsing.payload_format import (
    Fields,
    ParseError,
    ParseFormat,
    parse_error,
    values_without,
    without,
)
from penstock.engine.parsing.row_structs import ROWS_PER_GROUP, RowReader
from penstock.records import bytes_of

_MAX_ROWS_PER_PIECE = 32 * ROWS_PER_GROUP  # that Arrow reads at once, or not
_MAX_BYTES_PER_PIECE = 16 << 20  # about
_MAX_REFUSED_PIECES = 2  # in a row; then Arrow is not asked for the rest of the block
_JSON = JsonPayloads()


@dataclass(frozen=True, slots=True)
class ParsedColumns:
    """The rows that parsed as columns, which rows of the values they are, and an error for each other one.

    `good` is ascending, and a range when all rows are good; `errors` are in row order.
    """

    batch: pa.RecordBatch
    good: Sequence[int]
    errors: tuple[ParseError, ...]


@dataclass(frozen=True, slots=True)
class _Piece:
    """The columns of a part of a block, and what is wrong with its other rows."""

    start: int
    rows: int
    columns: list[pa.Array[Any]]
    bad: dict[int, str]


class BlockReader:
    """Reads a block piece by piece, each in the quickest way that takes it, into the columns of a schema.

    Without a schema it is inferred, with `kinds`. Where rows have something new, reading goes on from there with more
    fields. Earlier pieces get these fields at the end: their rows have no values in them.
    """

    def __init__(
        self,
        values: pa.Array[Any],
        form: ParseFormat,
        schema: pa.Schema | None,
        kinds: ColumnKinds | None,
        options: ParseOptions = STRICT,
    ) -> None:
        self._values, self._form, self._schema, self._kinds, self._options = values, form, schema, kinds, options
        self._pieces: list[_Piece] = []
        self._checks_first = False

    @cached_property
    def _rows(self) -> RowReader:
        return RowReader(self._values, self._form, self._schema, self._kinds, self._options)

    @property
    def _growths(self) -> int:
        return self._rows.growths if self._schema is None else 0

    @property
    def _fields(self) -> Fields:
        return self._rows.fields if self._schema is None else tuple(self._schema)

    def read(self) -> ParsedColumns:
        """All of it."""
        total = len(self._values)
        most = max(1, min(_MAX_ROWS_PER_PIECE, _MAX_BYTES_PER_PIECE * total // max(1, bytes_of(self._values))))
        start, rows, refused = 0, min(ROWS_PER_GROUP, most), 0
        while start < total:
            # Pieces begin small, and grow while Arrow takes them: one that it refuses is read twice.
            if refused < _MAX_REFUSED_PIECES and self._read_by_arrow(start, rows):
                start, rows, refused = start + rows, min(2 * rows, most), 0
                continue
            growths, end, rows = self._growths, min(start + rows, total), min(ROWS_PER_GROUP, most)
            for at in range(start, end, rows):
                self._pieces.append(self._read_rows(at, min(rows, end - at)))
            start, refused = end, refused + 1 if self._growths == growths else 0
        pieces = [self._widened(piece) for piece in self._pieces] if self._growths else self._pieces
        bad = {piece.start + row: why for piece in pieces for row, why in piece.bad.items()}
        good = without(range(total), bad) if bad else range(total)
        schema = pa.schema(self._fields) if self._schema is None else self._schema
        if self._options.rescue is not None:
            schema = schema.append(pa.field(self._options.rescue, pa.string()))
        if not len(schema):
            return ParsedColumns(batch_without_columns(len(good)), good, errors_of(bad))
        columns: list[Any] = [
            pa.concat_arrays([piece.columns[at] for piece in pieces]) if pieces else pa.nulls(0, field.type)
            for at, field in enumerate(schema)
        ]
        return ParsedColumns(pa.RecordBatch.from_arrays(columns, schema=schema), good, errors_of(bad))

    def _read_by_arrow(self, start: int, rows: int) -> bool:
        """Read a piece with Arrow: all of it, or all but the payloads that are no objects."""
        rescues = self._options.rescue is not None
        ignore = self._schema is not None and not rescues
        reader = arrow_reader(self._fields, ignore_others=ignore) if self._form is ParseFormat.JSON else None
        if reader is None:
            return False
        values = self._values.slice(start, rows)
        columns = None if self._checks_first else reader.read(values)
        bad = {} if columns is not None else _JSON.malformed_rows(values)
        if self._options.is_lenient and any(map(_has_constants, (values[row].as_py() for row in bad))):
            return False
        if columns is None and (bad or self._checks_first):
            columns = reader.read(values_without(values, bad))
        self._checks_first = bool(bad)
        if columns is not None:
            if rescues:  # a field without a column, and Arrow would have refused
                columns.append(cast("Any", pa.nulls(len(values) - len(bad), pa.string())))
            self._pieces.append(_Piece(start, len(values), columns, bad))
        return columns is not None

    def _read_rows(self, start: int, rows: int) -> _Piece:
        return _Piece(start, rows, *self._rows.read(start, rows))

    def _widened(self, piece: _Piece) -> _Piece:
        """A piece with the columns of all fields by now."""
        before, fields = [column.type for column in piece.columns], self._fields
        if any(pa.types.is_nested(old) and old != now.type for old, now in zip(before, fields, strict=False)):
            return self._read_rows(piece.start, piece.rows)  # something new inside a column
        count = piece.rows - len(piece.bad)
        columns: list[Any] = []
        for at, field in enumerate(fields):
            if at >= len(before) or (pa.types.is_null(before[at]) and not pa.types.is_null(field.type)):
                columns.append(pa.nulls(count, field.type))
            else:  # of integers, each to the nearest float
                same = before[at] == field.type
                columns.append(piece.columns[at] if same else piece.columns[at].cast(field.type, safe=False))
        return _Piece(piece.start, piece.rows, columns, piece.bad)


def _has_constants(payload: bytes) -> bool:
    return _JSON.with_text_for_constants(payload) != payload


def errors_of(bad: dict[int, str]) -> tuple[ParseError, ...]:
    """An error for each row that is bad, in their order."""
    return tuple(parse_error(row, bad[row]) for row in sorted(bad))


def batch_without_columns(rows: int) -> pa.RecordBatch:
    """So many rows of nothing, which arrays alone cannot say.

    >>> batch_without_columns(3).num_rows
    3
    """
    nothing = pa.Array.from_buffers(pa.struct([]), rows, [None])
    return pa.RecordBatch.from_struct_array(cast("pa.StructArray", nothing))
