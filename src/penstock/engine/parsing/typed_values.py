"""One payload as a row of columns whose types are told, looked at value by value: it fits, or it is said why not.

The slow way, for the rows that a quick way does not take. A row is a struct with an attribute for each column, and its
values are what the quick way makes of them: times, dates and decimals are text that Arrow casts. Numbers in JSON are
looked at as they are written, so no digit of a decimal is lost.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, DecimalException
from functools import cache, lru_cache
from typing import Any, Protocol, TypeAlias, cast

import pyarrow as pa

from penstock.engine.parsing.block_parser import ParseFormat
from penstock.engine.parsing.json_values import is_utf8, why_bad
from penstock.engine.parsing.msgpack_values import Refused, decode, may_be_field

Fields: TypeAlias = "tuple[pa.Field[Any], ...]"

_MOST_DIGITS = 4000  # of an integer that Python converts without complaint
_LONGEST_PATH = 60
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d)(?::(\d\d)(?::(\d\d)(?:\.(\d+))?)?)?(Z|[+-]\d\d(?::?\d\d)?)?)?", re.ASCII
)
_DECIMAL = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)  # one way to read any digits
_NAMES: dict[type, str] = {
    bool: "a boolean",
    int: "an integer",
    float: "a float",
    str: "a string",
    bytes: "binary",
    datetime: "a timestamp",
    list: "an array",
    dict: "an object",
}


class Misfit(Exception):
    """A payload that is no row of these columns; says why."""


def inner_fields(kind: pa.DataType) -> Fields:
    """The fields of a struct; of a list or a map, what is in it."""
    return tuple(kind.field(at) for at in range(kind.num_fields))


def attribute(at: int) -> str:
    """What the column at this place is called in a row."""
    return f"field_{at}"


@lru_cache(maxsize=64)
def plain_row(fields: Fields) -> type:
    """The struct of rows, or of values in a column of structs, that were looked at one by one."""
    import msgspec

    members: list[Any] = [(attribute(at), Any, None) for at in range(len(fields))]
    return msgspec.defstruct("PlainRow", members, gc=False)


def may_be_struct(fields: Fields) -> bool:
    """Whether msgspec takes the names of all fields, at every level, for those of a struct."""
    return all(may_be_field(field.name) and may_be_struct(inner_fields(field.type)) for field in fields)


def look_at(payload: bytes, form: ParseFormat, fields: Fields) -> tuple[object, Sequence[str]]:
    """The payload as a row, and the names of all its members. Raises `Misfit`."""
    if form == ParseFormat.JSON:
        wrong = why_bad(payload) if is_utf8(payload) else "not valid UTF-8"
        if wrong is not None:
            raise Misfit(wrong)
        members: dict[str, Any] = _json_decoder(dict).decode(payload)
        return _row(_WrittenInJson(), members, fields, ""), list(members)
    try:
        members = decode(payload)
    except Refused as why:
        raise Misfit(str(why)) from None
    return _row(_Unpacked(), members, fields, ""), list(members)


class _Written(Protocol):
    """How values are written in a format."""

    def opened(self, value: Any) -> Any:
        """The value as Python has it; the members of an object and the items of an array are not opened yet."""

    def text(self, value: Any) -> str:
        """The value as compact JSON."""


class _Float(float):
    """A number that remembers its digits."""

    digits = ""


class _WrittenInJson:
    def opened(self, value: Any) -> Any:
        raw = bytes(value)
        first = raw[:1]
        if first == b'"':
            return _json_decoder(str).decode(raw)
        if first in b"{[":
            return _json_decoder(dict if first == b"{" else list).decode(raw)
        if first in b"tfn":
            return {b"t": True, b"f": False, b"n": None}[first]
        digits = raw.decode()
        if len(digits) <= _MOST_DIGITS and not {".", "e", "E"} & set(digits):
            return int(digits)
        number = _Float(digits)
        number.digits = digits
        return number

    def text(self, value: Any) -> str:
        import msgspec

        return msgspec.json.format(bytes(value), indent=-1).decode()


class _Unpacked:
    def opened(self, value: Any) -> Any:
        return value

    def text(self, value: Any) -> str:
        import msgspec

        return msgspec.json.encode(value).decode()


@cache
def _json_decoder(kind: type) -> Any:
    import msgspec

    kinds: dict[type, Any] = {dict: dict[str, msgspec.Raw], list: list[msgspec.Raw], str: str}
    return msgspec.json.Decoder(kinds[kind])


def _row(written: _Written, members: dict[str, Any], fields: Fields, path: str) -> object:
    cells = [_cell(written, members.get(field.name), field, f"{path}{field.name}") for field in fields]
    return plain_row(fields)(*cells)


def _cell(written: _Written, value: Any, field: pa.Field[Any], path: str) -> Any:
    found = None if value is None else written.opened(value)
    if found is None:
        if field.nullable:
            return None
        raise Misfit(f"the field {_shown(path)} is missing")
    kind = field.type
    if pa.types.is_struct(kind) and isinstance(found, dict):
        return _row(written, found, inner_fields(kind), f"{path}.")
    if pa.types.is_map(kind) and isinstance(found, dict):
        return {key: _cell(written, item, kind.item_field, f"{path}.{key}") for key, item in found.items()}
    if pa.types.is_list(kind) and isinstance(found, list):
        return [_cell(written, item, kind.value_field, f"{path}[]") for item in found]
    if pa.types.is_string(kind):
        return found if isinstance(found, str) else _as_text(written, value, path)
    if pa.types.is_boolean(kind) and isinstance(found, bool):
        return found
    number = not isinstance(found, bool) and isinstance(found, int | float)
    if pa.types.is_floating(kind) and number:
        return _as_float(found)
    if pa.types.is_integer(kind) and number and isinstance(found, int):
        if found.bit_length() < kind.bit_width or found == -1 << (kind.bit_width - 1):
            return found
        raise Misfit(f"the field {_shown(path)} is out of the range of {kind}")
    made = _from_text(found, kind)
    if made is not None:
        return made
    here = next((name for python, name in _NAMES.items() if isinstance(found, python)), type(found).__name__)
    if isinstance(found, str) and not (pa.types.is_nested(kind) or _is_plain(kind)):
        raise Misfit(f"the field {_shown(path)} is a string that is no {kind}")
    if number and pa.types.is_decimal(kind):
        raise Misfit(f"the field {_shown(path)} does not fit into {kind}")
    raise Misfit(f"the field {_shown(path)} is {here} here, and the column is {kind}")


def _is_plain(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)


def _from_text(found: Any, kind: pa.DataType) -> Any:
    """What goes into a column of times, dates, decimals or binary; None where that cannot be."""
    if pa.types.is_binary(kind):
        return found if isinstance(found, bytes) else _as_bytes(found)
    if pa.types.is_decimal(kind):
        return _as_decimal(found, kind)
    if pa.types.is_timestamp(kind):
        return _as_time(found, zoned=kind.tz is not None)
    if pa.types.is_date(kind) and isinstance(found, str) and _DATE.fullmatch(found):
        return found if _date(found) is not None else None
    return None


def _as_text(written: _Written, value: Any, path: str) -> str:
    try:
        return written.text(value)
    except (TypeError, ValueError, NotImplementedError):
        raise Misfit(f"the field {_shown(path)} has no form in JSON") from None


def _as_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")


def _as_bytes(found: Any) -> bytes | None:
    import msgspec

    if not isinstance(found, str):
        return None
    try:
        return msgspec.convert(found, bytes)
    except msgspec.ValidationError:
        return None


def _as_decimal(found: Any, kind: pa.DataType) -> str | None:
    if isinstance(found, bool) or not isinstance(found, int | float | str):
        return None
    text = found if isinstance(found, str) else getattr(found, "digits", "") or repr(found)
    if not _DECIMAL.fullmatch(text):
        return None
    try:
        number = Decimal(text).normalize(Context(prec=len(text), Emax=MAX_EMAX, Emin=MIN_EMIN))
    except DecimalException:
        return None  # an exponent beyond all measure
    if not number:
        return "0"
    decimal, exponent = cast("Any", kind), cast("int", number.as_tuple().exponent)
    fits = exponent >= -decimal.scale and number.adjusted() < decimal.precision - decimal.scale
    return str(number) if fits else None


def _as_time(found: Any, *, zoned: bool) -> str | None:
    if isinstance(found, datetime) and zoned:
        return _in_utc(found)
    match = _TIME.fullmatch(found) if isinstance(found, str) else None
    if match is None:
        return None
    day, hour, minute, second, fraction, zone = match.groups()
    if zone is not None and not zoned:
        return None
    try:
        time = datetime.fromisoformat(
            f"{day}T{hour or '00'}:{minute or '00'}:{second or '00'}.{(fraction or '0'):0<6.6}"
        )
    except ValueError:
        return None
    if not zoned:
        return time.isoformat()
    return _in_utc(time.replace(tzinfo=UTC), zone)


def _in_utc(time: datetime, zone: str | None = None) -> str | None:
    offset = timedelta()
    if zone is not None and zone != "Z":
        hours, minutes = int(zone[1:3]), int(zone[3:].lstrip(":") or "0")
        if hours > 23 or minutes > 59:
            return None
        offset = timedelta(hours=hours, minutes=minutes) * (-1 if zone[0] == "-" else 1)
    try:
        return (time.astimezone(UTC) - offset).replace(tzinfo=None).isoformat() + "Z"
    except OverflowError:
        return None


def _date(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def _shown(path: str) -> str:
    return repr(path if len(path) <= _LONGEST_PATH else f"{path[:_LONGEST_PATH]}...")
