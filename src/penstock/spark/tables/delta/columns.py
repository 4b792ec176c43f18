"""Which columns a Delta table takes: Delta writes types as Spark does, and so they are compared as Spark's.

Delta-rs commits whatever it is given, so everything is checked here, before a file is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    IntegralType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.errors import InvalidInput
from penstock.spark.tables.column_rules import check_partition_columns, nullable, refuse_twice

_TYPES = (
    *(StringType, BinaryType, BooleanType, DateType, DecimalType, TimestampType, TimestampNTZType),
    *(ByteType, ShortType, IntegerType, LongType, FloatType, DoubleType),
)
# Those whose text says all of the value. A float's does not, and bytes may have none.
_PARTITION_TYPES = (StringType, IntegralType, BooleanType, DateType, TimestampType, TimestampNTZType)
# Decimals are no partition columns: delta-rs writes -1.5 as -1.-5, and then cannot read the table.
KEY_TYPES = (*_PARTITION_TYPES, DecimalType, BinaryType)
_UNFIT_NAME = re.compile(r"[ ,;{}()\n\t=]")  # which Delta refuses, for Parquet's sake


def check_columns(schema: StructType, partition_by: Sequence[str]) -> None:
    """Raise `InvalidInput` for columns that no Delta table takes, or that cannot be partitioned so."""
    refuse_twice(schema.fieldNames(), "the block has")
    for name, kind in _types(schema):
        if _UNFIT_NAME.search(name):
            raise InvalidInput(f"the column {name!r} has a space or one of ,;{{}}()= in its name: Delta takes none")
        if not isinstance(kind, _TYPES) or _is_collated(kind):
            raise InvalidInput(
                f"the column {name!r} is {kind.simpleString()}, which a Delta table cannot have here: cast it"
            )
    takes = "text, whole numbers, booleans, dates and timestamps"
    check_partition_columns(schema, partition_by, _PARTITION_TYPES, takes)


def missing_columns(table: StructType, block: StructType, url: str) -> StructType:
    """The columns of a block that a table lacks, all nullable: new ones, and structs with new fields.

    Raises `InvalidInput` where a column has another type in the table, or a name that differs in case only, and for
    a block without a column that is NOT NULL in the table.
    """
    known = {field.name.lower(): field for field in table}
    missing = []
    for field in block:
        found = known.get(field.name.lower())
        if found is None:
            missing.append(StructField(field.name, nullable(field.dataType)))
            continue
        if found.name != field.name:
            raise InvalidInput(
                f"the table {url} has a column {found.name!r}, and Spark cannot tell {field.name!r} from it"
            )
        merged = _merged(nullable(found.dataType), nullable(field.dataType), field.name, url)
        if merged != nullable(found.dataType):
            missing.append(StructField(field.name, merged, found.nullable))
    for field in table:
        if not field.nullable and field.name not in block.fieldNames():
            raise InvalidInput(
                f"the column {field.name!r} is NOT NULL in the table {url}, and the block does not have it"
            )
    return StructType(missing)


def _merged(one: DataType, other: DataType, column: str, url: str) -> DataType:
    """The type with the fields of both. Raises `InvalidInput` where they differ in anything else."""
    if isinstance(one, StructType) and isinstance(other, StructType):
        fields = {field.name.lower(): field for field in one}
        for field in other:
            known = fields.setdefault(field.name.lower(), field)
            if known.name != field.name:
                raise InvalidInput(
                    f"the table {url} has a field {column}.{known.name}, and Spark cannot tell {field.name!r} from it"
                )
            kind = _merged(known.dataType, field.dataType, f"{column}.{field.name}", url)
            fields[field.name.lower()] = StructField(field.name, kind)
        return StructType(list(fields.values()))
    if isinstance(one, ArrayType) and isinstance(other, ArrayType):
        return ArrayType(_merged(one.elementType, other.elementType, f"{column}.element", url))
    if isinstance(one, MapType) and isinstance(other, MapType):
        key = _merged(one.keyType, other.keyType, f"{column}.key", url)
        return MapType(key, _merged(one.valueType, other.valueType, f"{column}.value", url))
    if one != other:
        raise InvalidInput(
            f"the column {column!r} is {one.simpleString()} in the table {url}, not {other.simpleString()}: Delta "
            "widens no types here; write to another table, or cast it"
        )
    return one


def _types(kind: DataType, name: str = "") -> Iterator[tuple[str, DataType]]:
    """The types that are no structs, lists and maps, with the paths that lead there."""
    if isinstance(kind, StructType):
        if not kind.fields:
            yield name, kind
        for field in kind:
            yield from _types(field.dataType, f"{name}.{field.name}" if name else field.name)
    elif isinstance(kind, ArrayType):
        yield from _types(kind.elementType, f"{name}.element")
    elif isinstance(kind, MapType):
        yield from _types(kind.keyType, f"{name}.key")
        yield from _types(kind.valueType, f"{name}.value")
    else:
        yield name, kind


def _is_collated(kind: DataType) -> bool:
    """Whether text is compared otherwise than byte by byte (Spark 4), or has a length (`varchar`)."""
    return isinstance(kind, StringType) and kind != StringType()
