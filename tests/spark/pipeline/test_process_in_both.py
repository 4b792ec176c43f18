"""The same `process` function in `BatchEngine` and on Spark's executors: the same output, the same dead letters."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import LongType, StringType, StructField, StructType

from penstock import BatchDescriptor, Record
from penstock.engine import (
    BatchEngine,
    BufferReceiver,
    ColumnFunction,
    DeadLetter,
    DlqPolicy,
    ParseFormat,
    WorkBatch,
    columns,
)
from penstock.records import records_to_arrow
from penstock.spark.pipeline.dead_letters import LETTER, unpacked
from penstock.spark.pipeline.steps import ColumnStep, Parse, PipelineRows
from penstock.spark.source.options import OnError
from penstock.spark.source.reading import Chunk
from tests.support.pipeline_places import Places

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers lack the module

AT_MS = 1_769_860_800_123
SCHEMA = "id bigint, group string"
EVENTS = [
    Record(
        b'{"id": %d, "group": "%b"}' % (number, b"ab"[number % 2 : number % 2 + 1]),
        key=None if number % 3 == 0 else b"key-%d" % number,
        headers=None if number % 4 == 0 else [("n", b"%d" % number), ("n", b"again")][: number % 4],
        timestamp_ms=AT_MS + number,
    )
    for number in range(24)
]
BROKEN = [Record(b"no JSON", b"b", [("h", b"v")]), Record(b"")]
BATCHES = [[*EVENTS[:9], BROKEN[0]], EVENTS[9:20], [*EVENTS[20:], BROKEN[1]]]


# Functions


def fan_out(batch: WorkBatch) -> WorkBatch:
    """Of each record with a key two, none of one without headers, and a dead letter of one that is no JSON."""
    records, letters = [], []
    for record in batch.records:
        if not record.value.startswith(b"{"):
            letters.append(DeadLetter.of(record, "it is no object"))
        elif record.headers is not None:
            records += [record] * (1 if record.key is None else 2)
    return WorkBatch(records, batch.commit_tokens, letters)


def marked(batch: pa.RecordBatch, reason: str, is_bad: Callable[[Any], bool]) -> pa.RecordBatch:
    errors = [reason if is_bad(row) else None for row in batch.to_pylist()]
    return batch.append_column("_error", pa.array(errors, pa.string()))


def set_apart(batch: pa.RecordBatch) -> pa.RecordBatch:
    """As many rows as before: letters are the records."""
    return marked(batch, "it is one of four", lambda row: row["id"] % 4 == 1)


def drop_and_set_apart(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Fewer rows of every batch: letters are what `_raw` says."""
    kept = batch.filter(pa.array([row["id"] % 10 != 0 for row in batch.to_pylist()]))
    raw = pa.array([b"row %d" % row["id"] for row in kept.to_pylist()], pa.binary())
    return marked(kept, "it is a b", lambda row: row["group"] == "b").append_column("_raw", raw)


def reorder_and_set_apart(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows in another order: letters are rows, as JSON."""
    return marked(batch.sort_by([("id", "descending")]), "it is small", lambda row: row["id"] < 12)


# What comes of them


@dataclass(frozen=True)
class Outcome:
    """The rows and the dead letters, in an order of their own: neither place promises one."""

    rows: list[Any]
    letters: list[tuple[bytes, str, str, bytes | None, Any]]

    @classmethod
    def of(cls, rows: Iterable[Any], letters: Iterable[Any]) -> Outcome:
        return cls(sorted(rows, key=str), sorted(letters, key=str))


def in_engine(places: Places, process: Callable[[Any], WorkBatch], *, parse: bool) -> Outcome:
    rows: list[Any] = []
    letters: list[DeadLetter] = []

    def sink(batch: WorkBatch) -> None:
        rows.extend(batch.arrow.to_pylist() if parse else map(_as_row, batch.records))

    receiver = BufferReceiver(places.events)
    try:
        BatchEngine(dlq=DlqPolicy.route(letters.extend)).run(receiver, process, sink, parse=parse, until_idle=True)
    finally:
        receiver.close()
    return Outcome.of(rows, [(one.payload, one.reason, one.stage, one.key, one.headers) for one in letters])


def on_spark(spark: Any, places: Places, process: Callable[[Any], Any], *, parse: bool) -> Outcome:
    pipeline = places.pipeline().parse("json", SCHEMA) if parse else places.pipeline()
    pipeline.process(process).dead_letters(places.dead_letters).to_parquet(places.table).run(spark, "available_now")
    rows = [{name: _plain(value) for name, value in row.items()} for row in places.rows()]
    return Outcome.of(rows, map(_as_letter, places.letters()))


def on_an_executor(fn: ColumnFunction) -> Outcome:
    """What a task makes of the batches, without Spark around it."""
    schema = StructType([StructField("id", LongType()), StructField("group", StringType())])
    steps = PipelineRows(schema, (), Parse(ParseFormat.JSON, schema, OnError.DLQ), [ColumnStep(fn, schema)])
    batches = [
        out
        for sequence, batch in enumerate(BATCHES)
        for out in steps.of(Chunk(records_to_arrow(batch), 0, BatchDescriptor(sequence, "x"), "file:///x"))
    ]
    table = pa.Table.from_batches(batches)
    packed = table.filter(table.column(LETTER).is_valid()).select([LETTER])
    letters = [row for out in unpacked(packed.to_batches(), 0) for row in out.to_pylist()]
    rows = table.filter(table.column(LETTER).is_null()).drop_columns([LETTER])
    return Outcome.of(rows.to_pylist(), map(_as_letter, letters))


def _as_row(record: Record) -> dict[str, Any]:
    at = None if record.timestamp_ms is None else datetime.fromtimestamp(record.timestamp_ms / 1000, UTC)
    return {"key": record.key, "value": record.value, "headers": record.headers, "timestamp": at}


def _as_letter(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["payload"], row["reason"], row["stage"], row["key"], _plain(row["headers"])


def _plain(value: Any) -> Any:
    """A value of a table as the engine has it: headers in pairs, and times that say that they are UTC."""
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC)
    return tuple((one["key"], one["value"]) for one in value) if isinstance(value, list) else value


def filled(root: Path) -> Places:
    places = Places(root)
    places.put(*BATCHES)
    return places


@pytest.fixture(scope="module", params=[fan_out, set_apart])
def both(
    request: pytest.FixtureRequest, spark: Any, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Outcome, Outcome]:
    fn, parse = request.param, request.param is not fan_out
    engine = in_engine(filled(tmp_path_factory.mktemp("engine")), columns(fn) if parse else fn, parse=parse)
    return engine, on_spark(spark, filled(tmp_path_factory.mktemp("spark")), fn, parse=parse)


def test_the_rows_are_the_same(both: tuple[Outcome, Outcome]) -> None:
    assert both[0].rows == both[1].rows != []


def test_the_dead_letters_are_the_same(both: tuple[Outcome, Outcome]) -> None:
    assert both[0].letters == both[1].letters != []


@pytest.mark.parametrize("fn", [set_apart, drop_and_set_apart, reorder_and_set_apart])
def test_a_task_makes_the_same_of_a_function_of_columns_as_the_engine(fn: ColumnFunction, tmp_path: Path) -> None:
    assert on_an_executor(fn) == in_engine(filled(tmp_path), columns(fn), parse=True)
