"""The one parser of payloads: `infer_schema` says which columns they have, `parse_as` reads them into columns.

A payload is one row, or one error and never an exception. The rules are the same in every format, and for the engine
and Spark alike: `docs/design/parsing.md` has them. Three ways lead into columns, each quicker than the next:

1. JSON in pieces of many rows, by Arrow's reader, if it takes the whole piece: `arrow_json`.
2. Groups of rows, by way of structs: `row_structs`. All MessagePack goes this way.
3. One row, value by value, where one may be wrong: `row_values`. Every reason comes from here.

May import: `errors`, `records`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import Any

import pyarrow as pa

from penstock.core import as_word
from penstock.engine.parsing.block_reader import BlockReader, ParsedColumns, errors_of
from penstock.engine.parsing.column_kinds import ColumnKinds, max_fields
from penstock.engine.parsing.format_groups import Group, Payloads
from penstock.engine.parsing.json_values import check_values_schema, read_texts, read_values
from penstock.engine.parsing.parse_options import STRICT, ParseMode, ParseOptions
from penstock.engine.parsing.payload_format import ParseError, ParseFormat, inner_fields, without
from penstock.engine.parsing.payload_schemas import NO_SCHEMAS, PayloadSchemas
from penstock.engine.parsing.row_structs import ROWS_PER_GROUP
from penstock.engine.parsing.row_values import format_of, read_objects
from penstock.errors import InvalidInput
from penstock.records import bytes_of

_PARSED_INTO: frozenset[pa.DataType] = frozenset(
    {
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_()),
        *(pa.string(), pa.binary(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC")),
    }
)


@dataclass(frozen=True, slots=True)
class ParsedObjects:
    """The rows that parsed as a dict each (any value, of `json-values`), and the rest as in `ParsedColumns`."""

    objects: list[Any]
    good: Sequence[int]
    errors: tuple[ParseError, ...]


def parse_as(
    values: pa.Array[Any],
    schema: pa.Schema,
    form: ParseFormat = ParseFormat.JSON,
    options: ParseOptions = STRICT,
    *,
    payload_schemas: PayloadSchemas = NO_SCHEMAS,
    headers: pa.Array[Any] | None = None,
) -> ParsedColumns:
    """Parse a column of payloads into the columns of a schema.

    A field that is absent or null is null, and one that has no column is ignored. Into a column of strings goes any
    other value too, as compact JSON. Times are ISO 8601, in UTC where they do not say; binary is base64 in JSON. With
    options more goes in, and fields without a column are kept. Raises `InvalidInput` for a schema that no payload can
    be parsed into, and for options that do not go with it, and nothing for a payload.

    `headers` are those of the payloads' records, for the format `auto`; formats that need a schema of the payloads
    have it in `payload_schemas`.

    >>> parsed = parse_as(pa.array([b'{"id": 1}', b'{"id": "x"}'], pa.binary()), pa.schema([("id", pa.int64())]))
    >>> parsed.batch.to_pylist(), parsed.errors[0].reason
    ([{'id': 1}], "parse error: the field 'id' is a string here, and the column is int64")
    """
    _check_once(schema, options)
    payloads = _checked(values, form, payload_schemas, headers)
    if payloads.form is ParseFormat.JSON_VALUES:
        check_values_schema(schema)
        return _values_as_columns(payloads)
    groups, bad = payloads.groups()
    lenient = replace(options, mode=ParseMode.LENIENT) if any(group.only_text for group in groups) else options
    parts = [
        (group, BlockReader(group.values, group.form, schema, None, lenient if group.only_text else options).read())
        for group in groups
    ]
    return _joined(parts, bad, _with_rescue(schema, options))


def infer_schema(
    values: pa.Array[Any],
    form: ParseFormat = ParseFormat.JSON,
    *,
    payload_schemas: PayloadSchemas = NO_SCHEMAS,
    headers: pa.Array[Any] | None = None,
) -> pa.Schema:
    r"""The columns of payloads, in the order in which their fields appear.

    The first payload that has a field settles its type: integers and floats fit together, as floats, and null fits
    everything. Text is a string, also where it looks like a time. A payload that does not parse, or does not fit by
    what was settled, settles nothing. There are at most 4,000 fields, or fewer where there are so many rows that their
    columns would take far more memory than the payloads.

    >>> infer_schema(pa.array([b'{"id": 1}', b'{"id": 2.5, "name": "x"}', b"oops"], pa.binary())).to_string()
    'id: double\nname: string'
    """
    return parse_inferred(values, form, payload_schemas=payload_schemas, headers=headers).batch.schema


def parse_inferred(
    values: pa.Array[Any],
    form: ParseFormat = ParseFormat.JSON,
    *,
    payload_schemas: PayloadSchemas = NO_SCHEMAS,
    headers: pa.Array[Any] | None = None,
) -> ParsedColumns:
    """Parse a column of payloads into the columns that `infer_schema` finds, in one pass.

    What `parse_as` makes of them, but that every member must have a column: a payload with a field more than a block
    may have is an error, and so is one of which nothing could be learned.
    """
    payloads = _checked(values, form, payload_schemas, headers)
    if payloads.form is ParseFormat.JSON_VALUES:
        return _values_as_columns(payloads)
    groups, bad = payloads.groups()
    kinds = ColumnKinds(max_fields(len(payloads.values), bytes_of(payloads.values)))
    if len(groups) > 1:
        _learn_in_order(groups, kinds)
    parts = [(group, BlockReader(group.values, group.form, None, kinds).read()) for group in groups]
    return _joined(parts, bad, kinds.schema)


def parse_objects(
    values: pa.Array[Any],
    form: ParseFormat = ParseFormat.JSON,
    options: ParseOptions = STRICT,
    *,
    payload_schemas: PayloadSchemas = NO_SCHEMAS,
    headers: pa.Array[Any] | None = None,
) -> ParsedObjects:
    """Parse a column of payloads into a dict each, whatever their fields are.

    Of the options only the mode counts: a lenient one takes `NaN` and `Infinity`, as `parse_as` does.

    >>> parsed = parse_objects(pa.array([b'{"id": 1}', b"oops"], pa.binary()))
    >>> parsed.objects, [error.index for error in parsed.errors]
    ([{'id': 1}], [1])
    """
    payloads = _checked(values, form, payload_schemas, headers)
    if payloads.form is ParseFormat.JSON_VALUES:
        found, wrong = read_values(payloads.values)
        return ParsedObjects(found, _good(payloads.values, wrong), errors_of(wrong))
    groups, bad = payloads.groups()
    parts = [_read_group(group, options) for group in groups]
    if len(parts) == 1 and not bad:
        objects, good, errors = parts[0]
        return ParsedObjects(objects, good if errors else range(len(values)), errors)
    rows, errors = _rows_of(
        [(group.rows, good, wrong) for group, (_, good, wrong) in zip(groups, parts, strict=True)], bad
    )
    everything = zip(rows, chain.from_iterable(objects for objects, _, _ in parts), strict=True)
    ordered = sorted(everything, key=_row)
    return ParsedObjects([value for _, value in ordered], [row for row, _ in ordered], errors)


def check_columns(schema: pa.Schema, form: ParseFormat = ParseFormat.JSON) -> None:
    """Raise `InvalidInput` for a column that no payload of a format can be parsed into, or two of one name.

    >>> check_columns(pa.schema([("took", pa.duration("s"))]))
    Traceback (most recent call last):
    penstock.errors.InvalidInput: the column 'took' is duration[s], which payloads cannot be parsed into
    """
    _check_fields(schema, "", _PARSED_INTO)
    if form is ParseFormat.JSON_VALUES:
        check_values_schema(schema)


def _checked(values: pa.Array[Any], form: str, schemas: PayloadSchemas, headers: pa.Array[Any] | None) -> Payloads:
    """The payloads, of which null is one without bytes. Raises `InvalidInput` for no format, or without its schema."""
    filled = values.fill_null(b"") if values.null_count else values
    return Payloads(filled, as_word("form", ParseFormat, form), schemas, headers)


def _good(values: pa.Array[Any], bad: dict[int, str]) -> Sequence[int]:
    return without(range(len(values)), bad) if bad else range(len(values))


def _values_as_columns(payloads: Payloads) -> ParsedColumns:
    batch, bad = read_texts(payloads.values)
    return ParsedColumns(batch, _good(payloads.values, bad), errors_of(bad))


def _with_rescue(schema: pa.Schema, options: ParseOptions) -> pa.Schema:
    return schema if options.rescue is None else schema.append(pa.field(options.rescue, pa.string()))


def _learn_in_order(groups: Sequence[Group], kinds: ColumnKinds) -> None:
    """Learn from the rows of all groups, in the order of the block: the first that has a field settles its kind."""
    end = 1 + max((group.rows[-1] for group in groups if len(group.rows)), default=-1)
    for start in range(0, end, ROWS_PER_GROUP):
        found: list[tuple[int, Any]] = []
        for group in groups:
            first, last = (bisect_left(group.rows, row) for row in (start, start + ROWS_PER_GROUP))
            objects, bad = read_objects(group.values.slice(first, last - first), format_of(group.form))
            found += zip(without(group.rows[first:last], bad), objects, strict=True)
        for _, value in sorted(found, key=_row):
            kinds.learn(value)


def _row(found: tuple[int, Any]) -> int:
    return found[0]


def _joined(parts: Sequence[tuple[Group, ParsedColumns]], bad: dict[int, str], schema: pa.Schema) -> ParsedColumns:
    """The columns of all groups, with rows in the order of the block."""
    if len(parts) == 1 and not bad:
        return parts[0][1]
    good, errors = _rows_of([(group.rows, found.good, found.errors) for group, found in parts], bad)
    batches = [found.batch for _, found in parts]
    if len(batches) == 1:
        return ParsedColumns(batches[0], good, errors)
    if not batches:
        return ParsedColumns(pa.RecordBatch.from_pylist([], schema=schema), good, errors)
    together = pa.Table.from_batches(batches).combine_chunks()
    order = sorted(range(len(good)), key=good.__getitem__)
    batch = _one_batch(together).take(pa.array(order, pa.int64()))
    return ParsedColumns(batch, sorted(good), errors)


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    arrays: list[Any] = [pa.concat_arrays(column.chunks) for column in table.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=table.schema)


def _rows_of(
    parts: Iterable[tuple[Sequence[int], Sequence[int], Sequence[ParseError]]], bad: dict[int, str]
) -> tuple[list[int], tuple[ParseError, ...]]:
    """Which rows of the block parsed, group by group, and an error for each other one, in row order."""
    good: list[int] = []
    errors = [*errors_of(bad)]
    for rows, parsed, wrong in parts:
        good += [rows[at] for at in parsed]
        errors += [ParseError(rows[error.index], error.reason) for error in wrong]
    return good, tuple(sorted(errors, key=lambda error: error.index))


def _read_group(group: Group, options: ParseOptions) -> tuple[list[Any], list[int], tuple[ParseError, ...]]:
    objects: list[Any] = []
    bad: dict[int, str] = {}
    for start in range(0, len(group.values), ROWS_PER_GROUP):
        values = group.values.slice(start, ROWS_PER_GROUP)
        found, wrong = read_objects(values, format_of(group.form), is_lenient=options.is_lenient)
        objects += found
        bad.update((start + row, why) for row, why in wrong.items())
    return objects, without(range(len(group.values)), bad), errors_of(bad)


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
