"""`ParseOptions`: how much a parser takes, what it keeps of fields without a column, and what numbers are as times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pyarrow as pa

from penstock.core import as_word
from penstock.engine.parsing.payload_format import inner_fields
from penstock.errors import InvalidInput


class ParseMode(StrEnum):
    """What goes into a column: only what is of its type, or also what has one sensible meaning there."""

    STRICT = "strict"
    LENIENT = "lenient"


class TimestampUnit(StrEnum):
    """What a number counts, since the start of 1970 in UTC."""

    SECONDS = "s"
    MILLISECONDS = "ms"
    MICROSECONDS = "us"
    NANOSECONDS = "ns"


@dataclass(frozen=True)
class ParseOptions:
    """How payloads are parsed into the columns of a schema.

    `mode` is strict, or lenient: then a value that is not of the column's type goes in where it has one sensible
    meaning there, such as the text `"42"` in a column of integers. `rescue` names a column of text, behind those of the
    schema, for the fields that have no column: one JSON object, null where there are none. `timestamp_unit` is one of
    s, ms, us and ns, for numbers in all columns of timestamps, or a mapping from names of such columns to units; a
    column inside others has their names in front (`"meta.at"`), items of lists and values of maps have the column's.

    Raises `InvalidInput` naming the option, the value and what is allowed.

    >>> from penstock.engine import parse_as
    >>> schema = pa.schema([("id", pa.int64())])
    >>> lenient = ParseOptions(mode="lenient", rescue="_rescued")
    >>> parse_as(pa.array([b'{"id": "42", "x": [1]}'], pa.binary()), schema, options=lenient).batch.to_pylist()
    [{'id': 42, '_rescued': '{"x":[1]}'}]
    """

    mode: str = ParseMode.STRICT
    rescue: str | None = None
    timestamp_unit: str | Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "mode", as_word("mode", ParseMode, self.mode))
        rescue: object = self.rescue
        if rescue is not None and (not isinstance(rescue, str) or not rescue):
            raise InvalidInput(f"rescue must be the name of a column, not {rescue!r}")
        unit = self.timestamp_unit
        if isinstance(unit, Mapping):
            checked = {name: _unit(f"timestamp_unit of {name!r}", each) for name, each in unit.items()}
            object.__setattr__(self, "timestamp_unit", checked or None)
        elif unit is not None:
            object.__setattr__(self, "timestamp_unit", _unit("timestamp_unit", unit))

    def __hash__(self) -> int:
        unit = self.timestamp_unit
        return hash((self.mode, self.rescue, frozenset(unit.items()) if isinstance(unit, Mapping) else unit))

    @property
    def is_lenient(self) -> bool:
        """Whether a value that is not of its column's type may go in."""
        return self.mode == ParseMode.LENIENT

    @property
    def converts(self) -> bool:
        """Whether a column may take more than with no options at all."""
        return self.is_lenient or self.timestamp_unit is not None

    def rule(self, path: str, kind: pa.DataType) -> ColumnRule:
        """What goes into the column of this name and type."""
        unit = self.timestamp_unit
        if isinstance(unit, Mapping):
            unit = unit.get(path)
        return ColumnRule(self.is_lenient, TimestampUnit(unit) if unit and pa.types.is_timestamp(kind) else None)

    def check(self, schema: pa.Schema) -> None:
        """Raise `InvalidInput` where a column that is named here is, or is not, one of the schema."""
        if self.rescue in schema.names:
            raise InvalidInput(f"rescue names the column {self.rescue!r}, which the schema has: give another name")
        if isinstance(self.timestamp_unit, Mapping):
            kinds = dict(_columns(schema, ""))
            for name in self.timestamp_unit:
                if name not in kinds:
                    raise InvalidInput(f"timestamp_unit names the column {name!r}, which the schema does not have")
                if not pa.types.is_timestamp(kinds[name]):
                    raise InvalidInput(
                        f"timestamp_unit names the column {name!r}, which is {kinds[name]}, no timestamp"
                    )


@dataclass(frozen=True, slots=True)
class ColumnRule:
    """What goes into one column, beside the values of its type."""

    is_lenient: bool = False
    unit: TimestampUnit | None = None

    @property
    def converts(self) -> bool:
        """Whether there is anything."""
        return self.is_lenient or self.unit is not None


STRICT = ParseOptions()
AS_IT_IS = ColumnRule()


def _unit(name: str, unit: object) -> TimestampUnit:
    return as_word(name, TimestampUnit, unit)


def _columns(fields: Iterable[pa.Field[Any]], path: str) -> Iterator[tuple[str, pa.DataType]]:
    for field in fields:
        kind = field.type
        while pa.types.is_list(kind) or pa.types.is_map(kind):
            kind = kind.value_type if pa.types.is_list(kind) else kind.item_type
        yield path + field.name, kind
        if pa.types.is_struct(kind):
            yield from _columns(inner_fields(kind), f"{path}{field.name}.")
