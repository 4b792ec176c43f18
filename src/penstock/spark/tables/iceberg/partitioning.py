"""How a table is partitioned: `partition_by` as text, and rows split by it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import (
    PARTITION_FIELD_ID_START,
    PartitionField,
    PartitionSpec,
    partition_record_value,
)
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.typedef import Record

from penstock.errors import InvalidInput
from penstock.spark.tables.row_numbers import row_numbers

_OF_TIME: dict[str, Transform[Any, Any]] = {
    "years": YearTransform(),
    "months": MonthTransform(),
    "days": DayTransform(),
    "hours": HourTransform(),
}
_CALL = re.compile(r"\s*(\w+)\s*\(\s*(?:(\d+)\s*,\s*)?(.+?)\s*\)\s*")
_ROW = "_penstock_row"


@dataclass(frozen=True, slots=True)
class PartitionColumn:
    """One part of `partition_by`: a column, and what of its value counts."""

    column: str
    transform: Transform[Any, Any]
    name: str

    @classmethod
    def parse(cls, text: str) -> PartitionColumn:
        """Read `event`, `days(at)`, `bucket(16, id)` or `truncate(4, name)`. Raises `InvalidInput`.

        >>> PartitionColumn.parse("bucket(16, id)").name
        'id_bucket'
        """
        if not text.strip():
            raise InvalidInput(f"partition_by must be a list of columns or transforms of them, not {text!r}")
        call = _CALL.fullmatch(text)
        if call is None:
            return cls(text.strip(), IdentityTransform(), text.strip())
        function, number, column = call[1].lower(), call[2], call[3]
        if function in _OF_TIME and number is None:
            return cls(column, _OF_TIME[function], f"{column}_{function.removesuffix('s')}")
        if function == "bucket" and number is not None and int(number) > 0:
            return cls(column, BucketTransform(int(number)), f"{column}_bucket")
        if function == "truncate" and number is not None and int(number) > 0:
            return cls(column, TruncateTransform(int(number)), f"{column}_trunc")
        raise InvalidInput(
            f"partition_by has {text!r}: it takes a column, years(c), months(c), days(c), hours(c), bucket(16, c) and "
            "truncate(4, c)"
        )


def parse_partition_by(partition_by: Sequence[str]) -> tuple[PartitionColumn, ...]:
    """Read `partition_by`. Raises `InvalidInput`."""
    if isinstance(partition_by, str) or not all(isinstance(part, str) for part in partition_by):
        raise InvalidInput(f"partition_by must be a list of columns or transforms of them, not {partition_by!r}")
    parsed = tuple(map(PartitionColumn.parse, partition_by))
    names = [part.name.lower() for part in parsed]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidInput(f"partition_by names {twice!r} twice")
    return parsed


def partition_spec(parts: Sequence[PartitionColumn], schema: Schema) -> PartitionSpec:
    """The specification of a table with these columns. Raises `InvalidInput` naming the column."""
    fields = []
    for position, part in enumerate(parts):
        try:
            source = schema.find_field(part.column, case_sensitive=False)
        except ValueError:
            names = ", ".join(schema.column_names)
            raise InvalidInput(
                f"partition_by names the column {part.column!r}, and the block has only {names}"
            ) from None
        if not part.transform.can_transform(source.field_type) or not source.field_type.is_primitive:
            raise InvalidInput(
                f"partition_by has {part.transform} of the column {part.column!r}, which is {source.field_type}: that "
                "does not go together"
            )
        fields.append(PartitionField(source.field_id, PARTITION_FIELD_ID_START + position, part.transform, part.name))
    return PartitionSpec(*fields)


def described(spec: PartitionSpec, schema: Schema) -> tuple[str, ...]:
    """A specification as `partition_by` is written."""
    return tuple(_written(field, schema.find_column_name(field.source_id) or "?") for field in spec.fields)


def _written(field: PartitionField, column: str) -> str:
    transform = field.transform
    if isinstance(transform, IdentityTransform):
        return column
    if isinstance(transform, BucketTransform):
        return f"bucket({transform.num_buckets}, {column})"
    if isinstance(transform, TruncateTransform):
        return f"truncate({transform.width}, {column})"
    for name, one in _OF_TIME.items():
        if transform == one:
            return f"{name}({column})"
    return f"{transform}({column})"


def split(rows: pa.Table, spec: PartitionSpec, schema: Schema) -> Iterator[tuple[Record, pa.Table]]:
    """Rows by the partition that they belong to, in their order.

    `schema` has the names of the columns as they are in `rows`: none of them has a dot, which is for fields in fields.
    """
    if spec.is_unpartitioned() or not rows.num_rows:
        yield Record(), rows
        return
    names = [f"_partition_{position}" for position in range(len(spec.fields))]
    values = []
    for field in spec.fields:
        first, *below = (schema.find_column_name(field.source_id) or "").split(".")
        column: Any = rows[first] if not below else pc.struct_field(rows[first], below)
        source = schema.find_field(field.source_id)
        values.append(field.transform.pyarrow_transform(source.field_type)(column))
    numbered = pa.table([*values, row_numbers(rows.num_rows)], names=[*names, _ROW])
    # Without threads: the numbers of a group come in order.
    groups = numbered.group_by(names, use_threads=False).aggregate([(_ROW, "list")])
    for group in range(groups.num_rows):
        record = Record(
            *(
                partition_record_value(field, groups[name][group].as_py(), schema)
                for field, name in zip(spec.fields, names, strict=True)
            )
        )
        yield record, rows.take(groups[f"{_ROW}_list"][group].values)
