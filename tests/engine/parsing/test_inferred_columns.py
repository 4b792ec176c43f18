"""The columns that are inferred: which kinds fit together, and in which order fields are."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from penstock.engine import ParseFormat
from tests.engine.parsing.models import READ, inferred


def columns(rows: list[Any], form: ParseFormat = ParseFormat.JSON) -> tuple[pa.RecordBatch, dict[int, str]]:
    write = msgspec.json.encode if form is ParseFormat.JSON else msgspec.msgpack.encode
    parsed = inferred([row if isinstance(row, bytes) else write(row) for row in rows], form)
    return parsed.batch, {error.index: error.reason.removeprefix("parse error: ") for error in parsed.errors}


@pytest.mark.parametrize("form", READ)
def test_the_first_row_that_has_a_field_settles_its_kind(form: ParseFormat) -> None:
    batch, misfits = columns([{"id": None}, {"id": 1}, {"id": "x"}, {"id": 2.5}, {"id": True}, {}], form)
    assert batch.to_pylist() == [{"id": None}, {"id": 1.0}, {"id": 2.5}, {"id": None}]
    assert misfits == {
        2: "the field 'id' is a string here, and the column is double",
        4: "the field 'id' is a boolean here, and the column is double",
    }


@pytest.mark.parametrize("form", READ)
def test_a_row_that_does_not_fit_settles_nothing(form: ParseFormat) -> None:
    rows = [{"a": 1}, {"b": "text", "c": {"d": []}, "a": "misfit"}, {"b": 2, "c": 3}, {"b": "text"}]
    batch, misfits = columns(rows, form)
    assert batch.to_pylist() == [{"a": 1, "b": None, "c": None}, {"a": None, "b": 2, "c": 3}]
    assert set(misfits) == {1, 3}


@pytest.mark.parametrize("form", READ)
def test_a_misfit_deep_inside_is_named(form: ParseFormat) -> None:
    rows = [{"a": {"b": [{"c": 1}]}}, {"a": {"b": [{"c": 2}, {"c": "x"}]}}]
    batch, misfits = columns(rows, form)
    assert batch.to_pylist() == rows[:1]
    assert misfits == {1: "the field 'a.b[].c' is a string here, and the column is int64"}


@pytest.mark.parametrize("form", READ)
def test_an_array_of_two_kinds_does_not_fit_with_itself(form: ParseFormat) -> None:
    batch, misfits = columns([{"a": [1, "x"]}, {"a": [2]}], form)
    assert (batch.to_pylist(), set(misfits)) == ([{"a": [2]}], {0})


@pytest.mark.parametrize("form", READ)
def test_where_a_field_is_text_any_other_value_is_its_json(form: ParseFormat) -> None:
    batch, misfits = columns([{"a": "x"}, {"a": 1, "b": 2}, {"a": {"c": [None, True]}}, {"a": None}], form)
    assert batch.column("a").to_pylist() == ["x", "1", '{"c":[null,true]}', None]
    assert (batch.column("b").to_pylist(), misfits) == ([None, 2, None, None], {})


def test_a_row_with_a_repeated_key_settles_nothing() -> None:
    batch, misfits = columns([b'{"a": "x", "a": "y"}', {"a": 1}, b'{"b": {"c": 1, "\\u0063": 2}}', {"a": "z"}])
    assert batch.to_pylist() == [{"a": 1}]
    assert misfits == {
        0: "the key 'a' is there twice",
        2: "the key 'c' is there twice",
        3: "the field 'a' is a string here, and the column is int64",
    }


@pytest.mark.parametrize("form", READ)
@pytest.mark.parametrize("rows", [1, 5000])
def test_text_stays_text_when_it_looks_like_a_timestamp(form: ParseFormat, rows: int) -> None:
    at = "2026-01-01T00:00:00Z"
    row = {"at": at, "id": 1, "in": {"x": 1, "at": at}, "list": [at], "objects": [{"at": at}]}
    batch, misfits = columns([row] * rows, form)
    assert batch.schema.names == list(row)
    assert batch.schema.field("at").type == pa.string()
    assert batch.slice(rows - 1).to_pylist() == [row]
    assert misfits == {}


def test_text_that_looks_like_a_timestamp_may_appear_late() -> None:
    rows = [{"id": number} for number in range(20_000)] + [{"id": 0, "at": "2026-01-01"}]
    batch, _ = columns(rows)
    assert batch.schema.types == [pa.int64(), pa.string()]
    assert batch.column("at")[-1].as_py() == "2026-01-01"


@pytest.mark.parametrize("form", READ)
def test_a_field_may_become_a_float_late(form: ParseFormat) -> None:
    batch, misfits = columns([{"id": 1}] * 20_000 + [{"id": 2.5}], form)
    assert batch.schema.types == [pa.float64()]
    assert (batch.num_rows, misfits) == (20_001, {})


@pytest.mark.parametrize("form", READ)
def test_fields_are_in_the_order_in_which_they_appear(form: ParseFormat) -> None:
    batch, _ = columns([{"b": 1}, {"z": None, "a": 1, "b": 2}, {"c": "2026-01-01", "a": 1}], form)
    assert batch.schema.names == ["b", "z", "a", "c"]
    assert batch.schema.field("z").type == pa.null()


def test_an_object_that_fills_more_than_a_piece_is_read() -> None:
    row = {"text": "x" * (3 << 20)}
    batch, misfits = columns([row, {"text": "y"}, row])
    assert (batch.num_rows, misfits) == (3, {})


def test_a_block_with_newlines_inside_of_objects_is_never_cut_at_one() -> None:
    # A piece that begins with `null` would crash the process.
    pretty = [json.dumps({"id": number, "nothing": None}, indent=1).encode() for number in range(20_000)]
    batch, misfits = columns([b'{"id": 0, "nothing": null}'] * 20_000 + pretty)
    assert batch.column("id").to_pylist() == [0] * 20_000 + list(range(20_000))
    assert misfits == {}


def test_integers_that_no_float_is_exactly_become_the_nearest() -> None:
    batch, misfits = columns(
        [{"a": 0.5, "b": b"x"}, {"a": (1 << 63) + 1, "b": b"y"}, {"a": 9007199254740993}], ParseFormat.MSGPACK
    )
    assert batch.column("a").to_pylist() == [0.5, 9.223372036854775808e18, 9007199254740992.0]
    assert misfits == {}


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "\x00", "", "x" * 500, "é", "__class__", "field_0"])
def test_a_field_may_have_any_name(name: str) -> None:
    for form in READ:
        batch, misfits = columns([{name: 1, "other": 2}] * 3, form)
        assert batch.to_pylist() == [{name: 1, "other": 2}] * 3
        assert misfits == {}


@pytest.mark.parametrize("rows", [1, 5000])
@pytest.mark.parametrize(
    "first",
    [[None, None], [None, 1], [None, None, "x"], [[None, None]], [{"b": [None, None, 1]}], {"b": [None, None]}],
)
def test_nulls_in_front_of_a_list_are_kept(first: Any, rows: int) -> None:
    for form in READ:
        batch, misfits = columns([{"a": first, "id": 1}] * rows, form)
        batch.validate(full=True)
        assert batch.to_pylist() == [{"a": first, "id": 1}] * rows
        assert misfits == {}


def test_an_integer_beyond_64_bits_makes_its_field_a_float() -> None:
    for form, other in ((ParseFormat.JSON, "x"), (ParseFormat.MSGPACK, "x"), (ParseFormat.MSGPACK, b"x")):
        rows = [{"a": 1, "b": other}, {"a": 2, "b": other}, {"a": (1 << 64) - 1, "b": other}, {"a": "x"}]
        batch, misfits = columns(rows, form)
        assert batch.column("a").to_pylist() == [1.0, 2.0, float(1 << 64)]
        assert set(misfits) == {3}


AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
NEW_THINGS: dict[str, list[dict[str, Any]]] = {
    "a field": [{"a": 1}, {"b": "x", "a": 2}],
    "a value where there was null": [{"a": None}, {"a": b"x"}],
    "a float where there were integers": [{"a": (1 << 53) + 1}, {"a": 0.5}],
    "an integer beyond 64 bits": [{"a": (1 << 53) + 1}, {"a": (1 << 64) - 1}],
    "a member of an object": [{"a": {}}, {"a": {"b": 1}}, {"a": {"b": 2, "c": [None]}}, {"a": {"b": 2.5, "c": ["x"]}}],
    "a member of objects in an array": [{"a": [{"b": 1}, None]}, {"a": None}, {"a": [{"c": {"d": b"x"}}]}],
    "items where there were none": [{"a": []}, {"a": [[]]}, {"a": [[1, None], None]}, {"a": [[0.5]]}],
    "a timestamp": [{"b": 1}, {"a": AT}, {"a": None, "c": [AT]}],
    "a float that is not a number": [{"a": 1.0}, {"a": float("inf")}, {"a": 3}],
}


@pytest.mark.parametrize("name", NEW_THINGS)
def test_something_new_in_a_late_row_has_its_column(name: str) -> None:
    batch, misfits = columns([row for row in NEW_THINGS[name] for _ in range(3000)], ParseFormat.MSGPACK)
    few, _ = columns(NEW_THINGS[name], ParseFormat.MSGPACK)
    assert batch.schema == few.schema
    assert batch.take(pa.array(range(0, batch.num_rows, 3000))).equals(few)
    assert misfits == {}


@pytest.mark.parametrize("form", READ)
def test_rows_that_do_not_fit_are_found_in_a_large_block(form: ParseFormat) -> None:
    rows: list[dict[str, Any]] = [{"id": "x"} if at % 100 == 99 else {"id": at, "raw": "x"} for at in range(5000)]
    batch, misfits = columns(rows, form)
    assert set(misfits) == set(range(99, 5000, 100))
    assert batch.to_pylist() == [row for row in rows if row["id"] != "x"]


def test_text_among_timestamps_is_a_time_or_does_not_fit() -> None:
    rows = [{"at": AT}] * 100 + [{"at": AT.isoformat(), "new": 1}, {"at": "x"}, {"at": AT}]
    batch, misfits = columns(rows, ParseFormat.MSGPACK)
    assert batch.column("at").to_pylist() == [AT] * 102
    assert batch.column("new").to_pylist()[100] == 1
    assert misfits == {101: "the field 'at' is a string that is no timestamp[us, tz=UTC]"}


@pytest.mark.parametrize("form", READ)
def test_a_block_in_which_every_row_has_a_field_of_its_own_is_read(form: ParseFormat) -> None:
    batch, misfits = columns([{f"f{at}": at} for at in range(3000)], form)
    assert batch.schema.names == [f"f{at}" for at in range(3000)]
    assert (batch.column("f2999")[2999].as_py(), batch.num_rows, misfits) == (2999, 3000, {})
