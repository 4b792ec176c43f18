"""What a lenient parser takes that a strict one does not, and what stays an error because it has no one meaning."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from penstock.engine import ParseFormat, ParseOptions, parse_as
from penstock.errors import InvalidInput
from tests.engine.parsing.models import READ, every_way, typed

JSON, MSGPACK = ParseFormat.JSON, ParseFormat.MSGPACK
LENIENT = ParseOptions(mode="lenient")
UTC_TIME: pa.DataType = pa.timestamp("us", tz="UTC")
PLAIN_TIME: pa.DataType = pa.timestamp("us")
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
SECONDS = int(NOON.timestamp())


def in_column(text: str, kind: pa.DataType, form: ParseFormat = JSON, options: ParseOptions = LENIENT) -> Any:
    """What one value, written in JSON, is in a column of this type, also inside others; the reason if it is refused."""
    payload = b'{"a": %b}' % text.encode()
    nested = b'{"a": {"b": [%b], "c": {"k": %b}}}' % (text.encode(), text.encode())
    if form is MSGPACK:
        payload, nested = (msgspec.msgpack.encode(json.loads(each)) for each in (payload, nested))
    rows, errors = every_way([payload], pa.schema([("a", kind)]), form, options)
    inner = pa.struct([("b", pa.list_(kind)), ("c", pa.map_(pa.string(), kind))])
    unit = {"a.b": "s", "a.c": "s"} if options.timestamp_unit == {"a": "s"} else options.timestamp_unit
    inside = ParseOptions(options.mode, options.rescue, unit)
    nested_rows, nested_errors = every_way([nested], pa.schema([("a", inner)]), form, inside)
    assert bool(errors) == bool(nested_errors)
    if errors:
        return errors[0]
    assert repr(nested_rows[0]["a"]) == repr({"b": [rows[0]["a"]], "c": [("k", rows[0]["a"])]})
    return rows[0]["a"]


TAKEN: list[tuple[pa.DataType, str, Any]] = [
    (pa.int64(), '"42"', 42),
    (pa.int64(), '" +42\\n"', 42),
    (pa.int64(), "3.0", 3),
    (pa.int64(), "-0.0", 0),
    (pa.int64(), '"3.0"', 3),
    (pa.int64(), "1e3", 1000),
    (pa.int64(), '"1.5e1"', 15),
    (pa.int8(), '"-128"', -128),
    (pa.int8(), "127.0", 127),
    (pa.int64(), '"9223372036854775807"', (1 << 63) - 1),
    (pa.int64(), '"-9223372036854775808"', -(1 << 63)),
    (pa.int64(), '"007"', 7),
    (pa.int64(), '"0e999999999999"', 0),
    (pa.float64(), '"1.5"', 1.5),
    (pa.float64(), '".5"', 0.5),
    (pa.float64(), '"42"', 42.0),
    (pa.float64(), '"1e999"', math.inf),
    (pa.float64(), '"Infinity"', math.inf),
    (pa.float64(), '"-Infinity"', -math.inf),
    (pa.float64(), '"inf"', math.inf),
    (pa.float64(), '"-INF"', -math.inf),
    (pa.float32(), '"0.1"', pa.scalar(0.1, pa.float32()).as_py()),
    (pa.bool_(), '"true"', True),
    (pa.bool_(), '"False"', False),
    (pa.string(), "1.50", "1.50"),
    (pa.string(), "true", "true"),
    (pa.decimal128(5, 2), "1.555", Decimal("1.56")),
    (pa.decimal128(5, 2), "-1.555", Decimal("-1.56")),
    (pa.decimal128(5, 2), '"1.545"', Decimal("1.55")),
    (pa.decimal128(5, 2), "1e-400", Decimal("0.00")),
    (pa.decimal128(5, 2), "0.005", Decimal("0.01")),
    (pa.decimal128(5, 2), '"0.00499999999999999999999999999999999999"', Decimal("0.00")),
    (pa.decimal128(5, 2), '" 1.5 "', Decimal("1.50")),
    (pa.decimal128(38, 37), '"9.99999999999999999999999999999999999994"', Decimal("9." + "9" * 37)),
    (pa.decimal128(38, 0), '"' + "9" * 38 + '.4"', Decimal("9" * 38)),
    (pa.date32(), '"2026-01-31T12:00:00Z"', date(2026, 1, 31)),
    (pa.date32(), '"2026-01-31T23:30:00-01:00"', date(2026, 2, 1)),
    (pa.date32(), '"2026-1-3"', date(2026, 1, 3)),
    (pa.date32(), '"2026-01-31 23:59:59"', date(2026, 1, 31)),
    (UTC_TIME, '"2026-1-31 12:00"', NOON),
    (UTC_TIME, '"2026-01-31 12:00:00 UTC"', NOON),
    (UTC_TIME, '"2026-01-31t13:00:00,000 +0100"', NOON),
    (UTC_TIME, '"2026-1-3"', datetime(2026, 1, 3, tzinfo=UTC)),
    (UTC_TIME, str(SECONDS), NOON),
    (UTC_TIME, f'"{SECONDS}"', NOON),
    (UTC_TIME, f"{SECONDS}.0", NOON),
    (UTC_TIME, f"{SECONDS}000", NOON),
    (UTC_TIME, f"{SECONDS}000000", NOON),
    (UTC_TIME, f"{SECONDS}000000000", NOON),
    (UTC_TIME, f'"{SECONDS}.1234569"', NOON.replace(microsecond=123456)),
    (UTC_TIME, "1000000000", datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC)),
    (UTC_TIME, "9999999999", datetime(2286, 11, 20, 17, 46, 39, tzinfo=UTC)),
    (UTC_TIME, "1000000000000", datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC)),
    (PLAIN_TIME, str(SECONDS), NOON.replace(tzinfo=None)),
    (PLAIN_TIME, '"2026-01-31T12:00:00Z"', NOON.replace(tzinfo=None)),
    (PLAIN_TIME, '"2026-01-31T12:00:00+00:00"', NOON.replace(tzinfo=None)),
]


@pytest.mark.parametrize("form", READ)
@pytest.mark.parametrize(("kind", "text", "meaning"), TAKEN, ids=lambda each: str(each)[:50])
def test_what_has_one_meaning_is_taken(kind: pa.DataType, text: str, meaning: Any, form: ParseFormat) -> None:
    if form is MSGPACK and pa.types.is_string(kind) and '"' not in text:
        return  # it does not have the digits that a float is written in
    found = in_column(text, kind, form)
    assert (found, type(found)) == (meaning, type(meaning))


REFUSED: list[tuple[pa.DataType, str, str]] = [
    (pa.int64(), "3.5", "is a number with a fraction, and the column is int64"),
    (pa.int64(), '"3.5"', "is a number with a fraction, and the column is int64"),
    (pa.int64(), '"1e-999999999"', "is a number with a fraction, and the column is int64"),
    (pa.int64(), '"9223372036854775808"', "is out of the range of int64"),
    (pa.int64(), "1e19", "is out of the range of int64"),
    (pa.int64(), '"1e999999999"', "is out of the range of int64"),
    (pa.int8(), '"128"', "is out of the range of int8"),
    (pa.int8(), "128.0", "is out of the range of int8"),
    (pa.int64(), '"x"', "is a string that is no int64"),
    (pa.int64(), '""', "is a string that is no int64"),
    (pa.int64(), '"1_000"', "is a string that is no int64"),
    (pa.int64(), '"1,000"', "is a string that is no int64"),
    (pa.int64(), '"0x10"', "is a string that is no int64"),
    (pa.int64(), '"\\u0661"', "is a string that is no int64"),
    (pa.int64(), '"NaN"', "is a string that is no int64"),
    (pa.int64(), "true", "is a boolean here, and the column is int64"),
    (pa.int64(), "[1]", "is an array here, and the column is int64"),
    (pa.float64(), '"x"', "is a string that is no double"),
    (pa.float64(), '"1.5f"', "is a string that is no double"),
    (pa.float64(), "false", "is a boolean here, and the column is double"),
    (pa.bool_(), "1", "is an integer here, and the column is bool"),
    (pa.bool_(), '"yes"', "is a string that is no bool"),
    (pa.bool_(), '"1"', "is a string that is no bool"),
    (pa.decimal128(5, 2), "1000", "does not fit into decimal128(5, 2)"),
    (pa.decimal128(5, 2), "999.995", "does not fit into decimal128(5, 2)"),
    (pa.decimal128(5, 2), "1e400", "does not fit into decimal128(5, 2)"),
    (pa.decimal128(5, 2), '"NaN"', "is a string that is no decimal128(5, 2)"),
    (pa.date32(), "20484", "is an integer here, and the column is date32[day]"),
    (pa.date32(), '"2026-02-30"', "is a string that is no date32[day]"),
    (pa.date32(), '"31.01.2026"', "is a string that is no date32[day]"),
    (pa.date32(), '"01/02/2026"', "is a string that is no date32[day]"),
    (pa.date32(), '"0000-1-1"', "is a string that is no date32[day]"),
    (UTC_TIME, "0", "is a number that may count s, ms, us or ns: the option timestamp_unit says which"),
    (UTC_TIME, '"2026"', "is a number that may count s, ms, us or ns: the option timestamp_unit says which"),
    (UTC_TIME, "999999999", "is a number that may count s, ms, us or ns: the option timestamp_unit says which"),
    (UTC_TIME, "10000000000", "is a number that may count s, ms, us or ns: the option timestamp_unit says which"),
    (UTC_TIME, "-1700000000", "is a number that may count s, ms, us or ns: the option timestamp_unit says which"),
    (UTC_TIME, "true", "is a boolean here, and the column is timestamp[us, tz=UTC]"),
    (UTC_TIME, '"noon"', "is a string that is no timestamp[us, tz=UTC]"),
    (UTC_TIME, '"2026-01-31T12:00:00 Europe/Berlin"', "is a string that is no timestamp[us, tz=UTC]"),
    (UTC_TIME, '"9999-12-31T23:59:59-01:00"', "is a string that is no timestamp[us, tz=UTC]"),
    (PLAIN_TIME, '"2026-01-31T12:00:00+01:00"', "is a time with an offset, and the column has no zone"),
]


@pytest.mark.parametrize("form", READ)
@pytest.mark.parametrize(("kind", "text", "reason"), REFUSED, ids=lambda each: str(each)[:50])
def test_what_has_no_one_meaning_stays_an_error(kind: pa.DataType, text: str, reason: str, form: ParseFormat) -> None:
    if form is MSGPACK and text == "1e400":
        return  # its floats have 64 bits
    assert in_column(text, kind, form) == f"the field 'a' {reason}"


def test_nan_and_infinity_are_numbers_also_where_they_are_not_json() -> None:
    values = [b'{"a": NaN, "b": "NaN"}', b'{"a":-Infinity}', b'{"a": Infinity , "x": [NaN]}', b'{"a": "nan"}', b"{}"]
    kinds: dict[str, pa.DataType] = {"a": pa.float64(), "b": pa.string()}
    schema = pa.schema(kinds)
    rows, errors = every_way(values, schema, JSON, LENIENT)
    assert errors == {}
    assert [str(row["a"]) for row in rows] == ["nan", "-inf", "inf", "nan", "None"]
    assert rows[0]["b"] == "NaN"


@pytest.mark.parametrize(
    "payload",
    [b"{NaN: 1}", b'{"a": -NaN}', b'{"a": 1NaN}', b'{"a": NaNInfinity}', b'{"a": "x" NaN}', b"NaN", b'{"a": nan}',
     b'{"a": NaN', b'{"a": "NaN}', b'{"a": +Infinity}', b'{"a": NaN, "a": 1}'],
)  # fmt: skip
def test_nan_makes_no_json_of_what_is_none(payload: bytes) -> None:
    rows, errors = every_way([payload, b'{"a": 1}'], pa.schema([("a", pa.float64())]), JSON, LENIENT)
    assert ([*errors], rows) == ([0], [{"a": 1.0}])


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("mode", ["strict", "lenient"])
@pytest.mark.parametrize("form", READ)
def test_a_unit_says_what_numbers_are_whatever_their_size(form: ParseFormat, mode: str, unit: str) -> None:
    options = ParseOptions(mode, timestamp_unit=unit)
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    assert in_column(str(SECONDS * per_second), UTC_TIME, form, options) == NOON
    assert in_column("0", UTC_TIME, form, options) == datetime(1970, 1, 1, tzinfo=UTC)
    assert in_column("-1", UTC_TIME, form, options) < datetime(1970, 1, 1, tzinfo=UTC)
    assert in_column("0", PLAIN_TIME, form, options) == datetime(1970, 1, 1)
    if form is MSGPACK and unit == "ns":
        return  # whose integers of 64 bits end before
    first, last = -62_135_596_800, 253_402_300_799
    assert in_column(str(first * per_second), UTC_TIME, form, options) == datetime(1, 1, 1, tzinfo=UTC)
    assert in_column(str(last * per_second), UTC_TIME, form, options) == datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    for beyond in (first * per_second - 1, (last + 1) * per_second, "1e300"):
        expected = "the field 'a' is a time beyond the years 1 to 9999"
        assert in_column(str(beyond), UTC_TIME, form, options) == expected
    assert in_column('"2026-01-31T12:00:00Z"', UTC_TIME, form, options) == NOON


def test_a_number_as_text_is_a_time_only_for_a_lenient_parser() -> None:
    assert in_column('"0"', UTC_TIME, options=ParseOptions("lenient", timestamp_unit="s")).year == 1970
    strict = ParseOptions(timestamp_unit="s")
    assert in_column('"0"', UTC_TIME, options=strict) == "the field 'a' is a string that is no timestamp[us, tz=UTC]"
    assert "an integer here" in in_column("0", UTC_TIME, options=ParseOptions())


def test_nanoseconds_before_1970_are_cut_like_fractions_of_a_text() -> None:
    options = ParseOptions(timestamp_unit="ns")
    assert in_column("-1", UTC_TIME, options=options) == datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    assert in_column("1999", UTC_TIME, options=options) == datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)


@pytest.mark.parametrize("form", READ)
def test_columns_have_units_of_their_own(form: ParseFormat) -> None:
    inner = pa.struct([("at", UTC_TIME), ("all", pa.list_(UTC_TIME)), ("by", pa.map_(pa.string(), UTC_TIME))])
    schema = pa.schema([("at", UTC_TIME), ("meta", inner), ("items", pa.list_(pa.struct([("at", PLAIN_TIME)])))])
    units = {"at": "s", "meta.at": "ms", "meta.all": "us", "meta.by": "ns", "items.at": "s"}
    row = {"at": 1, "meta": {"at": 2, "all": [3, None], "by": {"x": 4000}}, "items": [{"at": 5}]}
    payload = (msgspec.json.encode if form is JSON else msgspec.msgpack.encode)(row)
    rows, errors = every_way([payload], schema, form, ParseOptions(timestamp_unit=units))
    assert errors == {}
    assert repr(rows[0]).count("datetime.datetime(1970, 1, 1, 0, 0, ") == 5
    only_one = ParseOptions(timestamp_unit={"meta.at": "ms"})
    assert every_way([payload], schema, form, only_one)[1] == {
        0: "the field 'at' is an integer here, and the column is timestamp[us, tz=UTC]"
    }


def test_a_key_that_is_there_twice_is_an_error_where_times_are_numbers() -> None:
    schema = pa.schema([("at", UTC_TIME), ("n", pa.int64())])
    values = [b'{"at": 1, "at": 2}', b'{"n": "1", "n": "1"}', b'{"at": 1, "n": 2, "n": 3}'] * 3
    _, errors = every_way(values, schema, JSON, ParseOptions("lenient", timestamp_unit="s"))
    assert len(errors) == 9
    assert all("is there twice" in reason for reason in errors.values())
    _, errors = every_way(values[:1] * 3, pa.schema([("at", UTC_TIME)]), JSON, ParseOptions(timestamp_unit="s"))
    assert [*errors.values()] == ["the key 'at' is there twice"] * 3


def test_no_digit_of_a_whole_number_is_lost() -> None:
    assert in_column("9007199254740993.0", pa.int64()) == 9007199254740993
    assert in_column("9223372036854775807.0", pa.int64()) == (1 << 63) - 1
    assert in_column("9223372036854775807.5", pa.int64()).endswith(
        "is a number with a fraction, and the column is int64"
    )


def test_a_block_of_numbers_as_text_and_epochs_is_read() -> None:
    schema = pa.schema([("id", pa.int64()), ("at", UTC_TIME), ("price", pa.decimal128(9, 2)), ("day", pa.date32())])
    row = b'{"id": "%d", "at": %d, "price": "%d.125", "day": "2026-01-31T12:00:00Z"}'
    values = [row % (number, SECONDS * 1000, number) for number in range(5_000)]
    values[4_000] = b'{"id": "x"}'
    parsed = typed(values, schema, JSON, LENIENT)
    assert [error.index for error in parsed.errors] == [4_000]
    last = {"id": 4_999, "at": NOON, "price": Decimal("4999.13"), "day": date(2026, 1, 31)}
    assert parsed.batch.slice(4_998).to_pylist() == [last]


def test_a_timestamp_of_messagepack_is_a_date_and_a_time_without_zone() -> None:
    value = msgspec.msgpack.encode({"a": NOON})
    for kind, expected in ((pa.date32(), NOON.date()), (PLAIN_TIME, NOON.replace(tzinfo=None))):
        assert every_way([value], pa.schema([("a", kind)]), MSGPACK, LENIENT)[0] == [{"a": expected}]


@pytest.mark.parametrize(
    ("options", "text"),
    [({"mode": "loose"}, "mode must be one of strict, lenient, not 'loose'"),
     ({"timestamp_unit": "h"}, "timestamp_unit must be one of s, ms, us, ns, not 'h'"),
     ({"timestamp_unit": {"at": 3}}, "timestamp_unit of 'at' must be one of s, ms, us, ns, not 3"),
     ({"rescue": ""}, "rescue must be the name of a column, not ''")],
)  # fmt: skip
def test_options_that_are_none_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        ParseOptions(**options)


@pytest.mark.parametrize(
    ("options", "text"),
    [(ParseOptions(timestamp_unit={"x": "s"}), "'x', which the schema does not have"),
     (ParseOptions(timestamp_unit={"id": "s"}), "'id', which is int64, no timestamp"),
     (ParseOptions(rescue="id"), "'id', which the schema has")],
)  # fmt: skip
def test_options_that_do_not_go_with_the_schema_are_refused(options: ParseOptions, text: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("at", UTC_TIME)])
    with pytest.raises(InvalidInput, match=text):
        parse_as(pa.array([], pa.binary()), schema, options=options)
