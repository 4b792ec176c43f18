"""A schema from a sample: wide enough for what was in it, the same each time, and with a report to read."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine import ParseFormat, check_columns, parse_as, sample_schema
from tests.engine.parsing.models import READ
from tests.engine.parsing.test_parsing_properties import JSON_ROWS, MSGPACK_ROWS

JSON, MSGPACK = ParseFormat.JSON, ParseFormat.MSGPACK


def sampled(rows: list[Any], form: ParseFormat = JSON) -> Any:
    encode = msgspec.json.encode if form is JSON else msgspec.msgpack.encode
    return sample_schema(pa.array([*map(encode, rows)], pa.binary()), form)


def types(rows: list[Any], form: ParseFormat = JSON) -> dict[str, str]:
    return {field.name: str(field.type) for field in sampled(rows, form).schema}


def test_columns_are_in_the_order_of_their_first_appearance() -> None:
    assert [*types([{"b": 1}, {"c": 1, "a": 1}, {"a": 1, "b": 2}])] == ["b", "c", "a"]


def test_a_kind_of_its_own_stays_and_two_become_the_widest() -> None:
    assert types([{"a": 1, "b": True, "c": "x", "d": 1.5, "e": 1 << 63}]) == {
        "a": "int64",
        "b": "bool",
        "c": "string",
        "d": "double",
        "e": "double",
    }
    pairs: list[Any] = [(1, "x"), (True, 1), ({"x": 1}, [1]), ({"x": 1}, 1), ([1], "x"), (True, 1.5)]
    assert [types([{"a": one}, {"a": other}])["a"] for one, other in pairs] == ["string"] * len(pairs)
    assert types([{"a": 1}, {"a": 1.5}, {"a": None}]) == {"a": "double"}


def test_what_has_no_type_yet_is_text() -> None:
    assert types([{"a": None, "b": [], "c": {}, "d": [None], "e": [{}]}]) == {
        "a": "string",
        "b": "list<item: string>",
        "c": "string",
        "d": "list<item: string>",
        "e": "list<item: string>",
    }


def test_values_inside_others_are_counted_by_path() -> None:
    sample = sampled([{"a": {"x": 1}, "l": [{"y": 1}, {"y": 2.5}, None]}, {"a": {"x": None}, "l": []}, {"a": None}])
    assert str(sample).splitlines()[1:] == [
        "  a: struct<x: int64>, in 3, null in 1",
        "  a.x: int64, in 2, null in 1",
        "  l: list<struct<y: double>>, in 2, null in 0",
        "  l[]: struct<y: double>, in 3, null in 1",
        "  l[].y: double, in 2, null in 0, widened from int64 (1) and double (1)",
    ]


def test_the_report_says_what_was_widened_and_why_payloads_count_for_nothing() -> None:
    values = [b'{"a": 1}', b'{"a": {}}', b"", b"", b'{"a": 1, "a": 2}', b"[]", b'{"b": {}}']
    assert str(sample_schema(pa.array(values, pa.binary()))) == "\n".join(
        [
            "7 payloads, 4 of them not parsed, 2 columns",
            "  a: string, in 2, null in 0, widened from int64 (1) and object (1)",
            "  b: string, in 1, null in 0, widened from object (1)",
            "  not parsed: parse error: the value is empty (2)",
            "  not parsed: parse error: the key 'a' is there twice (1)",
            "  not parsed: parse error: Expected `object`, got `array` (1)",
        ]
    )


@pytest.mark.parametrize("form", READ)
def test_a_sample_without_rows_has_no_columns(form: ParseFormat) -> None:
    for values in ([], [b""], [b"\xc1", b"null"]):
        sample = sample_schema(pa.array(values, pa.binary()), form)
        assert (len(sample.schema), sample.columns, len(sample.errors)) == (0, (), len(values))


def test_messagepack_has_binary_and_times() -> None:
    rows = [
        {"a": b"x", "b": datetime(2026, 1, 1, tzinfo=UTC), "c": msgspec.msgpack.Ext(5, b"x"), "d": "x"},
        {"d": b"x"},
    ]
    assert types(rows, MSGPACK) == {"a": "binary", "b": "timestamp[us, tz=UTC]", "c": "string", "d": "string"}


def test_a_sample_with_far_too_many_fields_has_the_first_of_them() -> None:
    sample = sampled([{f"k{at}": 1} for at in range(5_000)])
    assert (len(sample.schema), sample.ignored_fields) == (4_000, 1_000)
    assert str(sample).splitlines()[-1] == "  1000 fields more than 4000 have no column"


@settings(max_examples=2 * settings().max_examples, deadline=None)
@given(st.data(), st.sampled_from(READ))
def test_every_payload_of_the_sample_fits_and_the_schema_is_the_same_each_time(
    data: st.DataObject, form: ParseFormat
) -> None:
    rows = data.draw(st.lists(JSON_ROWS if form is JSON else MSGPACK_ROWS, max_size=6))
    encoded = [json.dumps(row).encode() if form is JSON else msgspec.msgpack.encode(row) for row in rows]
    values = pa.array([*encoded, b"oops"], pa.binary())
    sample = sample_schema(values, form)
    assert sample == sample_schema(values, form)
    check_columns(sample.schema)
    parsed = parse_as(values, sample.schema, form)
    assert len(parsed.errors) == len(sample.errors)
