"""Upserts: the last row of each key in a block replaces the row that the table has of that key, or deletes it.

Delta-rs merges, in the driver's memory, in one commit that carries the block's transaction.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, PostCommitHookProperties, Schema, WriterProperties
from pyspark.sql.types import AtomicType, StructType

from penstock.errors import InvalidInput, StorageError
from penstock.spark.source.schemas import to_arrow
from penstock.spark.tables.column_rules import nullable_columns
from penstock.spark.tables.contract import BlockId
from penstock.spark.tables.delta.columns import KEY_TYPES
from penstock.spark.tables.delta.log import DeltaLog, Handle, block_properties
from penstock.spark.tables.upserts import last_rows

_MAX_NAME = 255  # bytes of the name of a directory
# Text, quoted names, names, numbers, and every other character on its own.
_TOKEN = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|[^\W\d]\w*|\d[\w.]*|\s+|.", re.DOTALL)


@dataclass(frozen=True, slots=True)
class MergeRule:
    """By which columns rows are the same, which of them is the last, and which one deletes."""

    keys: tuple[str, ...]
    order_by: str | None = None
    delete_when: str | None = None

    def check(self, columns: StructType) -> None:
        """Raise `InvalidInput` unless rows with these columns can be merged."""
        for what, names in (("merge_on", self.keys), ("order_by", [self.order_by] if self.order_by else [])):
            for name in names:
                if name not in columns.fieldNames():
                    known = ", ".join(columns.fieldNames())
                    raise InvalidInput(f"{what} names the column {name!r}, and the block has only {known}")
        for name in self.keys:
            kind = columns[name].dataType
            if not isinstance(kind, KEY_TYPES):
                raise InvalidInput(
                    f"merge_on names the column {name!r}, which is {kind.simpleString()}: keys are text, bytes, whole "
                    "numbers, decimals, booleans, dates and timestamps"
                )
        if self.order_by and not isinstance(columns[self.order_by].dataType, AtomicType):
            raise InvalidInput(
                f"order_by names the column {self.order_by!r}, which has no order: it is "
                f"{columns[self.order_by].dataType.simpleString()}"
            )
        unfit = next((name for name in columns.fieldNames() if "`" in name or "." in name), None)
        if unfit is not None:
            raise InvalidInput(f"the column {unfit!r} has a dot or a backtick in its name, which merge_on cannot take")
        if self.delete_when:
            self._try_delete_when(columns)

    def last_rows(self, rows: pa.Table, partition_by: Sequence[str]) -> pa.Table:
        """The last row of each key. Empty text in a partition column is null, as in Delta's log."""
        for name in set(self.keys).intersection(partition_by):
            rows = _without_empty_text(rows, name)
        return last_rows(rows, self.keys, self.order_by)

    @staticmethod
    def check_directories(rows: pa.Table, partition_by: Sequence[str]) -> None:
        """Raise `InvalidInput` for a value that a file system takes in no name: delta-rs makes a directory of each."""
        for name in partition_by:
            column = rows.column(name) if name in rows.column_names else None
            if column is None or not pa.types.is_string(column.type):
                continue
            values: list[Any] = pc.unique(column).drop_null().to_pylist()
            long = next((value for value in values if len(quote(f"{name}={value}", safe="=")) > _MAX_NAME), None)
            if long is not None:
                raise InvalidInput(
                    f"the column {name!r} has a value of {len(long)} characters, {long[:20] + '...'!r}, which is too "
                    "long for the name of a directory, and partition_by makes one of it: cut it, or partition by "
                    "another column"
                )

    def apply(
        self, log: DeltaLog, handle: Handle, rows: pa.Table, block: BlockId, attempt: str, rows_of_block: int
    ) -> None:
        """Merge rows, of which each key is there once, as the next version of the table."""
        version = handle.version()
        with log.failing_to("merge into"):
            self._merge(handle, rows, block_properties(block, attempt, rows_of_block))
        if handle.version() == version:
            # Delta-rs does not commit a merge that changes nothing, such as deletes of keys that are not there. The
            # table's position moves all the same. Had it been committed, this would be a conflict.
            log.append(handle, block, attempt, [], rows_of_block)

    def _merge(self, handle: Handle, rows: pa.Table, properties: CommitProperties | None) -> None:
        values = {_quoted(name): f"s.{_quoted(name)}" for name in rows.column_names}
        merger = handle.merge(
            rows,
            " AND ".join(_same(name, rows.column(name)) for name in self.keys),
            source_alias="s",
            target_alias="t",
            # The rows are in memory, and their bounds leave out files of the table. Not so with decimals: delta-rs
            # writes the bounds of a file as floats, and a file that has the key would be left out.
            streamed_exec=any(pa.types.is_decimal(rows.schema.field(name).type) for name in self.keys),
            writer_properties=WriterProperties(compression="ZSTD"),
            commit_properties=properties,
            post_commithook_properties=PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False),
        )
        if not self.delete_when:
            merger.when_matched_update(values).when_not_matched_insert(values).execute()
            return
        # Null is not true: such a row deletes nothing.
        deletes = f"coalesce(({qualified(self.delete_when, rows.column_names)}), false)"
        merger.when_matched_delete(deletes).when_matched_update(values)
        merger.when_not_matched_insert(values, f"NOT {deletes}").execute()

    def _try_delete_when(self, columns: StructType) -> None:
        """Merge no rows into an empty table, to find out what delta-rs says of the expression."""
        arrow = to_arrow(nullable_columns(columns))
        with tempfile.TemporaryDirectory(prefix="penstock-") as place:
            handle = deltalake.DeltaTable.create(place, Schema.from_arrow(arrow))
            log = DeltaLog(place, place, {})
            try:
                with log.failing_to("merge into"):
                    self._merge(handle, arrow.empty_table(), None)
            except StorageError as error:
                problem = str(error).partition(": ")[2]
                raise InvalidInput(
                    f"delete_when {self.delete_when!r} is no condition over the columns "
                    f"{', '.join(columns.fieldNames())}: {problem}"
                ) from None


