"""Payloads in columns whose types are given: what goes into each type, and what does not."""

from __future__ import annotations

import base64
import json
import math
import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.engine import ParseFormat, check_columns, parse_as
from penstock.errors import InvalidInput
from tests.engine.parsing.models import READ, Bad, every_way, expected, typed, verify

UTC_TIME: pa.DataType = pa.timestamp("us", tz="UTC")
_KINDS: dict[str, pa.DataType] = {"id": pa.int64(), "event": pa.string(), "at": UTC_TIME}
EVENTS = pa.schema(_KINDS)
JSON, MSGPACK = ParseFormat.JSON, ParseFormat.MSGPACK
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def in_column(text: str, kind: pa.DataType, form: ParseFormat = JSON) -> Any:
    """What one value, written in JSON, is in a column of this type; the reason if it is refused."""
    payload = b'{"a": %b}' % text.encode()
    if form == MSGPACK:
        payload = msgspec.msgpack.encode(msgspec.json.decode(payload))
    rows, errors = every_way([payload], pa.schema([("a", kind)]), form)
    return errors[0] if errors else rows[0]["a"]


def refused(text: str, kind: pa.DataType, form: ParseFormat = JSON) -> bool:
    found = in_column(text, kind, form)
    return isinstance(found, str) and found.startswith("the field 'a")


def test_payloads_become_the_columns_of_the_schema() -> None:
    rows, errors = every_way([b'{"at": "2026-01-01T12:00:00Z", "id": 7, "event": "click"}', b" {} "], EVENTS)
    assert rows == [{"id": 7, "event": "click", "at": NOON}, {"id": None, "event": None, "at": None}]
    assert errors == {}


def test_a_field_that_does_not_fit_is_named_with_what_was_found() -> None:
    schema = pa.schema([("id", pa.int64()), ("in", pa.struct([("tags", pa.list_(pa.bool_()))]))])
    _, errors = every_way([b'{"id": "x"}', b'{"in": {"tags": [true, 1.5]}}', b'{"id": 9223372036854775808}'], schema)
    assert [*errors.values()] == [
        "the field 'id' is a string here, and the column is int64",
        "the field 'in.tags[]' is a float here, and the column is bool",
        "the field 'id' is out of the range of int64",
    ]


@pytest.mark.parametrize("form", [JSON, MSGPACK])
def test_a_missing_field_that_may_not_be_null_is_an_error(form: ParseFormat) -> None:
    inner = pa.struct([pa.field("x", pa.decimal128(4, 1), nullable=False)])
    schema = pa.schema([pa.field("id", pa.decimal128(4, 1), nullable=False), pa.field("in", inner)])
    rows: list[Any] = [{"id": 1}, {}, {"id": None}, {"id": 1, "in": {}}, {"id": 1, "in": {"x": None}}, {"id": 1.5}]
    encode = msgspec.json.encode if form == JSON else msgspec.msgpack.encode
    _, errors = every_way([encode(row) for row in rows], schema, form)
    missing = [f"the field '{name}' is missing" for name in ("id", "id", "in.x", "in.x")]
    assert errors == dict(zip((1, 2, 3, 4), missing, strict=True))


@pytest.mark.parametrize("kind", [pa.int64(), pa.decimal128(4, 1), UTC_TIME])
@pytest.mark.parametrize("form", [JSON, MSGPACK])
def test_a_null_where_none_may_be_is_an_error_in_every_type(form: ParseFormat, kind: pa.DataType) -> None:
    encode = msgspec.json.encode if form == JSON else msgspec.msgpack.encode
    values = [encode({"id": None}), encode({}), encode({"id": "2026-01-01T12:00:00Z" if kind == UTC_TIME else 1})]
    assert set(every_way(values, pa.schema([pa.field("id", kind, nullable=False)]), form)[1]) == {0, 1}


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_integers_are_whole_numbers_within_the_range(bits: int) -> None:
    kind, most = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[bits], 1 << (bits - 1)
    assert in_column(str(most - 1), kind) == most - 1
    assert in_column(str(-most), kind) == -most
    for text in (str(most), str(-most - 1), "1.0", "1e2", '"1"', "true", "[]", "9" * 5000):
        assert refused(text, kind), text


