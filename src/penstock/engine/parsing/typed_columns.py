"""Parses the payloads of a block into columns whose types are told, not learned.

A payload is one row, or one error and never an exception. What it has to be is the same whichever way it is read:

1. JSON in pieces of many rows, by Arrow's reader, if it takes the whole piece: see `typed_json`.
2. Groups of rows, by way of structs: see `typed_rows`. All MessagePack goes this way.
3. One row, value by value, where one may be wrong: see `typed_values`.

Where this differs from `json.loads`, `parsing` says. Of a key that an object has twice the last one counts, as there.

May import: `errors`, `records`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa

from penstock.engine.parsing.block_parser import ParseFormat
from penstock.engine.parsing.json_columns import batch_without_columns
from penstock.engine.parsing.parse_errors import ParseError, parse_error
from penstock.engine.parsing.typed_json import can_read, read_piece
from penstock.engine.parsing.typed_rows import GROUP, RowReader
from penstock.engine.parsing.typed_values import Fields, inner_fields
from penstock.errors import InvalidInput
from penstock.records import bytes_of

__all__ = ["TypedColumns", "check_columns", "parse_as"]

_PIECE = 32 * GROUP  # rows that are read at once, or not
_PIECE_BYTES = 16 << 20  # and about how many bytes, at most
_MOST_REFUSED = 2  # pieces in a row; then the rest of a block is not tried
_TAKEN = frozenset(
    {
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_()),
        *(pa.string(), pa.binary(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC")),
    }
)


@dataclass(frozen=True, slots=True)
class TypedColumns:
    """The rows that parsed as columns, which rows of the values they are, and an error for each other one.

    `batch` has exactly the schema that was given. `good` is ascending, and a range when all rows are good; `errors` are
    in row order.
    """

    batch: pa.RecordBatch
    good: Sequence[int]
    errors: tuple[ParseError, ...]


def parse_as(values: pa.Array[Any], form: ParseFormat, schema: pa.Schema) -> TypedColumns:
    """Parse a column of payloads into the columns of a schema.

    A field that is absent or null is null, and one that has no column is ignored. Into a column of strings goes any
    other value too, as compact JSON. Times are ISO 8601, in UTC where they do not say; binary is base64 in JSON. Raises
    `InvalidInput` for a schema that `check_columns` refuses, and nothing for a payload.

    >>> parsed = parse_as(
    ...     pa.array([b'{"id": 1}', b'{"id": "x"}'], pa.binary()), ParseFormat.JSON, pa.schema([("id", pa.int64())])
    ... )
    >>> parsed.batch.to_pylist(), parsed.errors[0].reason
    ([{'id': 1}], "parse error: the field 'id' is a string here, and the column is int64")
    """
    check_columns(schema)
    fields = tuple(schema)
    if values.null_count:
        values = values.fill_null(b"")
    groups, bad = _read(values, form, fields)
    errors = tuple(parse_error(row, bad[row]) for row in sorted(bad))
    good = [row for row in range(len(values)) if row not in bad] if bad else range(len(values))
    if not fields:
        return TypedColumns(batch_without_columns(len(good)), good, errors)
    columns = [
        pa.concat_arrays([group[at] for group in groups]) if groups else cast("Any", pa.array([], field.type))
        for at, field in enumerate(fields)
    ]
    return TypedColumns(pa.RecordBatch.from_arrays(columns, schema=schema), good, errors)


def check_columns(schema: pa.Schema) -> None:
    """Raise `InvalidInput` for a column that no payload can be parsed into, or two of one name.

    >>> check_columns(pa.schema([("took", pa.duration("s"))]))
    Traceback (most recent call last):
    penstock.errors.InvalidInput: the column 'took' is duration[s], which payloads cannot be parsed into
    """
    _check_fields(tuple(schema), "")


def _read(values: pa.Array[Any], form: ParseFormat, fields: Fields) -> tuple[list[list[pa.Array[Any]]], dict[int, str]]:
    groups: list[list[pa.Array[Any]]] = []
    bad: dict[int, str] = {}
    reader = RowReader(form, fields)
    refused = 0 if form == ParseFormat.JSON and can_read(fields) else _MOST_REFUSED
    rows = max(1, min(_PIECE, _PIECE_BYTES * len(values) // max(1, bytes_of(values))))
    for start in range(0, len(values), rows):
        piece = values.slice(start, rows)
        columns = read_piece(piece, fields) if refused < _MOST_REFUSED else None
        if columns is not None:
            refused = 0
            groups.append(columns)
            continue
        refused += 1
        for at in range(0, len(piece), GROUP):
            group, wrong = reader.read(piece.slice(at, GROUP))
            groups.append(group)
            bad.update((start + at + row, why) for row, why in wrong.items())
    return groups, bad


def _check_fields(fields: Iterable[pa.Field[Any]], path: str) -> None:
    names: set[str] = set()
    for field in fields:
        if field.name in names:
            raise InvalidInput(f"the column {path + field.name!r} is there twice")
        names.add(field.name)
        _check_type(field.type, path + field.name)


def _check_type(kind: pa.DataType, path: str) -> None:
    if pa.types.is_struct(kind):
        _check_fields(inner_fields(kind), f"{path}.")
    elif pa.types.is_list(kind):
        _check_type(kind.value_type, f"{path}[]")
    elif pa.types.is_map(kind) and kind.key_type == pa.string():
        _check_type(kind.item_type, f"{path}.*")
    elif kind not in _TAKEN and not pa.types.is_decimal128(kind):
        raise InvalidInput(f"the column {path!r} is {kind}, which payloads cannot be parsed into")
