"""Which kind of value each field has, learned row by row: how a schema is inferred.

The first row that has a field settles its kind. Integers and floats fit together, as floats; null fits everything; and
a kind takes what its column takes, so any value fits a string. A row that does not fit settles nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, cast

import pyarrow as pa

from penstock.engine.parsing.payload_format import shown
from penstock.engine.parsing.row_values import NAMES, type_name
from penstock.engine.parsing.text_values import as_bytes, as_time

# Compared by identity, which is many times quicker. A list and a struct stand for all of their kind.
_INTEGER, _FLOAT, _STRING, _BINARY = pa.int64(), pa.float64(), pa.string(), pa.binary()
_TIME, _LIST, _STRUCT = pa.timestamp("us", tz="UTC"), pa.list_(pa.null()), pa.struct([])
_TYPES: dict[type, pa.DataType] = {
    bool: pa.bool_(),
    int: _INTEGER,
    float: _FLOAT,
    str: _STRING,
    bytes: _BINARY,
    datetime: _TIME,
    list: _LIST,
    dict: _STRUCT,
}
_SCALAR = frozenset({type(None), bool, int, float, str, bytes, datetime})
_INT64 = range(-(1 << 63), 1 << 63)
_MAX_FIELDS = 4_000  # columns of a block, with those inside others
_MIN_FIELDS = 64  # that every block may have, however many rows and however few bytes it has
_MAX_CELLS = 16_000_000  # rows times columns that any block may have
_MAX_CELLS_PER_BYTE = 8  # and so many more for each byte of its payloads


def max_fields(rows: int, size: int) -> int:
    """How many fields the columns of a block may have: each costs memory for every row, also where it is null.

    Without a limit, few bytes make many gigabytes: rows that have a field each, and none in common.

    >>> max_fields(1_000, 100_000), max_fields(1_000_000, 20_000_000), max_fields(10_000_000, 20_000_000)
    (4000, 176, 64)
    """
    return min(max((_MAX_CELLS + _MAX_CELLS_PER_BYTE * size) // max(rows, 1), _MIN_FIELDS), _MAX_FIELDS)


class ColumnKinds:
    """The kinds of all fields of the rows that were learned from, at most `limit` fields."""

    def __init__(self, limit: int) -> None:
        self._learning = _Learning(limit)
        self._root = _Kind(self._learning)
        self._shapes: set[tuple[tuple[str, ...], tuple[type, ...]]] = set()
        self.changes = 0
        """How often a row had something new: as long as it stays the same, so does the schema."""

    def learn(self, row: dict[str, Any]) -> str | None:
        """Learn from a row that fits, and return None; else learn nothing, and say which field does not fit."""
        shape = (tuple(row), tuple(map(type, row.values())))
        if shape in self._shapes and all(value in _INT64 for value in row.values() if type(value) is int):
            return None
        learning = self._learning
        learning.undo.clear()
        learning.depends_on_text = False
        why = self._root.learn(row, "")
        if why is not None:
            for step in reversed(learning.undo):
                step()
            return why
        self.changes += bool(learning.undo)
        if _SCALAR.issuperset(shape[1]) and not learning.depends_on_text:
            self._shapes.add(shape)  # every other row with these fields and types fits too
        return None

    @property
    def schema(self) -> pa.Schema:
        """The columns that hold all rows that fitted, in the order in which their fields appeared."""
        return pa.schema(self._root.arrow_fields())


class _Learning:
    """What the kinds of one block share: the fields that are still free, and how to forget the row in hand."""

    def __init__(self, limit: int) -> None:
        self.limit = self.free_fields = limit
        self.undo: list[Callable[[], object]] = []
        self.depends_on_text = False


class _Kind:
    __slots__ = ("fields", "item", "learning", "type")

    def __init__(self, learning: _Learning) -> None:
        self.type: pa.DataType | None = None
        self.fields: dict[str, _Kind] = {}
        self.item: _Kind | None = None
        self.learning = learning

    def learn(self, value: object, path: str) -> str | None:
        if value is None or self.type is _STRING:
            return None
        kind = _TYPES.get(type(value))
        if kind is None:
            return f"the field {shown(path)} is of a type that has no column: {type(value).__name__}"
        if kind is _INTEGER and value not in _INT64:
            kind = _FLOAT
        if self.type is None or (self.type is _INTEGER and kind is _FLOAT):
            self._settle(kind)
        elif self.type is not kind and not (self.type is _FLOAT and kind is _INTEGER) and not self._takes_text(value):
            return f"the field {shown(path)} is {NAMES[type(value)]} here, and the column is {type_name(self.arrow())}"
        if kind is _STRUCT:
            return self._learn_fields(cast("dict[str, object]", value), f"{path}." if path else "")
        if kind is _LIST:
            return self._learn_items(cast("list[object]", value), f"{path}[]")
        return None

    def arrow(self) -> pa.DataType:
        if self.type is None:
            return pa.null()
        if self.type is _STRUCT:
            return pa.struct(self.arrow_fields())
        if self.type is _LIST:
            return pa.list_(pa.null() if self.item is None else self.item.arrow())
        return self.type

    def arrow_fields(self) -> list[pa.Field[Any]]:
        return [pa.field(name, kind.arrow()) for name, kind in self.fields.items()]

    def _settle(self, kind: pa.DataType) -> None:
        before, self.type = self.type, kind
        self.learning.undo.append(lambda: setattr(self, "type", before))

    def _takes_text(self, value: object) -> bool:
        """Whether the column takes this text: a time among timestamps, base64 among binary."""
        if not isinstance(value, str):
            return False
        self.learning.depends_on_text = True
        if self.type is _BINARY:
            return as_bytes(value) is not None
        return self.type is _TIME and as_time(value, zoned=True) is not None

    def _learn_fields(self, members: dict[str, object], prefix: str) -> str | None:
        for name, inner in members.items():
            kind = self.fields.get(name)
            if kind is None:
                if not self.learning.free_fields:
                    limit = self.learning.limit
                    return f"the field {shown(prefix + name)} is one more than the {limit} that this block may have"
                kind = self._add_field(name)
            why = kind.learn(inner, prefix + name)
            if why is not None:
                return why
        return None

    def _add_field(self, name: str) -> _Kind:
        learning = self.learning
        learning.free_fields -= 1
        kind = self.fields[name] = _Kind(learning)

        def remove() -> None:
            del self.fields[name]
            learning.free_fields += 1

        learning.undo.append(remove)
        return kind

    def _learn_items(self, items: list[object], path: str) -> str | None:
        if self.item is None:
            self.item = _Kind(self.learning)  # needs no undo: an item without a kind says as much as none
        item = self.item
        return next(filter(None, (item.learn(inner, path) for inner in items)), None)
