"""Rows split by the values of the partition columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

Values: TypeAlias = tuple[str | None, ...]
"""What the partition columns of a file have, as text."""

ToText: TypeAlias = "Callable[[pa.Array[Any]], pa.Array[Any]]"
"""Values of a partition column as the text that a table keeps of them."""


def plain_text(values: pa.Array[Any]) -> pa.Array[Any]:
    """Values as Arrow writes them."""
    return values.cast(pa.string())


def split(
    rows: pa.RecordBatch, columns: Sequence[str], to_text: ToText = plain_text
) -> Iterator[tuple[Values, pa.RecordBatch]]:
    """Rows by the values of some columns: those as text, and the rest of the rows, in the order in which they were.

    >>> rows = pa.RecordBatch.from_pydict({"id": [1, 2, 3], "event": ["b", None, "b"]})
    >>> [(values, part.to_pydict()) for values, part in split(rows, ["event"])]
    [(('b',), {'id': [1, 3]}), ((None,), {'id': [2]})]
    """
    if rows.num_rows == 0:
        return
    if not columns:
        yield (), rows
        return
    keys = [_encoded(rows.column(name), to_text) for name in columns]
    rest = rows.drop_columns(list(columns))
    # One number for each combination of values that can be.
    numbers: Any = pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows)
    for indices, texts in keys:
        numbers = pc.add(pc.multiply(numbers, len(texts)), indices)
    order = pc.sort_indices(numbers)  # it is stable
    runs: Any = pc.call_function("run_end_encode", [numbers.take(order)])
    ends: list[Any] = runs.run_ends.to_pylist()
    for start, end in zip([0, *ends], ends, strict=False):
        of_part = order.slice(start, end - start)
        values = tuple(texts[indices[of_part[0].as_py()].as_py()] for indices, texts in keys)
        # Taken and not cut: a slice would keep all rows in memory for as long as it waits.
        yield values, rest if len(ends) == 1 else rest.take(of_part)


def _encoded(column: pa.Array[Any], to_text: ToText) -> tuple[pa.Array[Any], list[str | None]]:
    """The text of each row as a number, and the texts. Only distinct values become text: rows are many more."""
    by_value: Any = column.dictionary_encode("encode")
    by_text: Any = to_text(by_value.dictionary).dictionary_encode("encode")  # two values may have the same text
    return by_text.indices.take(by_value.indices).cast(pa.int64()), by_text.dictionary.to_pylist()
