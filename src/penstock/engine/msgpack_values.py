"""MessagePack payloads: which of them are one map with string keys each, and what is in those.

Skipping over a value would be the quickest check, but it does not look at strings and keys. So values are decoded:
first into a struct with the fields that the first rows have, whose values are such as JSON knows. That is the quick
way, and what comes out is written as lines of JSON at once, for the same reader as JSON. A value that does not fit
the struct is decoded into a dict. Where a block has something that JSON cannot say (binary, timestamps, NaN), it is
decoded into dicts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Annotated, Any, cast

import pyarrow as pa

from penstock.engine.parse_errors import MAX_DEPTH, TOO_DEEP

if TYPE_CHECKING:
    import msgspec

_GROUP = 256  # rows that are objects at a time, few enough to stay in the cache of a core
_HEAD = 64  # rows to learn the fields from
_MOST_FIELDS = 256
_LONGEST_NAME = 100
_NESTED = 3  # levels of arrays and maps below a field that the quick way knows
_LARGEST = 1.7976931348623157e308
_PLAIN = frozenset({str, int, bool, type(None)})
_NESTING = frozenset({dict, list})


@dataclass(frozen=True, slots=True)
class MsgpackCheck:
    """What is wrong with which row; and the others as lines of JSON or, where that would lose something, as objects."""

    bad: dict[int, str]
    lines: pa.Buffer | None
    objects: list[dict[str, Any]] | None


def check_msgpack(values: pa.Array[Any]) -> MsgpackCheck:
    """Find the values that are not exactly one MessagePack map, string keys at every level, no deeper than 64."""
    payloads = cast("list[bytes]", values.to_pylist())
    return _into_lines(payloads) or _into_objects(payloads)


def decode_msgpack(values: pa.Array[Any]) -> list[dict[str, Any]]:
    """The maps in values that passed the check."""
    return list(map(_map_decoder().decode, cast("list[bytes]", values.to_pylist())))


class _Refused(Exception):
    """A value that is not what it should be; says why."""


def _into_lines(payloads: Sequence[bytes]) -> MsgpackCheck | None:
    import msgspec

    quick = _quick_decoder(_fields_of(payloads[:_HEAD])).decode
    encode_lines = msgspec.json.Encoder().encode_lines
    bad: dict[int, str] = {}
    lines: list[bytes] = []
    for start in range(0, len(payloads), _GROUP):
        rows: list[object] = []
        for row, payload in enumerate(payloads[start : start + _GROUP], start):
            try:
                rows.append(quick(payload))
                continue
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                pass  # an unusual value, or a bad one
            try:
                value = _decode(payload)
            except _Refused as why:
                bad[row] = str(why)
                continue
            if not _is_plain(value):
                return None
            rows.append(value)
        lines.append(encode_lines(rows))
    return MsgpackCheck(bad, pa.py_buffer(b"".join(lines)), None)


def _into_objects(payloads: Sequence[bytes]) -> MsgpackCheck:
    bad: dict[int, str] = {}
    objects: list[dict[str, Any]] = []
    for row, payload in enumerate(payloads):
        try:
            objects.append(_decode(payload))
        except _Refused as why:
            bad[row] = str(why)
    return MsgpackCheck(bad, None, objects)


def _decode(payload: bytes) -> dict[str, Any]:
    """The map in a payload. Raises `_Refused`."""
    import msgspec

    if not payload:
        raise _Refused("the value is empty")
    try:
        value = _map_decoder().decode(payload)
    except RecursionError:
        raise _Refused(TOO_DEEP) from None
    except UnicodeDecodeError:
        raise _Refused("not valid UTF-8") from None
    except msgspec.MsgspecError as error:
        raise _Refused(str(error)) from None
    _check_nested(value.values(), 2)
    return value


def _check_nested(values: Iterable[object], depth: int) -> None:
    if _NESTING.isdisjoint(map(type, values)):
        return
    if depth > MAX_DEPTH:
        raise _Refused(TOO_DEEP)
    for value in values:
        if isinstance(value, dict):
            if any(type(key) is not str for key in value):
                raise _Refused("a map has a key that is not a string")
            _check_nested(value.values(), depth + 1)
        elif isinstance(value, list):
            _check_nested(value, depth + 1)


def _is_plain(value: object) -> bool:
    """Whether JSON can say it."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return type(value) in _PLAIN


def _fields_of(payloads: Sequence[bytes]) -> tuple[str, ...]:
    fields: dict[str, None] = {}
    for payload in payloads:
        try:
            fields.update(dict.fromkeys(_decode(payload)))
        except _Refused:
            continue
    return tuple(name for name in fields if _may_be_field(name))[:_MOST_FIELDS]


def _may_be_field(name: str) -> bool:
    # msgspec writes the names of fields as they are, and the decoders that are kept must stay small.
    return name.isprintable() and not {'"', "\\"} & set(name) and len(name) <= _LONGEST_NAME


@cache
def _map_decoder() -> msgspec.msgpack.Decoder[dict[str, Any]]:
    import msgspec

    return msgspec.msgpack.Decoder(dict[str, Any])


@lru_cache(maxsize=64)
def _quick_decoder(fields: tuple[str, ...]) -> msgspec.msgpack.Decoder[Any]:
    import msgspec

    # NaN and infinity are outside of the bounds: JSON cannot say them.
    number: Any = Annotated[float, msgspec.Meta(ge=-_LARGEST, le=_LARGEST)]
    scalar: Any = str | int | number | bool | None
    plain: Any = scalar
    for _ in range(_NESTED):
        plain = scalar | list.__class_getitem__(plain) | dict.__class_getitem__((str, plain))
    names = {f"field_{at}": name for at, name in enumerate(fields)}
    # A field that a value does not have is unset, and then left out of its line.
    members: list[Any] = [(name, plain | msgspec.UnsetType, msgspec.UNSET) for name in names]
    row = msgspec.defstruct("Row", members, rename=names, forbid_unknown_fields=True, gc=False)
    return msgspec.msgpack.Decoder(row)
