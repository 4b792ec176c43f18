"""Checks of columns and their names that Delta and Parquet tables share, and types with nulls allowed everywhere."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from penstock.errors import InvalidInput


def check_names(option: str, names: Sequence[object]) -> tuple[str, ...]:
    """Return the names of columns that an option has. Raises `InvalidInput` for what cannot be such."""
    known = [name for name in names if isinstance(name, str) and name]
    if isinstance(names, str) or len(known) != len(names):
        raise InvalidInput(f"{option} must be a list of names of columns, not {names!r}")
    refuse_twice(known, f"{option} names")
    return tuple(known)


def check_partition_columns(
    schema: StructType, partition_by: Sequence[str], types: tuple[type[DataType], ...], takes: str
) -> None:
    """Raise `InvalidInput` unless rows can be partitioned so. `takes` says in words what `types` are."""
    names = schema.fieldNames()
    for name in partition_by:
        if name not in names:
            raise InvalidInput(f"partition_by names the column {name!r}, and the block has only {', '.join(names)}")
        if not isinstance(schema[name].dataType, types):
            kind = schema[name].dataType.simpleString()
            raise InvalidInput(f"partition_by names the column {name!r}, which is {kind}: it takes {takes}")
    if len(partition_by) == len(names):
        raise InvalidInput("partition_by names every column of the block, and files need at least one more")


def refuse_twice(names: Sequence[str], where: str) -> None:
    """Raise `InvalidInput` for a name that is there twice, without regard to case, as Spark compares names."""
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise InvalidInput(f"{where} the column {name!r} twice")
        seen.add(name.lower())


def refuse_empty_structs(kind: DataType, name: str = "") -> None:
    """Raise `InvalidInput` for a struct without fields, which Parquet files cannot have, by its path."""
    if isinstance(kind, StructType):
        if name and not kind.fields:
            raise InvalidInput(f"the column {name!r} is a struct without fields, which no file of a table can have")
        for field in kind:
            refuse_empty_structs(field.dataType, f"{name}.{field.name}" if name else field.name)
    elif isinstance(kind, ArrayType):
        refuse_empty_structs(kind.elementType, f"{name}.element")
    elif isinstance(kind, MapType):
        refuse_empty_structs(kind.keyType, f"{name}.key")
        refuse_empty_structs(kind.valueType, f"{name}.value")


def nullable(kind: DataType, *, with_metadata: bool = False) -> DataType:
    """The same type with nulls allowed everywhere; the metadata of fields stays only if asked for."""
    if isinstance(kind, StructType):
        return nullable_columns(kind, with_metadata=with_metadata)
    if isinstance(kind, ArrayType):
        return ArrayType(nullable(kind.elementType, with_metadata=with_metadata))
    if isinstance(kind, MapType):
        key, value = (nullable(one, with_metadata=with_metadata) for one in (kind.keyType, kind.valueType))
        return MapType(key, value)
    return kind


def nullable_columns(schema: StructType, *, with_metadata: bool = False) -> StructType:
    """The same columns with nulls allowed everywhere."""
    return StructType(
        [
            StructField(
                field.name,
                nullable(field.dataType, with_metadata=with_metadata),
                metadata=field.metadata if with_metadata else None,
            )
            for field in schema
        ]
    )