def test_floats_are_any_number() -> None:
    assert in_column("1", pa.float64()) == 1.0
    assert in_column("1e999", pa.float64()) == math.inf
    assert in_column("-1e300", pa.float32()) == -math.inf
    assert in_column("9" * 5000, pa.float64()) == math.inf
    assert in_column("0.1", pa.float32()) == pa.scalar(0.1, pa.float32()).as_py()
    for kind in (pa.float32(), pa.float64()):  # an integer has no zero below zero
        assert [str(in_column(text, kind)) for text in ("-0", "-0.0", "-0e1")] == ["0.0", "-0.0", "-0.0"]
        assert in_column("[-0, -1]", pa.list_(kind)) == [0.0, -1.0]
    assert refused('"1"', pa.float64())
    assert refused("true", pa.float32())


def test_booleans_are_true_and_false_only() -> None:
    assert in_column("true", pa.bool_()) is True
    assert refused("1", pa.bool_())
    assert refused('"true"', pa.bool_())


def test_in_a_column_of_strings_other_values_are_compact_json() -> None:
    assert in_column('"1"', pa.string()) == "1"
    assert in_column("1.50", pa.string()) == "1.50"
    assert in_column("1e999", pa.string()) == "1e999"
    assert in_column(' { "b" : [ 1, null, "c d" ] } ', pa.string()) == '{"b":[1,null,"c d"]}'
    assert in_column("null", pa.string()) is None
    assert in_column('{"b": [1, true]}', pa.string(), MSGPACK) == '{"b":[1,true]}'


TIMES = {
    "2026-01-01T12:00:00Z": NOON,
    "2026-01-01 12:00:00": NOON,
    "2026-01-01T12:00": NOON,
    "2026-01-01T14:00:00+02:00": NOON,
    "2026-01-01T06:30:00-0530": NOON,
    "2026-01-01T13:00:00+01": NOON,
    "2026-01-01T12:00:00.5Z": NOON + timedelta(microseconds=500000),
    "2026-01-01T12:00:00.1234569+00:00": NOON + timedelta(microseconds=123456),
    "2026-01-01T12:00:00.123456999": NOON + timedelta(microseconds=123456),
    "1969-12-31T23:59:59.9999999Z": datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    "2026-01-01": datetime(2026, 1, 1, tzinfo=UTC),
}
NO_TIMES = [
    *("", "now", "2026-02-30T00:00:00Z", "2026-01-01T24:00:00Z", "2026-01-01T23:59:60Z", "2026-01-01T12:00:00z"),
    *("2026-01-01T12:00:00.Z", "2026-1-1", "20260101T120000Z", "2026-01-01T12:00:00+24:00", "0000-01-01T00:00:00Z"),
    *("0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00", "12026-01-01", " 2026-01-01", "2026-W01-1"),
    *("2026-01-01T12:00:00Z\\n", "\\u0662026-01-01", "2026-01-01T12:00:00+01:60", "2026-01-01Z"),
    *("0000-12-31T23:59:59-00:00", "0000-12-30T12:00:00-23:00", "0000-12-31"),
]


@pytest.mark.parametrize("form", [JSON, MSGPACK])
def test_timestamps_are_iso_8601_and_in_utc_where_they_do_not_say(form: ParseFormat) -> None:
    for text, time in TIMES.items():
        assert in_column(f'"{text}"', UTC_TIME, form) == time, text
    for text in NO_TIMES:
        assert refused(f'"{text}"', UTC_TIME, form), text
    assert refused("1767268800", UTC_TIME, form)
    first = datetime(1, 1, 1, 0, 0, 30, 500000, tzinfo=UTC)
    assert in_column('"0000-12-31T23:59:30.5-00:01"', UTC_TIME, form) == first


def test_times_of_all_forms_go_together_in_a_block() -> None:
    values = [b'{"at": "%b"}' % text.encode() for text in TIMES]
    parsed = typed(values * 500, pa.schema([("at", UTC_TIME)]))
    assert parsed.batch.column(0).to_pylist() == [*TIMES.values()] * 500


def test_a_timestamp_without_zone_has_no_offset() -> None:
    plain = pa.timestamp("us")
    assert in_column('"2026-01-01T12:00:00.1234567"', plain) == datetime(2026, 1, 1, 12, 0, 0, 123456)
    assert in_column('"2026-01-01"', plain) == datetime(2026, 1, 1)
    for text in ("2026-01-01T12:00:00Z", "2026-01-01T12:00:00+00:00", "x"):
        assert refused(f'"{text}"', plain), text


