"""The numbers of the rows of a table, as a column of it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def row_numbers(count: int) -> pa.Array[Any]:
    """The numbers from 0 up to `count`, without a Python object for each."""
    ones = pa.repeat(pa.scalar(1, pa.int64()), count)
    return pc.subtract(pc.cumulative_sum(ones), pa.scalar(1, pa.int64()))
