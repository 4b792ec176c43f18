"""Upserts: a block's rows take the place of those with the same key, or remove them.

Copy on write: a data file with a row whose key is in the block is written again without it. All of that, the new rows
and the table's position are one commit. It runs on the driver: the block's rows are in memory, and the table's files
go through it bit by bit.
"""

from __future__ import annotations

import uuid
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import types as iceberg
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThanOrEqual,
    Or,
)
from pyiceberg.expressions.parser import parse
from pyiceberg.expressions.visitors import bind
from pyiceberg.io.pyarrow import expression_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table, Transaction

from penstock.errors import InvalidInput
from penstock.spark.tables.iceberg.files import Layout, append_files, arrow_schema, read_file, replace_files
from penstock.spark.tables.iceberg.writing import PartitionedFiles
from penstock.spark.tables.row_numbers import row_numbers
from penstock.spark.tables.upserts import last_rows

# These take a name and values, which their types do not say.
_in: Callable[..., BooleanExpression] = In
_is_null: Callable[..., BooleanExpression] = IsNull
_at_least: Callable[..., BooleanExpression] = GreaterThanOrEqual
_at_most: Callable[..., BooleanExpression] = LessThanOrEqual
_coalesce: Callable[..., pc.Expression] = pc.coalesce

_ROW = "_penstock_row"
_MAX_LISTED_KEYS = 200  # with more, pyiceberg does not look at the bounds of a file
_KEY_TYPES = (
    iceberg.StringType,
    iceberg.BinaryType,
    iceberg.BooleanType,
    iceberg.IntegerType,
    iceberg.LongType,
    iceberg.DecimalType,
    iceberg.DateType,
    iceberg.TimestampType,
    iceberg.TimestamptzType,
)


@dataclass(frozen=True, slots=True)
class MergeRule:
    """Which rows are the same, which of them is the last, and which of those is a delete."""

    merge_on: tuple[str, ...]
    order_by: str | None
    delete_when: str | None

    def check(self, schema: Schema) -> MergeRule:
        """The rule with the names that the columns have in the table. Raises `InvalidInput` naming the column."""
        merge_on = tuple(self._column("merge_on", name, schema) for name in self.merge_on)
        for name in merge_on:
            kind = schema.find_field(name).field_type
            if not isinstance(kind, _KEY_TYPES):
                raise InvalidInput(
                    f"merge_on names the column {name!r}, which is {kind}: a key is text, bytes, a whole number, a "
                    "decimal, a boolean, a date or a timestamp"
                )
        order_by = None if self.order_by is None else self._column("order_by", self.order_by, schema)
        if order_by is not None and not schema.find_field(order_by).field_type.is_primitive:
            raise InvalidInput(f"order_by names the column {order_by!r}, which has no order")
        self._deletes(schema)
        return MergeRule(merge_on, order_by, self.delete_when)

    @staticmethod
    def _column(option: str, name: str, schema: Schema) -> str:
        alike = [field.name for field in schema.columns if field.name.lower() == name.lower()]
        if not alike:
            raise InvalidInput(
                f"{option} names the column {name!r}, and there are only {', '.join(schema.column_names)}"
            )
        return name if name in alike else alike[0]

    def _deletes(self, schema: Schema) -> pc.Expression | None:
        """Where `delete_when` is true, as Arrow has it."""
        if self.delete_when is None:
            return None
        alike = [field for field in schema.columns if field.name == self.delete_when]
        if alike:
            if not isinstance(alike[0].field_type, iceberg.BooleanType):
                raise InvalidInput(
                    f"delete_when names the column {self.delete_when!r}, which is {alike[0].field_type}: it takes a "
                    f"boolean, or a condition such as \"{self.delete_when} = 'd'\""
                )
            return pc.field(self.delete_when)
        try:
            return expression_to_pyarrow(bind(schema, parse(self.delete_when), case_sensitive=False), schema)
        except Exception as error:  # noqa: BLE001  the parser, the binding and the conversion each have their own
            raise InvalidInput(
                f"delete_when is neither a column nor a condition that can be read: {self.delete_when!r}: {error}"
            ) from None

    def upserts(self, rows: pa.Table, schema: Schema) -> pa.Table:
        """Those of the rows that are no deletes. Where the condition is null, it is not true."""
        deletes = self._deletes(schema)
        if deletes is None:
            return rows
        return rows.filter(~_coalesce(deletes, pc.scalar(False)))


