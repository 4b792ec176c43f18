"""Whatever the payloads: a lenient parser agrees with a strict one, and with itself in every way of reading."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from penstock.engine import ParseFormat, ParseOptions
from tests.engine.parsing.models import READ, every_way

JSON, MSGPACK = ParseFormat.JSON, ParseFormat.MSGPACK
UTC_TIME: pa.DataType = pa.timestamp("us", tz="UTC")
SCALAR_KINDS: list[pa.DataType] = [
    *(pa.int8(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.binary(), pa.date32(), UTC_TIME),
    *(pa.timestamp("us"), pa.decimal128(6, 2), pa.decimal128(38, 0), pa.decimal128(38, 38)),
]
KINDS: st.SearchStrategy[pa.DataType] = st.recursive(
    st.sampled_from(SCALAR_KINDS),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(lambda kind: pa.map_(pa.string(), kind)),
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=2).map(lambda of: pa.struct([*of.items()])),
    ),
    max_leaves=3,
)
SCHEMAS = st.dictionaries(st.sampled_from("abcd"), KINDS, min_size=1, max_size=3).map(pa.schema)

DIGITS = st.from_regex(r"\A[+-]?[0-9]{1,3}(\.[0-9]{0,3})?([eE][+-]?[0-9]{1,3})?\Z")
EDGES = [
    *(
        "127",
        "128",
        "-128.0",
        "9223372036854775807",
        "9223372036854775808",
        "-9223372036854775808",
        "9007199254740993.0",
    ),
    *("9007199254740993", "-0", "-0.0", "0", "1e999", "-1e999", "1e-999", "1e999999999", "1e-999999999", "0e999999999"),
    *("1" * 38, "9" * 38 + ".5", "9999.995", "9999.994", "0." + "9" * 39, "0.005", "1" * 4001, "9" * 400, "1.0"),
    *("1767225600", "1767225600000", "1767225600.1234567", "1767225600000000", "1767225600000000000", "999999999"),
    *("253402300799", "253402300800", "-62135596800", "-62135596801", "253402300799999", "99999999999", "1e12", "1E9"),
]
TEXTS = [
    *(
        "",
        " ",
        "x",
        "true",
        "FALSE",
        "null",
        "NaN",
        "nan",
        "-inf",
        "+Infinity",
        "1_0",
        "0x1",
        "\uff11",
        " 42 ",
        "42\n",
        "4 2",
    ),
    *("2026-01-31", "2026-1-3", "2026-01-31T12:00:00Z", "2026-01-31 12:00", "2026-01-31T12:00:00+0100", "9999-12-31"),
    *("0000-12-31T23:59:59-00:01", "0000-12-31", "0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59.999999999Z"),
    *("9999-12-31 23:59:59 -01:00", "10000-01-01", "2026-02-29", "2026-1-31t1:00 UTC", "2026-01-31T24:00", "2026"),
    *("2026-01-31T12:00:00,5", "aGk=", "aGk", '{"a": 1}', "[1]", "é", "\\", '"'),
]
NUMBER_TEXTS = st.one_of(DIGITS, st.sampled_from(EDGES))
PLAIN: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 63), (1 << 64) - 1), st.floats(), st.sampled_from(TEXTS), NUMBER_TEXTS
)


def fitting(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values that go into a column, most of the time."""
    if pa.types.is_struct(kind):
        inner = {field.name: fitting(field.type) for field in kind}
        return st.fixed_dictionaries({}, optional={**inner, "z": PLAIN})
    if pa.types.is_list(kind):
        return st.lists(fitting(kind.value_type), max_size=2)
    if pa.types.is_map(kind):
        return st.dictionaries(st.sampled_from("ab"), fitting(kind.item_type), max_size=2)
    return PLAIN


