"""What the parser should make of payloads, written down a second time: slowly, and with other readers."""

from __future__ import annotations

import base64
import json
import math
import struct
from datetime import datetime
from typing import Any, cast

import pyarrow as pa

from penstock.engine import ParseFormat, ParseOptions, infer_schema, parse_as
from penstock.engine.parsing.block_reader import ParsedColumns
from penstock.engine.parsing.column_kinds import ColumnKinds
from penstock.engine.parsing.parser import parse_inferred, parse_objects

DEEPEST = 64
STRICT = ParseOptions()
HUGE_DIGITS = 4000


class Bad(Exception):
    pass


def column(values: list[bytes]) -> pa.Array[Any]:
    """The values as a slice with an offset: something stands before and behind them."""
    return pa.array([b'{"before":', *values, b"}"], pa.binary()).slice(1, len(values))


READ = (
    ParseFormat.JSON,
    ParseFormat.MSGPACK,
)
"""The formats that have readers of their own; the others become one of these."""


def inferred(values: list[bytes], form: ParseFormat = ParseFormat.JSON) -> ParsedColumns:
    return sound(parse_inferred(column(values), form), len(values))


def typed(
    values: list[bytes], schema: pa.Schema, form: ParseFormat = ParseFormat.JSON, options: ParseOptions = STRICT
) -> ParsedColumns:
    parsed = sound(parse_as(column(values), schema, form, options), len(values))
    if options.rescue is not None:
        schema = schema.append(pa.field(options.rescue, pa.string()))
    assert parsed.batch.schema.equals(schema, check_metadata=True)
    return parsed


def sound(parsed: ParsedColumns, count: int) -> ParsedColumns:
    """The same; and what holds for every result."""
    parsed.batch.validate(full=True)
    wrong = [error.index for error in parsed.errors]
    assert len(parsed.good) == parsed.batch.num_rows
    assert sorted([*parsed.good, *wrong]) == list(range(count))
    assert (list(parsed.good), wrong) == (sorted(parsed.good), sorted(wrong))
    assert isinstance(parsed.good, range) == (not wrong)
    assert all(error.reason.startswith("parse error: ") and len(error.reason) < 300 for error in parsed.errors)
    return parsed


def every_way(
    values: list[bytes], schema: pa.Schema, form: ParseFormat = ParseFormat.JSON, options: ParseOptions = STRICT
) -> tuple[list[Any], dict[int, str]]:
    """The rows and the errors: the same from the quickest way, from structs, and from values read one by one."""
    no_struct = schema.append(pa.field('no struct has a "', pa.int64()))
    ways = [typed(values, schema, form, options), typed(values, no_struct, form, options)]
    if form is ParseFormat.JSON:  # Arrow does not take a piece with space around an object, nor one that is empty
        ways.append(typed([*values, b" "], schema, form, options))
        ways += [typed([*values, b" {} "], each, form, options) for each in (schema, no_struct)]
    # A row that is read value by value teaches structs what other members there are: the second time they know them.
    twice = typed([*values, *values], schema, form, options)
    ways.append(twice)
    names = [*schema.names, *([options.rescue] if options.rescue else [])]
    found = []
    for way in ways:
        rows = dict(zip(way.good, way.batch.select(names).to_pylist(), strict=True))
        errors = {error.index: error.reason.removeprefix("parse error: ") for error in way.errors}
        found.append([{row: of[row] for row in of if row < len(values)} for of in (rows, errors)])
    assert all(repr(each) == repr(found[0]) for each in found), found
    again = [repr(row) for row, good in zip(twice.batch.to_pylist(), twice.good, strict=True) if good >= len(values)]
    assert again == [repr(row) for row in found[0][0].values()]
    return list(found[0][0].values()), cast("dict[int, str]", found[0][1])