def test_a_timestamp_of_messagepack_is_one() -> None:
    values = [msgspec.msgpack.encode({"a": NOON}), msgspec.msgpack.encode({"a": "2026-01-01T12:00:00Z"})]
    assert every_way(values, pa.schema([("a", UTC_TIME)]), MSGPACK)[0] == [{"a": NOON}, {"a": NOON}]
    assert len(every_way(values, pa.schema([("a", pa.timestamp("us"))]), MSGPACK)[1]) == 2
    assert len(every_way(values[:1], pa.schema([("a", pa.date32())]), MSGPACK)[1]) == 1


@pytest.mark.parametrize("field", ["a", "z"])
def test_a_timestamp_of_messagepack_that_rounds_to_the_year_10000_is_an_error(field: str) -> None:
    last = b"\xc7\x0c\xff" + (999_999_999).to_bytes(4, "big") + (253_402_300_799).to_bytes(8, "big")
    values = [msgspec.msgpack.encode({"a": NOON}), b"\x81\xa1" + field.encode() + last]
    rows, errors = every_way(values, pa.schema([("a", UTC_TIME)]), MSGPACK)
    assert (rows, errors) == ([{"a": NOON}], {1: "year 10000 is out of range"})
    verify(values[1:], MSGPACK)


def test_dates_are_days() -> None:
    assert in_column('"2026-02-28"', pa.date32()) == date(2026, 2, 28)
    for text in ('"2026-02-29"', '"2026-2-1"', '"0000-01-01"', '"2026-01-01T00:00:00Z"', "5", '""'):
        assert refused(text, pa.date32()), text


def test_decimals_fit_exactly() -> None:
    kind = pa.decimal128(5, 2)
    good = {"1": "1.00", "1.50": "1.50", '"-999.99"': "-999.99", "1e2": "100.00", "1.5000": "1.50", '"+.5"': "0.50"}
    for text, number in good.items():
        assert in_column(text, kind) == Decimal(number), text
    bad = ["1.555", "1000", '"x"', '""', '"NaN"', '"1_0"', '" 1"', "true", "[]", "1e400", "1e-400", '"1e99999999999"']
    for text in [*bad, str(2**128 + 5), '"Infinity"', '"\\u0661"']:
        assert refused(text, kind), text
    assert in_column("0.1", pa.decimal128(38, 37)) == Decimal("0.1")
    assert in_column("9" * 38, pa.decimal128(38, 0)) == Decimal("9" * 38)
    assert refused(str(2**128 + 5), pa.decimal128(38, 0))
    assert in_column("0.1", kind, MSGPACK) == Decimal("0.10")
    assert refused("0.125", kind, MSGPACK)


@pytest.mark.parametrize("form", [JSON, MSGPACK])
def test_a_decimal_beyond_its_column_is_refused_and_not_another_number(form: ParseFormat) -> None:
    for text in ("20240101", str(2**63), "-2147483648", "1.5", "3e38", "1e-39"):
        assert refused(text, pa.decimal128(38, 38), form), text
    for text in ("3.4028236e38", "1e-39", "1e40"):
        assert refused(text, pa.decimal128(38, 0), form), text
    assert refused(f'"{2**128 // 10**18 + 1}"', pa.decimal128(38, 18), form)
    assert in_column("1e-38", pa.decimal128(38, 38), form) == Decimal("1e-38")
    assert in_column('"0.5"', pa.decimal128(38, 38), form) == Decimal("0.5")
    assert in_column("-1.25e2", pa.decimal128(38, 1), form) == -125


def test_binary_is_base64_in_json_and_itself_in_messagepack() -> None:
    assert in_column('"aGk="', pa.binary()) == b"hi"
    for text in ('"aGk"', '"a b="', "1", '"\\u00e9"'):
        assert refused(text, pa.binary()), text
    parsed = typed([msgspec.msgpack.encode({"a": b"\xff"})], pa.schema([("a", pa.binary())]), MSGPACK)
    assert parsed.batch.to_pylist() == [{"a": b"\xff"}]


@pytest.mark.parametrize("form", [JSON, MSGPACK])
def test_lists_structs_and_maps_hold_what_their_types_say(form: ParseFormat) -> None:
    inner = pa.struct([("t", pa.list_(UTC_TIME)), ("m", pa.map_(pa.string(), pa.date32()))])
    text = '{"t": ["2026-01-01T12:00:00Z", null], "m": {"x": "2026-01-01", "y": null}, "else": 1}'
    assert in_column(text, inner, form) == {"t": [NOON, None], "m": [("x", date(2026, 1, 1)), ("y", None)]}
    assert in_column("{}", inner, form) == {"t": None, "m": None}
    assert in_column('{"t": [], "m": {}}', inner, form) == {"t": [], "m": []}
    assert in_column('{"x": 1}', pa.struct([]), form) == {}
    for wrong in ('{"t": ["x"]}', '{"m": {"x": 1}}', "[]", '{"t": {}}', '{"m": []}', '"x"', '{"m": {"a": "x"}}'):
        assert refused(wrong, inner, form), wrong