class Merge:
    """A block whose rows are merged into the table."""

    keeps_staged = False

    def __init__(self, layout: Layout, rule: MergeRule, files: Sequence[DataFile]) -> None:
        self._layout = layout
        self._rule = rule
        self._files = files
        self._rows: pa.Table | None = None

    @property
    def staged(self) -> Sequence[str]:
        """The files with the block's rows, in the order of its events."""
        return [file.file_path for file in self._files]

    def add_to(self, transaction: Transaction, table: Table, summary: dict[str, str]) -> Sequence[str]:
        """Write the files with a row of one of the block's keys again without it, and the block's rows."""
        if not self._files:
            append_files(transaction, (), summary)
            return ()
        layout = Layout.of(table)
        schema = layout.schema
        rows = self._last_rows()
        keys = rows.select(list(self._rule.merge_on))
        files = PartitionedFiles(layout, schema, f"merged-{uuid.uuid4().hex}")
        try:
            candidates = table.scan(row_filter=key_filter(keys, schema)).plan_files()
            removed = [task.file for task in candidates if self._rewrite(layout, task, keys, files)]
            for batch in self._rule.upserts(rows, schema).to_batches(max_chunksize=1 << 16):
                files.add(batch)
            added = [staged.file for staged in files.finish()]
        except BaseException:
            files.abort()
            raise
        if removed:
            replace_files(transaction, removed, added, summary)
        else:
            append_files(transaction, added, summary)
        return [file.file_path for file in added]

    def _last_rows(self) -> pa.Table:
        if self._rows is None:
            batches = [
                batch.cast(arrow_schema(self._layout.schema))
                for file in self._files
                for batch in read_file(self._layout, FileScanTask(file))
            ]
            rows = pa.Table.from_batches(batches, arrow_schema(self._layout.schema))
            self._rows = last_rows(rows, self._rule.merge_on, self._rule.order_by)
        return self._rows

    def _rewrite(self, layout: Layout, task: FileScanTask, keys: pa.Table, files: PartitionedFiles) -> bool:
        """Write the rows of a file that stay. False, with nothing written, if all of them do."""
        key_schema = layout.schema.select(*self._rule.merge_on)
        wanted = arrow_schema(layout.schema).names
        arrow_keys = pa.schema([keys.schema.field(name) for name in key_schema.column_names])
        found = pa.Table.from_batches(
            [batch.cast(arrow_schema(key_schema)) for batch in read_file(layout, task, key_schema)],
            arrow_schema(key_schema),
        )
        stay = _without(found.cast(arrow_keys), keys.select(key_schema.column_names))
        if len(stay) == found.num_rows:
            return False
        begin = done = 0
        for batch in read_file(layout, task):
            # `stay` is sorted, and so are the batches: each has the numbers from `begin` on.
            end = begin + batch.num_rows
            upto = bisect_left(stay, end, lo=done, key=lambda number: number.as_py())
            files.add(batch.select(wanted).take(pc.subtract(stay[done:upto], pa.scalar(begin, pa.int64()))))
            begin, done = end, upto
        return True


def key_filter(keys: pa.Table, schema: Schema) -> BooleanExpression:
    """A condition that every row with one of the keys meets, to leave out files that have none."""
    condition: BooleanExpression = AlwaysTrue()
    for name in keys.column_names:
        if not isinstance(
            schema.find_field(name).field_type, iceberg.StringType | iceberg.IntegerType | iceberg.LongType
        ):
            continue
        values = pc.unique(keys[name])
        some = values.drop_null()
        part: BooleanExpression
        if len(some) <= _MAX_LISTED_KEYS:
            part = _in(name, some.to_pylist())
        else:
            bounds = pc.min_max(some)
            part = And(_at_least(name, bounds["min"].as_py()), _at_most(name, bounds["max"].as_py()))
        condition = And(condition, Or(part, _is_null(name)) if values.null_count else part)
    return condition


def _numbered(rows: pa.Table) -> pa.Table:
    return rows.append_column(_ROW, row_numbers(rows.num_rows))


def _without(rows: pa.Table, keys: pa.Table) -> pa.Array[Any]:
    """The numbers of the rows that have none of the keys, in order. Null equals null."""
    both = pa.concat_tables(
        [keys.append_column(_ROW, pa.repeat(pa.scalar(-1, pa.int64()), keys.num_rows)), _numbered(rows)]
    )
    groups = both.group_by(keys.column_names, use_threads=False).aggregate([(_ROW, "min"), (_ROW, "list")])
    others = groups.filter(pc.field(f"{_ROW}_min") >= 0)
    numbers: Any = pc.list_flatten(others[f"{_ROW}_list"])
    in_order = numbers.take(pc.sort_indices(numbers))
    return in_order.combine_chunks() if isinstance(in_order, pa.ChunkedArray) else in_order
