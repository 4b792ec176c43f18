"""The steps of a pipeline, as they run on the executors: process functions on records, parsing, on columns.

The same functions run in `BatchEngine`; they never see Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, TypeAlias, cast

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

from penstock.engine import (
    ERROR,
    ColumnFunction,
    DeadLetter,
    ParseFormat,
    ParseOptions,
    PayloadSchemas,
    WorkBatch,
    keeps_rows,
    parse_as,
    set_apart,
)
from penstock.errors import InvalidInput, ParseFailed, ProcessFailed
from penstock.records import Record, records_from_arrow
from penstock.spark.pipeline.dead_letters import LETTER, Letter, letter_of, packed
from penstock.spark.source.options import OnError
from penstock.spark.source.reading import BrokenBatch, Chunk
from penstock.spark.source.rows import UnparsedRows, with_nulls
from penstock.spark.source.schemas import to_arrow

SEEN = "_penstock_seen"
"""The column in which a row that is to be deduplicated has the time at which its event came into the buffer."""

RecordFunction: TypeAlias = Callable[[WorkBatch], WorkBatch]
Source: TypeAlias = Callable[[], pa.RecordBatch | None]


@dataclass(frozen=True)
class Parse:
    """How payloads are parsed."""

    form: ParseFormat
    schema: StructType
    on_error: OnError
    options: ParseOptions = field(default_factory=ParseOptions)
    payload_schemas: PayloadSchemas = field(default_factory=PayloadSchemas)

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """The columns, as Arrow has them."""
        return to_arrow(self.schema)

    @property
    def output(self) -> StructType:
        """The columns that come out: with the rescued fields, where those are kept."""
        rescue = self.options.rescue
        return self.schema if rescue is None else StructType([*self.schema, StructField(rescue, StringType())])


@dataclass(frozen=True)
class ColumnStep:
    """A function of columns, and the columns that it returns."""

    fn: ColumnFunction
    schema: StructType

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """The columns, as Arrow has them."""
        return to_arrow(self.schema)


class PipelineRows:
    """What becomes of records in a pipeline: the rows of its output, and dead letters, in `LETTER`.

    `schema` is that of the output. Without steps it is of the unparsed columns. With `with_times`, rows have the time
    at which their events came into the buffer, in `SEEN`.
    """

    def __init__(
        self,
        schema: StructType,
        on_records: Sequence[RecordFunction] = (),
        parse: Parse | None = None,
        on_columns: Sequence[ColumnStep] = (),
        *,
        with_times: bool = False,
    ) -> None:
        self._schema = schema
        self._with_times = with_times
        self._on_records = tuple(on_records)
        self._parse = parse
        self._on_columns = tuple(on_columns)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of every batch it makes."""
        output = to_arrow(self._schema)
        if self._with_times:
            output = output.append(pa.field(SEEN, pa.timestamp("us", "UTC")))
        return output.append(pa.field(LETTER, pa.binary()))

    def of(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """The rows that came out, then a row for each dead letter."""
        rows, letters = self._run(chunk)
        if self._with_times:
            rows = rows.append_column(SEEN, _time_of(chunk, rows.num_rows))
        yield with_nulls(rows, self.schema)
        if letters:
            yield with_nulls(pa.RecordBatch.from_arrays([packed(letters)], names=[LETTER]), self.schema)

    def of_broken(self, broken: BrokenBatch) -> Iterator[pa.RecordBatch]:
        """A dead letter with the object's bytes."""
        letter: Letter = (broken.data, None, None, broken.reason, "fetch", broken.batch.sequence, None, None)
        yield with_nulls(pa.RecordBatch.from_arrays([packed([letter])], names=[LETTER]), self.schema)

    def _run(self, chunk: Chunk) -> tuple[pa.RecordBatch, list[Letter]]:
        letters: list[Letter] = []
        records = chunk.records
        for fn in self._on_records:
            records = self._run_on_records(fn, chunk, records, letters)
        if self._parse is None:
            moved = Chunk(records, chunk.first, chunk.batch, chunk.where)
            return next(UnparsedRows(self._schema).of(moved)), letters
        # A function may have returned other records, and then their places in the batch are not known.
        first = None if self._on_records else chunk.first
        columns, good = self._run_parse(self._parse, chunk, records, first, letters)
        source: Source = partial(_rows_at, records, good)
        for step in self._on_columns:
            columns, source = _run_on_columns(step, chunk, columns, source, letters)
        return columns, letters

    def _run_on_records(
        self, fn: RecordFunction, chunk: Chunk, records: pa.RecordBatch, letters: list[Letter]
    ) -> pa.RecordBatch:
        if not records.num_rows:
            return records
        returned: object = _called(fn, WorkBatch(records), chunk)
        if not isinstance(returned, WorkBatch):
            raise InvalidInput(
                f"a process function before parse must return a WorkBatch, and {_name(fn)} returned "
                f"{type(returned).__name__}"
            )
        letters += [letter_of(letter) for letter in returned.dead_letters]
        return returned.record_columns

    def _run_parse(
        self, parse: Parse, chunk: Chunk, records: pa.RecordBatch, first: int | None, letters: list[Letter]
    ) -> tuple[pa.RecordBatch, Sequence[int]]:
        has_use = parse.form is ParseFormat.AUTO and "headers" in records.schema.names
        parsed = parse_as(
            records.column("value"),
            parse.arrow_schema,
            parse.form,
            parse.options,
            payload_schemas=parse.payload_schemas,
            headers=records.column("headers") if has_use else None,
        )
        if parsed.errors and parse.on_error is OnError.FAIL:
            error = parsed.errors[0]
            where = error.index if first is None else f"record {first + error.index}"
            raise ParseFailed(f"{len(parsed.errors)} of {chunk} cannot be parsed; the first is {where}: {error.reason}")
        if parsed.errors and parse.on_error is OnError.DLQ:
            bad = records_from_arrow(records.take(_indices([error.index for error in parsed.errors])))
            sequence = None if first is None else chunk.batch.sequence
            for record, error in zip(bad, parsed.errors, strict=True):
                index = None if first is None else first + error.index
                letters.append(letter_of(DeadLetter.of(record, error.reason, "parse"), sequence, index))
        return parsed.batch, parsed.good


def _run_on_columns(
    step: ColumnStep, chunk: Chunk, given: pa.RecordBatch, source: Source, letters: list[Letter]
) -> tuple[pa.RecordBatch, Source]:
    """The columns that a function returns; and the records that its rows came from, as long as those are known."""
    schema = step.arrow_schema
    if not given.num_rows:
        return pa.RecordBatch.from_pylist([], schema=schema), source
    returned: object = _called(step.fn, given, chunk)
    if not isinstance(returned, pa.RecordBatch):
        raise InvalidInput(
            f"{_name(step.fn)} must return a pyarrow.RecordBatch, and returned {type(returned).__name__}"
        )
    batch = returned

    def records() -> Sequence[Record] | None:
        rows = source()
        return None if rows is None else records_from_arrow(rows)

    def source_of_kept() -> pa.RecordBatch | None:
        rows = source() if keeps_rows(given, batch) else None
        if rows is None or ERROR not in batch.schema.names:
            return rows
        return rows.filter(batch.column(ERROR).is_null())

    kept, more = set_apart(given, batch, records)
    letters += [letter_of(letter) for letter in more]
    return _in_schema(kept, schema, step.fn), source_of_kept


def _in_schema(batch: pa.RecordBatch, schema: pa.Schema, fn: ColumnFunction) -> pa.RecordBatch:
    """The columns that the function is to return, in their order and of their types."""
    names = batch.schema.names
    wrong = sorted(set(schema.names) ^ set(names)) or sorted({name for name in names if names.count(name) > 1})
    if wrong:
        raise InvalidInput(
            f"{_name(fn)} returned the columns {', '.join(names)}, and was to return {', '.join(schema.names)}: see "
            f"{wrong[0]!r}; where a function changes the columns, say so: process(fn, schema='...')"
        )
    return pa.RecordBatch.from_arrays([_cast(batch.column(field.name), field, fn) for field in schema], schema=schema)


def _cast(column: pa.Array[Any], field: pa.Field[Any], fn: ColumnFunction) -> pa.Array[Any]:
    if not field.nullable and column.null_count:
        raise InvalidInput(f"{_name(fn)} returned a null in the column {field.name!r}, which is NOT NULL")
    if column.type == field.type:
        return column
    try:
        return column.cast(field.type)
    except pa.ArrowException as error:
        raise InvalidInput(
            f"{_name(fn)} returned {column.type} in the column {field.name!r}, which is no {field.type}: {error}"
        ) from error


def _called(fn: Callable[[Any], object], given: object, chunk: Chunk) -> object:
    try:
        return fn(given)
    except Exception as error:
        raise ProcessFailed(f"{_name(fn)} failed on {chunk}: {type(error).__name__}: {error}") from error


def _name(fn: Callable[..., object]) -> str:
    return str(getattr(fn, "__qualname__", None) or type(fn).__qualname__)


def _time_of(chunk: Chunk, count: int) -> pa.Array[Any]:
    """When the first record of a batch came into the buffer: what a process function makes of it has no other time.

    Of the batch, and not of the chunk: where batches are cut depends on the cores, and a block that comes again must
    have the same times.
    """
    at = min((item.ingestion_time_ms for item in chunk.batch.metadata), default=0) * 1000
    return cast("pa.Array[Any]", pa.repeat(cast("Any", pa.scalar(at, pa.timestamp("us", "UTC"))), count))


def _rows_at(batch: pa.RecordBatch, rows: Sequence[int]) -> pa.RecordBatch:
    return batch if len(rows) == batch.num_rows else batch.take(_indices(rows))


def _indices(rows: Sequence[int]) -> pa.Array[Any]:
    return pa.array(rows, pa.int64())
