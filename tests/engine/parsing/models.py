"""What parsing should say, written down a second time: slowly, and with other readers."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import pyarrow as pa
import pytest

from penstock.engine.parsing import msgpack_values
from penstock.engine.parsing.block_parser import ParsedValues, ParseFormat, parse_values

DEEPEST = 64
HUGE_DIGITS = 4000


class Bad(Exception):
    pass


def column(values: list[bytes]) -> pa.Array[Any]:
    """The values as a slice with an offset: something stands before and behind them."""
    return pa.array([b'{"before":', *values, b"}"], pa.binary()).slice(1, len(values))


def parse(values: list[bytes], form: ParseFormat = ParseFormat.JSON) -> ParsedValues:
    return parse_values(column(values), form)


def parse_slowly(values: list[bytes]) -> ParsedValues:
    """MessagePack as if the quick way took none of it."""

    def give_up(_: object) -> msgpack_values.MsgpackCheck:
        raise msgpack_values._GaveUp

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(msgpack_values, "_into_columns", give_up)
        return parse(values, ParseFormat.MSGPACK)


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
    if isinstance(cell, list):
        return len(cell) == len(value) and all(map(agrees, cell, value))
    if isinstance(cell, float):
        number = _as_float(value)
        return type(value) in (int, float) and (cell == number or (math.isnan(cell) and math.isnan(number)))
    return type(cell) is type(value) and bool(cell == value)


def verify(values: list[bytes], form: ParseFormat) -> None:
    """Everything that holds for every block, whatever is in it."""
    parsed = parse(values, form)
    model = [expected(value, form) for value in values]
    verdicts = {row: (None if model[row] is None else "good") for row in range(len(values))}
    good = [row for row, verdict in verdicts.items() if verdict]
    assert list(parsed.good) == good, [(values[row], verdicts[row]) for row in set(parsed.good) ^ set(good)]
    assert [error.index for error in parsed.errors] == [row for row in verdicts if not verdicts[row]]
    assert len(parsed) == len(good)
    assert all(error.reason.startswith("parse error: ") and len(error.reason) < 300 for error in parsed.errors)
    assert repr(parsed.objects) == repr([model[row] for row in good])
    batch, misfits = parsed.columns()
    assert parsed.columns() is parsed.columns()
    batch.validate(full=True)
    out = [misfit.index for misfit in misfits]
    assert out == sorted(set(out))
    assert set(out) <= set(good)
    assert all(misfit.reason.startswith("parse error: ") and len(misfit.reason) < 300 for misfit in misfits)
    kept = [row for row in good if row not in set(out)]
    assert batch.num_rows == len(kept)
    names: dict[str, None] = {}
    for row in kept:
        names.update(dict.fromkeys(model[row] or ()))
    assert batch.schema.names == list(names)
    for cells, row in zip(batch.to_pylist(), kept, strict=True):
        assert agrees(cells, model[row]), (cells, model[row])


def _read_json(value: bytes) -> Any:
    def refuse(text: str) -> Any:
        raise Bad(text)

    found = json.loads(
        value.decode(),
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
        if not isinstance(key, str):
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
