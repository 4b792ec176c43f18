"""`columns`: from a function of columns to a function of parsed blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import pyarrow as pa

from penstock.engine.dead_letters import DeadLetter
from penstock.engine.parsing.parsed_batch import ParsedBatch
from penstock.engine.work_batch import WorkBatch
from penstock.errors import InvalidInput
from penstock.records import Record

ColumnFunction: TypeAlias = Callable[[pa.RecordBatch], pa.RecordBatch]

ERROR, RAW = "_error", "_raw"


def columns(fn: ColumnFunction) -> Callable[[ParsedBatch], WorkBatch]:
    """Make a `process` function, for `parse=True`, of a function from a record batch to a record batch.

    It gets the parsed columns. A row it returns with a non-null `_error` (a string) becomes a dead letter with that
    reason. Its payload is the record it came from, if the function returns as many rows as it got, and none of its
    columns in another order; or else the bytes in a column `_raw`, where it returns one; or else the row as JSON. The
    sink finds the rest of the rows in `batch.arrow`, without these two columns.

    Raises `InvalidInput` for what is no function, and, in the block, for what is no record batch.
    """
    if not callable(fn):
        raise InvalidInput(f"columns takes a function of a pyarrow.RecordBatch, not {type(fn).__name__}")

    def process(parsed: ParsedBatch) -> WorkBatch:
        if not isinstance(parsed, ParsedBatch):
            raise InvalidInput("a column function works on parsed blocks: run the engine with parse=True")
        given = parsed.arrow
        returned: object = fn(given)
        if not isinstance(returned, pa.RecordBatch):
            raise InvalidInput(f"a column function must return a pyarrow.RecordBatch, not {type(returned).__name__}")
        kept, letters = set_apart(given, returned, lambda: parsed.records)
        return WorkBatch.of_columns(kept, parsed.commit_tokens, letters)

    return process


def set_apart(
    given: pa.RecordBatch, returned: pa.RecordBatch, records_of: Callable[[], Sequence[Record] | None]
) -> tuple[pa.RecordBatch, list[DeadLetter]]:
    """The rows that are fine, without `_error` and `_raw`, and a dead letter for each of the others.

    `records_of` makes the records that the given rows came from, or None where that is not known.
    """
    has_raw = RAW in returned.schema.names and RAW not in given.schema.names  # one that came in is the user's own
    bare = returned.drop_columns([RAW]) if has_raw else returned
    if ERROR not in returned.schema.names:
        return bare, []
    errors: Any = returned.column(ERROR)
    if not (pa.types.is_string(errors.type) or pa.types.is_large_string(errors.type) or pa.types.is_null(errors.type)):
        raise InvalidInput(f"the column {ERROR!r} must be a string, not {errors.type}")
    bare = bare.drop_columns([ERROR])
    is_fine = errors.is_null()
    rows = [row for row, fine in enumerate(is_fine.to_pylist()) if not fine]
    if not rows:
        return bare, []
    records = records_of() if keeps_rows(given, returned) else None
    raw = returned.column(RAW) if has_raw else None
    letters = list[DeadLetter]()
    for row in rows:
        reason = errors[row].as_py()
        if records is not None:
            letters.append(DeadLetter.of(records[row], reason))
        elif raw is not None and isinstance(payload := raw[row].as_py(), bytes):
            letters.append(DeadLetter(payload, reason))
        else:
            letters.append(DeadLetter.of(WorkBatch.of_columns(bare.slice(row, 1)).records[0], reason))
    return bare.filter(is_fine), letters


def keeps_rows(given: pa.RecordBatch, returned: pa.RecordBatch) -> bool:
    """Whether the rows are as many as before, and no column says that they are in another order."""
    if given.num_rows != returned.num_rows:
        return False
    names = [name for name in given.schema.names if returned.schema.names.count(name) == 1]
    return not any(_is_reordered(given.column(name), returned.column(name)) for name in names)


def _is_reordered(before: pa.Array[Any], after: pa.Array[Any]) -> bool:
    """Whether the same values are there, but not in the same places."""
    if before.type != after.type or before.equals(after):
        return False
    try:
        return bool(_sorted(before).equals(_sorted(after)))
    except pa.ArrowNotImplementedError:  # Arrow cannot sort what is nested
        return sorted(map(repr, before.to_pylist())) == sorted(map(repr, after.to_pylist()))


def _sorted(column: pa.Array[Any]) -> pa.Array[Any]:
    import pyarrow.compute as pc

    return column.take(pc.array_sort_indices(cast("Any", column)))
