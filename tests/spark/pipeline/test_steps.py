"""What becomes of records on an executor: `PipelineRows`, without Spark around it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.types import DoubleType, IntegerType, LongType, StringType, StructField, StructType

from penstock import BatchDescriptor, Record
from penstock.engine import DeadLetter, ParseFormat, WorkBatch
from penstock.errors import InvalidInput, ParseFailed, ProcessFailed
from penstock.records import records_to_arrow
from penstock.spark.pipeline.dead_letters import LETTER, TABLE, packed, reason_in, unpacked
from penstock.spark.pipeline.steps import ColumnStep, Parse, PipelineRows
from penstock.spark.source.options import OnError
from penstock.spark.source.reading import BrokenBatch, Chunk
from penstock.spark.source.schemas import RECORD_FIELDS, UNPARSED, to_arrow

ID = StructType([StructField("id", LongType())])
NAMED = StructType([StructField("id", LongType()), StructField("name", StringType())])
RAW = StructType(list(RECORD_FIELDS))
WHERE = "file:///data/events"
GOOD = [Record(b'{"id": %d}' % one, key=b"k%d" % one, headers=[("n", b"%d" % one)]) for one in range(4)]
BAD = Record(b"no JSON", key=b"key", headers=[("h", b"1"), ("h", b"2")])

Function = Callable[[pa.RecordBatch], Any]


def chunk(records: Sequence[Record], first: int = 10, sequence: int = 7) -> Chunk:
    return Chunk(records_to_arrow(records), first, BatchDescriptor(sequence, "ingest/x.batch"), WHERE)


def parse(schema: StructType = ID, on_error: OnError = OnError.DLQ, form: ParseFormat = ParseFormat.JSON) -> Parse:
    return Parse(form, schema, on_error)


def on_columns(*functions: Function, schema: StructType = ID, returned: StructType | None = None) -> PipelineRows:
    steps = [ColumnStep(fn, returned or schema) for fn in functions]
    return PipelineRows(returned or schema, parse=parse(schema), on_columns=steps)


def rows_of(steps: PipelineRows, records: Sequence[Record]) -> list[dict[str, Any]]:
    batches = list(steps.of(chunk(records)))
    assert all(batch.schema.equals(steps.schema) for batch in batches)
    rows = [row for batch in batches for row in batch.to_pylist() if row[LETTER] is None]
    return [{name: value for name, value in row.items() if name != LETTER} for row in rows]


def letters_of(steps: PipelineRows, records: Sequence[Record]) -> list[dict[str, Any]]:
    column = [value for batch in steps.of(chunk(records)) for value in batch.column(LETTER).to_pylist()]
    return table([value for value in column if isinstance(value, bytes)])


def table(values: list[bytes], at: int = 0) -> list[dict[str, Any]]:
    batch = pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], names=[LETTER])
    return [row for part in unpacked([batch], at) for row in part.to_pylist()]


def marked(batch: pa.RecordBatch, *errors: str | None) -> pa.RecordBatch:
    return batch.append_column("_error", pa.array(errors, pa.string()))


# Without steps


def test_without_steps_a_row_is_a_record_with_all_that_is_known_of_it() -> None:
    [row] = rows_of(PipelineRows(UNPARSED), [BAD])
    assert (row["value"], row["key"], row["sequence"], row["index"]) == (b"no JSON", b"key", 7, 10)


def test_the_columns_are_those_of_the_output_and_one_for_letters() -> None:
    assert PipelineRows(NAMED).schema.equals(to_arrow(NAMED).append(pa.field(LETTER, pa.binary())))


# Functions of records


def test_a_function_of_records_may_make_more_and_fewer_of_them() -> None:
    def fan_out(batch: WorkBatch) -> WorkBatch:
        return batch.map_records(lambda records: [records[0], records[0], records[2]])

    rows = rows_of(PipelineRows(RAW, [fan_out]), GOOD)
    assert [(row["value"], row["key"]) for row in rows] == [(one.value, one.key) for one in (GOOD[0], GOOD[0], GOOD[2])]


def test_functions_of_records_run_one_after_another() -> None:
    def add(end: bytes, batch: WorkBatch) -> WorkBatch:
        return batch.map_records(lambda records: [Record(record.value + end) for record in records])

    rows = rows_of(PipelineRows(RAW, [partial(add, b"1"), partial(add, b"2")]), [Record(b"a")])
    assert [row["value"] for row in rows] == [b"a12"]


def test_what_functions_of_records_return_is_what_is_parsed() -> None:
    def quote(batch: WorkBatch) -> WorkBatch:
        return batch.map_records(lambda records: [Record(b'{"id": %b}' % record.value) for record in records])

    assert rows_of(PipelineRows(ID, [quote], parse()), [Record(b"5")]) == [{"id": 5}]


def test_a_letter_of_a_function_of_records_keeps_its_fields_and_has_no_place() -> None:
    def refuse(batch: WorkBatch) -> WorkBatch:
        return WorkBatch([], dead_letters=[DeadLetter(b"p", "bad", b"k", [("h", b"v")], "mine")])

    assert letters_of(PipelineRows(RAW, [refuse]), [BAD]) == [
        {
            "payload": b"p",
            "key": b"k",
            "headers": [{"key": "h", "value": b"v"}],
            "reason": "bad",
            "stage": "mine",
            "sequence": None,
            "index": None,
            "at": datetime(1970, 1, 1, tzinfo=UTC),
            "timestamp": None,
        }
    ]


def test_the_next_function_is_not_called_for_no_records() -> None:
    def drop(batch: WorkBatch) -> WorkBatch:
        return WorkBatch([])

    def fail(batch: WorkBatch) -> WorkBatch:
        raise AssertionError

    assert rows_of(PipelineRows(RAW, [drop, fail]), GOOD) == []


def test_a_parse_letter_behind_a_function_of_records_has_no_place() -> None:
    # The function may have returned another record, and its place in the batch is not known.
    [letter] = letters_of(PipelineRows(ID, [lambda batch: batch], parse()), [BAD])
    assert (letter["stage"], letter["sequence"], letter["index"], letter["key"]) == ("parse", None, None, b"key")


# Parsing


def test_a_payload_that_does_not_parse_is_a_letter_that_says_where_it_lay() -> None:
    [letter] = letters_of(PipelineRows(ID, parse=parse()), [*GOOD, BAD])
    assert letter["reason"].startswith("parse error: ")
    assert letter | {"reason": "", "at": None} == {
        "payload": b"no JSON",
        "key": b"key",
        "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": b"2"}],
        "reason": "",
        "stage": "parse",
        "sequence": 7,
        "index": 14,
        "at": None,
        "timestamp": None,
    }


@pytest.mark.parametrize("on_error", [OnError.DLQ, OnError.SKIP])
def test_the_others_of_its_batch_are_rows(on_error: OnError) -> None:
    assert rows_of(PipelineRows(ID, parse=parse(on_error=on_error)), [GOOD[1], BAD, GOOD[2]]) == [{"id": 1}, {"id": 2}]


def test_with_skip_there_is_no_letter() -> None:
    assert letters_of(PipelineRows(ID, parse=parse(on_error=OnError.SKIP)), [GOOD[1], BAD]) == []


def test_with_fail_the_error_names_the_record_by_its_index_in_the_batch() -> None:
    steps = PipelineRows(ID, parse=parse(on_error=OnError.FAIL))
    with pytest.raises(
        ParseFailed, match=r"1 of records 10 to 11 of sequence 7 \(ingest/x.batch\) in .* 11: parse err"
    ):
        list(steps.of(chunk([GOOD[0], BAD])))


def test_msgpack_is_parsed_into_the_same_columns() -> None:
    steps = PipelineRows(ID, parse=parse(form=ParseFormat.MSGPACK))
    assert rows_of(steps, [Record(msgspec.msgpack.encode({"id": 8}))]) == [{"id": 8}]


def test_a_batch_of_nothing_but_letters_has_no_rows() -> None:
    assert rows_of(PipelineRows(ID, parse=parse()), [BAD]) == []


# Functions of columns


def test_functions_of_columns_run_one_after_another_each_on_what_the_one_before_returned() -> None:
    def add(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"id": pc.add(batch.column("id"), 1)})

    def double(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"id": pc.multiply(batch.column("id"), 2)})

    assert rows_of(on_columns(add, double), GOOD[:2]) == [{"id": 2}, {"id": 4}]


def test_a_function_that_changes_the_columns_returns_those_of_its_schema() -> None:
    def name(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.append_column("name", pc.cast(batch.column("id"), pa.string()))

    assert rows_of(on_columns(name, returned=NAMED), GOOD[:1]) == [{"id": 0, "name": "0"}]


def test_columns_may_come_in_another_order() -> None:
    def turn(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.select(["name", "id"])

    assert rows_of(on_columns(turn, schema=NAMED), GOOD[:1]) == [{"id": 0, "name": None}]


def test_a_column_of_another_width_becomes_what_was_told() -> None:
    narrow = StructType([StructField("id", IntegerType())])
    assert rows_of(on_columns(lambda batch: batch, returned=narrow), GOOD[:1]) == [{"id": 0}]


def test_a_row_with_an_error_is_a_letter_of_the_record_it_came_from() -> None:
    steps = on_columns(lambda batch: marked(batch, None, "bad", None, None))
    [letter] = letters_of(steps, GOOD)
    assert letter | {"at": None} == {
        "payload": GOOD[1].value,
        "key": b"k1",
        "headers": [{"key": "n", "value": b"1"}],
        "reason": "bad",
        "stage": "process",
        "sequence": None,
        "index": None,
        "at": None,
        "timestamp": None,
    }
    assert rows_of(steps, GOOD) == [{"id": 0}, {"id": 2}, {"id": 3}]


def test_a_letter_of_the_second_function_is_of_the_record_too() -> None:
    steps = on_columns(
        lambda batch: marked(batch, None, "first", None, None), lambda batch: marked(batch, None, "second", None)
    )
    letters = letters_of(steps, [GOOD[0], BAD, *GOOD[1:]])
    assert [(letter["reason"][:11], letter["payload"]) for letter in letters] == [
        ("parse error", BAD.value),
        ("first", GOOD[1].value),
        ("second", GOOD[2].value),
    ]


def test_behind_a_function_that_reorders_a_letter_is_the_row_as_json() -> None:
    def turn(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.take(pa.array([3, 2, 1, 0]))

    [letter] = letters_of(on_columns(turn, lambda batch: marked(batch, "bad", None, None, None)), GOOD)
    assert (json.loads(letter["payload"]), letter["key"]) == ({"id": 3}, None)


def test_behind_a_function_that_drops_rows_a_letter_has_its_raw_column() -> None:
    def drop(batch: pa.RecordBatch) -> pa.RecordBatch:
        return marked(batch.slice(2), None, "bad").append_column("_raw", pa.array([b"a", b"b"], pa.binary()))

    [letter] = letters_of(on_columns(drop), GOOD)
    assert (letter["payload"], letter["reason"]) == (b"b", "bad")


def test_a_function_of_columns_is_not_called_for_no_rows() -> None:
    def fail(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise AssertionError

    assert rows_of(on_columns(fail), [BAD]) == []


# What functions do wrong


def extended(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.append_column("more", batch.column("id"))


def emptied(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"other": batch.column("id")})


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([batch.column("id")] * 2, names=["id", "id"])


def worded(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"id": ["one"] * batch.num_rows})


def numbered_errors(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.append_column("_error", batch.column("id"))


def with_nothing(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.nulls(batch.num_rows, pa.int64())})


@pytest.mark.parametrize(
    ("fn", "problem"),
    [
        (extended, "extended returned the columns id, more, and was to return id: see 'more'; .*schema='...'"),
        (emptied, "emptied returned the columns other, and was to return id: see 'id'"),
        (doubled, "doubled returned the columns id, id, and was to return id: see 'id'"),
        (worded, "worded returned string in the column 'id', which is no int64"),
        (numbered_errors, "the column '_error' must be a string, not int64"),
        (lambda batch: batch.to_pylist(), "<lambda> must return a pyarrow.RecordBatch, and returned list"),
        (lambda batch: None, "<lambda> must return a pyarrow.RecordBatch, and returned NoneType"),
    ],
)
def test_a_function_that_returns_something_else_is_named_with_the_column(fn: Function, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        list(on_columns(fn).of(chunk(GOOD)))


def test_a_null_in_a_column_that_has_none_is_named() -> None:
    returned = StructType([StructField("id", LongType(), nullable=False)])
    with pytest.raises(InvalidInput, match="with_nothing returned a null in the column 'id', which is NOT NULL"):
        list(on_columns(with_nothing, returned=returned).of(chunk(GOOD)))


def test_a_number_that_does_not_fit_is_not_cut() -> None:
    def half(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"id": pa.array([0.5] * batch.num_rows)})

    with pytest.raises(InvalidInput, match="half returned double in the column 'id', which is no int64"):
        list(on_columns(half).of(chunk(GOOD)))


def test_whole_numbers_are_taken_for_doubles() -> None:
    returned = StructType([StructField("id", DoubleType())])
    assert rows_of(on_columns(lambda batch: batch, returned=returned), GOOD[1:2]) == [{"id": 1.0}]


@pytest.mark.parametrize("returned", [None, [], GOOD])
def test_a_function_of_records_returns_a_work_batch(returned: object) -> None:
    def wrong(batch: Any) -> Any:
        return returned

    with pytest.raises(InvalidInput, match=f"must return a WorkBatch, and .*wrong returned {type(returned).__name__}"):
        list(PipelineRows(RAW, [wrong]).of(chunk(GOOD)))


def test_a_function_that_raises_is_named_with_the_records_it_had() -> None:
    def broken(batch: Any) -> Any:
        raise KeyError("colour")

    problem = (
        r"broken failed on records 10 to 13 of sequence 7 \(ingest/x.batch\) in file:///data/events: KeyError: 'col"
    )
    for steps in (PipelineRows(RAW, [broken]), on_columns(broken)):
        with pytest.raises(ProcessFailed, match=problem) as caught:
            list(steps.of(chunk(GOOD)))
        assert isinstance(caught.value.__cause__, KeyError)


# Batches that cannot be read, and the table of letters


def test_a_broken_batch_is_a_letter_of_the_stage_fetch_with_its_bytes_and_its_sequence() -> None:
    broken = BrokenBatch(BatchDescriptor(5, "ingest/x.batch"), "it is torn", b"\x00\x01")
    steps = PipelineRows(ID, parse=parse())
    [batch] = steps.of_broken(broken)
    assert batch.schema.equals(steps.schema)
    values = [value for value in batch.column(LETTER).to_pylist() if isinstance(value, bytes)]
    [letter] = table(values)
    assert letter | {"at": None} == {
        "payload": b"\x00\x01",
        "key": None,
        "headers": None,
        "reason": "it is torn",
        "stage": "fetch",
        "sequence": 5,
        "index": None,
        "at": None,
        "timestamp": None,
    }


def test_a_letter_of_a_batch_that_is_gone_has_no_payload() -> None:
    [value] = packed([(None, None, None, "gone", "fetch", 5, None, None)]).to_pylist()
    assert isinstance(value, bytes)
    assert (reason_in(value), table([value])[0]["payload"]) == ("gone", None)


def test_the_table_of_letters_has_these_columns_in_this_order() -> None:
    [batch] = unpacked([pa.RecordBatch.from_arrays([packed([])], names=[LETTER])], 0)
    assert batch.schema.equals(to_arrow(TABLE))
    assert TABLE.simpleString() == (
        "struct<payload:binary,key:binary,headers:array<struct<key:string,value:binary>>,reason:string,stage:string,"
        "sequence:bigint,index:int,at:timestamp,timestamp:timestamp>"
    )


def test_all_letters_of_a_block_are_of_one_moment() -> None:
    value = packed([(b"p", None, None, "r", "parse", 1, 2, None)])[0].as_py()
    assert [row["at"] for row in table([value, value], at=1_000_000)] == [datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)] * 2


def test_no_headers_and_empty_headers_stay_apart() -> None:
    values = packed(
        [(b"p", b"", (), "r", "s", None, None, None), (b"p", None, None, "r", "s", None, None, 5)]
    ).to_pylist()
    rows = table([value for value in values if isinstance(value, bytes)])
    assert [(row["key"], row["headers"]) for row in rows] == [(b"", []), (None, None)]


def test_a_letter_keeps_the_timestamp_of_its_record() -> None:
    record = Record(b"no JSON", timestamp_ms=1_234)
    [letter] = letters_of(PipelineRows(ID, parse=parse()), [record])
    assert letter["timestamp"] == datetime(1970, 1, 1, 0, 0, 1, 234_000, tzinfo=UTC)
