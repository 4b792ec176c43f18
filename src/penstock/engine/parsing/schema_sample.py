"""A schema from a sample of payloads, and a report of what was in it: for columns that are to last.

`infer_schema` finds the columns of one block, and a row that does not fit there is an error. Here the columns are for
rows that are still to come, so they are wide: where a field has values of two kinds its column is one of text, into
which any value goes as JSON.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from penstock.engine.parsing.parser import parse_objects
from penstock.engine.parsing.payload_format import ParseFormat, shown
from penstock.engine.parsing.payload_schemas import NO_SCHEMAS, PayloadSchemas
from penstock.engine.parsing.row_values import type_name
from penstock.errors import InvalidInput

_INT64 = range(-(1 << 63), 1 << 63)
_MAX_FIELDS = 4_000  # with those inside others
_STRUCT, _LIST = "object", "array"
_NAMES: dict[type, str] = {
    bool: "bool",
    int: "int64",
    float: "double",
    str: "string",
    bytes: "binary",
    datetime: "timestamp",
    list: _LIST,
    dict: _STRUCT,
}
_TYPES: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int64": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
_MAX_BAD_SHOWN = 3


@dataclass(frozen=True, slots=True)
class SampledColumn:
    """A column that a sample has: `present` of its payloads had the field, `nulls` of those a null.

    `name` is the path, with `[]` for the items of a list, of which `present` counts the items. `widened_from` has the
    kinds of values that were found, and how many of each, where the column's type is none of them alone.
    """

    name: str
    type: pa.DataType
    present: int
    nulls: int
    widened_from: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        note = ""
        if self.widened_from:
            note = f", widened from {' and '.join(f'{kind} ({count})' for kind, count in self.widened_from)}"
        elif self.present == self.nulls:
            note = ", for nothing else was there"
        return f"{self.name}: {type_name(self.type)}, in {self.present}, null in {self.nulls}{note}"


@dataclass(frozen=True)
class SampledSchema:
    """The schema that a sample of payloads has, and what was found: `str()` is a report to read.

    `columns` has those inside others too, each behind the one it is in. `errors` are the reasons of the payloads that
    are no objects, and count for nothing else; `ignored_fields` are fields more than a schema may have.
    """

    schema: pa.Schema
    payloads: int
    columns: tuple[SampledColumn, ...]
    errors: tuple[str, ...] = ()
    ignored_fields: int = 0

    def __str__(self) -> str:
        lines = [f"{self.payloads} payloads, {len(self.errors)} of them not parsed, {len(self.schema)} columns"]
        lines += [f"  {column}" for column in self.columns]
        lines += [
            f"  not parsed: {reason} ({count})" for reason, count in Counter(self.errors).most_common(_MAX_BAD_SHOWN)
        ]
        if self.ignored_fields:
            lines.append(f"  {self.ignored_fields} fields more than {_MAX_FIELDS} have no column")
        return "\n".join(lines)


def sample_schema(
    values: pa.Array[Any],
    form: ParseFormat = ParseFormat.JSON,
    *,
    payload_schemas: PayloadSchemas = NO_SCHEMAS,
    headers: pa.Array[Any] | None = None,
) -> SampledSchema:
    r"""The columns of a sample of payloads, in the order in which their fields appear first, and a report.

    Integers and floats together are floats; any other two kinds of values in a field are text, as is a field that is
    always null, or an object that is always empty. Text is text, also where it looks like a time. The same sample has
    the same schema; a payload that does not parse counts for nothing, so a sample of none but such has no columns.

    >>> sample = pa.array([b'{"id": 1, "at": null}', b'{"id": 2.5}', b'{"id": 3, "tags": ["x"]}', b"oops"], pa.binary())
    >>> print(sample_schema(sample))
    4 payloads, 1 of them not parsed, 3 columns
      id: double, in 3, null in 0, widened from int64 (2) and double (1)
      at: string, in 1, null in 1, for nothing else was there
      tags: list<string>, in 1, null in 0
      tags[]: string, in 1, null in 0
      not parsed: parse error: JSON is malformed: invalid character (byte 0) (1)
    """
    parsed = parse_objects(values, form, payload_schemas=payload_schemas, headers=headers)
    if form == ParseFormat.JSON_VALUES:
        raise InvalidInput("json-values has the one column 'value', a string: there is nothing to sample")
    budget = _Budget()
    root = _Found(budget)
    for value in parsed.objects:
        root.add(value)
    columns = tuple(column for name, found in root.fields.items() for column in found.columns(name))
    schema = pa.schema([pa.field(name, found.type) for name, found in root.fields.items()])
    reasons = tuple(error.reason for error in parsed.errors)
    return SampledSchema(schema, len(values), columns, reasons, len(budget.ignored))


class _Budget:
    """The fields that there still may be, and the paths of those that there may not."""

    def __init__(self) -> None:
        self.free = _MAX_FIELDS
        self.ignored: set[tuple[int, str]] = set()


class _Found:
    """What was found in one field."""

    def __init__(self, budget: _Budget) -> None:
        self.present = self.nulls = 0
        self.kinds: Counter[str] = Counter()
        self.fields: dict[str, _Found] = {}
        self.item: _Found | None = None
        self._budget = budget

    def add(self, value: object) -> None:
        self.present += 1
        if value is None:
            self.nulls += 1
            return
        # What has no column of its own, such as an extension of MessagePack, is nothing that a type could be found for.
        kind = _NAMES.get(type(value), "something unknown")
        self.kinds["double" if kind == "int64" and value not in _INT64 else kind] += 1
        if isinstance(value, dict):
            for name, inner in value.items():
                field = self._field(name)
                if field is not None:
                    field.add(inner)
        elif isinstance(value, list):
            self.item = self.item or _Found(self._budget)
            for inner in value:
                self.item.add(inner)

    def _field(self, name: str) -> _Found | None:
        found = self.fields.get(name)
        if found is None and self._budget.free:
            self._budget.free -= 1
            found = self.fields[name] = _Found(self._budget)
        elif found is None:
            self._budget.ignored.add((id(self), name))
        return found

    @property
    def type(self) -> pa.DataType:
        if set(self.kinds) == {"int64", "double"}:
            return pa.float64()
        kind = next(iter(self.kinds)) if len(self.kinds) == 1 else "string"
        if kind == _STRUCT and self.fields:
            return pa.struct([pa.field(name, found.type) for name, found in self.fields.items()])
        if kind == _LIST and self.item is not None:
            return pa.list_(self.item.type)
        return _TYPES.get(kind, pa.string())

    def columns(self, name: str) -> Iterator[SampledColumn]:
        kind = self.type
        is_widened = len(self.kinds) > 1 or (
            bool(self.kinds) and pa.types.is_string(kind) and "string" not in self.kinds
        )
        widened = tuple(self.kinds.items()) if is_widened else ()
        yield SampledColumn(shown(name)[1:-1], kind, self.present, self.nulls, widened)
        if pa.types.is_struct(kind):
            for inner, found in self.fields.items():
                yield from found.columns(f"{name}.{inner}")
        elif pa.types.is_list(kind) and self.item is not None:
            yield from self.item.columns(f"{name}[]")
