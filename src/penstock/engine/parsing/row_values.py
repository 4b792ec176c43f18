"""One payload as a row of columns, value by value: it fits, or the reason says why not. All reasons come from here.

The quick ways hand over every row that they do not take, so that this module alone decides. A row is a struct with an
attribute for each column, and its values are what the quick ways make of them: times, dates and decimals are text that
Arrow casts. Numbers in JSON are read as they are written, so no digit of a decimal is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import cache, cached_property
from typing import Any, TypeAlias, cast

import msgspec
import pyarrow as pa

from penstock.engine.parsing.json_payloads import JsonPayloads
from penstock.engine.parsing.lenient_values import NoMeaning, lenient_reader
from penstock.engine.parsing.msgpack_payloads import MsgpackPayloads
from penstock.engine.parsing.parse_options import STRICT, ParseOptions
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
from penstock.engine.parsing.text_values import from_text

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
    """Fields, prepared for reading many rows of them value by value; `path` is in front of their names."""

    def __init__(self, fields: Iterable[pa.Field[Any]], options: ParseOptions = STRICT, path: str = "") -> None:
        self.columns = [ColumnShape(field, options, path + field.name) for field in fields]
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

    def __init__(self, field: pa.Field[Any], options: ParseOptions, path: str) -> None:
        self.field, self.name, self.kind = field, field.name, field.type
        self.rule = options.rule(path, field.type)
        self.row: RowShape | None = None
        self.item: ColumnShape | None = None
        if pa.types.is_struct(field.type):
            self.row = RowShape(inner_fields(field.type), options, f"{path}.")
        elif pa.types.is_map(field.type) or pa.types.is_list(field.type):
            inner = field.type.item_field if pa.types.is_map(field.type) else field.type.value_field
            self.item = ColumnShape(inner, options, path)
        self.has_members: bool = self.row is not None or (self.item is not None and self.item.has_members)


def check_payload(payload: bytes, form: PayloadFormat, *, is_lenient: bool = False) -> bytes:
    """The payload, which is one object. Raises `BadPayload` for any other.

    If it `is_lenient`, `NaN` and `Infinity` may be in it, and are text in what is returned.
    """
    wrong = form.why_bad(payload)
    if wrong is None:
        return payload
    with_text = form.with_text_for_constants(payload) if is_lenient else payload
    if with_text == payload or form.why_bad(with_text) is not None:
        raise BadPayload(wrong)
    return with_text


def read_object(payload: bytes, form: PayloadFormat) -> dict[str, Any]:
    """The object in a payload that was checked. Raises `BadPayload` for a key that one of its objects has twice."""
    value: dict[str, Any] = read_value(payload, form)
    return value


def read_value(payload: bytes, form: PayloadFormat) -> Any:
    """The same for any value."""
    value = form.value(payload)
    if not form.keeps_all_keys([payload], [value]):
        _refuse_repeated(repeated_key(form, payload))
    return value


def read_objects(
    values: pa.Array[Any], form: PayloadFormat, *, is_lenient: bool = False
) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """The objects in payloads, and what is wrong with those that have none."""
    payloads = cast("list[bytes]", values.to_pylist())
    unsure: set[int] = set()
    objects = decode_each(lambda: form.decoders.object, payloads, unsure.add)
    unsure |= form.unchecked(values, payloads, unsure)
    unsure.update(form.odd_objects(objects))
    bad: dict[int, str] = {}
    for row in sorted(unsure.union(rows_without_proof(payloads, objects, form, unsure))):
        try:
            checked = check_payload(payloads[row], form, is_lenient=is_lenient)
            objects[row] = read_object(checked, form)
            if checked != payloads[row]:  # with `NaN` in it, which is a number here
                objects[row] = form.decode(payloads[row])
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
    converted = from_text(found, kind)
    if converted is None and column.rule.converts:
        converted = _lenient(found, column, path)
    if converted is not None:
        return converted
    is_plain = _is_plain(kind) and not (column.rule.is_lenient and not pa.types.is_null(kind))
    if isinstance(found, str) and not (pa.types.is_nested(kind) or is_plain):
        raise BadPayload(f"the field {shown(path)} is a string that is no {kind}")
    if number and pa.types.is_decimal(kind):
        raise BadPayload(f"the field {shown(path)} does not fit into {kind}")
    raise BadPayload(f"the field {shown(path)} is {_name_of(found)} here, and the column is {column.type_name}")


def _lenient(found: Any, column: ColumnShape, path: str) -> Any:
    try:
        return lenient_reader(column.kind, column.rule)(found)
    except NoMeaning as why:
        raise BadPayload(f"the field {shown(path)} {why}") from None


def _name_of(found: Any) -> str:
    if isinstance(found, Members):
        return NAMES[dict]
    return next((name for python, name in NAMES.items() if isinstance(found, python)), type(found).__name__)


def _is_plain(kind: pa.DataType) -> bool:
    return any(
        is_kind(kind) for is_kind in (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_null)
    )


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
