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

from penstock.engine.json_columns import batch_without_columns

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


class ColumnKinds:
    """The kinds of all fields seen so far."""

    def __init__(self) -> None:
        self._root = _Kind()
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


class _Kind:
    __slots__ = ("fields", "item", "name")

    def __init__(self) -> None:
        self.name: str | None = None
        self.fields: dict[str, _Kind] = {}
        self.item: _Kind | None = None

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
                kind = self.fields[name] = _Kind()
                undo.append(lambda name=name: self.fields.pop(name))  # type: ignore[misc]
            why = kind.learn(inner, f"{path}.{name}" if path else name, undo)
            if why is not None:
                return why
        return None

    def _learn_items(self, items: list[object], path: str, undo: list[Callable[[], object]]) -> str | None:
        if self.item is None:
            # An item that nothing was learned about says as much as none: it need not be taken back.
            self.item = _Kind()
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