def test_a_wrong_value_inside_costs_only_its_own_row() -> None:
    kind = pa.list_(pa.struct([("at", UTC_TIME)]))
    values = [
        b'{"a": [{}, {}, {}, {"at": "2026-01-01T12:00:00Z"}]}',
        b'{"a": []}',
        b"{}",
        b'{"a": [{}, {"at": "2026-02-30"}]}',
    ]
    parsed = typed(values * 100, pa.schema([("a", kind)]))
    assert [error.index for error in parsed.errors] == list(range(3, 400, 4))


def test_a_key_that_is_there_twice_is_an_error_wherever_it_goes_into_a_column() -> None:
    inner = pa.struct([("c", pa.int64())])
    kinds: dict[str, pa.DataType] = {
        "a": pa.int64(),
        "b": inner,
        "m": pa.map_(pa.string(), pa.int64()),
        "t": pa.string(),
    }
    texts = ['"a": 1, "a": 2', '"b": {"c": 1, "c": 3}', '"m": {"x": 1, "x": 1}', '"t": {"x": [{"y": 1, "y": 1}]}']
    _, errors = every_way([b"{%b}" % text.encode() for text in texts] * 2, pa.schema(kinds))
    assert [*errors.values()] == [f"the key '{key}' is there twice" for key in "acxy"] * 2
    flat = [b"{%b}" % text.encode() for text in texts[:1]] * 2
    assert len(every_way(flat, pa.schema([("a", pa.decimal128(9, 2))]))[1]) == 2


def test_what_only_looks_hostile_is_not() -> None:
    deep = b'{"id": 1, "x":' + b"[" * 63 + b"]" * 63 + b"}"
    wide = b'{"id": 1, "x": [' + b"[]," * 200 + b'[]], "y": "[[[{{{"}'
    odd = [
        b'{"id": 1, "event": "NaN"}',
        b'{"id": 1, "x": "Inf null"}',
        b'{"id":\n1}',
        b'\t{"id": 1}\r\n',
        b'{"x": 1e999, "id": 1}',
    ]
    assert typed([deep, wide, *odd], EVENTS).batch.column(0).to_pylist() == [1] * 7


@pytest.mark.parametrize("form", READ)
def test_bad_rows_of_a_large_block_are_counted_from_the_start(form: ParseFormat) -> None:
    encode = msgspec.json.encode if form is JSON else msgspec.msgpack.encode
    values = [encode({"id": row}) for row in range(70_000)]
    wrong = {2: b"", 2_047: encode({"id": "x"}), 2_048: b"\xc1", 65_535: encode({"at": "x"}), 69_999: b"\xc0"}
    parsed = typed([wrong.get(row, value) for row, value in enumerate(values)], EVENTS, form)
    assert [error.index for error in parsed.errors] == sorted(wrong)
    assert parsed.batch.column(0).to_pylist() == list(parsed.good)


def test_a_few_large_payloads_are_read() -> None:
    values = [b'{"event": "%b", "id": %d}' % (b"x" * (9 << 20), row) for row in range(4)]
    assert typed(values, EVENTS).batch.column(0).to_pylist() == [0, 1, 2, 3]


def test_members_of_messagepack_that_have_no_column_are_checked_all_the_same() -> None:
    def nest(depth: int) -> Any:
        return 1 if not depth else [nest(depth - 1)]

    extra: list[Any] = [{"id": 1, "x": 5}, {"id": 1, "x": {1: 2}}, {"id": 1, "x": nest(63)}, {"id": 1, "x": nest(64)}]
    values = [msgspec.msgpack.encode(row) for row in extra] + [
        b"\x82\xa2id\x01\xa1x\xa1\xff",
        b"\x80\x80",
        b"\xc1",
        b"",
    ]
    assert list(typed(values, EVENTS, MSGPACK).good) == [0, 2]
    assert list(typed(values[:1] * 5 + values, EVENTS, MSGPACK).good) == [0, 1, 2, 3, 4, 5, 7]


