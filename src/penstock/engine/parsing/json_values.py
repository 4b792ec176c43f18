"""JSON payloads: which of them are one object each, and what is in those.

The check does not make objects. msgspec decodes each value into a struct without fields, which skips over all of it:
that looks at every token, but not at the UTF-8 in strings, the nesting, and the size of numbers. So UTF-8 is
checked for the whole column at once, and the depth of the few values that have enough brackets for it. The size of
numbers is no error: what is too large for a float is infinite, as it is for `json.loads`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from penstock.engine.parsing.parse_errors import MAX_DEPTH, TOO_DEEP
from penstock.records import bytes_of

if TYPE_CHECKING:
    import msgspec

_GROUP = 64  # values decoded in one call: a bad one costs a second look at so many
_JOINABLE = 1 << 30  # bytes; the values and what is put between them must stay under 2 GiB
_SHORTEST_DEEP = 2 * (MAX_DEPTH + 1)
_MOST_DIGITS = 4000  # of an integer that Python converts without complaint; its limit is 4,300
_WHITESPACE = b" \t\r\n"
_BRACKETS = bytes.maketrans(b"{[}]", b"(())")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"{[}]"))
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)  # keeps no way back, for it needs none


@dataclass(frozen=True, slots=True)
class JsonCheck:
    """What is wrong with which row, and whether every value is free of newlines."""

    bad: dict[int, str]
    one_line_each: bool


def check_json(values: pa.Array[Any]) -> JsonCheck:
    """Find the values that are not exactly one JSON object, valid UTF-8, and no deeper than 64."""
    bad = dict.fromkeys(_not_utf8(values), "not valid UTF-8")
    if bytes_of(values) > _JOINABLE:
        _check_each(values, 0, bad)
        return JsonCheck(bad, one_line_each=False)
    rows, one_line_each, may_be_deep = len(values), True, _longest(values) >= _SHORTEST_DEEP
    starts = range(0, rows, _GROUP)
    for start, joined in zip(starts, _join(values, [*starts, rows], b"]\n["), strict=True):
        count = min(_GROUP, rows - start)
        one_line_each = one_line_each and joined.count(b"\n") == count - 1
        if not _are_objects(joined, count) or (may_be_deep and _has_deep(joined, count)):
            _check_each(values.slice(start, count), start, bad)
    return JsonCheck(bad, one_line_each)


def decode_json(values: pa.Array[Any]) -> list[dict[str, Any]]:
    """What `json.loads` makes of values that passed the check. An integer of thousands of digits becomes infinite."""
    import msgspec

    decoder = msgspec.json.Decoder()
    lines = json_lines(values)
    if lines is not None:
        try:
            return cast("list[dict[str, Any]]", decoder.decode_lines(lines))
        except msgspec.MsgspecError:
            pass  # a number that msgspec refuses; those that have one are read by Python's own reader
    return [_decode(value, decoder.decode) for value in _payloads(values)]


def json_lines(values: pa.Array[Any]) -> pa.Buffer | None:
    """The values as one buffer, a newline between them; None where they are too many bytes for that."""
    if bytes_of(values) > _JOINABLE:
        return None
    import pyarrow.compute as pc

    # One list with all values in it: the text is made once, and never becomes a Python object.
    everything = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    joined: Any = pc.binary_join(cast("Any", everything), b"\n")
    text = joined.buffers()[2]
    return pa.py_buffer(b"") if text is None else text.slice(0, bytes_of(joined))


def repeated_key(value: bytes) -> str | None:
    """A key that one of the objects in the value has twice, if any."""
    found: list[str] = []

    def pairs(members: list[tuple[str, Any]]) -> None:
        names: set[str] = set()
        for name, _ in members:
            if name in names:
                found.append(name)
            names.add(name)

    json.loads(value, object_pairs_hook=pairs, parse_int=_integer)
    return found[0] if found else None


def _join(values: pa.Array[Any], starts: list[int], between: bytes) -> list[bytes]:
    import pyarrow.compute as pc

    groups = pa.ListArray.from_arrays(pa.array(starts, pa.int32()), values)
    joined: Any = pc.binary_join(cast("Any", groups), between)
    return _payloads(joined)


def _are_objects(joined: bytes, count: int) -> bool:
    # Each value stands alone in a line `[value]`. Between two values is `]`, a newline and `[`: only at the top level
    # may an array follow another without a comma, so no value can reach into the next one; a value that closes the
    # bracket itself makes one array more than there are values; and one with a comma makes an array of two.
    import msgspec

    try:
        return len(_array_decoder().decode_lines(b"[%b]" % joined)) == count
    except (msgspec.MsgspecError, RecursionError):
        return False


def _has_deep(joined: bytes, count: int) -> bool:
    # Every value has at least one bracket, so one value with more than 64 of them takes the sum over this. The
    # brackets around the values are `count - 1` more.
    opening = joined.count(b"{") + joined.count(b"[") - (count - 1)
    return opening >= count + MAX_DEPTH


def _check_each(values: pa.Array[Any], start: int, bad: dict[int, str]) -> None:
    for row, value in enumerate(_payloads(values), start):
        if row not in bad:
            why = why_bad(value)
            if why is not None:
                bad[row] = why


def why_bad(value: bytes) -> str | None:
    """What is wrong with a value, if anything: it is exactly one JSON object, or not. UTF-8 is not looked at."""
    import msgspec

    if not value.strip(_WHITESPACE):
        return "the value is empty"
    try:
        _object_decoder().decode(value)
    except RecursionError:
        return TOO_DEEP
    except msgspec.MsgspecError as error:
        return str(error)
    if value.count(b"{") + value.count(b"[") > MAX_DEPTH and _is_deep(value):
        return TOO_DEEP
    return None


def _is_deep(value: bytes) -> bool:
    """Whether well-formed JSON is nested too deep: each round takes the innermost brackets away."""
    brackets = _STRING.sub(b"", value).translate(_BRACKETS, _NOT_BRACKETS)
    for _ in range(MAX_DEPTH):
        brackets = brackets.replace(b"()", b"")
    return bool(brackets)


def _not_utf8(values: pa.Array[Any]) -> list[int]:
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        return [row for row, value in enumerate(_payloads(values)) if not is_utf8(value)]
    return []


def is_utf8(value: bytes) -> bool:
    """Whether bytes are UTF-8."""
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _payloads(values: pa.Array[Any]) -> list[bytes]:
    return cast("list[bytes]", values.to_pylist())


def _longest(values: pa.Array[Any]) -> int:
    import pyarrow.compute as pc

    return pc.max(pc.binary_length(cast("pa.BinaryArray", values))).as_py() or 0


def _decode(value: bytes, decode: Callable[[bytes], Any]) -> dict[str, Any]:
    import msgspec

    try:
        return cast("dict[str, Any]", decode(value))
    except msgspec.MsgspecError:
        return cast("dict[str, Any]", json.loads(value, parse_int=_integer))


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _MOST_DIGITS else float(digits)


@cache
def _object_decoder() -> msgspec.json.Decoder[Any]:
    import msgspec

    return msgspec.json.Decoder(msgspec.defstruct("AnyObject", [], gc=False))


@cache
def _array_decoder() -> msgspec.json.Decoder[Any]:
    import msgspec

    one = msgspec.defstruct("AnyObject", [], gc=False)
    return msgspec.json.Decoder(
        msgspec.defstruct("OneObject", [("only", one)], array_like=True, forbid_unknown_fields=True, gc=False)
    )
