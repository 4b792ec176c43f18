"""Columns of blocks and of a table: types of Spark and of Iceberg, and what a table must gain to take a block."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from pyiceberg import types as iceberg
from pyiceberg.schema import Schema
from pyiceberg.table.update.schema import UpdateSchema
from pyspark.sql import types as spark

from penstock.errors import InvalidInput
from penstock.spark.tables.column_rules import refuse_empty_structs

_PRIMITIVES: tuple[tuple[type[spark.DataType], iceberg.PrimitiveType], ...] = (
    (spark.StringType, iceberg.StringType()),
    (spark.CharType, iceberg.StringType()),
    (spark.VarcharType, iceberg.StringType()),
    (spark.BinaryType, iceberg.BinaryType()),
    (spark.BooleanType, iceberg.BooleanType()),
    (spark.ByteType, iceberg.IntegerType()),
    (spark.ShortType, iceberg.IntegerType()),
    (spark.IntegerType, iceberg.IntegerType()),
    (spark.LongType, iceberg.LongType()),
    (spark.FloatType, iceberg.FloatType()),
    (spark.DoubleType, iceberg.DoubleType()),
    (spark.DateType, iceberg.DateType()),
    (spark.TimestampType, iceberg.TimestamptzType()),
    (spark.TimestampNTZType, iceberg.TimestampType()),
)
_TO_SPARK: tuple[tuple[type[iceberg.IcebergType], spark.DataType], ...] = (
    (iceberg.StringType, spark.StringType()),
    (iceberg.BinaryType, spark.BinaryType()),
    (iceberg.FixedType, spark.BinaryType()),
    (iceberg.BooleanType, spark.BooleanType()),
    (iceberg.IntegerType, spark.IntegerType()),
    (iceberg.LongType, spark.LongType()),
    (iceberg.FloatType, spark.FloatType()),
    (iceberg.DoubleType, spark.DoubleType()),
    (iceberg.DateType, spark.DateType()),
    (iceberg.TimestamptzType, spark.TimestampType()),
    (iceberg.TimestampType, spark.TimestampNTZType()),
)


@dataclass(frozen=True, slots=True)
class Change:
    """What a table must gain to take a block: a new column, or a wider type of one that it has."""

    path: tuple[str, ...]
    type: iceberg.IcebergType
    before: iceberg.IcebergType | None

    def __str__(self) -> str:
        name = ".".join(self.path)
        if self.before is None:
            return f"has no column {name!r} ({self.type})"
        return f"has the column {name!r} as {self.before}, not as {self.type}"

    def apply(self, update: UpdateSchema) -> None:
        """Make the change, with others, in one update of a table's columns."""
        if self.before is None:
            update.add_column(self.path, self.type)
        else:
            update.update_column(self.path, field_type=self.type)


@dataclass(frozen=True, slots=True)
class Matched:
    """A block's columns beside a table's: the block's with the ids of the table's, and what the table lacks.

    The columns are usable only where the table lacks nothing.
    """

    columns: Schema
    changes: tuple[Change, ...]


def iceberg_columns(columns: spark.StructType) -> Schema:
    """The columns of a table for a block's. Raises `InvalidInput` for one that Iceberg does not have.

    All of them may be null, whatever Spark says of them: a column that a later block does not have is null there.
    """
    refuse_empty_structs(columns)
    ids = itertools.count(1)
    return Schema(*_fields(columns, ids, ""))


def _fields(columns: spark.StructType, ids: Iterator[int], above: str) -> list[iceberg.NestedField]:
    seen: set[str] = set()
    for field in columns:
        # Without regard to case, as Spark compares names.
        if field.name.lower() in seen:
            raise InvalidInput(f"the block has the column {above + field.name!r} twice")
        if not field.name:
            raise InvalidInput("the block has a column without a name")
        seen.add(field.name.lower())
    return [
        iceberg.NestedField(next(ids), field.name, _type(field.dataType, ids, above + field.name), required=False)
        for field in columns
    ]


def _type(kind: spark.DataType, ids: Iterator[int], name: str) -> iceberg.IcebergType:
    if isinstance(kind, spark.StructType):
        return iceberg.StructType(*_fields(kind, ids, f"{name}."))
    if isinstance(kind, spark.ArrayType):
        return iceberg.ListType(next(ids), _type(kind.elementType, ids, f"{name}.element"), element_required=False)
    if isinstance(kind, spark.MapType):
        key = _type(kind.keyType, ids, f"{name}.key")
        value = _type(kind.valueType, ids, f"{name}.value")
        return iceberg.MapType(next(ids), key, next(ids), value, value_required=False)
    if isinstance(kind, spark.DecimalType):
        return iceberg.DecimalType(kind.precision, kind.scale)
    for theirs, ours in _PRIMITIVES:
        if isinstance(kind, theirs):
            return ours
    raise InvalidInput(f"the column {name!r} is {kind.simpleString()}, which Iceberg does not have: cast it")


def spark_columns(schema: Schema) -> spark.StructType:
    """A table's columns, as Spark has them. Raises `InvalidInput` for one that Spark does not have."""
    return spark.StructType(
        [spark.StructField(field.name, _to_spark(field.field_type, field.name)) for field in schema.columns]
    )


