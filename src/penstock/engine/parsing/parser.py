"""The one parser of payloads: `infer_schema` says which columns they have, `parse_as` reads them into columns.

A payload is one row, or one error and never an exception. The rules are the same in every format, and for the engine
and Spark alike: `docs/design/parsing.md` has them. Three ways lead into columns, each quicker than the next:

1. JSON in pieces of many rows, by Arrow's reader, if it takes the whole piece: `arrow_json`.
2. Groups of rows, by way of structs: `row_structs`. All MessagePack goes this way.
3. One row, value by value, where one may be wrong: `row_values`. Every reason comes from here.

May import: `errors`, `records`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, cast

import pyarrow as pa

from penstock.core import as_word
from penstock.engine.parsing.arrow_json import arrow_reader
from penstock.engine.parsing.column_kinds import ColumnKinds, max_fields
from penstock.engine.parsing.json_payloads import JsonPayloads
from penstock.engine.parsing.parse_options import STRICT, ParseOptions
from penstock.engine.parsing.payload_format import (
    Fields,
    ParseError,
    ParseFormat,
    inner_fields,
    parse_error,
    values_without,
    without,
)
from penstock.engine.parsing.row_structs import ROWS_PER_GROUP, RowReader
from penstock.engine.parsing.row_values import format_of, read_objects
from penstock.errors import InvalidInput
from penstock.records import bytes_of

_MAX_ROWS_PER_PIECE = 32 * ROWS_PER_GROUP  # that Arrow reads at once, or not
_MAX_BYTES_PER_PIECE = 16 << 20  # about
_MAX_REFUSED_PIECES = 2  # in a row; then Arrow is not asked for the rest of the block
_JSON = JsonPayloads()
_PARSED_INTO: frozenset[pa.DataType] = frozenset(
    {
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_()),
        *(pa.string(), pa.binary(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC")),
    }
)


@dataclass(frozen=True, slots=True)
class ParsedColumns:
    """The rows that parsed as columns, which rows of the values they are, and an error for each other one.

    `good` is ascending, and a range when all rows are good; `errors` are in row order.
    """

    batch: pa.RecordBatch
    good: Sequence[int]
    errors: tuple[ParseError, ...]


@dataclass(frozen=True, slots=True)
class ParsedObjects:
    """The same with a dict for each row that parsed."""

    objects: list[dict[str, Any]]
    good: Sequence[int]
    errors: tuple[ParseError, ...]


def parse_as(
    values: pa.Array[Any],
    schema: pa.Schema,
    form: ParseFormat = ParseFormat.JSON,
    options: ParseOptions = STRICT,
) -> ParsedColumns:
    """Parse a column of payloads into the columns of a schema.

    A field that is absent or null is null, and one that has no column is ignored. Into a column of strings goes any
    other value too, as compact JSON. Times are ISO 8601, in UTC where they do not say; binary is base64 in JSON. With
    options more goes in, and fields without a column are kept. Raises `InvalidInput` for a schema that no payload can
    be parsed into, and for options that do not go with it, and nothing for a payload.

    >>> parsed = parse_as(pa.array([b'{"id": 1}', b'{"id": "x"}'], pa.binary()), pa.schema([("id", pa.int64())]))
    >>> parsed.batch.to_pylist(), parsed.errors[0].reason
    ([{'id': 1}], "parse error: the field 'id' is a string here, and the column is int64")
    """
    _check_once(schema, options)
    return _BlockReader(*_checked(values, form), schema, None, options).read()


def infer_schema(values: pa.Array[Any], form: ParseFormat = ParseFormat.JSON) -> pa.Schema:
    r"""The columns of payloads, in the order in which their fields appear.

    The first payload that has a field settles its type: integers and floats fit together, as floats, and null fits
    everything. Text is a string, also where it looks like a time. A payload that does not parse, or does not fit by
    what was settled, settles nothing. There are at most 4,000 fields, or fewer where there are so many rows that their
    columns would take far more memory than the payloads.

    >>> infer_schema(pa.array([b'{"id": 1}', b'{"id": 2.5, "name": "x"}', b"oops"], pa.binary())).to_string()
    'id: double\nname: string'
    """
    return parse_inferred(values, form).batch.schema


def parse_inferred(values: pa.Array[Any], form: ParseFormat = ParseFormat.JSON) -> ParsedColumns:
    """Parse a column of payloads into the columns that `infer_schema` finds, in one pass.

    What `parse_as` makes of them, but that every member must have a column: a payload with a field more than a block
    may have is an error, and so is one of which nothing could be learned.
    """
    values, form = _checked(values, form)
    kinds = ColumnKinds(max_fields(len(values), bytes_of(values)))
    return _BlockReader(values, form, None, kinds).read()


def parse_objects(
    values: pa.Array[Any], form: ParseFormat = ParseFormat.JSON, options: ParseOptions = STRICT
) -> ParsedObjects:
    """Parse a column of payloads into a dict each, whatever their fields are.

    Of the options only the mode counts: a lenient one takes `NaN` and `Infinity`, as `parse_as` does.

    >>> parsed = parse_objects(pa.array([b'{"id": 1}', b"oops"], pa.binary()))
    >>> parsed.objects, [error.index for error in parsed.errors]
    ([{'id': 1}], [1])
    """
    values, form = _checked(values, form)
    objects: list[dict[str, Any]] = []
    bad: dict[int, str] = {}
    for start in range(0, len(values), ROWS_PER_GROUP):
        group, wrong = read_objects(values.slice(start, ROWS_PER_GROUP), format_of(form), is_lenient=options.is_lenient)
        objects += group
        bad.update((start + row, why) for row, why in wrong.items())
    good = without(range(len(values)), bad) if bad else range(len(values))
    return ParsedObjects(objects, good, _errors(bad))


def check_columns(schema: pa.Schema) -> None:
    """Raise `InvalidInput` for a column that no payload can be parsed into, or two of one name.

    >>> check_columns(pa.schema([("took", pa.duration("s"))]))
    Traceback (most recent call last):
    penstock.errors.InvalidInput: the column 'took' is duration[s], which payloads cannot be parsed into
    """
    _check_fields(schema, "", _PARSED_INTO)


def batch_without_columns(rows: int) -> pa.RecordBatch:
    """So many rows of nothing, which arrays alone cannot say.

    >>> batch_without_columns(3).num_rows
    3
    """
    nothing = pa.Array.from_buffers(pa.struct([]), rows, [None])
    return pa.RecordBatch.from_struct_array(cast("pa.StructArray", nothing))


def _checked(values: pa.Array[Any], form: str) -> tuple[pa.Array[Any], ParseFormat]:
    """The payloads, of which null is one without bytes, and the format. Raises `InvalidInput` for no format."""
    return values.fill_null(b"") if values.null_count else values, as_word("form", ParseFormat, form)


@dataclass(frozen=True, slots=True)
class _Piece:
    """The columns of a part of a block, and what is wrong with its other rows."""

    start: int
    rows: int
    columns: list[pa.Array[Any]]
    bad: dict[int, str]


class _BlockReader:
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
            return ParsedColumns(batch_without_columns(len(good)), good, _errors(bad))
        columns: list[Any] = [
            pa.concat_arrays([piece.columns[at] for piece in pieces]) if pieces else pa.nulls(0, field.type)
            for at, field in enumerate(schema)
        ]
        return ParsedColumns(pa.RecordBatch.from_arrays(columns, schema=schema), good, _errors(bad))

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


def _errors(bad: dict[int, str]) -> tuple[ParseError, ...]:
    return tuple(parse_error(row, bad[row]) for row in sorted(bad))


@lru_cache(maxsize=16)
def _check_once(schema: pa.Schema, options: ParseOptions) -> None:
    """Raise `InvalidInput` for what no payload can be parsed into, or with. A query has one for all its blocks."""
    options.check(schema)
    _check_fields(schema, "", _PARSED_INTO | {pa.null()})


def _check_fields(fields: Iterable[pa.Field[Any]], path: str, types: frozenset[pa.DataType]) -> None:
    names: set[str] = set()
    for field in fields:
        if field.name in names:
            raise InvalidInput(f"the column {path + field.name!r} is there twice")
        names.add(field.name)
        _check_type(field.type, path + field.name, types)


def _check_type(kind: pa.DataType, path: str, types: frozenset[pa.DataType]) -> None:
    if pa.types.is_struct(kind):
        _check_fields(inner_fields(kind), f"{path}.", types)
    elif pa.types.is_list(kind):
        _check_type(kind.value_type, f"{path}[]", types)
    elif pa.types.is_map(kind) and kind.key_type == pa.string():
        _check_type(kind.item_type, f"{path}.*", types)
    elif kind not in types and not pa.types.is_decimal128(kind):
        raise InvalidInput(f"the column {path!r} is {kind}, which payloads cannot be parsed into")