def _without_empty_text(rows: pa.Table, name: str) -> pa.Table:
    """Rows with null for empty text in a partition column, as Delta's log has it: there the two are one key."""
    column = rows.column(name)
    if not pa.types.is_string(column.type):
        return rows
    known: Any = pc.if_else(pc.equal(column, pa.scalar("")), pa.scalar(None, pa.string()), column)
    return rows.set_column(rows.column_names.index(name), rows.schema.field(name), known)


def qualified(expression: str, columns: Sequence[str]) -> str:
    """An expression over a row's columns as one over those of the block: the table has columns of the same names.

    >>> qualified("op = 'd' or upper(kind) = 'OP'", ["op", "kind"])
    "s.`op` = 'd' or upper(s.`kind`) = 'OP'"
    """
    tokens = _TOKEN.findall(expression)
    words = [token for token in tokens if not token.isspace()]
    by_name = {name.lower(): name for name in columns} | {name: name for name in columns}
    written, at = [], 0
    for token in tokens:
        if token.isspace():
            written.append(token)
            continue
        before, after = words[at - 1] if at else "", words[at + 1] if at + 1 < len(words) else ""
        at += 1
        is_quoted = token[0] in '"`'
        name = by_name.get(token[1:-1] if is_quoted else token) or by_name.get("" if is_quoted else token.lower())
        is_column = name is not None and before != "." and (is_quoted or after != "(")
        written.append(f"s.{_quoted(name)}" if is_column and name is not None else token)
    return "".join(written)


def _same(name: str, values: pa.ChunkedArray[Any]) -> str:
    # Where the block has no null, none in the table matches, and a plain comparison is twice as fast.
    comparison = "IS NOT DISTINCT FROM" if values.null_count else "="
    return f"(t.{_quoted(name)} {comparison} s.{_quoted(name)})"


def _quoted(name: str) -> str:
    return f"`{name}`"