def expected(value: bytes, form: ParseFormat) -> dict[str, Any] | None:
    """The object in a value; None where there is none, or where it is not alone."""
    try:
        found = _read_json(value) if form is ParseFormat.JSON else _read_msgpack(value)
    except (Bad, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and _depth(found) <= DEEPEST else None


def agrees(cell: Any, value: Any) -> bool:
    """Whether a cell of a column says the same as the value it was made of."""
    if value is None or cell is None:
        return value is None and cell is None
    if isinstance(cell, dict):
        return set(value) <= set(cell) and all(agrees(inner, value.get(name)) for name, inner in cell.items())
    if isinstance(cell, str) and not isinstance(value, str):
        return True  # as JSON, whatever it is
    if isinstance(cell, datetime) and isinstance(value, str):
        return True
    if isinstance(cell, bytes) and isinstance(value, str):
        return base64.b64decode(value) == cell
    if isinstance(cell, list):
        return len(cell) == len(value) and all(map(agrees, cell, value))
    if isinstance(cell, float):
        number = _as_float(value)
        return type(value) in (int, float) and (cell == number or (math.isnan(cell) and math.isnan(number)))
    return type(cell) is type(value) and bool(cell == value)


def schema_of(rows: list[dict[str, Any]]) -> pa.Schema:
    """The columns of rows in turn. A row that does not fit may do so by what later ones have settled."""
    kinds, changes = ColumnKinds(4_000), -1
    while kinds.changes != changes:
        changes = kinds.changes
        for row in rows:
            kinds.learn(row)
    return kinds.schema


def verify(values: list[bytes], form: ParseFormat) -> None:
    """Everything that holds for every block, whatever is in it."""
    model = [expected(value, form) for value in values]
    objects = parse_objects(column(values), form)
    assert list(objects.good) == [row for row, value in enumerate(model) if value is not None]
    assert repr(objects.objects) == repr([value for value in model if value is not None])
    parsed = inferred(values, form)
    reasons = {error.index: error.reason for error in parsed.errors}
    assert all(reasons[error.index] == error.reason for error in objects.errors)
    assert parsed.batch.schema == schema_of(objects.objects)
    for cells, row in zip(parsed.batch.to_pylist(), parsed.good, strict=True):
        assert agrees(cells, model[row]), (cells, model[row])
    assert infer_schema(column(values), form) == parsed.batch.schema
    again = typed(values, parsed.batch.schema, form)
    assert set(parsed.good) <= set(again.good)
    kept = [row for row, good in zip(again.batch.to_pylist(), again.good, strict=True) if good in set(parsed.good)]
    assert repr(kept) == repr(parsed.batch.to_pylist())


def _read_json(value: bytes) -> Any:
    def refuse(text: str) -> Any:
        raise Bad(text)

    def distinct(members: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(members)) < len(members):
            raise Bad("a key twice")
        return dict(members)

    found = json.loads(
        value.decode(),
        object_pairs_hook=distinct,
        parse_constant=refuse,
        parse_int=lambda digits: int(digits) if len(digits) <= HUGE_DIGITS else float(digits),
    )
    json.dumps(found, ensure_ascii=False).encode()  # a lone surrogate has no UTF-8
    return found


def _read_msgpack(value: bytes) -> Any:
    found, end = _unpack(value, 0, 0)
    if end != len(value):
        raise Bad("trailing")
    return found


def _unpack(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    if at >= len(data) or depth > 2 * DEEPEST:
        raise Bad("truncated, or far too deep")
    code, at = data[at], at + 1
    if code <= 0x7F:
        return code, at
    if code <= 0x8F:
        return _unpack_map(data, at, code & 0xF, depth)
    if code <= 0x9F:
        return _unpack_array(data, at, code & 0xF, depth)
    if code <= 0xBF:
        return _take(data, at, code & 0x1F)[0].decode(), at + (code & 0x1F)
    if code >= 0xE0:
        return code - 256, at
    if code in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[code], at
    if code in _NUMBERS:
        raw, at = _take(data, at, struct.calcsize(_NUMBERS[code]))
        return struct.unpack(_NUMBERS[code], raw)[0], at
    if code in _SIZED:
        kind, width = _SIZED[code]
        raw, at = _take(data, at, width)
        size = int.from_bytes(raw, "big")
        if kind == "map":
            return _unpack_map(data, at, size, depth)
        if kind == "array":
            return _unpack_array(data, at, size, depth)
        raw, at = _take(data, at, size)
        return (raw.decode() if kind == "str" else raw), at
    raise Bad("unused, or an extension")


def _unpack_map(data: bytes, at: int, size: int, depth: int) -> tuple[dict[str, Any], int]:
    members: dict[str, Any] = {}
    for _ in range(size):
        key, at = _unpack(data, at, depth + 1)
        if not isinstance(key, str) or key in members:
            raise Bad("a key")
        members[key], at = _unpack(data, at, depth + 1)
    return members, at


def _unpack_array(data: bytes, at: int, size: int, depth: int) -> tuple[list[Any], int]:
    items = []
    for _ in range(size):
        item, at = _unpack(data, at, depth + 1)
        items.append(item)
    return items, at


def _take(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    if at + size > len(data):
        raise Bad("truncated")
    return data[at : at + size], at + size


def _depth(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    return 0


def _as_float(number: Any) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


_NUMBERS = {
    0xCA: ">f",
    0xCB: ">d",
    0xCC: ">B",
    0xCD: ">H",
    0xCE: ">I",
    0xCF: ">Q",
    0xD0: ">b",
    0xD1: ">h",
    0xD2: ">i",
    0xD3: ">q",
}
_SIZED = {
    0xC4: ("bin", 1),
    0xC5: ("bin", 2),
    0xC6: ("bin", 4),
    0xD9: ("str", 1),
    0xDA: ("str", 2),
    0xDB: ("str", 4),
    0xDC: ("array", 2),
    0xDD: ("array", 4),
    0xDE: ("map", 2),
    0xDF: ("map", 4),
}
