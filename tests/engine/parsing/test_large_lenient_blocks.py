"""A row of a large block is what it is alone, whatever the rows around it are: pieces, groups and structs change."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from penstock.engine import ParseFormat, ParseOptions, parse_as
from tests.engine.parsing.models import READ, typed

KINDS: dict[str, pa.DataType] = {
    "id": pa.int64(),
    "at": pa.timestamp("us", tz="UTC"),
    "rate": pa.float64(),
    "price": pa.decimal128(6, 2),
    "day": pa.date32(),
    "in": pa.struct([("ok", pa.bool_()), ("all", pa.list_(pa.struct([("n", pa.int32())])))]),
}
CHOICES: dict[str, list[Any]] = {
    "id": [1, 2, "42", 3.0, 2.5, "x", None],
    "at": ["2026-01-31T12:00:00Z", 1_769_860_800, 1_769_860_800_000, "2026-1-3", 5, "x"],
    "rate": [1, 1.5, "1.5", "NaN", "-inf", "x"],
    "price": [1.25, "1.255", 1.255, "99999.999", "x"],
    "day": ["2026-01-31", "2026-01-31T12:00:00Z", "2026-1-3", 7],
    "in": [{"ok": True}, {"ok": "true", "more": 1}, {"all": [{"n": "1", "m": 2}, None]}, {"ok": 1}, None],
    "other": [1, "x", {"a": [1]}, None],
}


def rows(chance: random.Random, count: int) -> list[dict[str, Any]]:
    """Runs of rows that are alike, and between them some of every kind."""
    found: list[dict[str, Any]] = []
    while len(found) < count:
        names = chance.sample([*CHOICES], chance.randrange(len(CHOICES)))
        plain = {name: CHOICES[name][chance.choice([0, 0, 0, 1])] for name in names}
        found += [plain] * chance.choice([1, 1, 5, 1_500])
        found.append({name: chance.choice(CHOICES[name]) for name in names})
    return found[:count]


@pytest.mark.parametrize("form", READ)
@pytest.mark.parametrize("rescue", [None, "_rescued"])
@pytest.mark.parametrize("seed", range(3))
def test_a_row_is_the_same_alone_and_in_a_large_block(form: ParseFormat, rescue: str | None, seed: int) -> None:
    schema, options = pa.schema(KINDS), ParseOptions("lenient", rescue)
    encode = msgspec.json.encode if form is ParseFormat.JSON else msgspec.msgpack.encode
    values = [encode(row) for row in rows(random.Random(seed), 9_000)]
    alone = {value: parse_as(pa.array([value], pa.binary()), schema, form, options) for value in set(values)}
    parsed = typed(values, schema, form, options)
    reasons = {error.index: error.reason for error in parsed.errors}
    cells = dict(zip(parsed.good, parsed.batch.to_pylist(), strict=True))
    for row, value in enumerate(values):
        one = alone[value]
        expected = [one.errors[0].reason] if one.errors else one.batch.to_pylist()
        assert repr([reasons.get(row) or cells[row]]) == repr(expected)
    assert reasons
    assert cells
