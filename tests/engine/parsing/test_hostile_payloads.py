"""Payloads that are small and cost much: they are refused, or cost no more than their bytes. Limits, and no clocks."""

from __future__ import annotations

import random
import re
import tracemalloc
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from penstock.engine import ParseFormat, parse_as
from penstock.engine.parsing.column_kinds import max_fields
from penstock.engine.parsing.parser import parse_inferred, parse_objects
from penstock.records import bytes_of
from tests.engine.parsing.models import READ

ENCODERS: dict[ParseFormat, Callable[[Any], bytes]] = {
    ParseFormat.JSON: msgspec.json.encode,
    ParseFormat.MSGPACK: msgspec.msgpack.encode,
}


def nested(number: int) -> dict[str, Any]:
    """A row whose fields have two names, and whose paths no other row has."""
    chance = random.Random(number)
    value: Any = 1
    for _ in range(40):
        value = {chance.choice("ab"): value}
    return {"x": value}


@pytest.mark.parametrize("form", READ)
@pytest.mark.parametrize("row", [lambda number: {f"k{number}": 1}, nested], ids=["flat", "nested"])
def test_rows_with_no_field_in_common_take_no_more_memory_than_a_block_may(
    form: ParseFormat, row: Callable[[int], dict[str, Any]]
) -> None:
    values = pa.array([ENCODERS[form](row(number)) for number in range(6_000)], pa.binary())
    limit = max_fields(len(values), bytes_of(values))
    before = pa.total_allocated_bytes()
    parsed = parse_inferred(values, form)
    assert parsed.batch.num_rows <= limit
    assert pa.total_allocated_bytes() - before < 200 << 20
    text = rf"the field 'k?.*' is one more than the {limit} that this block may have"
    assert all(re.search(text, error.reason) for error in parsed.errors)
    assert parsed.batch.num_rows + len(parsed.errors) == len(values)


@pytest.mark.parametrize("form", READ)
def test_a_field_beyond_the_limit_leaves_the_rows_behind_it_alone(form: ParseFormat) -> None:
    wide = [{f"k{number}": 1} for number in range(10_000)]
    known = [{"k0": number} for number in range(100)]
    parsed = parse_inferred(pa.array(map(ENCODERS[form], wide + known), pa.binary()), form)
    assert len(parsed.errors) == len(wide) - parsed.batch.num_columns
    assert parsed.batch.column("k0").to_pylist()[-100:] == list(range(100))


@pytest.mark.parametrize("form", READ)
def test_a_field_that_comes_late_in_a_block_has_its_column(form: ParseFormat) -> None:
    rows: list[dict[str, Any]] = [{"a": at} if at < 9_000 else {"a": at, "z": {"y": [at]}} for at in range(10_000)]
    parsed = parse_inferred(pa.array(map(ENCODERS[form], rows), pa.binary()), form)
    assert (parsed.batch.schema.names, parsed.errors) == (["a", "z"], ())
    assert parsed.batch.column("z").to_pylist()[8_999:9_001] == [None, {"y": [9_000]}]


def test_how_deep_a_long_text_is_costs_no_memory_beside_it() -> None:
    long = b'"' + b"x" * 4_000_000 + b'\\"{[\\\\"'
    flat, deep = b'{"a":%b,"b":[%b0]}' % (long, b"[]," * 70), b'{"a":%b,"b":%b}' % (long, b"[" * 70 + b"]" * 70)
    tracemalloc.start()
    try:
        parsed = parse_objects(pa.array([flat, deep], pa.binary()))
        assert [error.reason for error in parsed.errors] == ["parse error: nested deeper than 64"]
        assert tracemalloc.get_traced_memory()[1] < 10 * len(long)  # of two payloads
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("text", ["1" * 3_000_000 + "x", "1." + "1" * 3_000_000 + "x", "." + "1" * 3_000_000 + "e"])
def test_a_long_text_that_is_no_decimal_is_refused_in_one_pass(text: str) -> None:
    values = pa.array([msgspec.json.encode({"n": text}), b'{"n": "1.5"}'], pa.binary())
    parsed = parse_as(values, pa.schema([pa.field("n", pa.decimal128(9, 2))]))
    assert parsed.batch.column("n").to_pylist() == [Decimal("1.50")]
    assert [error.index for error in parsed.errors] == [0]


@pytest.mark.parametrize("good", ["1", "+1.", "-1.5", ".5", "1e2", "1.5E-1", "0001"])
def test_decimals_are_read_as_before(good: str) -> None:
    values = pa.array([msgspec.json.encode({"n": good}), b'{"n": "x"}'], pa.binary())
    parsed = parse_as(values, pa.schema([pa.field("n", pa.decimal128(9, 2))]))
    assert parsed.batch.column("n").to_pylist() == [Decimal(good).quantize(Decimal("0.01"))]
    assert len(parsed.errors) == 1
