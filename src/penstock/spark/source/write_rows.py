"""From the columns of any DataFrame to the columns of records.

`value` (binary or string), alone or with `key` (binary or string), `headers` and `timestamp`, is written as records.
Any other columns are written as JSON, one object a row, and these are the payloads:

| Spark | JSON |
|---|---|
| boolean, numbers | as they are; NaN and the infinities are null |
| decimal | text, so that no reader rounds it |
| binary | text, base64 |
| date, timestamp | text, ISO 8601: `2026-01-31`, `2026-01-31T12:00:00.000000Z`; `timestamp_ntz` has no `Z` |
| time, day-time interval | text: `12:00:00.000000000`, `P1DT3661S` |
| struct, array, map | objects and arrays; the keys of a map become text |
| null | left out of an object and a struct, as `to_json` does; null within an array or a map |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T  # noqa: N812  the usual name

from penstock.errors import InvalidInput
from penstock.records import HEADERS_TYPE, RECORD_SCHEMA
from penstock.spark.versions import TIME_TYPES

Column: TypeAlias = "pa.Array[Any]"
Shape: TypeAlias = Callable[[Any], object]
Convert: TypeAlias = Callable[[pa.RecordBatch, int], Iterator[pa.RecordBatch]]
"""From a batch, and how many rows came before it, to batches of records. Raises `InvalidInput` naming the row."""

_NUMBERS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.FloatType, T.DoubleType, T.DecimalType)
_TEXT_LIKE = (T.StringType, T.BooleanType, *_NUMBERS, T.DateType, T.TimestampType, T.TimestampNTZType, *TIME_TYPES)
_LEAVES = (*_TEXT_LIKE, T.BinaryType, T.DayTimeIntervalType, T.NullType)
_MAX_ROWS_AS_OBJECTS = 1024  # rows of a batch that are Python objects at the same time


def converter(schema: T.StructType) -> Convert:
    """How rows of a schema become records. Raises `InvalidInput` naming a column that cannot."""
    _check_names("", schema)
    if is_record_schema(schema):
        return _records
    if not schema.fields:
        raise InvalidInput("there are no columns to write; a buffer takes value, or any columns as JSON")
    for field in schema:
        _check_type(field.name, field.dataType)
    return _as_json


def is_record_schema(schema: T.StructType) -> bool:
    """Say whether rows are records as they are: `value`, and no columns but those of records, each with its type."""
    kinds = {field.name: field.dataType for field in schema}
    return "value" in kinds and all(name in _IS_KIND and _IS_KIND[name](kind) for name, kind in kinds.items())


def _is_bytes(kind: T.DataType) -> bool:
    return isinstance(kind, T.BinaryType | T.StringType)


def _is_headers(kind: T.DataType) -> bool:
    pair = kind.elementType if isinstance(kind, T.ArrayType) else None
    if not isinstance(pair, T.StructType) or pair.names != ["key", "value"]:
        return False
    return isinstance(pair["key"].dataType, T.StringType) and isinstance(pair["value"].dataType, T.BinaryType)


_IS_KIND: dict[str, Callable[[T.DataType], bool]] = {
    "value": _is_bytes,
    "key": _is_bytes,
    "headers": _is_headers,
    "timestamp": lambda kind: isinstance(kind, T.TimestampType),
}


def _check_names(place: str, struct: T.StructType) -> None:
    twice = next((name for name in struct.names if struct.names.count(name) > 1), None)
    if twice is not None:
        raise InvalidInput(f"the column {place + twice!r} is there twice")


def _check_type(name: str, kind: T.DataType) -> None:
    if isinstance(kind, T.StructType):
        _check_names(f"{name}.", kind)
        for field in kind:
            _check_type(f"{name}.{field.name}", field.dataType)
    elif isinstance(kind, T.ArrayType):
        _check_type(f"{name}[]", kind.elementType)
    elif isinstance(kind, T.MapType):
        if not isinstance(kind.keyType, _TEXT_LIKE):
            raise InvalidInput(f"the keys of {name!r} are {kind.keyType.simpleString()}, which no key in JSON can be")
        _check_type(f"{name}{{}}", kind.valueType)
    elif not isinstance(kind, _LEAVES):
        raise InvalidInput(
            f"the column {name!r} is {kind.simpleString()}, which has no form in JSON here; make it text first, with "
            "to_json(...) or cast('string')"
        )


# Records.


def _records(batch: pa.RecordBatch, before: int) -> Iterator[pa.RecordBatch]:
    columns = {
        name: _RECORD_COLUMNS[name](column, before)
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    }
    # A column without anything in it is not written.
    fields = [f for f in RECORD_SCHEMA if f.name in columns and (f.name == "value" or _has_some(columns[f.name]))]
    yield pa.RecordBatch.from_arrays([columns[field.name] for field in fields], schema=pa.schema(fields))


def _has_some(column: Column) -> bool:
    return column.null_count < len(column)


def _value_column(values: Column, before: int) -> Column:
    if values.null_count:
        raise InvalidInput(f"the value of {_row(values.is_null(), before)} is null: a record has a value, be it empty")
    return values.cast(pa.binary())


def _headers_column(headers: Column, before: int) -> Column:
    lists = cast("pa.ListArray[Any]", headers)
    pairs = cast("pa.StructArray", lists.flatten())
    missing = pairs.is_null()
    for part in pairs.flatten():
        missing = pc.or_(missing, part.is_null())
    if pc.any(missing).as_py():
        at = pc.list_parent_indices(lists)[pc.index(missing, True).as_py()].as_py()
        raise InvalidInput(f"the headers of row {before + at} hold a pair without key or value")
    cast_headers = lists.cast(HEADERS_TYPE)
    try:
        # A reader checks it, and refuses the whole batch.
        cast_headers.validate(full=True)
    except pa.ArrowInvalid as error:
        raise InvalidInput(f"a key in the headers of {_not_text(cast_headers, before)} is not UTF-8") from error
    return cast_headers


def _timestamp_column(times: Column, _: int) -> Column:
    floored = pc.floor_temporal(_without_zone(times), unit="millisecond")
    return cast("Column", floored.cast(pa.timestamp("ms")).view(pa.timestamp("ms", tz="UTC")))


_RECORD_COLUMNS: dict[str, Callable[[Column, int], Column]] = {
    "value": _value_column,
    "key": lambda keys, _: keys.cast(pa.binary()),
    "headers": _headers_column,
    "timestamp": _timestamp_column,
}


def _row(is_bad: Column, before: int) -> str:
    return f"row {before + pc.index(is_bad, True).as_py()}"


def _not_text(column: Column, before: int) -> str:
    """The first row whose text is not UTF-8, where one has it."""
    for row in range(len(column)):
        try:
            column.slice(row, 1).to_pylist()
        except UnicodeDecodeError:
            return f"row {before + row}"
    return "a row"


# JSON.


def _as_json(batch: pa.RecordBatch, before: int) -> Iterator[pa.RecordBatch]:
    import msgspec

    encode = msgspec.json.Encoder().encode
    columns = [_plain(column) for column in batch.columns]
    shapes = [_shape(column.type) for column in columns]
    field = RECORD_SCHEMA.field("value")
    for start in range(0, batch.num_rows, _MAX_ROWS_AS_OBJECTS):
        parts = [column.slice(start, _MAX_ROWS_AS_OBJECTS) for column in columns]
        rows = zip(*map(_objects, batch.schema.names, parts, shapes, [before + start] * len(parts)), strict=True)
        values = [encode(_without_nulls(batch.schema.names, row)) for row in rows]
        yield pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], schema=pa.schema([field]))


def _objects(name: str, column: Column, shape: Shape | None, before: int) -> list[object]:
    try:
        objects = column.to_pylist()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"the column {name!r} of {_not_text(column, before)} is text that is not UTF-8") from error
    return objects if shape is None else [_shaped(one, shape) for one in objects]


def _without_nulls(names: Sequence[str], row: Sequence[object]) -> dict[str, object]:
    return {name: value for name, value in zip(names, row, strict=True) if value is not None}


def _plain(column: Column) -> Column:
    """The same column with only those types that JSON has, or that msgspec writes as text."""
    kind = column.type
    if isinstance(column, pa.MapArray):
        offsets: Any = column.offsets
        keys, items = _texts(column.keys), _plain(column.items)
        return cast("Column", pa.MapArray.from_arrays(offsets, keys, items, mask=column.is_null()))
    if isinstance(column, pa.ListArray):
        return pa.ListArray.from_arrays(column.offsets, _plain(column.values), mask=column.is_null())
    if isinstance(column, pa.StructArray) and kind.num_fields:
        parts = [_plain(part) for part in column.flatten()]
        return pa.StructArray.from_arrays(parts, [part.name for part in kind], mask=column.is_null())
    if pa.types.is_float32(kind):
        # Through the shortest text: 0.1 becomes 0.1, and not the double that is nearest to its float.
        return column.cast(pa.string()).cast(pa.float64())
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_decimal(kind) or pa.types.is_time(kind):
        return _texts(column)
    return column


def _texts(column: Column) -> Column:
    if not pa.types.is_timestamp(column.type):
        return column if pa.types.is_large_string(column.type) else column.cast(pa.string())
    # Arrow writes any year, which Python's datetime cannot. It needs a zone database only for what has a zone.
    text: Any = pc.replace_substring(_without_zone(column).cast(pa.string()), " ", "T", max_replacements=1)
    return cast("Column", text if column.type.tz is None else pc.binary_join_element_wise(text, "Z", ""))


def _without_zone(times: Column) -> Column:
    return cast("Column", times.view(pa.timestamp(times.type.unit)))


def _shape(kind: pa.DataType) -> Shape | None:
    """What turns Arrow's objects of a type into JSON's: Arrow has a map as a list of pairs, and a struct with nulls."""
    if isinstance(kind, pa.MapType):
        of_item = _shape(kind.item_type)
        return dict if of_item is None else lambda pairs: {key: _shaped(item, of_item) for key, item in pairs}
    if isinstance(kind, pa.ListType):
        of_one = _shape(kind.value_type)
        return None if of_one is None else lambda ones: [_shaped(one, of_one) for one in ones]
    if isinstance(kind, pa.StructType):
        shapes = {part.name: _shape(part.type) for part in kind}
        return lambda struct: {
            name: _shaped(value, shapes[name]) for name, value in struct.items() if value is not None
        }
    return None


def _shaped(value: object, shape: Shape | None) -> object:
    return value if value is None or shape is None else shape(value)
