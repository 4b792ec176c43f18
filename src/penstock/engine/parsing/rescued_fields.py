"""The members of a payload that have no column, as one JSON object: what the column that `rescue` names has.

A member inside a struct stands inside the struct's name. In lists, each item has its place: null where nothing of it
is left. Names are in alphabetical order, so that the text does not depend on the way in which a payload was read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
from msgspec import UNSET

from penstock.engine.parsing.msgpack_payloads import NESTING, why_refused
from penstock.engine.parsing.payload_format import BadPayload, Fields, Members, attribute, inner_fields
from penstock.engine.parsing.row_values import ColumnShape, PayloadFormat, RowShape

Others: TypeAlias = "tuple[tuple[str, tuple[str, ...]], ...]"
"""The names of members without a column that structs have, by what is in front of them: "" for those at the top."""
_Extract: TypeAlias = Callable[[Any], Any]


def members_outside(payload: bytes, form: PayloadFormat, shape: RowShape) -> dict[str, Any]:
    """What a payload that was read has outside of these columns."""
    return _outside_row(form, form.opened(payload), shape)


def rescued_text(members: dict[str, Any]) -> str | None:
    """Members as compact JSON; None if there are none. Raises `BadPayload` for what JSON has no form for."""
    if not members:
        return None
    try:
        text = msgspec.json.encode(members)
    except (TypeError, ValueError, NotImplementedError):
        raise BadPayload("a field without a column has no form in JSON") from None
    if b" " in text or b"\n" in text or b"\t" in text or b"\r" in text:  # as it was written
        text = msgspec.json.format(text, indent=-1)
    return text.decode()


def names_outside(members: dict[str, Any], shape: RowShape, path: str = "") -> Iterator[tuple[str, str]]:
    """The names in what `members_outside` found, each behind what is in front of it."""
    for name, value in members.items():
        if name not in shape.places:
            yield path, name
        else:
            yield from _names_in_column(value, shape.columns[shape.places[name]], path + name)


def others_at(path: str, fields: Fields, others: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The names of others behind these fields: two structs may have the same names in front of them, with a dot."""
    names = {field.name for field in fields}
    return tuple(name for name in others.get(path, ()) if name not in names)


def struct_reader(fields: Fields, others: Mapping[str, tuple[str, ...]]) -> _Extract:
    """A function from a struct with these fields, and others behind them, to what it has outside of the fields.

    It raises `BadPayload` for a member that no payload may have. Others that are not there are `UNSET`.
    """
    return _struct_reader(fields, others, "", 2) or (lambda _: {})


def _outside_row(form: PayloadFormat, members: Members, shape: RowShape) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, raw in members:
        column = shape.columns[shape.places[name]] if name in shape.places else None
        if column is None:
            found[name] = form.for_json(raw)
        elif column.has_members and (inner := _outside_column(form, raw, column)):
            found[name] = inner
    return _ordered(found)


def _outside_column(form: PayloadFormat, raw: Any, column: ColumnShape) -> Any:
    value = form.opened(raw)
    if column.row is not None:
        return _outside_row(form, value, column.row) if isinstance(value, Members) else None
    item = column.item
    if item is None or not isinstance(value, list):
        return None
    if isinstance(value, Members):
        return _not_empty({name: _outside_column(form, each, item) for name, each in value})
    return _items(_outside_column(form, each, item) for each in value)


def _names_in_column(value: Any, column: ColumnShape, path: str) -> Iterator[tuple[str, str]]:
    if column.row is not None:
        yield from names_outside(value, column.row, f"{path}.")
    elif column.item is not None:
        for each in value.values() if isinstance(value, dict) else value:
            if each is not None:
                yield from _names_in_column(each, column.item, path)


def _struct_reader(fields: Fields, others: Mapping[str, tuple[str, ...]], path: str, depth: int) -> _Extract | None:
    """The same for structs at some depth; None where they have no others."""
    names = [(attribute(len(fields) + at), name) for at, name in enumerate(others_at(path, fields, others))]
    readers = ((field.name, _column_reader(field.type, others, path + field.name, depth)) for field in fields)
    inside = [(attribute(at), name, reader) for at, (name, reader) in enumerate(readers) if reader is not None]

    def read(row: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for place, name in names:
            value = getattr(row, place, UNSET)
            if value is not UNSET:
                if type(value) in NESTING and (why := why_refused([value], depth)):
                    raise BadPayload(why)
                found[name] = value
        for place, name, reader in inside:
            value = getattr(row, place, None)
            if value is not None and (inner := reader(value)):
                found[name] = inner
        return _ordered(found)

    return read if names or inside else None


def _column_reader(kind: pa.DataType, others: Mapping[str, tuple[str, ...]], path: str, depth: int) -> _Extract | None:
    if pa.types.is_struct(kind):
        return _struct_reader(inner_fields(kind), others, f"{path}.", depth + 1)
    is_map = pa.types.is_map(kind)
    if not is_map and not pa.types.is_list(kind):
        return None
    nested: Any = kind
    reader = _column_reader(nested.item_type if is_map else nested.value_type, others, path, depth + 1)
    if reader is None:
        return None
    if is_map:
        return lambda value: _not_empty({name: each and reader(each) for name, each in value.items()})
    return lambda value: _items(each and reader(each) for each in value)


def _ordered(members: dict[str, Any]) -> dict[str, Any]:
    return dict(sorted(members.items())) if len(members) > 1 else members


def _not_empty(members: dict[str, Any]) -> dict[str, Any]:
    return _ordered({name: inner for name, inner in members.items() if inner})


def _items(found: Iterable[Any]) -> list[Any] | None:
    items = [each or None for each in found]
    return items if any(items) else None