@st.composite
def payloads(draw: st.DrawFn, schema: pa.Schema, form: ParseFormat) -> bytes:
    members = {field.name: st.one_of(fitting(field.type), fitting(field.type), PLAIN) for field in schema}
    others = st.one_of(PLAIN, st.lists(PLAIN, max_size=2), st.dictionaries(st.sampled_from("ab"), PLAIN, max_size=2))
    row = draw(st.fixed_dictionaries({}, optional={**members, "y": others, "": PLAIN}))
    if form is MSGPACK:
        times = st.sampled_from([datetime(2026, 1, 31, 12, tzinfo=UTC), b"\xff", msgspec.msgpack.Ext(5, b"x")])
        row |= draw(st.dictionaries(st.sampled_from([*schema.names, "x"]), times, max_size=1))
        packed = msgspec.msgpack.encode(row)
        repeats = draw(st.sampled_from([False] * 9 + [True])) and 0 < len(row) < 8
        return bytes([0x80 + 2 * len(row)]) + packed[1:] * 2 if repeats else packed
    text = json.dumps(row, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, None, None, 1])))
    for edge in draw(st.lists(NUMBER_TEXTS.filter(lambda text: text[0] != "+"), max_size=2)):
        text = text.replace("null", edge, 1)  # as a number; sometimes one that is not JSON
    if draw(st.sampled_from([False] * 9 + [True])) and row:
        text = text[:-1] + "," + text[1:]
    return text.encode()


OPTIONS = st.builds(
    ParseOptions,
    mode=st.just("lenient"),
    rescue=st.sampled_from([None, "_rescued"]),
    timestamp_unit=st.sampled_from([None, None, "s", "ms", "us", "ns"]),
)
EXAMPLE = pa.schema([pa.field("a", pa.float64())])


def outcome(
    values: list[bytes], schema: pa.Schema, form: ParseFormat, options: ParseOptions
) -> tuple[dict[int, Any], dict[int, str]]:
    rows, errors = every_way(values, schema, form, options)
    good = [row for row in range(len(values)) if row not in errors]
    return dict(zip(good, rows, strict=True)), errors


@settings(max_examples=4 * settings().max_examples, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), SCHEMAS, st.sampled_from(READ), OPTIONS)
def test_what_a_strict_parser_takes_is_the_same_for_a_lenient_one_in_every_way(
    data: st.DataObject, schema: pa.Schema, form: ParseFormat, options: ParseOptions
) -> None:
    values = data.draw(st.lists(payloads(schema, form), min_size=1, max_size=6))
    strict, strict_errors = outcome(
        values, schema, form, ParseOptions("strict", options.rescue, options.timestamp_unit)
    )
    lenient, errors = outcome(values, schema, form, options)
    assert set(errors) <= set(strict_errors)
    assert all(repr(lenient[row]) == repr(cells) for row, cells in strict.items())


@settings(max_examples=2 * settings().max_examples, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), SCHEMAS, st.sampled_from(READ), OPTIONS)
@example(None, EXAMPLE, JSON, ParseOptions("lenient", "_rescued"))
def test_a_rescuing_parser_keeps_every_member_and_changes_no_column(
    data: st.DataObject | None, schema: pa.Schema, form: ParseFormat, options: ParseOptions
) -> None:
    values = data.draw(st.lists(payloads(schema, form), min_size=1, max_size=6)) if data else [b'{"a": NaN, "b": 1}']
    plain, errors = outcome(values, schema, form, ParseOptions(options.mode, None, options.timestamp_unit))
    rescuing = ParseOptions(options.mode, "_rescued", options.timestamp_unit)
    found, more_errors = outcome(values, schema, form, rescuing)
    assert {row: errors[row] for row in errors} == {row: more_errors[row] for row in errors}
    new = {reason for row, reason in more_errors.items() if row not in errors}
    assert all("is there twice" in reason or "no form in JSON" in reason for reason in new)
    for row, cells in found.items():
        text = cells.pop("_rescued")
        assert repr(cells) == repr(plain[row])
        payload = json.loads(values[row]) if form is JSON else msgspec.msgpack.decode(values[row])
        outside = json.loads(text) if text else {}
        assert set(outside) - set(schema.names) == set(payload) - set(schema.names)
