from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from penstock.engine.parsing.block_parser import ParseError, ParseFormat, parse_values
from tests.engine.parsing.models import column, parse, verify

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
from penstock.engine.parsing.block_parser import ParseFormat, parse_values
values = [bytes.fromhex(line) for line in sys.stdin.read().split(",")]
for block in [*([value] for value in values), values, values * 3]:
    parsed = parse_values(pa.array(block, pa.binary()), ParseFormat(sys.argv[1]))
    batch, misfits = parsed.columns()
    assert (len(parsed.errors), len(misfits), parsed.objects, batch.num_rows) == (len(block), 0, [], 0), block
print("alive")
"""


@pytest.mark.parametrize(("form", "bad"), [("json", BAD_JSON), ("msgpack", BAD_MSGPACK)])
def test_a_process_lives_on_after_every_hostile_value_and_reports_one_error_each(
    form: str, bad: dict[str, bytes]
) -> None:
    given = ",".join(value.hex() for value in bad.values())
    child = subprocess.run(
        [sys.executable, "-c", CHILD, form], input=given, capture_output=True, text=True, timeout=120, check=False
    )
    assert (child.returncode, child.stdout, child.stderr) == (0, "alive\n", "")


@pytest.mark.parametrize("name", BAD_JSON)
def test_a_bad_json_value_is_one_error_and_leaves_the_others(name: str) -> None:
    verify([GOOD, BAD_JSON[name], GOOD], ParseFormat.JSON)
    parsed = parse([GOOD, BAD_JSON[name], GOOD])
    assert [error.index for error in parsed.errors] == [1]
    assert parsed.columns()[0].to_pylist() == [{"id": 1}, {"id": 1}]


@pytest.mark.parametrize("name", BAD_MSGPACK)
def test_a_bad_msgpack_value_is_one_error_and_leaves_the_others(name: str) -> None:
    good = msgspec.msgpack.encode({"id": 1})
    parsed = parse([good, BAD_MSGPACK[name], good], ParseFormat.MSGPACK)
    assert [error.index for error in parsed.errors] == [1]
    assert parsed.columns()[0].to_pylist() == [{"id": 1}, {"id": 1}]


@pytest.mark.parametrize("name", GOOD_JSON)
def test_a_good_json_value_is_one_row(name: str) -> None:
    verify([b'{"x": 1}', GOOD_JSON[name], b'{"x": 2}'], ParseFormat.JSON)
    parsed = parse([b'{"x": 1}', GOOD_JSON[name], b'{"x": 2}'])
    assert parsed.errors == ()
    assert parsed.good == range(3)
    assert parsed.columns()[0].num_rows == 3
    assert parsed.columns()[1] == ()


def test_values_that_would_make_one_object_together_are_two_errors() -> None:
    for first, second in [(b'{"a": 1', b'"b": 2}'), (b"{", b"}"), (b'{"a":', b"1}"), (b'{"a": [1', b"2]}")]:
        parsed = parse([first, second, b"{}{}"])
        assert [error.index for error in parsed.errors] == [0, 1, 2]


@pytest.mark.parametrize("form", ParseFormat)
def test_every_error_has_the_row_it_had_in_a_large_block(form: ParseFormat) -> None:
    write = json.dumps if form is ParseFormat.JSON else msgspec.msgpack.encode
    bad = {0, 1, 63, 64, 65, 127, 1000, 2999}
    written: list[str | bytes] = [write({"id": row}) for row in range(3000)]
    values = [value.encode() if isinstance(value, str) else value for value in written]
    parsed = parse([b"\xc1" if row in bad else value for row, value in enumerate(values)], form)
    assert {error.index for error in parsed.errors} == bad
    assert list(parsed.good) == [row for row in range(3000) if row not in bad]
    assert [row["id"] for row in parsed.objects] == list(parsed.good)
    assert parsed.columns()[0].column("id").to_pylist() == list(parsed.good)


@pytest.mark.parametrize("form", ParseFormat)
def test_a_block_without_rows_has_no_columns(form: ParseFormat) -> None:
    parsed = parse_values(pa.array([], pa.binary()), form)
    assert (len(parsed), parsed.good, parsed.errors, parsed.objects) == (0, range(0), (), [])
    batch, misfits = parsed.columns()
    assert (batch.num_rows, batch.num_columns, misfits) == (0, 0, ())


@pytest.mark.parametrize(("form", "value"), [(ParseFormat.JSON, b"{}"), (ParseFormat.MSGPACK, b"\x80")])
def test_empty_objects_are_rows_without_columns(form: ParseFormat, value: bytes) -> None:
    batch, misfits = parse([value] * 3, form).columns()
    assert (batch.num_rows, batch.num_columns, misfits) == (3, 0, ())


def test_objects_and_columns_are_made_once() -> None:
    parsed = parse([GOOD, b'{"id": "x"}'])
    assert parsed.objects is parsed.objects
    assert parsed.columns() is parsed.columns()


def test_a_reason_says_what_is_wrong_without_the_payload() -> None:
    parsed = parse([b"", b"[]", b'{"' + b"k" * 5000 + b'": oops}', GOOD, b'{"id": {"a": 1}}'])
    assert parsed.errors[0] == ParseError(0, "parse error: the value is empty")
    assert "array" in parsed.errors[1].reason
    assert all(len(error.reason) < 300 for error in parsed.errors)
    assert parsed.columns()[1] == (
        ParseError(4, "parse error: the field 'id' is an object here, and an integer in the rows before"),
    )


def test_a_long_field_name_is_cut_in_a_reason() -> None:
    name = "n" * 100_000
    misfits = parse([json.dumps({name: value}).encode() for value in (1, "x")]).columns()[1]
    assert len(misfits[0].reason) < 300


def test_importing_the_engine_stays_light() -> None:
    script = (
        "import sys, penstock.engine.parsing.block_parser;"
        "print(sorted({'pyarrow.json', 'pyarrow.compute', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True, timeout=60) == "[]\n"


def test_what_was_packed_is_what_is_unpacked() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    rows: list[dict[str, Any]] = [{"raw": b"\x00\xff", "at": at, "n": 1}, {"raw": None, "at": at, "n": 2.5}]
    parsed = parse([msgspec.msgpack.encode(row) for row in rows], ParseFormat.MSGPACK)
    assert parsed.objects == rows
    batch, misfits = parsed.columns()
    assert batch.schema.types == [pa.binary(), pa.timestamp("us", tz="UTC"), pa.float64()]
    assert batch.to_pylist() == [{**row, "n": float(row["n"])} for row in rows]
    assert misfits == ()


def test_an_extension_without_a_column_type_does_not_fit() -> None:
    parsed = parse([b"\x81\xa1a\x01", b"\x81\xa1a\xd4\x05x"], ParseFormat.MSGPACK)
    assert parsed.objects[1]["a"] == msgspec.msgpack.Ext(5, b"x")
    batch, misfits = parsed.columns()
    assert batch.to_pylist() == [{"a": 1}]
    assert [misfit.index for misfit in misfits] == [1]


def test_a_slice_is_read_and_not_what_is_around_it() -> None:
    values = pa.array([b"oops", b"{}", b'{"id": 2}', b"oops"], pa.binary())
    parsed = parse_values(values.slice(1, 2), ParseFormat.JSON)
    assert parsed.objects == [{}, {"id": 2}]
    assert column([b"{}"]).offset == 1
