"""Which payloads are one object each, however they are read: into objects, or into columns."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
import pyarrow as pa
import pytest

from penstock.engine import ParseFormat, parse_as
from penstock.engine.parsing.parser import parse_inferred, parse_objects
from penstock.engine.parsing.payload_format import ParseError
from penstock.errors import InvalidInput
from tests.engine.parsing.models import READ, column, inferred, typed, verify

GOOD = b'{"id": 1}'

BAD_JSON = {
    "empty": b"",
    "whitespace": b" \t\r\n",
    "null": b"null",
    "true": b"true",
    "a number": b"12",
    "a string": b'"{}"',
    "an array": b"[{}]",
    "two objects": b"{}{}",
    "two objects and a space": b"{} {}",
    "two objects and a newline": b"{}\n{}",
    "two objects and a comma": b"{},{}",
    "two objects that close and open an array": b"{}]\n[{}",
    "closing what it did not open": b"{}]",
    "truncated": b'{"a": 1',
    "truncated in a string": b'{"a": "x',
    "truncated in a key": b'{"a',
    "garbage behind": b"{} x",
    "garbage before": b"x {}",
    "a NUL behind": b"{}\x00",
    "100,000 open brackets": b'{"a":' + b"[" * 100_000,
    "100,000 open objects": b'{"a":' * 100_000,
    "100,000 closed brackets": b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "65 levels": b'{"a":' * 64 + b"{}" + b"}" * 64,
    "65 levels of arrays": b'{"a":' + b"[" * 64 + b"]" * 64 + b"}",
    "65 levels with spaces and strings": b'{"]}": ' * 64 + b"[ ]" + b"}" * 64,
    "not UTF-8 in a string": b'{"a": "\xff"}',
    "not UTF-8 in a key": b'{"\xff": 1}',
    "a surrogate in UTF-8": b'{"a": "\xed\xa0\x80"}',
    "a lone high surrogate": b'{"a": "\\ud800"}',
    "a lone low surrogate": b'{"a": "\\udc00"}',
    "a high surrogate and a letter": b'{"a": "\\ud800\\u0041"}',
    "UTF-16": '{"a": 1}'.encode("utf-16-le"),
    "a control character": b'{"a": "\x01"}',
    "a newline in a string": b'{"a": "\n"}',
    "a form feed between tokens": b'{"a":\x0c1}',
    "a byte-order mark": b"\xef\xbb\xbf{}",
    "NaN": b'{"a": NaN}',
    "Infinity": b'{"a": Infinity}',
    "-Infinity": b'{"a": -Infinity}',
    "a bad escape": b'{"a": "\\x"}',
    "a short escape": b'{"a": "\\u12"}',
    "a leading zero": b'{"a": 01}',
    "a plus": b'{"a": +1}',
    "no digits behind the point": b'{"a": 1.}',
    "no exponent": b'{"a": 1e}',
    "a trailing comma": b'{"a": 1,}',
    "a missing colon": b'{"a" 1}',
    "a key that is no string": b"{1: 2}",
    "single quotes": b"{'a': 1}",
    "a comment": b'{"a": 1} // one',
    "half a literal": b'{"a": tru}',
    "a hexadecimal number": b'{"a": 0x10}',
    "no digits before the point": b'{"a": .5}',
    "a comma behind the last item": b'{"a": [1,]}',
    "a key alone": b'{"a"}',
    "an object in an object without a key": b"{{}}",
    "null between two objects": b'{"id": 1}\nnull\n{"id": 2}',
    "a repeated key": b'{"id": 1, "id": 1}',
    "a repeated key that is null": b'{"id": null, "id": 1}',
    "a repeated key with an escape": b'{"id": 1, "\\u0069d": 2}',
    "a repeated key with space before the colon": b'{"id" : 1, "id"\n: 2}',
    "a repeated empty key": b'{"": 1, "": 2}',
    "a repeated key inside": b'{"id": 1, "a": [{"b": {"c": 1, "c": 2}}]}',
    "a repeated key beside a colon with an escape": b'{"a": "\\u003a", "id": 1, "id": 2}',
}

BAD_MSGPACK = {
    "empty": b"",
    "nil": b"\xc0",
    "a number": b"\x01",
    "an array": b"\x91\x80",
    "two maps": b"\x80\x80",
    "truncated": b"\x81\xa1a",
    "an integer as a key": b"\x81\x01\x02",
    "binary as a key": b"\x81\xc4\x01a\x01",
    "an integer as a nested key": b"\x81\xa1a\x81\x01\x02",
    "a map as a nested key": b"\x81\xa1a\x81\x80\x02",
    "an array as a nested key": b"\x81\xa1a\x81\x91\x01\x02",
    "an unused code": b"\x81\xa1a\xc1",
    "not UTF-8 in a string": b"\x81\xa1a\xa1\xff",
    "not UTF-8 in a key": b"\x81\xa1\xff\x01",
    "four billion members": b"\xdf\xff\xff\xff\xff",
    "four billion items": b"\x81\xa1a\xdd\xff\xff\xff\xff",
    "a string of four billion bytes": b"\x81\xa1a\xdb\xff\xff\xff\xff",
    "100,000 open arrays": b"\x81\xa1a" + b"\x91" * 100_000,
    "100,000 closed arrays": b"\x81\xa1a" + b"\x91" * 100_000 + b"\x01",
    "100,000 open maps": b"\x81\xa1a" * 100_000,
    "65 levels": b"\x81\xa1a" * 64 + b"\x80",
    "65 levels of arrays": b"\x81\xa1a" + b"\x91" * 63 + b"\x90",
    "a timestamp that is none": b"\x81\xa1a\xd7\xff" + b"\xff" * 8,
    "a repeated key": b"\x82\xa2id\x01\xa2id\x02",
    "a repeated key that is nil": b"\x82\xa2id\xc0\xa2id\x02",
    "a repeated key in a larger map": b"\xde\x00\x02\xa2id\x01\xa2id\x02",
    "a repeated key inside": b"\x81\xa1a\x91\x82\xa1b\x01\xa1b\x02",
    "a repeated key beside a float of 32 bits": b"\x83\xa1f\xca\x00\x00\x00\x00\xa1a\xc0\xa1a\x01",
}

GOOD_JSON = {
    "an empty object": b"{}",
    "whitespace around": b"\r\n\t {} \n",
    "pretty-printed": json.dumps({"a": {"b": [1, None]}}, indent=2).encode(),
    "null on a line of its own": b'{"a":\nnull\n}',
    "64 levels": b'{"a":' * 63 + b"{}" + b"}" * 63,
    "64 levels of arrays": b'{"a":' + b"[" * 63 + b"]" * 63 + b"}",
    "64 levels, and brackets beside them": b'{"b": [[], [[]]], "a":' + b"[" * 63 + b"]" * 63 + b"}",
    "brackets in a string": b'{"a": "' + b"[" * 200 + b'"}',
    "brackets behind a quote in a string": b'{"a": "\\"' + b"{[" * 200 + b'"}',
    "many brackets side by side": b'{"a": [' + b",".join([b'{"b": []}'] * 200) + b"]}",
    "an emoji": '{"a": "😀"}'.encode(),
    "a surrogate pair": b'{"a": "\\ud83d\\ude00"}',
    "an escaped NUL": b'{"a": "\\u0000"}',
    "an empty key": b'{"": 1}',
    "the largest int64": b'{"a": 9223372036854775807}',
    "larger than int64": b'{"a": 9223372036854775808}',
    "400 digits": b'{"a": ' + b"9" * 400 + b"}",
    "5,000 digits": b'{"a": -' + b"9" * 5000 + b"}",
    "a huge exponent": b'{"a": 1e400}',
    "a huger exponent": b'{"a": -1e99999999999999999999}',
    "a tiny exponent": b'{"a": 1e-400}',
    "many decimals": b'{"a": 0.' + b"1" * 5000 + b"}",
}

CHILD = """
import sys, pyarrow as pa
from penstock.engine import ParseFormat, parse_as
from penstock.engine.parsing.parser import parse_inferred, parse_objects
form = ParseFormat(sys.argv[1])
values = [bytes.fromhex(line) for line in sys.stdin.read().split(",")]
for block in [*([value] for value in values), values, values * 3]:
    column = pa.array(block, pa.binary())
    schema = pa.schema([("id", pa.int64()), ("a", pa.string())])
    parsed = parse_objects(column, form), parse_inferred(column, form), parse_as(column, schema, form)
    assert [len(each.errors) for each in parsed] == [len(block)] * 3, block
