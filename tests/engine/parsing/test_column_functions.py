"""`columns`: a function of columns as a process, and what becomes of the rows it marks."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock import Record
from penstock.engine import (
    BatchEngine,
    DeadLetter,
    DlqPolicy,
    EngineConfig,
    MemoryTransport,
    ParsedBatch,
    ParseOptions,
    WorkBatch,
    columns,
)
from penstock.errors import InvalidInput, ParseFailed, ProcessFailed
from tests.engine.doubles import Route, Sink, looking

Function = Callable[[pa.RecordBatch], Any]

ROWS = [b'{"id": 1, "group": "a"}', b'{"id":2,"group":"a"}', b'{"id": 3,  "group": "b"}']
RECORDS = [Record(value, key=b"key-%d" % number, headers=[("n", b"%d" % number)]) for number, value in enumerate(ROWS)]


def apply(fn: Function, records: list[Record] = RECORDS) -> WorkBatch:
    return columns(fn)(ParsedBatch.parse(WorkBatch(records, (4, 5))))


def marked(batch: pa.RecordBatch, *errors: str | None) -> pa.RecordBatch:
    return batch.append_column("_error", pa.array(errors, pa.string()))


def letters(fn: Function, records: list[Record] = RECORDS) -> list[DeadLetter]:
    return list(apply(fn, records).dead_letters)


# What goes in and out


def test_the_function_gets_the_parsed_columns() -> None:
    seen: list[Any] = []
    apply(looking(lambda batch: seen.append(batch.to_pydict())))
    assert seen == [{"id": [1, 2, 3], "group": ["a", "a", "b"]}]


def test_the_sink_finds_what_it_returned_in_arrow() -> None:
    doubled = pa.record_batch({"twice": [2, 4, 6]})
    assert apply(lambda batch: doubled).arrow.equals(doubled)


def test_the_tokens_are_those_of_the_block() -> None:
    assert apply(lambda batch: batch).commit_tokens == (4, 5)


def test_without_an_error_column_there_are_no_letters() -> None:
    assert letters(lambda batch: batch) == []


def test_a_batch_of_no_rows_may_be_returned() -> None:
    assert apply(lambda batch: batch.slice(0, 0)).is_empty


def test_columns_that_look_like_those_of_records_are_the_functions_own() -> None:
    result = apply(lambda batch: pa.record_batch({"value": pa.array([b"x"], pa.binary())}))
    assert result.arrow.to_pydict() == {"value": [b"x"]}


def test_rows_with_an_error_are_taken_out() -> None:
    assert apply(lambda batch: marked(batch, None, "bad", None)).arrow.to_pydict() == {
        "id": [1, 3],
        "group": ["a", "b"],
    }


def test_the_error_is_the_reason_of_the_letter() -> None:
    assert [letter.reason for letter in letters(lambda batch: marked(batch, None, "bad", "worse"))] == ["bad", "worse"]


def test_a_letter_of_a_function_is_of_the_stage_process() -> None:
    assert letters(lambda batch: marked(batch, "bad", None, None))[0].stage == "process"


def test_an_empty_error_is_an_error() -> None:
    assert [letter.reason for letter in letters(lambda batch: marked(batch, "", None, None))] == [""]


def test_all_rows_may_be_in_error() -> None:
    result = apply(lambda batch: marked(batch, "x", "y", "z"))
    assert (result.is_empty, len(result.dead_letters)) == (True, 3)


def test_errors_of_all_null_are_none_and_the_column_is_gone() -> None:
    result = apply(lambda batch: marked(batch, None, None, None))
    assert (result.arrow.schema.names, result.dead_letters) == (["id", "group"], ())


def test_errors_of_null_type_are_none_and_the_column_is_gone() -> None:
    result = apply(lambda batch: batch.append_column("_error", pa.nulls(3)))
    assert (result.arrow.schema.names, result.dead_letters) == (["id", "group"], ())


def test_errors_may_be_a_large_string() -> None:
    errors = pa.array([None, "bad", None], pa.large_string())
    assert [letter.reason for letter in letters(lambda batch: batch.append_column("_error", errors))] == ["bad"]


@pytest.mark.parametrize("errors", [pa.array([0, 1, 0]), pa.array([True, False, True]), pa.array([b"x", None, b"y"])])
def test_errors_of_another_type_are_refused(errors: Any) -> None:
    with pytest.raises(InvalidInput, match="'_error' must be a string"):
        apply(lambda batch: batch.append_column("_error", errors))


@pytest.mark.parametrize(
    "returned",
    [None, 3, {"id": [1]}, pa.table({"id": [1]}), pa.array([1])],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_record_batch_is_refused(returned: Any) -> None:
    with pytest.raises(InvalidInput, match=f"must return a pyarrow.RecordBatch, not {type(returned).__name__}"):
        apply(lambda batch: returned)


@pytest.mark.parametrize("fn", [None, "name", 3])
def test_what_is_no_function_is_refused(fn: Any) -> None:
    with pytest.raises(InvalidInput, match="columns takes a function"):
        columns(fn)


# Whose payload it is

KEEPING: dict[str, Function] = {
    "all columns kept": lambda batch: marked(batch, None, "bad", None),
    "a column of distinct values kept": lambda batch: marked(batch.select(["id"]), None, "bad", None),
    "one changed and one kept": lambda batch: marked(
        pa.record_batch({"id": batch.column("id"), "group": ["x", "y", "z"]}), None, "bad", None
    ),
    "columns added": lambda batch: marked(batch.append_column("more", pa.array([7, 8, 9])), None, "bad", None),
    "columns in another order": lambda batch: marked(batch.select(["group", "id"]), None, "bad", None),
}


@pytest.mark.parametrize("how", KEEPING)
def test_where_rows_were_kept_the_letter_is_of_the_record_with_key_and_headers(how: str) -> None:
    assert letters(KEEPING[how]) == [DeadLetter.of(RECORDS[1], "bad")]


def reversed_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.take(pa.array([2, 1, 0]))


MOVING: dict[str, Function] = {
    "rows reordered": lambda batch: marked(reversed_rows(batch), "bad", None, None),
    "fewer rows": lambda batch: marked(batch.slice(2, 1), "bad"),
    "more rows": lambda batch: marked(
        pa.record_batch({"id": [3, 0, 0, 0], "group": ["b", "", "", ""]}), "bad", None, None, None
    ),
}


SILENT: dict[str, Function] = {
    "only a column with repeats kept": lambda batch: marked(
        pa.record_batch({"id": [3, 0, 0], "group": batch.column("group")}), "bad", None, None
    ),
    "all columns new": lambda batch: marked(pa.record_batch({"new": [1, 2, 3]}), "bad", None, None),
    "a column of another type": lambda batch: marked(
        pa.record_batch({"id": batch.column("id").cast(pa.string()), "group": ["x", "y", "z"]}), "bad", None, None
    ),
    "nothing but the error": lambda batch: marked(batch, "bad", None, None).select(["_error"]),
}


@pytest.mark.parametrize("how", SILENT)
def test_where_no_column_says_that_rows_moved_the_letter_is_of_the_record(how: str) -> None:
    assert letters(SILENT[how]) == [DeadLetter.of(RECORDS[0], "bad")]


@pytest.mark.parametrize("how", MOVING)
def test_where_rows_may_have_moved_the_letter_is_the_row_as_json(how: str) -> None:
    (letter,) = letters(MOVING[how])
    assert json.loads(letter.payload)["id"] == 3


@pytest.mark.parametrize("how", MOVING)
def test_where_rows_may_have_moved_the_letter_has_nobodys_key(how: str) -> None:
    (letter,) = letters(MOVING[how])
    assert (letter.key, letter.headers) == (None, None)


def test_a_row_as_json_has_no_error_in_it() -> None:
    (letter,) = letters(MOVING["rows reordered"])
    assert json.loads(letter.payload) == {"id": 3, "group": "b"}


def test_the_only_row_is_the_only_record_whatever_was_made_of_it() -> None:
    assert letters(lambda batch: marked(pa.record_batch({"new": [1]}), "bad"), RECORDS[:1]) == [
        DeadLetter.of(RECORDS[0], "bad")
    ]


def test_nested_columns_tell_that_rows_moved() -> None:
    records = [Record(b'{"n": [%d]}' % number) for number in range(2)]
    (letter,) = letters(lambda batch: marked(batch.take(pa.array([1, 0])), "bad", None), records)
    assert json.loads(letter.payload) == {"n": [1]}


def test_a_column_function_needs_parsed_blocks() -> None:
    with pytest.raises(InvalidInput, match="parse=True"):
        columns(lambda batch: batch)(WorkBatch(RECORDS))  # type: ignore[arg-type]


def test_a_nested_column_that_is_all_there_is_tells_that_rows_were_kept() -> None:
    records = [Record(b'{"n": [%d]}' % number) for number in range(2)]
    assert letters(lambda batch: marked(batch, None, "bad"), records) == [DeadLetter.of(records[1], "bad")]


def test_records_that_did_not_parse_do_not_shift_the_others() -> None:
    records = [RECORDS[0], Record(b"{"), RECORDS[1]]
    (letter,) = apply(lambda batch: marked(batch, None, "bad"), records).dead_letters
    assert letter == DeadLetter.of(RECORDS[1], "bad")


def test_records_that_do_not_fit_into_columns_do_not_shift_the_others() -> None:
    records = [RECORDS[0], Record(b'{"id": "text", "group": "a"}'), RECORDS[1]]
    (letter,) = apply(lambda batch: marked(batch, None, "bad"), records).dead_letters
    assert letter == DeadLetter.of(RECORDS[1], "bad")


# _raw


def raw(batch: pa.RecordBatch, *payloads: Any, kind: Any = None) -> pa.RecordBatch:
    return batch.append_column("_raw", pa.array(payloads, kind or pa.binary()))


def test_where_rows_may_have_moved_raw_is_the_payload() -> None:
    def fn(batch: pa.RecordBatch) -> pa.RecordBatch:
        return raw(marked(reversed_rows(batch), "bad", None, None), ROWS[2], ROWS[1], ROWS[0])

    assert [letter.payload for letter in letters(fn)] == [ROWS[2]]


def test_where_rows_were_kept_the_letter_is_of_the_record_also_beside_raw() -> None:
    result = letters(lambda batch: raw(marked(batch, "bad", None, None), b"1", b"2", b"3"))
    assert result == [DeadLetter.of(RECORDS[0], "bad")]


def test_raw_is_not_for_the_sink() -> None:
    result = apply(lambda batch: raw(marked(batch, "bad", None, None), b"1", b"2", b"3"))
    assert result.arrow.schema.names == ["id", "group"]


def test_raw_is_not_for_the_sink_without_an_error_column_either() -> None:
    assert apply(lambda batch: raw(batch, b"1", b"2", b"3")).arrow.schema.names == ["id", "group"]


def test_a_null_raw_falls_back_to_the_row() -> None:
    def fn(batch: pa.RecordBatch) -> pa.RecordBatch:
        return raw(marked(reversed_rows(batch), "bad", None, None), None, ROWS[1], ROWS[0])

    (letter,) = letters(fn)
    assert json.loads(letter.payload) == {"id": 3, "group": "b"}


def test_a_raw_that_is_no_bytes_falls_back_to_the_record() -> None:
    result = letters(lambda batch: raw(marked(batch, "bad", None, None), "1", "2", "3", kind=pa.string()))
    assert result == [DeadLetter.of(RECORDS[0], "bad")]


OWN_RAW = [Record(b'{"_raw": "mine", "id": 1}'), Record(b'{"_raw": "mine too", "id": 2}')]


def test_a_field_named_raw_that_came_in_goes_on() -> None:
    assert apply(lambda batch: batch, OWN_RAW).arrow.to_pydict()["_raw"] == ["mine", "mine too"]


def test_a_field_named_raw_that_came_in_goes_on_also_beside_errors() -> None:
    result = apply(lambda batch: marked(batch, None, "bad"), OWN_RAW)
    assert result.arrow.to_pydict().get("_raw") == ["mine"]


# In an engine


def run(fn: Function, *payloads: bytes, **config: Any) -> tuple[Sink, Route, MemoryTransport]:
    source, sink, route = MemoryTransport(), Sink(), Route()
    source.send(map(Record, payloads))
    engine = BatchEngine(EngineConfig(recv_timeout=0, **config), dlq=DlqPolicy.route(route))
    engine.run(source, columns(fn), sink, parse=True, until_idle=True)
    return sink, route, source


def test_an_engine_sinks_the_good_rows_routes_the_others_and_commits_all() -> None:
    sink, route, source = run(lambda batch: marked(batch, None, "bad", None), *ROWS)
    assert sink.batches[0].arrow.to_pydict()["id"] == [1, 3]
    assert (route.payloads, source.committed_sequence) == ([ROWS[1]], 2)


def test_records_that_do_not_fit_into_columns_are_routed_by_the_engine() -> None:
    sink, route, _ = run(lambda batch: batch, b'{"id": 1}', b'{"id": "text"}')
    assert (route.payloads, route.letters[0].stage) == ([b'{"id": "text"}'], "parse")
    assert sink.batches[0].arrow.to_pydict() == {"id": [1]}


def test_records_that_do_not_fit_into_columns_fail_the_block_where_told_to() -> None:
    with pytest.raises(ParseFailed, match="record 1 of the block"):
        run(lambda batch: batch, b'{"id": 1}', b'{"id": "text"}', parse_error_action="fail_batch")


def test_a_function_that_raises_fails_the_block() -> None:
    def fail(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise LookupError("no such column")

    with pytest.raises(ProcessFailed, match="LookupError: no such column"):
        run(fail, *ROWS)


def test_a_function_may_compute() -> None:
    def large(batch: pa.RecordBatch) -> pa.RecordBatch:
        errors = pc.if_else(pc.greater(batch.column("id"), pa.scalar(2)), "too large", None)
        return batch.append_column("_error", errors)

    assert run(large, *ROWS)[1].payloads == [ROWS[2]]


def test_a_batch_is_parsed_into_the_columns_of_a_schema_where_one_is_given() -> None:
    schema = pa.schema([pa.field("id", pa.int64())])
    batch = WorkBatch([Record(b'{"id": "7", "x": 1}'), Record(b'{"id": "x"}'), Record(b"{")])
    parsed = ParsedBatch.parse(batch, schema=schema, options=ParseOptions("lenient", rescue="_rescued"))
    assert parsed.arrow.to_pylist() == [{"id": 7, "_rescued": '{"x":1}'}]
    assert (parsed.parsed, len(parsed.dead_letters)) == ([{"id": "7", "x": 1}], 2)


def test_options_without_a_schema_are_refused() -> None:
    with pytest.raises(InvalidInput, match="give a schema too"):
        ParsedBatch.parse(WorkBatch([]), options=ParseOptions("lenient"))


@pytest.mark.parametrize("first", ["arrow", "parsed"])
def test_records_stay_aligned_where_a_lenient_batch_has_nan(first: str) -> None:
    schema = pa.schema([pa.field("a", pa.float64())])
    batch = WorkBatch([Record(b'{"a": NaN}'), Record(b'{"a": "x"}'), Record(b'{"a": "1"}')])
    parsed = ParsedBatch.parse(batch, schema=schema, options=ParseOptions("lenient"))
    getattr(parsed, first)
    assert repr(parsed.arrow.to_pylist()) == "[{'a': nan}, {'a': 1.0}]"
    assert repr(parsed.parsed) == "[{'a': nan}, {'a': '1'}]"
    assert [record.value for record in parsed.records] == [b'{"a": NaN}', b'{"a": "1"}']
