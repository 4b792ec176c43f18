"""Fields without a column are kept as JSON, in the column that `rescue` names."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from penstock.engine import ParseFormat, ParseOptions
from tests.engine.parsing.models import READ, every_way, typed

JSON, MSGPACK = ParseFormat.JSON, ParseFormat.MSGPACK
RESCUE = ParseOptions(rescue="_rescued")
_FLAT: dict[str, pa.DataType] = {"id": pa.int64(), "name": pa.string()}
FLAT = pa.schema(_FLAT)
INNER = pa.struct([("x", pa.int64())])
_KINDS: dict[str, pa.DataType] = {
    "in": INNER,
    "all": pa.list_(INNER),
    "by": pa.map_(pa.string(), INNER),
    "t": pa.string(),
}
NESTED = pa.schema(_KINDS)
ENCODE = {JSON: msgspec.json.encode, MSGPACK: msgspec.msgpack.encode}


def rescued(rows: list[Any], schema: pa.Schema, form: ParseFormat, options: ParseOptions = RESCUE) -> list[Any]:
    found, errors = every_way([ENCODE[form](row) for row in rows], schema, form, options)
    assert errors == {}
    return [None if row["_rescued"] is None else json.loads(row["_rescued"]) for row in found]


@pytest.mark.parametrize("form", READ)
def test_fields_without_a_column_are_kept_and_there_is_null_where_there_are_none(form: ParseFormat) -> None:
    rows: list[Any] = [{"id": 1}, {"z": 1, "id": 1, "a": {"b": [None, 2.5]}}, {}, {"name": "x", "z": None}, {"": 1}]
    expected = [None, {"a": {"b": [None, 2.5]}, "z": 1}, None, {"z": None}, {"": 1}]
    assert rescued(rows, FLAT, form) == expected
    assert rescued(rows[1:2], pa.schema([]), form) == rows[1:2]


@pytest.mark.parametrize("form", READ)
def test_fields_inside_others_are_under_their_path(form: ParseFormat) -> None:
    rows = [
        {"in": {"x": 1, "y": 2}},
        {"in": {"x": 1}, "all": [{"x": 1}, None, {"q": [1]}], "other": True},
        {"by": {"k": {"x": 1}, "l": {"m": {}}}, "t": {"not": "rescued"}},
        {"in": None, "all": [], "by": {}, "t": None},
        {"in": {}, "all": [{}], "by": {"k": None}},
    ]
    assert rescued(rows, NESTED, form) == [
        {"in": {"y": 2}},
        {"all": [None, None, {"q": [1]}], "other": True},
        {"by": {"l": {"m": {}}}},
        None,
        None,
    ]


def test_json_is_kept_as_it_is_written_but_compact_and_in_alphabetical_order() -> None:
    payload = b'{"z" : 1.50e1, "id": 1, "b": { "y" : "\\u00e9 \xc3\xa9", "x" : [ 12345678901234567890123 ] } }'
    rows, _ = every_way([payload, b'{"id": 2}', payload], FLAT, JSON, RESCUE)
    text = '{"b":{"y":"\\u00e9 é","x":[12345678901234567890123]},"z":1.50e1}'
    assert [row["_rescued"] for row in rows] == [text, None, text]


def test_messagepack_is_kept_as_json() -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    row = {"id": 1, "raw": b"hi", "at": noon, "n": 1.5}
    assert rescued([row], FLAT, MSGPACK) == [{"raw": "aGk=", "at": "2026-01-01T12:00:00Z", "n": 1.5}]
    extension = msgspec.msgpack.encode({"id": 1, "x": msgspec.msgpack.Ext(5, b"x")})
    good = msgspec.msgpack.encode({"id": 1, "x": 1})
    rows, errors = every_way([good, extension, good], FLAT, MSGPACK, RESCUE)
    assert (len(rows), errors) == (2, {1: "a field without a column has no form in JSON"})


def test_a_key_that_is_there_twice_is_an_error_wherever_it_is() -> None:
    texts = ['"z": 1, "z": 2', '"z": {"y": 1, "y": 2}', '"z": [{"y": [{"x": 1, "x": 1}]}]', '"id": 1, "id": 1']
    values = [b'{"z": 1}', *(b"{%b}" % text.encode() for text in texts), b'{"z": 2}'] * 2
    _, errors = every_way(values, FLAT, JSON, RESCUE)
    assert [*errors.values()] == [f"the key '{key}' is there twice" for key in ("z", "y", "x", "id")] * 2
    packed = [b"\x81\xa1z\x01", b"\x82\xa1z\x01\xa1z\x01", b"\x81\xa1z\x82\xa1y\x01\xa1y\x01", b"\x81\xa1z\x02"]
    _, errors = every_way(packed, FLAT, MSGPACK, RESCUE)
    assert [*errors] == [1, 2]
    inner = [b'{"in": {"x": 1, "y": 1, "y": 2}}', b'{"in": {"x": 1}}']
    assert every_way(inner, NESTED, JSON, RESCUE)[1] == {0: "the key 'y' is there twice"}


@pytest.mark.parametrize("mode", ["strict", "lenient"])
def test_a_value_that_does_not_fit_is_an_error_and_not_rescued(mode: str) -> None:
    rows, errors = every_way([b'{"id": "x", "z": 1}', b'{"id": 1}'], FLAT, JSON, ParseOptions(mode, rescue="_rescued"))
    assert (len(rows), [*errors]) == (1, [0])


def test_nan_without_a_column_is_text() -> None:
    rows, _ = every_way([b'{"id": 1, "z": [NaN]}'], FLAT, JSON, ParseOptions("lenient", rescue="_rescued"))
    assert rows[0]["_rescued"] == '{"z":["NaN"]}'


@pytest.mark.parametrize("form", READ)
def test_a_large_block_has_each_rows_own_fields(form: ParseFormat) -> None:
    rows: list[dict[str, Any]] = [{"id": at, **({"z": at} if at % 3 == 0 else {})} for at in range(10_000)]
    rows[7_000] = {"id": 7_000, **{f"k{at}": at for at in range(300)}}
    parsed = typed([ENCODE[form](row) for row in rows], FLAT, form, RESCUE)
    texts = parsed.batch.column("_rescued").to_pylist()
    for at, (row, text) in enumerate(zip(rows, texts, strict=True)):
        extra = {name: value for name, value in row.items() if name != "id"}
        assert (json.loads(text) if text else {}) == extra, at


@pytest.mark.parametrize("form", READ)
def test_names_with_dots_are_names_and_one_may_be_that_of_the_column(form: ParseFormat) -> None:
    dotted: dict[str, pa.DataType] = {
        "a.b": pa.struct([("x", pa.int64())]),
        "a": pa.struct([("b", pa.struct([("y", pa.int64())]))]),
    }
    row = {"a.b": {"x": 1, "y": 2}, "a": {"b": {"x": 3, "y": 4}}, "_rescued": 5}
    expected = {"a.b": {"y": 2}, "a": {"b": {"x": 3}}, "_rescued": 5}
    assert rescued([row] * 3, pa.schema(dotted), form) == [expected] * 3


@pytest.mark.parametrize("form", READ)
def test_a_rescued_field_is_nested_no_deeper_than_a_payload_may_be(form: ParseFormat) -> None:
    def nest(depth: int) -> Any:
        return 1 if not depth else [nest(depth - 1)]

    rows = [{"all": [{"x": 1, "z": nest(depth)}]} for depth in (1, 61, 62)] * 2
    _, errors = every_way([ENCODE[form](row) for row in rows], NESTED, form, RESCUE)
    assert errors == {2: "nested deeper than 64", 5: "nested deeper than 64"}
