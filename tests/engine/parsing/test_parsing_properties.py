"""Whatever the bytes are, the parser agrees with a model."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from penstock.engine import ParseFormat, parse_as
from penstock.engine.parsing.parser import parse_objects
from tests.engine.parsing.models import READ, column, inferred, schema_of, verify

NAMES = st.one_of(st.sampled_from(["id", "at", "name", "a b", ""]), st.text(st.characters(codec="utf-8"), max_size=5))
TIMES = st.sampled_from(["2026-01-01", "2026-01-01T00:00:00Z", "12:00"])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(codec="utf-8"), max_size=8),
    TIMES,
)


def nested(scalars: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        scalars,
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
        max_leaves=5,
    )


JSON_ROWS = st.dictionaries(NAMES, nested(st.one_of(SCALARS, st.integers(-(10**30), 10**30))), max_size=4)
MSGPACK_ROWS = st.dictionaries(NAMES, nested(st.one_of(SCALARS, st.binary(max_size=4), st.floats())), max_size=4)
TIDY_ROWS = st.fixed_dictionaries({"id": st.integers(0, 9)}, optional={"at": TIMES, "rate": st.floats(0, 1)})


def write_json(row: object, indent: int | None, ascii_only: bool) -> bytes:
    return json.dumps(row, indent=indent, ensure_ascii=ascii_only).encode()


JSON_TEXTS = st.builds(write_json, JSON_ROWS, st.sampled_from([None, None, 0, 1]), st.booleans())
JSON_TIDY = TIDY_ROWS.map(lambda row: json.dumps(row).encode())
JSON_PIECES = [
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\n", b"\x00", b"\xff", b"null", b"NaN", b"1e999", b"-"),
    *(b"{}", b'"a":', b"\\u", b"\\ud800", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"0", b".", b"}\n{", b"},{", b"]\n["),
    *(b'{"a":' * 70, b"[" * 70, b"]" * 70, b"}" * 70, b"9" * 5000),
]
MSGPACK_VALUES = MSGPACK_ROWS.map(msgspec.msgpack.encode)
MSGPACK_TIDY = TIDY_ROWS.map(msgspec.msgpack.encode)
MSGPACK_PIECES = [
    *(b"\x80", b"\x81", b"\xa1a", b"\xa1\xff", b"\xc0", b"\xc1", b"\xdf\xff\xff\xff\xff", b"\xdd\x00\x00\x00\x01"),
    *(b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00", b"\xc4\x01x", b"\x81\xa1a" * 70, b"\x91" * 70, b"\x01"),
]

TIMESTAMPS = st.sampled_from([datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC), datetime(1969, 1, 1, tzinfo=UTC)])
NUMBERS = st.one_of(st.integers(0, 9), st.sampled_from([(1 << 53) + 1, -(1 << 63), 1 << 63]), st.floats())
# Few names and few kinds, so that rows fit together often, and differ in what they add.
SAME_KIND = [
    *(st.booleans(), NUMBERS, TIMES, st.binary(max_size=2), TIMESTAMPS, st.lists(NUMBERS | st.none(), max_size=2)),
    st.lists(st.dictionaries(st.sampled_from("xyz"), st.none() | NUMBERS, max_size=2) | st.none(), max_size=2),
    st.dictionaries(st.sampled_from("xyz"), st.none() | st.lists(st.none() | TIMESTAMPS, max_size=2), max_size=3),
    st.dictionaries(st.sampled_from("xyz"), st.lists(st.lists(TIMES, max_size=2), max_size=2), max_size=3),
]
FIELDS: dict[str, st.SearchStrategy[Any]] = {f"f{at}": st.none() | kind for at, kind in enumerate(SAME_KIND)}
FITTING_ROWS = st.fixed_dictionaries({}, optional=FIELDS)
ODD_ROWS = st.dictionaries(st.sampled_from([*FIELDS, 'a"b']), st.one_of(*SAME_KIND, nested(SCALARS)), max_size=2)


@st.composite
def mutated(draw: st.DrawFn, values: st.SearchStrategy[bytes], pieces: list[bytes]) -> bytes:
    value = draw(values)
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(value)))
        end = min(len(value), start + draw(st.sampled_from([0, 0, 1, 3, len(value)])))
        value = value[:start] + draw(st.one_of(st.sampled_from(pieces), st.binary(max_size=2))) + value[end:]
    return value


def has_no_extension(value: bytes) -> bool:
    # The model does not read extensions; they have examples of their own.
    return not set(value) & {0xC7, 0xC8, 0xC9, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8}


def blocks(
    tidy: st.SearchStrategy[bytes], odd: st.SearchStrategy[bytes], pieces: list[bytes]
) -> st.SearchStrategy[list[bytes]]:
    value = st.one_of(tidy, tidy, odd, mutated(odd, pieces), mutated(tidy, pieces), st.binary(max_size=6))
    many = st.tuples(tidy, st.integers(0, 150)).map(lambda pair: [pair[0]] * pair[1])
    return st.tuples(many, st.lists(value, max_size=12), many).map(lambda parts: [*parts[0], *parts[1], *parts[2]])


@settings(max_examples=2 * settings().max_examples, deadline=None, suppress_health_check=list(HealthCheck))
@given(blocks(JSON_TIDY, JSON_TEXTS, JSON_PIECES))
@example([b'{"at": [false, 0]}', b'{"id": 0, "at": "2026-01-01"}'])
def test_json_agrees_with_json_loads_whatever_the_bytes_are(values: list[bytes]) -> None:
    verify(values, ParseFormat.JSON)


@settings(max_examples=2 * settings().max_examples, deadline=None, suppress_health_check=list(HealthCheck))
@given(blocks(MSGPACK_TIDY, MSGPACK_VALUES, MSGPACK_PIECES))
def test_msgpack_agrees_with_the_model_whatever_the_bytes_are(values: list[bytes]) -> None:
    verify([value for value in values if has_no_extension(value)], ParseFormat.MSGPACK)


@settings(max_examples=60, deadline=None)
@given(st.lists(TIDY_ROWS, max_size=60), st.sets(st.integers(1, 59)), st.sampled_from(READ))
def test_exactly_the_rows_of_another_kind_do_not_fit(
    rows: list[dict[str, object]], positions: set[int], form: ParseFormat
) -> None:
    odd = {at for at in positions if at < len(rows)}
    mixed = [{"id": "text"} if at in odd else row for at, row in enumerate(rows)]
    write = msgspec.json.encode if form is ParseFormat.JSON else msgspec.msgpack.encode
    assert {error.index for error in inferred([write(row) for row in mixed], form).errors} == odd


@settings(max_examples=2 * settings().max_examples, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    rows=st.lists(st.one_of(*[FITTING_ROWS] * 8, ODD_ROWS), min_size=1, max_size=40),
    bad=st.sets(st.integers(0, 39), max_size=3),
    repeated=st.sampled_from([0, 300]),
)
@example([{"f1": False, "f0": [False, 0]}, {"f0": "2026-01-01"}], set(), 0)
def test_a_schema_that_grows_late_is_the_one_that_every_row_in_turn_gives(
    rows: list[dict[str, Any]], bad: set[int], repeated: int
) -> None:
    packed = [b"\xc1" if at in bad else msgspec.msgpack.encode(row) for at, row in enumerate(rows)]
    values = packed[:1] * repeated + packed  # the first rows are those that a schema is tried with
    parsed = inferred(values, ParseFormat.MSGPACK)
    assert parsed.batch.schema == schema_of(parse_objects(column(values), ParseFormat.MSGPACK).objects)
    again = parse_as(column(values), parsed.batch.schema, ParseFormat.MSGPACK)
    cells = dict(zip(again.good, again.batch.to_pylist(), strict=True))
    assert repr([cells[row] for row in parsed.good]) == repr(parsed.batch.to_pylist())  # NaN is not equal to itself
