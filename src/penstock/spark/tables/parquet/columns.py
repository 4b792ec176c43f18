"""Which columns a table takes, and what its columns are once blocks with different ones are in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    IntegralType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.errors import InvalidInput
from penstock.spark.tables.column_rules import (
    check_names,
    check_partition_columns,
    nullable,
    nullable_columns,
    refuse_empty_structs,
    refuse_twice,
)
from penstock.spark.tables.parquet.commits import BLOCK, BlockCommit

# Those whose text says all of the value. A float's does not, and bytes may have none.
_PARTITION_TYPES = (StringType, IntegralType, BooleanType, DateType, DecimalType, TimestampType, TimestampNTZType)


def check_partition_by(partition_by: Sequence[str]) -> tuple[str, ...]:
    """Return the names of partition columns. Raises `InvalidInput` for names that cannot be right."""
    names = check_names("partition_by", partition_by)
    _refuse_block(names)
    return names


def check_columns(schema: StructType, partition_by: Sequence[str], committed: Iterable[BlockCommit], url: str) -> None:
    """Refuse columns that a table cannot take, alone or beside those of blocks that are committed.

    Raises `InvalidInput` naming the column.
    """
    names = schema.fieldNames()
    refuse_twice(names, "the block has")
    refuse_empty_structs(schema)
    _refuse_block(names)
    takes = "text, whole numbers, decimals, booleans, dates and timestamps"
    check_partition_columns(schema, partition_by, _PARTITION_TYPES, takes)
    for one in committed:
        _check_fits(one, schema, partition_by, url)


def check_no_new_columns(schema: StructType, committed: Sequence[BlockCommit], url: str) -> None:
    """Raise `InvalidInput` for columns, or fields of structs, that no committed block has; a new table takes all."""
    merged = merged_columns(committed)
    if committed and _merge_fields(merged, schema, "") != merged:
        known = {field.name: field.dataType for field in merged}
        new = [field for field in schema if known.get(field.name) != nullable(field.dataType, with_metadata=True)]
        names = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in new)
        raise InvalidInput(f"the table {url} does not have {names}, and schema_evolution is 'none'")


def has_columns(committed: BlockCommit, schema: StructType) -> bool:
    """Whether a block has all of these columns, with their types."""
    columns = nullable_columns(committed.columns(), with_metadata=True)
    try:
        return _merge_fields(columns, schema, "") == columns
    except _Differs:
        return False


def _check_fits(committed: BlockCommit, schema: StructType, partition_by: Sequence[str], url: str) -> None:
    """Raise `InvalidInput` where a block cannot be read together with one that the table has."""
    if committed.partition_by != tuple(partition_by):
        raise InvalidInput(
            f"the table {url} is partitioned by {list(committed.partition_by)}, not by {list(partition_by)}: give "
            "partition_by as it was, or write to another place"
        )
    before = committed.columns()
    names = {name.lower(): name for name in before.fieldNames()}
    for name in schema.fieldNames():
        if names.get(name.lower(), name) != name:
            known = names[name.lower()]
            raise InvalidInput(f"the table {url} has a column {known!r}, and Spark cannot tell {name!r} from it")
    try:
        _merge_fields(nullable_columns(before, with_metadata=True), schema, "")
    except _Differs as error:
        raise InvalidInput(
            f"the column {error.column!r} is {error.one.simpleString()} in the table {url}, not "
            f"{error.other.simpleString()}: write to another table, or cast it"
        ) from None


def merged_columns(commits: Iterable[BlockCommit]) -> StructType:
    """All columns of some blocks, each nullable, in the order in which they came.

    Raises `InvalidInput` if a column has different types.
    """
    merged = StructType([])
    for commit in commits:
        try:
            merged = _merge_fields(merged, commit.columns(), "")
        except _Differs as error:
            raise InvalidInput(
                f"the column {error.column!r} is {error.one.simpleString()} in earlier blocks of the table and "
                f"{error.other.simpleString()} in the block {commit.block}: they cannot be read together"
            ) from None
    return merged


class _Differs(Exception):
    def __init__(self, column: str, one: DataType, other: DataType) -> None:
        super().__init__(column)
        self.column, self.one, self.other = column, one, other


def _merge_fields(one: StructType, other: StructType, above: str) -> StructType:
    fields = {field.name: field for field in one}
    for field in nullable_columns(other, with_metadata=True):
        known = fields.get(field.name)
        kind = field.dataType if known is None else _merge(known.dataType, field.dataType, above + field.name)
        fields[field.name] = StructField(field.name, kind, True, (known or field).metadata)
    return StructType(list(fields.values()))


def _merge(one: DataType, other: DataType, column: str) -> DataType:
    if isinstance(one, StructType) and isinstance(other, StructType):
        return _merge_fields(one, other, f"{column}.")
    if isinstance(one, ArrayType) and isinstance(other, ArrayType):
        return ArrayType(_merge(one.elementType, other.elementType, f"{column}.element"))
    if isinstance(one, MapType) and isinstance(other, MapType) and one.keyType == other.keyType:
        return MapType(one.keyType, _merge(one.valueType, other.valueType, f"{column}.value"))
    if one != other:
        raise _Differs(column, one, other)
    return one


def _refuse_block(names: Sequence[str]) -> None:
    found = next((name for name in names if name.lower() == BLOCK), None)
    if found is not None:
        raise InvalidInput(f"the column {found!r} is in the way: a table has its blocks in directories of that name")
