"""One payload as a row of columns, value by value: it fits, or the reason says why not. All reasons come from here.

The quick ways hand over every row that they do not take, so that this module alone decides. A row is a struct with an
attribute for each column, and its values are what the quick ways make of them: times, dates and decimals are text that
Arrow casts. Numbers in JSON are read as they are written, so no digit of a decimal is lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, DecimalException
from functools import cache, cached_property
from typing import Any, TypeAlias, cast

import msgspec
import pyarrow as pa

from penstock.engine.parsing.json_payloads import JsonPayloads
from penstock.engine.parsing.msgpack_payloads import MsgpackPayloads
from penstock.engine.parsing.payload_format import (
    BadPayload,
    Members,
    ParseFormat,
    attribute,
    decode_each,
    inner_fields,
    shown,
    without,
)

PayloadFormat: TypeAlias = JsonPayloads | MsgpackPayloads

NAMES: dict[type, str] = {
    bool: "a boolean",
    int: "an integer",
    float: "a float",
    str: "a string",
    bytes: "binary",
    datetime: "a timestamp",
    list: "an array",
    dict: "an object",
}
_PARTS_TO_PROVE = 16  # that rows are cut into where they are not proved together
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d)(?::(\d\d)(?::(\d\d)(?:\.(\d+))?)?)?(Z|[+-]\d\d(?::?\d\d)?)?)?", re.ASCII
)
_LAST_DAY_OF_YEAR_0 = "0000-12-31"
_NONE = timedelta()
_DECIMAL = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)  # one way to read any digits


@cache
def format_of(form: ParseFormat) -> PayloadFormat:
    """How payloads of a format are read. The rest of the parser does not depend on which it is."""
    return JsonPayloads() if form is ParseFormat.JSON else MsgpackPayloads()


def type_name(kind: pa.DataType) -> str:
    """What a type is called in a reason: Arrow's name, without the names of list items, which Arrow adds.

    >>> type_name(pa.struct([("a", pa.list_(pa.int64()))]))
    'struct<a: list<int64>>'
    """
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{field.name}: {type_name(field.type)}' for field in inner_fields(kind))}>"
    if pa.types.is_map(kind):
        return f"map<string, {type_name(kind.item_type)}>"
    return f"list<{type_name(kind.value_type)}>" if pa.types.is_list(kind) else str(kind)


class RowShape:
    """Fields, prepared for reading many rows of them value by value."""

    def __init__(self, fields: Iterable[pa.Field[Any]]) -> None:
        self.columns = [ColumnShape(field) for field in fields]
        self.places = {column.name: at for at, column in enumerate(self.columns)}
        self.required = {at for at, column in enumerate(self.columns) if not column.field.nullable}
        members: list[Any] = [(attribute(at), Any, None) for at in range(len(self.columns))]
        self.struct = msgspec.defstruct("PlainRow", members, gc=False)


class ColumnShape:
    """A field, prepared likewise: what a struct has in it, or the items of a list or a map."""

    @cached_property
    def type_name(self) -> str:
        """What its type is called in a reason."""
        return type_name(self.kind)

    def __init__(self, field: pa.Field[Any]) -> None:
        self.field, self.name, self.kind = field, field.name, field.type
        self.row = RowShape(inner_fields(field.type)) if pa.types.is_struct(field.type) else None
        is_map, is_list = pa.types.is_map(field.type), pa.types.is_list(field.type)
        self.item = (
            ColumnShape(field.type.item_field if is_map else field.type.value_field) if is_map | is_list else None
        )


def check_payload(payload: bytes, form: PayloadFormat) -> None:
    """Raise `BadPayload` unless the payload is one object."""
    wrong = form.why_bad(payload)
    if wrong is not None:
        raise BadPayload(wrong)


def read_object(payload: bytes, form: PayloadFormat) -> dict[str, Any]:
    """The object in a payload that was checked. Raises `BadPayload` for a key that one of its objects has twice."""
    value = form.decode(payload)
    if not form.keeps_all_keys([payload], [value]):
        _refuse_repeated(repeated_key(form, payload))
    return value


def read_objects(values: pa.Array[Any], form: PayloadFormat) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """The objects in payloads, and what is wrong with those that have none."""
    payloads = cast("list[bytes]", values.to_pylist())
    unsure: set[int] = set()
    objects = decode_each(lambda: form.decoders.object, payloads, unsure.add)
    unsure |= form.unchecked(values, payloads, unsure)
    unsure.update(form.odd_objects(objects))
    bad: dict[int, str] = {}
    for row in sorted(unsure.union(rows_without_proof(payloads, objects, form, unsure))):
        try:
            check_payload(payloads[row], form)
            objects[row] = read_object(payloads[row], form)
        except BadPayload as why:
            bad[row] = str(why)
    return without(objects, bad) if bad else objects, bad


def rows_without_proof(
    payloads: Sequence[bytes], decoded: Sequence[Any], form: PayloadFormat, excluded: set[int]
) -> Iterator[int]:
    """Rows, but for those excluded, of which it is not proved that decoding them lost no member."""
    rows: Sequence[int] = range(len(payloads))
    if excluded:
        rows, payloads, decoded = without(rows, excluded), without(payloads, excluded), without(decoded, excluded)
    parts = [(0, len(rows))] if rows else []
    while parts:
        start, end = parts.pop()
        if form.keeps_all_keys(payloads[start:end], decoded[start:end]):
            continue
        if end - start == 1:
            yield rows[start]
            continue
        step = -(-(end - start) // _PARTS_TO_PROVE)
        parts += [(at, min(at + step, end)) for at in range(start, end, step)]


def repeated_key(form: PayloadFormat, raw: Any) -> str | None:
    """A key that an object in the value has twice, at any depth."""
    found = form.opened(raw)
    values = found if isinstance(found, list) else []
    if isinstance(found, Members):
        key = _first_repeated(name for name, _ in found)
        if key is not None:
            return key
        values = [value for _, value in found]
    return next((key for key in (repeated_key(form, value) for value in values) if key is not None), None)


def read_row(payload: bytes, form: PayloadFormat, shape: RowShape) -> tuple[object, Sequence[str]]:
    """A payload that was checked as a row, and the names of all its members. Raises `BadPayload`."""
    members = form.opened(payload)
    return _row(form, members, shape, ""), [name for name, _ in members]


def member_without_column(value: Any, shape: RowShape | ColumnShape) -> bool:
    """Whether an object that was read into these columns has a member that they do not have."""
    row = shape if isinstance(shape, RowShape) else shape.row
    if row is not None and isinstance(value, dict):
        return any(
            name not in row.places or member_without_column(inner, row.columns[row.places[name]])
            for name, inner in value.items()
        )
    item = shape.item if isinstance(shape, ColumnShape) else None
    return item is not None and any(member_without_column(inner, item) for inner in value or ())


def _row(form: PayloadFormat, members: Members, shape: RowShape, path: str) -> object:
    values = {name: raw for name, raw in members if name in shape.places}
    if len(values) < len(members):
        _refuse_repeated(_first_repeated(name for name, _ in members if name in shape.places))
    cells: list[Any] = [None] * len(shape.columns)
    for at in sorted(shape.required.union(map(shape.places.__getitem__, values))):
        name = shape.columns[at].name
        cells[at] = _cell(form, values.get(name), shape.columns[at], f"{path}{name}")
    return shape.struct(*cells)


def _first_repeated(names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _refuse_repeated(key: str | None) -> None:
    if key is not None:
        raise BadPayload(f"the key {shown(key)} is there twice")


def _cell(form: PayloadFormat, raw: Any, column: ColumnShape, path: str) -> Any:
    found = None if raw is None else form.opened(raw)
    if found is None:
        if column.field.nullable:
            return None
        raise BadPayload(f"the field {shown(path)} is missing")
    kind, inner = column.kind, column.item
    if column.row is not None and isinstance(found, Members):
        return _row(form, found, column.row, f"{path}.")
    if inner is not None and pa.types.is_map(kind) and isinstance(found, Members):
        _refuse_repeated(_first_repeated(name for name, _ in found))
        return {name: _cell(form, item, inner, f"{path}.{name}") for name, item in found}
    if inner is not None and pa.types.is_list(kind) and type(found) is list:
        return [_cell(form, item, inner, f"{path}[]") for item in found]
    if pa.types.is_string(kind):
        return found if isinstance(found, str) else _as_text(form, raw, path)
    if pa.types.is_boolean(kind) and isinstance(found, bool):
        return found
    number = not isinstance(found, bool) and isinstance(found, int | float)
    if pa.types.is_floating(kind) and number:
        return _as_float(found)
    if pa.types.is_integer(kind) and number and isinstance(found, int):
        if found.bit_length() < kind.bit_width or found == -1 << (kind.bit_width - 1):
            return found
        raise BadPayload(f"the field {shown(path)} is out of the range of {kind}")
    converted = _from_text(found, kind)
    if converted is not None:
        return converted
    if isinstance(found, str) and not (pa.types.is_nested(kind) or _is_plain(kind)):
        raise BadPayload(f"the field {shown(path)} is a string that is no {kind}")
    if number and pa.types.is_decimal(kind):
        raise BadPayload(f"the field {shown(path)} does not fit into {kind}")
    raise BadPayload(f"the field {shown(path)} is {_name_of(found)} here, and the column is {column.type_name}")


def _name_of(found: Any) -> str:
    if isinstance(found, Members):
        return NAMES[dict]
    return next((name for python, name in NAMES.items() if isinstance(found, python)), type(found).__name__)


def _is_plain(kind: pa.DataType) -> bool:
    return any(
        is_kind(kind) for is_kind in (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_null)
    )


def _from_text(found: Any, kind: pa.DataType) -> Any:
    """What goes into a column of times, dates, decimals or binary; None where that cannot be."""
    if pa.types.is_binary(kind):
        return found if isinstance(found, bytes) else as_bytes(found)
    if pa.types.is_decimal(kind):
        return _as_decimal(found, kind)
    if pa.types.is_timestamp(kind):
        return as_time(found, zoned=kind.tz is not None)
    if pa.types.is_date(kind) and isinstance(found, str) and _DATE.fullmatch(found):
        return found if _date(found) is not None else None
    return None


def _as_text(form: PayloadFormat, raw: Any, path: str) -> str:
    _refuse_repeated(repeated_key(form, raw))
    try:
        return form.text(raw)
    except (TypeError, ValueError, NotImplementedError):
        raise BadPayload(f"the field {shown(path)} has no form in JSON") from None


def _as_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")


def as_bytes(found: Any) -> bytes | None:
    """The bytes that a text is base64 of, or None."""
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
    return f"{number:f}" if fits else None


def as_time(found: Any, *, zoned: bool) -> str | None:
    """A timestamp as text that Arrow casts: in UTC if `zoned`, else without a zone; None for what is none."""
    if isinstance(found, datetime) and zoned:
        return _in_utc(found)
    match = _TIME.fullmatch(found) if isinstance(found, str) else None
    if match is None:
        return None
    day, hour, minute, second, fraction, zone = match.groups()
    if zone is not None and not zoned:
        return None
    is_before_year_1 = zoned and day == _LAST_DAY_OF_YEAR_0  # of which times may be in the year 1, in UTC
    if is_before_year_1:
        day = "0001-01-01"
    try:
        time = datetime.fromisoformat(
            f"{day}T{hour or '00'}:{minute or '00'}:{second or '00'}.{(fraction or '0'):0<6.6}"
        )
    except ValueError:
        return None
    if not zoned:
        return time.isoformat()
    return _in_utc(time.replace(tzinfo=UTC), zone, timedelta(days=is_before_year_1))


def _in_utc(time: datetime, zone: str | None = None, offset: timedelta = _NONE) -> str | None:
    if zone is not None and zone != "Z":
        hours, minutes = int(zone[1:3]), int(zone[3:].lstrip(":") or "0")
        if hours > 23 or minutes > 59:
            return None
        offset += timedelta(hours=hours, minutes=minutes) * (-1 if zone[0] == "-" else 1)
    try:
        return (time.astimezone(UTC) - offset).replace(tzinfo=None).isoformat() + "Z"
    except OverflowError:
        return None


def _date(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None
