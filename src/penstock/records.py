"""`Record`, and its Arrow schema: the shape every event has, as an object and in columns.

Batches travel as Arrow record batches. Of the four columns only `value` is always there; `key`, `headers` and
`timestamp` are there only where some record has one, so a batch of plain payloads costs nothing more.

May import: `errors`, `metrics`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import pyarrow as pa

from penstock.errors import CorruptData, InvalidInput

Headers: TypeAlias = tuple[tuple[str, bytes], ...]
Entry: TypeAlias = "bytes | Record"

HEADERS_TYPE = pa.list_(pa.field("item", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))

RECORD_SCHEMA = pa.schema(
    [
        pa.field("value", pa.binary()),
        pa.field("key", pa.binary()),
        pa.field("headers", HEADERS_TYPE),
        pa.field("timestamp", pa.timestamp("ms", tz="UTC")),
    ]
)
"""The columns a batch of records can have, in the order they come in. The last three are optional."""

VALUES_SCHEMA = pa.schema([RECORD_SCHEMA.field("value")])
"""The columns of a batch of plain payloads."""

_VALUE_FIELD = RECORD_SCHEMA.field("value")
_OFFSET_BYTES = 4
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Record:
    """One event: a payload, and what its sender added to it.

    `headers` are `(str, bytes)` pairs whose order and repeats are kept; `timestamp_ms` is in milliseconds since
    1970. Raises `InvalidInput` for a field of another type.

    >>> Record(b"hello", key=b"greeting", headers=[("lang", b"en")]).headers
    (('lang', b'en'),)
    """

    value: bytes
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes]] | None = None
    timestamp_ms: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", _as_bytes("value", self.value))
        if self.key is not None:
            object.__setattr__(self, "key", _as_bytes("key", self.key))
        if self.headers is not None:
            object.__setattr__(self, "headers", _as_headers(self.headers))
        if self.timestamp_ms is not None:
            _check_timestamp(self.timestamp_ms)


def records_to_arrow(entries: Iterable[Entry]) -> pa.RecordBatch:
    """Put entries, payloads or records in any mixture, into columns.

    A column other than `value` is made only where some record has it. Raises `InvalidInput` for an entry of
    another type, and for a column that would pass Arrow's 2 GiB.

    >>> records_to_arrow([b"a", Record(b"b", key=b"k")]).to_pydict()
    {'value': [b'a', b'b'], 'key': [None, b'k']}
    """
    entries = entries if isinstance(entries, list) else list(entries)
    if set(map(type, entries)) <= {bytes}:
        return values_to_arrow(cast("list[bytes]", entries))
    records = [entry if isinstance(entry, Record) else Record(entry) for entry in entries]
    columns: dict[str, Sequence[object]] = {"value": [record.value for record in records]}
    if any(record.key is not None for record in records):
        columns["key"] = [record.key for record in records]
    if any(record.headers is not None for record in records):
        columns["headers"] = [_header_structs(record.headers) for record in records]
    if any(record.timestamp_ms is not None for record in records):
        columns["timestamp"] = [record.timestamp_ms for record in records]
    fields = [RECORD_SCHEMA.field(name) for name in columns]
    arrays = [_column(field, values) for field, values in zip(fields, columns.values(), strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def values_to_arrow(values: Sequence[bytes]) -> pa.RecordBatch:
    """Put payloads into the one column `value`, without an object for each. A `str` goes in as UTF-8.

    >>> values_to_arrow([b"a", b""]).num_rows
    2
    """
    return pa.RecordBatch.from_arrays([_column(_VALUE_FIELD, values)], schema=VALUES_SCHEMA)


def records_from_arrow(batch: pa.RecordBatch) -> list[Record]:
    """Make a `Record` of each row; only for a caller that asked for objects.

    Raises `CorruptData` where the columns are not those of `RECORD_SCHEMA`.

    >>> records_from_arrow(records_to_arrow([Record(b"x", timestamp_ms=5)]))
    [Record(value=b'x', key=None, headers=None, timestamp_ms=5)]
    """
    check_record_columns(batch.schema)
    rows = batch.num_rows
    values = cast("list[bytes]", batch.column("value").to_pylist())
    keys = _optional(batch, "key")
    headers = _optional(batch, "headers")
    times = _optional(batch, "timestamp")
    if keys is None and headers is None and times is None:
        return [_record(value, None, None, None) for value in values]
    nothing: list[object] = [None] * rows
    return [
        _record(value, key, _header_pairs(pairs), at)
        for value, key, pairs, at in zip(values, keys or nothing, headers or nothing, times or nothing, strict=True)
    ]


def check_record_columns(schema: pa.Schema) -> None:
    """Raise `CorruptData` unless the columns are `value` and any of the other three, each once, with its type."""
    if "value" not in schema.names:
        raise CorruptData(f"the column 'value' is missing; there are {schema.names}")
    if len(set(schema.names)) != len(schema.names):
        raise CorruptData(f"a column is there twice: {schema.names}")
    for field in schema:
        if field.name not in RECORD_SCHEMA.names:
            raise CorruptData(f"the column {field.name!r} is not one of {RECORD_SCHEMA.names}")
        expected = RECORD_SCHEMA.field(field.name).type
        if field.type != expected:
            raise CorruptData(f"the column {field.name!r} has the type {field.type}, not {expected}")


def bytes_of(values: pa.Array[Any]) -> int:
    """How many bytes the payloads of a `binary` column have together.

    >>> bytes_of(values_to_arrow([b"a", b"", b"bc"]).column("value"))
    3
    """
    ends = _ends(values)
    return ends[-1] - ends[0]


def size_of(batch: pa.RecordBatch) -> int:
    """How many bytes the payloads of a batch of records have, and everything else that belongs to them."""
    others = sum(batch.column(name).nbytes for name in batch.schema.names if name != "value")
    return bytes_of(batch.column("value")) + others


def rows_of_size(batch: pa.RecordBatch, start: int, most: int) -> int:
    """How many records, from a row on, have at most so many bytes together, keys and headers included."""
    if batch.num_columns == 1:
        return rows_within(batch.column("value"), start, most)
    counts = range(1, batch.num_rows - start + 1)
    return bisect_right(counts, most, key=lambda count: size_of(batch.slice(start, count)))


def rows_within(values: pa.Array[Any], start: int, most: int) -> int:
    """How many payloads of a `binary` column, from a row on, have at most so many bytes together.

    >>> rows_within(values_to_arrow([b"a", b"bb", b"ccc"]).column("value"), 1, 4)
    1
    """
    ends = _ends(values)
    return max(bisect_right(ends, ends[start] + most, start) - start - 1, 0)


def join_records(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Put batches of records behind each other. A column that only some of them have is null in the others.

    >>> join_records([records_to_arrow([b"a"]), records_to_arrow([Record(b"b", key=b"k")])]).to_pydict()
    {'value': [b'a', b'b'], 'key': [None, b'k']}
    """
    if len(batches) == 1:
        return batches[0]
    fields = [field for field in RECORD_SCHEMA if any(field.name in batch.schema.names for batch in batches)]
    columns = [pa.concat_arrays([_column_of(batch, field) for batch in batches]) for field in fields]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def check_no_nulls(batch: pa.RecordBatch) -> None:
    """Raise `CorruptData` where a payload, or a part of a header, is null."""
    if batch.column("value").null_count:
        raise CorruptData("the column 'value' holds a null")
    headers: Any = batch.column("headers") if batch.num_columns > 1 and "headers" in batch.schema.names else None
    if headers is not None and any(part.null_count for part in [headers.flatten(), *headers.flatten().flatten()]):
        raise CorruptData("the column 'headers' holds a pair without key or value")


