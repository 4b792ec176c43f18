"""What the footer of a Parquet file says of its columns: bounds and nulls, over all row groups."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """What a file's footer says of a column. A bound that is not known is None."""

    least: Any = None
    greatest: Any = None
    nulls: int | None = None


def columns_with_nan(rows: pa.RecordBatch) -> set[str]:
    """The columns with a NaN.

    Parquet leaves it out of the bounds, and readers that count it as the greatest number would miss it.
    """
    floats = [field.name for field in rows.schema if pa.types.is_floating(field.type)]
    return {name for name in floats if pc.any(pc.is_nan(rows.column(name)), min_count=0).as_py()}


def statistics_in(footer: pq.FileMetaData, schema: pa.Schema, with_nan: Collection[str]) -> dict[str, ColumnStatistics]:
    """The statistics of the columns that are no lists, maps or structs. Those with NaN have no bounds."""
    found: dict[str, ColumnStatistics] = {}
    at = 0
    for column in schema:
        if not pa.types.is_nested(column.type):
            groups = [footer.row_group(number).column(at).statistics for number in range(footer.num_row_groups)]
            found[column.name] = _merged(groups, has_bounds=column.name not in with_nan)
        at += _leaves(column.type)
    return found


def _merged(groups: Sequence[Any], *, has_bounds: bool) -> ColumnStatistics:
    if any(one is None or not one.has_null_count for one in groups):
        return ColumnStatistics()
    nulls = sum(one.null_count for one in groups)
    # A row group of nulls has no bounds, and needs none.
    with_values = [one for one in groups if one.num_values]
    if not has_bounds or not with_values or not all(one.has_min_max for one in with_values):
        return ColumnStatistics(nulls=nulls)
    try:
        least, greatest = min(one.min for one in with_values), max(one.max for one in with_values)
    except (ValueError, OverflowError, TypeError, NotImplementedError):  # such as a year that Python does not have
        return ColumnStatistics(nulls=nulls)
    return ColumnStatistics(least, greatest, nulls)


def _leaves(kind: pa.DataType) -> int:
    """How many columns of a Parquet file a type takes."""
    if not pa.types.is_nested(kind):
        return 1
    return sum(_leaves(kind.field(number).type) for number in range(kind.num_fields))
