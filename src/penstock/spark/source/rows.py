"""The rows of the data source: records as they are, or parsed into columns."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, cast

import pyarrow as pa
from pyspark.sql.types import StructType

from penstock.buffer import Metadata
from penstock.engine import ParseFormat, ParseOptions, PayloadSchemas, parse_as
from penstock.errors import ParseFailed
from penstock.spark.source.options import OnError, ReadFormat, ReadOptions
from penstock.spark.source.reading import BrokenBatch, Chunk, Rows
from penstock.spark.source.schemas import ERROR, RAW, parsed_columns, to_arrow

_MOST_MS = ((1 << 63) - 1) // 1000  # what microseconds can hold


def rows_for(schema: StructType, options: ReadOptions) -> Rows:
    """What a read with this schema and these options makes of records."""
    if options.format is ReadFormat.RAW:
        return UnparsedRows(schema)
    form = ParseFormat(options.format.value)
    return ParsedRows(schema, form, options.on_error, options.parse_options, options.payload_schemas)


class UnparsedRows:
    """Records as they are: those of the columns that the schema names."""

    def __init__(self, schema: StructType) -> None:
        self._schema = schema

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of every batch it makes."""
        return to_arrow(self._schema)

    def of(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """One row for each record."""
        schema = self.schema
        yield pa.RecordBatch.from_arrays([_record_column(chunk, field) for field in schema], schema=schema)

    def of_broken(self, broken: BrokenBatch) -> Iterator[pa.RecordBatch]:
        """One row with the error, the object's bytes and the sequence."""
        yield broken_row(self.schema, broken, sequence=broken.batch.sequence)


class ParsedRows:
    """Payloads parsed into columns; those that do not parse are set aside, skipped, or fail the read."""

    def __init__(
        self,
        schema: StructType,
        form: ParseFormat,
        on_error: OnError,
        options: ParseOptions | None = None,
        payload_schemas: PayloadSchemas | None = None,
    ) -> None:
        self._schema = schema
        self._form = form
        self._on_error = on_error
        self._options = options or ParseOptions()
        self._payload_schemas = payload_schemas or PayloadSchemas()

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of every batch it makes."""
        return to_arrow(self._schema)

    @cached_property
    def _parsed_schema(self) -> pa.Schema:
        return to_arrow(parsed_columns(self._schema, self._options.rescue))

    def of(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """One row for each record that parsed, then one for each that is set aside."""
        schema, values = self.schema, chunk.records.column("value")
        has_use = self._form is ParseFormat.AUTO and "headers" in chunk.records.schema.names
        parsed = parse_as(
            values,
            self._parsed_schema,
            self._form,
            self._options,
            payload_schemas=self._payload_schemas,
            headers=chunk.records.column("headers") if has_use else None,
        )
        yield with_nulls(parsed.batch, schema)
        if not parsed.errors or self._on_error is OnError.SKIP:
            return
        names = schema.names
        if self._on_error is OnError.FAIL or not {ERROR, RAW} & set(names):
            first = parsed.errors[0]
            how = (
                ""
                if self._on_error is OnError.FAIL
                else f"; to set such rows aside, name {ERROR} and {RAW} in the schema"
            )
            raise ParseFailed(
                f"{len(parsed.errors)} of {chunk} cannot be parsed; the first is record {chunk.first + first.index}: "
                f"{first.reason}{how}"
            )
        aside = {
            ERROR: pa.array([error.reason for error in parsed.errors], pa.string()),
            RAW: values.take(pa.array([error.index for error in parsed.errors], pa.int32())),
        }
        kept = {name: column for name, column in aside.items() if name in names}
        yield with_nulls(pa.RecordBatch.from_pydict(cast("Any", kept)), schema)

    def of_broken(self, broken: BrokenBatch) -> Iterator[pa.RecordBatch]:
        """One row with the error and the object's bytes."""
        yield broken_row(self.schema, broken)


def with_nulls(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of a schema; those that the batch does not have are null."""
    if batch.schema.equals(schema):
        return batch
    there = set(batch.schema.names)
    columns = [
        batch.column(field.name) if field.name in there else pa.nulls(batch.num_rows, field.type) for field in schema
    ]
    return pa.RecordBatch.from_arrays(cast("Any", columns), schema=schema)


def broken_row(schema: pa.Schema, broken: BrokenBatch, **known: object) -> pa.RecordBatch:
    """One row that stands for a batch: its error and its bytes, and what else is known of it; the rest is null."""
    row = {ERROR: broken.reason, RAW: broken.data, **known}
    return pa.RecordBatch.from_pylist([{name: row.get(name) for name in schema.names}], schema=schema)


def _record_column(chunk: Chunk, field: pa.Field[Any]) -> pa.Array[Any]:
    count = chunk.records.num_rows
    if field.name == "sequence":
        return _repeated(chunk.batch.sequence, count, field.type)
    if field.name == "index":
        return cast("pa.Array[Any]", pa.array(range(chunk.first, chunk.first + count), field.type))
    if field.name in {"ingestion_time", "metadata"}:
        return _metadata_column(chunk, field)
    if field.name not in chunk.records.schema.names:
        return cast("pa.Array[Any]", pa.nulls(count, field.type))
    column = chunk.records.column(field.name)
    if field.name == "timestamp":
        column = _within_spark(column)
    return cast("pa.Array[Any]", column.cast(field.type))


def _within_spark(times: pa.Array[Any]) -> pa.Array[Any]:
    """Milliseconds that Spark's microseconds can hold; the others are null."""
    import pyarrow.compute as pc

    first, last = (pa.scalar(bound, pa.int64()) for bound in (-_MOST_MS, _MOST_MS))
    count: Any = times.cast(pa.int64())
    is_in: Any = pc.and_(pc.greater_equal(count, first), pc.less_equal(count, last))
    return cast("pa.Array[Any]", pc.if_else(is_in, cast("Any", times), pa.scalar(None, times.type)))


def _metadata_column(chunk: Chunk, field: pa.Field[Any]) -> pa.Array[Any]:
    """The metadata of each produce call, for the records that came with it."""
    count, last = chunk.records.num_rows, chunk.first + chunk.records.num_rows
    items = sorted(chunk.batch.metadata, key=lambda item: item.start_index)
    ends = [*(item.start_index for item in items[1:]), last][: len(items)]
    parts: list[pa.Array[Any]] = []
    rows = 0
    for item, end in zip(items, ends, strict=True):
        length = min(end, last) - max(item.start_index, chunk.first)
        if length > 0:
            before = max(item.start_index, chunk.first) - chunk.first - rows
            parts += [pa.nulls(before, field.type)] if before > 0 else []
            parts.append(_repeated(_metadata_value(item, field.name), length, field.type))
            rows += max(before, 0) + length
    if rows < count:
        parts.append(cast("pa.Array[Any]", pa.nulls(count - rows, field.type)))
    return pa.concat_arrays(parts)


def _metadata_value(item: Metadata, name: str) -> object:
    if name == "metadata":
        return item.payload
    return item.ingestion_time_ms * 1000 if abs(item.ingestion_time_ms) <= _MOST_MS else None


def _repeated(value: object, count: int, kind: pa.DataType) -> pa.Array[Any]:
    return cast("pa.Array[Any]", pa.repeat(cast("Any", pa.scalar(cast("Any", value), kind)), count))