def _ends(values: pa.Array[Any]) -> Sequence[int]:
    """Where each payload of a `binary` column ends among the bytes of all, after where the first begins."""
    offsets = values.buffers()[1]
    if not len(values) or offsets is None:
        return (0,)
    first, last = values.offset, values.offset + len(values)
    return memoryview(offsets).cast("B")[_OFFSET_BYTES * first : _OFFSET_BYTES * (last + 1)].cast("i")


def _column(field: pa.Field[Any], values: Sequence[object]) -> pa.Array[Any]:
    try:
        array = pa.array(values, type=field.type)
    except pa.ArrowCapacityError as error:
        raise InvalidInput(f"a record's {field.name} cannot be 2 GiB or more") from error
    except (pa.ArrowException, TypeError, UnicodeError) as error:
        raise InvalidInput(f"the column {field.name!r} takes {field.type}: {error}") from error
    if isinstance(array, pa.ChunkedArray):
        raise InvalidInput(f"the column {field.name!r} would pass 2 GiB in one batch; give fewer records at a time")
    if field.name == "value" and array.null_count:
        raise InvalidInput(f"the column {field.name!r} takes {field.type}, and got None")
    return cast("pa.Array[Any]", array)


def _column_of(batch: pa.RecordBatch, field: pa.Field[Any]) -> pa.Array[Any]:
    if field.name in batch.schema.names:
        return batch.column(field.name)
    return cast("pa.Array[Any]", pa.nulls(batch.num_rows, field.type))