def test_names_that_no_struct_can_have_are_columns_too() -> None:
    kinds: dict[str, pa.DataType] = {'a"b': pa.int64(), "c\\d": pa.struct([("\n", pa.int64())]), "": pa.int64()}
    schema = pa.schema(kinds)
    row = {'a"b': 1, "c\\d": {"\n": 2}, "": 3}
    assert typed([json.dumps(row).encode()], schema).batch.to_pylist() == [row]
    assert typed([msgspec.msgpack.encode(row)], schema, MSGPACK).batch.to_pylist() == [row]


@pytest.mark.parametrize(
    "kind",
    [pa.uint8(), pa.timestamp("ms"), pa.timestamp("us", tz="Europe/Berlin"), pa.large_string(), pa.null(), pa.float16(),
     pa.map_(pa.int64(), pa.string()), pa.list_(pa.time32("s")), pa.decimal256(50, 2), pa.struct([("x", pa.uint64())])],
)  # fmt: skip
def test_a_column_of_another_type_is_refused_by_name(kind: pa.DataType) -> None:
    with pytest.raises(InvalidInput, match="column 'odd"):
        check_columns(pa.schema([("fine", pa.int64()), ("odd", kind)]))


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidInput, match="twice"):
        parse_as(pa.array([], pa.binary()), pa.schema([pa.field("a", pa.int64())] * 2))


# The model: json.loads, and a converter for each type.

KINDS: list[pa.DataType] = [
    *(pa.int8(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.binary(), pa.date32(), UTC_TIME),
    *(pa.timestamp("us"), pa.decimal128(6, 2), pa.decimal128(38, 0), pa.list_(pa.int64()), pa.list_(UTC_TIME)),
    *(pa.struct([("x", pa.int64()), ("y", pa.string())]), pa.map_(pa.string(), pa.float64())),
    *(pa.list_(pa.struct([("x", pa.list_(pa.float64()))])), pa.struct([pa.field("x", UTC_TIME, nullable=False)])),
]


def model(value: Any, kind: pa.DataType) -> Any:
    """What is in the column, as `to_pylist` says it. Raises `Bad` or `ValueError`."""
    if value is None:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if pa.types.is_struct(kind) and isinstance(value, dict):
        return {field.name: needed(value.get(field.name), field) for field in kind}
    if pa.types.is_map(kind) and isinstance(value, dict):
        return [(key, model(item, kind.item_type)) for key, item in value.items()]
    if pa.types.is_list(kind) and isinstance(value, list):
        return [model(item, kind.value_type) for item in value]
    if pa.types.is_string(kind):
        return value if isinstance(value, str) else Json(value)
    if pa.types.is_boolean(kind) and isinstance(value, bool):
        return value
    if pa.types.is_integer(kind) and number and isinstance(value, int):
        return pa.scalar(value, kind).as_py()
    if pa.types.is_floating(kind) and number:
        return pa.array([float(value)], kind)[0].as_py()
    if pa.types.is_decimal(kind) and (number or isinstance(value, str)):
        if isinstance(value, str) and not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", value):
            raise Bad
        return pa.array([Decimal(repr(value) if number else value)], kind)[0].as_py()
    if not isinstance(value, str):
        raise Bad
    if pa.types.is_binary(kind):
        return base64.b64decode(value, validate=True)
    if pa.types.is_date(kind) and re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", value):
        return date.fromisoformat(value)
    if pa.types.is_timestamp(kind) and re.fullmatch(
        r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9:]{2,8}(\.[0-9]+)?(Z|[+-][0-9:]{2,5})?)?", value
    ):
        time = datetime.fromisoformat(value)
        if (time.tzinfo is not None) and kind.tz is None:
            raise Bad
        return time if kind.tz is None else time.replace(tzinfo=time.tzinfo or UTC).astimezone(UTC)
    raise Bad


def needed(value: Any, field: pa.Field[Any]) -> Any:
    if value is None and not field.nullable:
        raise Bad
    return model(value, field.type)