print("alive")
"""
BAD = [(ParseFormat.JSON, name) for name in BAD_JSON] + [(ParseFormat.MSGPACK, name) for name in BAD_MSGPACK]
KINDS: dict[str, pa.DataType] = {"id": pa.int64(), "a": pa.string(), "": pa.int64()}
EVENTS = pa.schema(KINDS)


@pytest.mark.parametrize(("form", "bad"), [("json", BAD_JSON), ("msgpack", BAD_MSGPACK)])
def test_a_process_lives_on_after_every_hostile_value_and_reports_one_error_each(
    form: str, bad: dict[str, bytes]
) -> None:
    given = ",".join(value.hex() for name, value in bad.items() if "repeated empty" not in name)
    child = subprocess.run(
        [sys.executable, "-c", CHILD, form], input=given, capture_output=True, text=True, timeout=120, check=False
    )
    assert (child.returncode, child.stdout, child.stderr) == (0, "alive\n", "")


@pytest.mark.parametrize(("form", "name"), BAD)
@pytest.mark.parametrize("others", [1, 20])
def test_a_bad_value_is_one_error_and_leaves_the_others(form: ParseFormat, name: str, others: int) -> None:
    good = GOOD if form is ParseFormat.JSON else msgspec.msgpack.encode({"id": 1})
    bad = BAD_JSON[name] if form is ParseFormat.JSON else BAD_MSGPACK[name]
    values = [good] * others + [bad] + [good] * others
    if b"\xd7" not in bad:  # the model has no extensions
        verify(values, form)
    objects = parse_objects(column(values), form)
    assert objects.objects == [{"id": 1}] * 2 * others
    assert inferred(values, form).batch.to_pylist() == objects.objects
    ways = [inferred(values, form), typed(values, EVENTS, form)]
    assert [way.errors for way in ways] == [objects.errors] * 2
    assert [error.index for error in objects.errors] == [others]


@pytest.mark.parametrize("name", GOOD_JSON)
def test_a_good_json_value_is_one_row(name: str) -> None:
    values = [b'{"x": 1}', GOOD_JSON[name], b'{"x": 2}']
    verify(values, ParseFormat.JSON)
    assert inferred(values).good == range(3)
    assert typed(values, EVENTS).good == range(3)


def test_values_that_would_make_one_object_together_are_two_errors() -> None:
    for first, second in [(b'{"a": 1', b'"b": 2}'), (b"{", b"}"), (b'{"a":', b"1}"), (b'{"a": [1', b"2]}")]:
        assert [error.index for error in inferred([first, second, b"{}{}"]).errors] == [0, 1, 2]


@pytest.mark.parametrize("form", READ)
def test_every_error_has_the_row_it_had_in_a_large_block(form: ParseFormat) -> None:
    write = json.dumps if form is ParseFormat.JSON else msgspec.msgpack.encode
    bad = {0, 1, 63, 64, 65, 127, 1000, 2999}
    written: list[str | bytes] = [write({"id": row}) for row in range(3000)]
    values = [value.encode() if isinstance(value, str) else value for value in written]
    given = [b"\xc1" if row in bad else value for row, value in enumerate(values)]
    for parsed in (inferred(given, form), typed(given, pa.schema([("id", pa.int64())]), form)):
        assert {error.index for error in parsed.errors} == bad
        assert parsed.batch.column("id").to_pylist() == list(parsed.good)


@pytest.mark.parametrize("form", READ)
def test_a_block_without_rows_has_no_columns(form: ParseFormat) -> None:
    parsed = inferred([], form)
    assert (parsed.batch.num_rows, parsed.batch.num_columns, parsed.good) == (0, 0, range(0))
    assert typed([], EVENTS, form).good == range(0)


@pytest.mark.parametrize(("form", "value"), [(ParseFormat.JSON, b"{}"), (ParseFormat.MSGPACK, b"\x80")])
def test_empty_objects_are_rows_without_columns(form: ParseFormat, value: bytes) -> None:
    for parsed in (inferred([value] * 3, form), typed([value, b"\xc1", value, value], pa.schema([]), form)):
        assert (parsed.batch.num_rows, parsed.batch.num_columns) == (3, 0)


def test_a_repeated_key_that_has_no_column_is_ignored_as_all_such_members_are() -> None:
    values = {ParseFormat.JSON: b'{"id": 1, "x": 1, "x": 2}', ParseFormat.MSGPACK: b"\x83\xa2id\x01\xa1x\x01\xa1x\x02"}
    for form, value in values.items():
        assert typed([value] * 3, pa.schema([("id", pa.int64())]), form).batch.to_pylist() == [{"id": 1}] * 3
        assert len(inferred([value] * 3, form).errors) == 3


def test_a_reason_says_what_is_wrong_without_the_payload() -> None:
    parsed = inferred([b"", b"[]", b'{"' + b"k" * 5000 + b'": oops}', GOOD, b'{"id": {"a": 1}}'])
    assert parsed.errors[0] == ParseError(0, "parse error: the value is empty")
    assert "array" in parsed.errors[1].reason
    assert parsed.errors[-1].reason == "parse error: the field 'id' is an object here, and the column is int64"


def test_a_long_field_name_is_cut_in_a_reason() -> None:
    name = "n" * 100_000
    assert len(inferred([json.dumps({name: value}).encode() for value in (1, "x")]).errors) == 1


def test_importing_the_engine_stays_light() -> None:
    script = (
        "import sys, penstock.engine.parsing.parser;"
        "print(sorted({'pyarrow.json', 'pyarrow.compute', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True, timeout=60) == "[]\n"


def test_what_was_packed_is_what_is_unpacked() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    rows: list[dict[str, Any]] = [{"raw": b"\x00\xff", "at": at, "n": 1}, {"raw": None, "at": at, "n": 2.5}]
    values = [msgspec.msgpack.encode(row) for row in rows]
    assert parse_objects(column(values), ParseFormat.MSGPACK).objects == rows
    batch = inferred(values, ParseFormat.MSGPACK).batch
    assert batch.schema.types == [pa.binary(), pa.timestamp("us", tz="UTC"), pa.float64()]
    assert batch.to_pylist() == [{**row, "n": float(row["n"])} for row in rows]


def test_an_extension_has_no_column() -> None:
    values = [b"\x81\xa1a\x01", b"\x81\xa1a\xd4\x05x", b"\x81\xa1b\xd4\x05x"]
    objects = parse_objects(column(values), ParseFormat.MSGPACK).objects
    assert objects[1]["a"] == msgspec.msgpack.Ext(5, b"x")
    parsed = inferred(values, ParseFormat.MSGPACK)
    assert (parsed.batch.to_pylist(), [error.index for error in parsed.errors]) == ([{"a": 1}], [1, 2])


def test_a_slice_is_read_and_not_what_is_around_it() -> None:
    values = pa.array([b"oops", b"{}", b'{"id": 2}', b"oops"], pa.binary()).slice(1, 2)
    assert parse_objects(values).objects == [{}, {"id": 2}]
    assert parse_inferred(values).batch.to_pylist() == [{"id": None}, {"id": 2}]


def test_a_null_payload_is_an_error() -> None:
    values = pa.array([b'{"id": 1}', None], pa.binary())
    for parsed in (parse_as(values, EVENTS), parse_inferred(values), parse_objects(values)):
        assert [error.index for error in parsed.errors] == [1]


def test_a_format_may_be_its_name_and_another_is_refused() -> None:
    values: pa.Array[Any] = pa.array([GOOD], pa.binary())
    assert parse_as(values, EVENTS, cast("Any", "json")).batch.num_rows == 1
    with pytest.raises(InvalidInput, match=r"form must be one of json, msgpack, .*, not 'xml'"):
        parse_as(values, EVENTS, cast("Any", "xml"))