def _to_spark(kind: iceberg.IcebergType, name: str) -> spark.DataType:
    if isinstance(kind, iceberg.StructType):
        return spark.StructType(
            [
                spark.StructField(field.name, _to_spark(field.field_type, f"{name}.{field.name}"))
                for field in kind.fields
            ]
        )
    if isinstance(kind, iceberg.ListType):
        return spark.ArrayType(_to_spark(kind.element_type, f"{name}.element"))
    if isinstance(kind, iceberg.MapType):
        return spark.MapType(_to_spark(kind.key_type, f"{name}.key"), _to_spark(kind.value_type, f"{name}.value"))
    if isinstance(kind, iceberg.DecimalType):
        return spark.DecimalType(kind.precision, kind.scale)
    for theirs, ours in _TO_SPARK:
        if isinstance(kind, theirs):
            return ours
    raise InvalidInput(f"the column {name!r} is {kind} in the table, which Spark does not have")


def shown_type(kind: iceberg.IcebergType) -> str:
    """A type as Spark writes it; as Iceberg does, for one that Spark does not have."""
    try:
        return _to_spark(kind, "").simpleString()
    except InvalidInput:
        return str(kind)


def match_columns(block: Schema, table: Schema, name: str) -> Matched:
    """Find a block's columns in a table. Raises `InvalidInput` naming both types where they do not go together."""
    match = _Match(name)
    fields = match.fields(block.as_struct(), table.as_struct(), ())
    return Matched(Schema(*fields), tuple(match.changes))


class _Match:
    def __init__(self, table: str) -> None:
        self._table = table
        self._no_id = itertools.count(-1, -1)
        self.changes: list[Change] = []

    def fields(
        self, ours: iceberg.StructType, theirs: iceberg.StructType, path: tuple[str, ...]
    ) -> list[iceberg.NestedField]:
        found: list[iceberg.NestedField] = []
        for field in ours.fields:
            known = self._find(field.name, theirs, path)
            if known is None:
                self.changes.append(Change((*path, field.name), field.field_type, None))
                found.append(iceberg.NestedField(next(self._no_id), field.name, iceberg.BooleanType(), required=False))
                continue
            kind = self._type(field.field_type, known.field_type, (*path, known.name))
            found.append(iceberg.NestedField(known.field_id, field.name, kind, required=False))
        ids = {field.field_id for field in found}
        for field in theirs.fields:
            if field.required and field.field_id not in ids:
                raise InvalidInput(
                    f"the table {self._table} requires the column {'.'.join((*path, field.name))!r}, which the block "
                    "does not have"
                )
        return found

    def _find(self, name: str, theirs: iceberg.StructType, path: tuple[str, ...]) -> iceberg.NestedField | None:
        """The column of that name; or the one whose name differs in case only, for Spark cannot tell them apart."""
        alike = [field for field in theirs.fields if field.name.lower() == name.lower()]
        exact = [field for field in alike if field.name == name]
        if len(alike) > 1 and not exact:
            both = " and ".join(repr(field.name) for field in alike)
            raise InvalidInput(f"the table {self._table} has {both}, and {'.'.join((*path, name))!r} may be either")
        return next(iter(exact or alike), None)

    def _type(
        self, ours: iceberg.IcebergType, theirs: iceberg.IcebergType, path: tuple[str, ...], *, is_key: bool = False
    ) -> iceberg.IcebergType:
        if isinstance(ours, iceberg.StructType) and isinstance(theirs, iceberg.StructType):
            return iceberg.StructType(*self.fields(ours, theirs, path))
        if isinstance(ours, iceberg.ListType) and isinstance(theirs, iceberg.ListType):
            element = self._type(ours.element_type, theirs.element_type, (*path, "element"))
            return iceberg.ListType(theirs.element_id, element, element_required=False)
        if isinstance(ours, iceberg.MapType) and isinstance(theirs, iceberg.MapType):
            key = self._type(ours.key_type, theirs.key_type, (*path, "key"), is_key=True)
            value = self._type(ours.value_type, theirs.value_type, (*path, "value"))
            return iceberg.MapType(theirs.key_id, key, theirs.value_id, value, value_required=False)
        if ours == theirs or _widens(ours, theirs):
            return ours
        if _widens(theirs, ours) and not is_key:
            self.changes.append(Change(path, ours, theirs))
            return ours
        raise InvalidInput(
            f"the column {'.'.join(path)!r} is {shown_type(theirs)} in the table {self._table}, not "
            f"{shown_type(ours)}: write to another table, or cast it"
        )


def _widens(narrow: iceberg.IcebergType, wide: iceberg.IcebergType) -> bool:
    """Whether Iceberg reads values of one type as another: its own rule, which pyiceberg's `promote` is laxer than."""
    if isinstance(narrow, iceberg.DecimalType) and isinstance(wide, iceberg.DecimalType):
        return narrow.scale == wide.scale and narrow.precision < wide.precision
    return (isinstance(narrow, iceberg.IntegerType) and isinstance(wide, iceberg.LongType)) or (
        isinstance(narrow, iceberg.FloatType) and isinstance(wide, iceberg.DoubleType)
    )
