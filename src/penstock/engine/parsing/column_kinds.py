"""Which kind of value each field has, learned row by row; and columns made of rows that fit together.

The slow way into columns, for rows that no quick way takes as they are. The quick way of MessagePack learns here too,
from the rows that have something new. The first row that has a field settles its kind. Integers and floats fit
together, as floats; null fits everything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, cast

import pyarrow as pa

from penstock.engine.parsing.json_columns import batch_without_columns

_BOOLEAN, _INTEGER, _FLOAT, _STRING = "boolean", "integer", "float", "string"
_BINARY, _TIMESTAMP, _ARRAY, _OBJECT = "binary", "timestamp", "array", "object"
_KINDS: dict[type, str] = {
    bool: _BOOLEAN,
    int: _INTEGER,
    float: _FLOAT,
    str: _STRING,
    bytes: _BINARY,
    datetime: _TIMESTAMP,
    list: _ARRAY,
    dict: _OBJECT,
}
_ARROW: dict[str | None, pa.DataType] = {
    None: pa.null(),
    _BOOLEAN: pa.bool_(),
    _INTEGER: pa.int64(),
    _FLOAT: pa.float64(),
    _STRING: pa.string(),
    _BINARY: pa.binary(),
    _TIMESTAMP: pa.timestamp("us", tz="UTC"),
}
_SCALAR = frozenset({type(None), bool, int, float, str, bytes, datetime})
_INT64 = range(-(1 << 63), 1 << 63)
_LONGEST_NAME = 60
_MAX_FIELDS = 4_000  # columns of a block, with those inside others
_MIN_FIELDS = 64  # that every block may have, however many rows and however few bytes it has
_CELLS = 16_000_000  # rows times columns that any block may have
_CELLS_PER_BYTE = 8  # and so many more for each byte of its payloads


def max_fields(rows: int, size: int) -> int:
    """How many fields the columns of a block may have: every one costs memory for every row, also where it is null.

    Else few bytes make many gigabytes: rows that have a field each, and none in common.

    >>> max_fields(1_000, 100_000), max_fields(1_000_000, 20_000_000), max_fields(10_000_000, 20_000_000)
    (4000, 176, 64)
    """
    return min(max((_CELLS + _CELLS_PER_BYTE * size) // max(rows, 1), _MIN_FIELDS), _MAX_FIELDS)


class ColumnKinds:
    """The kinds of all fields seen so far, up to `limit` of them."""

    def __init__(self, limit: int) -> None:
        self._root = _Kind(_Room(limit))
        self._shapes: set[tuple[tuple[str, ...], tuple[type, ...]]] = set()

    def misfit(self, row: dict[str, Any]) -> str | None:
        """Learn from a row that fits, and return None; else learn nothing, and say which field does not fit."""
        shape = (tuple(row), tuple(map(type, row.values())))
        if shape in self._shapes and all(value in _INT64 for value in row.values() if type(value) is int):
            return None
        undo: list[Callable[[], object]] = []
        why = self._root.learn(row, "", undo)
        if why is not None:
            for step in reversed(undo):
                step()
        elif _SCALAR.issuperset(shape[1]):
            self._shapes.add(shape)  # whatever else looks like this fits too
        return why

    @property
    def schema(self) -> pa.Schema:
        """The columns that hold all rows that fitted, in the order in which their fields appeared."""
        return pa.schema(self._root.arrow_fields())

    def to_arrow(self, rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
        """The columns of rows that fitted."""
        if not self._root.fields:
            return batch_without_columns(len(rows))
        columns = [kind.column([row.get(name) for row in rows]) for name, kind in self._root.fields.items()]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


class _Room:
    """How many fields there may be, and how many more."""

    __slots__ = ("left", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = self.left = limit


class _Kind:
    __slots__ = ("fields", "item", "name", "room")

    def __init__(self, room: _Room) -> None:
        self.name: str | None = None
        self.fields: dict[str, _Kind] = {}
        self.item: _Kind | None = None
        self.room = room

    def learn(self, value: object, path: str, undo: list[Callable[[], object]]) -> str | None:
        if value is None:
            return None
        name = _KINDS.get(type(value))
        if name is None:
            return f"the field {_shown(path)} is of a type that has no column: {type(value).__name__}"
        if name is _INTEGER and value not in _INT64:
            name = _FLOAT
        if self.name is None or (self.name is _INTEGER and name is _FLOAT):
            undo.append(self._set_name(name))
        elif self.name is not name and not (self.name is _FLOAT and name is _INTEGER):
            return f"the field {_shown(path)} is {_a(name)} here, and {_a(self.name)} in the rows before"
        if name is _OBJECT:
            return self._learn_fields(cast("dict[str, object]", value), path, undo)
        if name is _ARRAY:
            return self._learn_items(cast("list[object]", value), path, undo)
        return None

    def arrow(self) -> pa.DataType:
        if self.name is _OBJECT:
            return pa.struct(self.arrow_fields())
        if self.name is _ARRAY:
            return pa.list_(pa.null() if self.item is None else self.item.arrow())
        return _ARROW[self.name]

    def arrow_fields(self) -> list[pa.Field[Any]]:
        return [pa.field(name, kind.arrow()) for name, kind in self.fields.items()]

    def column(self, values: list[Any]) -> pa.Array[Any]:
        try:
            return cast("pa.Array[Any]", pa.array(values, type=self.arrow()))
        except (pa.ArrowInvalid, OverflowError):
            # An integer that no float is exactly; the others need no conversion.
            return cast("pa.Array[Any]", pa.array([self.convert(value) for value in values], type=self.arrow()))

    def convert(self, value: Any) -> Any:
        """The value as Arrow takes it: an integer in a column of floats is a float, and may be infinite."""
        if value is None:
            return None
        if self.name is _FLOAT:
            return _float(value)
        if self.name is _OBJECT:
            return {name: self.fields[name].convert(inner) for name, inner in value.items()}
        if self.name is _ARRAY:
            return value if self.item is None else [self.item.convert(inner) for inner in value]
        return value

    def _set_name(self, name: str) -> Callable[[], object]:
        before, self.name = self.name, name
        return lambda: setattr(self, "name", before)

    def _learn_fields(self, members: dict[str, object], path: str, undo: list[Callable[[], object]]) -> str | None:
        for name, inner in members.items():
            kind = self.fields.get(name)
            if kind is None:
                if not self.room.left:
                    there = f"{path}.{name}" if path else name
                    return f"the field {_shown(there)} is one more than the {self.room.limit} that this block may have"
                kind = self._add_field(name, undo)
            why = kind.learn(inner, f"{path}.{name}" if path else name, undo)
            if why is not None:
                return why
        return None

    def _add_field(self, name: str, undo: list[Callable[[], object]]) -> _Kind:
        self.room.left -= 1
        kind = self.fields[name] = _Kind(self.room)

        def take_back() -> None:
            del self.fields[name]
            self.room.left += 1

        undo.append(take_back)
        return kind

    def _learn_items(self, items: list[object], path: str, undo: list[Callable[[], object]]) -> str | None:
        if self.item is None:
            # An item that nothing was learned about says as much as none: it need not be taken back.
            self.item = _Kind(self.room)
        for inner in items:
            why = self.item.learn(inner, f"{path}[]", undo)
            if why is not None:
                return why
        return None


def _float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _shown(path: str) -> str:
    return repr(path if len(path) <= _LONGEST_NAME else f"{path[:_LONGEST_NAME]}...")


def _a(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aio" else f"a {kind}"