def _optional(batch: pa.RecordBatch, name: str) -> list[object] | None:
    if name not in batch.schema.names:
        return None
    column = batch.column(name)
    if name == "timestamp":
        column = column.view(pa.int64())
    try:
        return cast("list[object]", column.to_pylist())
    except UnicodeDecodeError as error:
        raise CorruptData(f"the column {name!r} holds text that is not UTF-8") from error


def _record(value: object, key: object, headers: object, timestamp_ms: object) -> Record:
    # The columns' types were checked as a whole: checking each record again would cost more than reading it.
    if value is None:
        raise CorruptData("the column 'value' holds a null")
    record = object.__new__(Record)
    object.__setattr__(record, "value", value)
    object.__setattr__(record, "key", key)
    object.__setattr__(record, "headers", headers)
    object.__setattr__(record, "timestamp_ms", timestamp_ms)
    return record


def _header_structs(headers: Sequence[tuple[str, bytes]] | None) -> list[dict[str, object]] | None:
    return None if headers is None else [{"key": key, "value": value} for key, value in headers]


def _header_pairs(structs: object) -> Headers | None:
    if structs is None:
        return None
    pairs = cast("list[dict[str, object] | None]", structs)
    if any(pair is None or pair["key"] is None or pair["value"] is None for pair in pairs):
        raise CorruptData("the column 'headers' holds a pair without key or value")
    return tuple((cast("str", pair["key"]), cast("bytes", pair["value"])) for pair in pairs if pair is not None)


def _as_bytes(field: str, value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise InvalidInput(f"a record's {field} must be bytes, not {type(value).__name__}")


def _as_headers(headers: object) -> Headers:
    if isinstance(headers, list | tuple) and all(_is_pair(pair) for pair in headers):
        return tuple((key, bytes(value)) for key, value in headers)
    raise InvalidInput("a record's headers must be (str, bytes) pairs, for example [('trace', b'7f')]")


def _is_pair(pair: object) -> bool:
    if not (isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str)):
        return False
    return isinstance(pair[1], bytes | bytearray | memoryview) and (pair[0].isascii() or _is_utf8(pair[0]))


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_timestamp(timestamp_ms: object) -> None:
    if type(timestamp_ms) is not int or not _INT64_MIN <= timestamp_ms <= _INT64_MAX:
        raise InvalidInput(f"a record's timestamp_ms must be milliseconds as a 64-bit int, not {timestamp_ms!r}")
