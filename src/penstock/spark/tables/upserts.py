"""What upserts have in common in every format: which row of a key is the last, and how large a block may be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidInput
from penstock.spark.tables.row_numbers import row_numbers

_ROW = "_penstock_row"


def last_rows(rows: pa.Table, keys: Sequence[str], order_by: str | None = None) -> pa.Table:
    """The last row of each key, in the order of the rows: the greatest by a column, or the one that came last.

    A null is a key like any other value, and before every value of `order_by`. Of equal ones the later row is the last.

    >>> rows = pa.table({"id": [1, 2, 1], "at": [7, 7, 5], "value": ["a", "b", "c"]})
    >>> last_rows(rows, ["id"])["value"].to_pylist(), last_rows(rows, ["id"], "at")["value"].to_pylist()
    (['b', 'c'], ['a', 'b'])
    """
    numbers = row_numbers(rows.num_rows)
    keyed = rows.select(list(dict.fromkeys(keys)))
    order: Any = numbers
    if order_by is not None:
        # Nulls first: with a column of their own, for Arrow's option has another place in each release.
        ordering = pa.table({"known": pc.is_valid(rows[order_by]), "order": rows[order_by], _ROW: numbers})
        order = pc.sort_indices(ordering, sort_keys=[(name, "ascending") for name in ordering.column_names])
        keyed = keyed.take(order)
    groups = keyed.append_column(_ROW, numbers).group_by(keyed.column_names, use_threads=False)
    last = groups.aggregate([(_ROW, "max")])[f"{_ROW}_max"].combine_chunks()
    return rows.take(order.take(last).sort())


def check_merge_bytes(size: int, max_bytes: int | None) -> None:
    """Raise `InvalidInput` for a block that is too large to be merged on the driver."""
    if max_bytes is not None and size > max_bytes:
        raise InvalidInput(
            f"the block has {size} bytes of rows or more, and merge_max_bytes is {max_bytes}: blocks are merged in the "
            "driver's memory. Give a smaller maxBytesPerTrigger, or a larger merge_max_bytes"
        )