class Json:
    """Equal to all compact JSON of one value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and repr(json.loads(other)) == repr(self.value) and ": " not in other

    __hash__ = None  # type: ignore[assignment]


def modelled(payload: bytes, schema: pa.Schema, form: ParseFormat) -> Any:
    row = expected(payload, form)
    if row is None:
        return None
    try:
        return {field.name: needed(row.get(field.name), field) for field in schema}
    except (Bad, ValueError, OverflowError, pa.ArrowInvalid):
        return None


TEXTS = st.one_of(
    st.sampled_from(
        [*TIMES, *(text for text in NO_TIMES if "\\" not in text), "aGk=", "1.5", "1e3", "-7", "x", "é", "NaN"]
    ),
    st.datetimes().map(datetime.isoformat),
    st.dates().map(date.isoformat),
    st.text(st.characters(codec="utf-8", exclude_characters=":"), max_size=4),
)
LEAVES = st.one_of(
    *(st.none(), st.booleans(), st.integers(-200, 200), st.integers(-(1 << 65), 1 << 65), TEXTS),
    *(st.floats(allow_nan=False, allow_infinity=False), st.decimals(-99999, 99999, places=2).map(float)),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["x", "y", "é"]), inner)),
    max_leaves=4,
)


@st.composite
def blocks(draw: Any) -> tuple[pa.Schema, list[Any]]:
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))
    schema = pa.schema([pa.field(f"f{at}", kind, nullable=draw(st.booleans())) for at, kind in enumerate(kinds)])
    fitting = [fits(kind) for kind in kinds]
    row = st.fixed_dictionaries(
        {}, optional={f"f{at}": st.one_of(each, each, each, VALUES) for at, each in enumerate(fitting)}
    )
    return schema, draw(
        st.lists(st.one_of(row, st.dictionaries(st.sampled_from(["f0", "f1", "z"]), VALUES)), max_size=8)
    )


def fits(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values that mostly fit, so that a block has rows that do."""
    if pa.types.is_struct(kind):
        return st.fixed_dictionaries({}, optional={field.name: fits(field.type) for field in kind})
    if pa.types.is_map(kind):
        return st.dictionaries(st.sampled_from(["x", "y"]), fits(kind.item_type))
    if pa.types.is_list(kind):
        return st.lists(st.one_of(st.none(), fits(kind.value_type)), max_size=3)
    if pa.types.is_boolean(kind):
        return st.booleans()
    if pa.types.is_integer(kind):
        return st.integers(-128, 127)
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return st.one_of(st.integers(-99, 99), st.sampled_from([0.5, -1.25, 1e3]))
    return st.sampled_from([*TIMES, "2026-01-01", "aGk="])


PIECES = [b"{", b"}", b"[", b'"', b",", b":", b"\\", b"\n", b" ", b"NaN", b"\xff", b"null", b"9" * 50, b"1e999", b"Inf"]


@st.composite
def mutated(draw: Any, payload: bytes) -> bytes:
    if draw(st.integers(0, 4)):
        return payload
    start = draw(st.integers(0, len(payload)))
    end = draw(st.integers(start, min(len(payload), start + 3)))
    piece: bytes = draw(st.sampled_from(PIECES))
    return payload[:start] + piece + payload[end:]


@given(st.data(), blocks(), st.sampled_from([JSON, MSGPACK]))
@settings(
    max_examples=3 * settings().max_examples, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
def test_every_way_says_what_the_model_says(data: Any, block: tuple[pa.Schema, list[Any]], form: ParseFormat) -> None:
    schema, rows = block
    if form == JSON:
        plain = [json.dumps(row, ensure_ascii=data.draw(st.booleans())).encode() for row in rows]
    else:
        plain = [msgspec.msgpack.encode(floated(row)) for row in rows]
    values = [data.draw(mutated(value)) for value in plain]
    wanted = [modelled(value, schema, form) for value in values]
    found, errors = every_way(values, schema, form)
    assert set(errors) == {row for row, cells in enumerate(wanted) if cells is None}
    assert [cells for cells in wanted if cells is not None] == found


def floated(value: Any) -> Any:
    """The value with integers that MessagePack can hold."""
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        return float(value)
    if isinstance(value, list):
        return [floated(item) for item in value]
    return {key: floated(item) for key, item in value.items()} if isinstance(value, dict) else value


def test_members_of_a_row_that_is_read_again_do_not_hide_a_repeated_key_of_another() -> None:
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
    whole = msgspec.msgpack.encode({"id": 1, "at": "2026-01-01T00:00:00Z", "x": 1, "y": 2})
    unusual = msgspec.msgpack.encode({"id": 2, "at": "2026-01-01", "x": 1, "y": 2})  # a time that Arrow does not cast
    repeated = b"\x82\xa2id\x01\xa2id\x02"
    rows, errors = every_way([whole, whole, unusual, repeated], schema, ParseFormat.MSGPACK)
    assert [row["id"] for row in rows] == [1, 1, 2]
    assert errors == {3: "the key 'id' is there twice"}
