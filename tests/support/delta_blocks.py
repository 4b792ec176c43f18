"""Blocks of a Delta table, staged and committed without Spark, and its rows as delta-rs reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from penstock.spark.tables.contract import BlockId
from penstock.spark.tables.delta.commits import StagedDelta
from penstock.spark.tables.delta.table import DeltaTable, open_delta

QUERY = "8f1c.default"
COLUMNS = StructType(
    [StructField("id", LongType()), StructField("event", StringType()), StructField("at", TimestampType())]
)
Row = dict[str, Any]


def block(first: int, end: int, query: str = QUERY) -> BlockId:
    return BlockId(query, first, end, f"ingest/{end:06d}.arrow")


def rows(first: int, end: int, event: str = "click") -> list[Row]:
    return [{"id": number, "event": event, "at": number} for number in range(first, end)]


def stage(
    table: DeltaTable, of: BlockId, given: Sequence[Row] | None = None, columns: StructType = COLUMNS
) -> StagedDelta:
    """Stage a block, by two tasks."""
    writer = table.writer(columns, of)
    found = rows(of.first, of.end) if given is None else list(given)
    half = (len(found) + 1) // 2
    described: list[bytes] = []
    for task, part in enumerate([found[:half], found[half:]]):
        if part:
            files = writer.open(task)
            files.add(pa.RecordBatch.from_pylist(part, schema=writer.schema))
            described += files.close()
    return table.staged(of, described)


def commit(table: DeltaTable, of: BlockId, given: Sequence[Row] | None = None, columns: StructType = COLUMNS) -> bool:
    return stage(table, of, given, columns).commit()


def run(place: Path | str, ends: Iterable[int], *, step: Callable[[str], None] | None = None, **options: Any) -> None:
    """A driver: from the table's position on, a block up to each end. What a commit refuses is looked at again."""
    table = open_delta(str(place), **options)
    if step is not None:
        table.step = step
    for end in ends:
        while (first := position(table)) < end:
            commit(table, block(first, end))


def position(table: DeltaTable) -> int:
    found = table.position(QUERY)
    return 0 if found is None else found.end


def ids(place: Path | str, options: dict[str, str] | None = None) -> list[int]:
    """The ids in the table, by delta-rs, in order."""
    found: list[Any] = read(place, options).column("id").to_pylist()
    return sorted(found)


def read(place: Path | str, options: dict[str, str] | None = None) -> pa.Table:
    return deltalake.DeltaTable(str(place), storage_options=options).to_pyarrow_table()


def data_files(place: Path) -> set[str]:
    """The Parquet files below a table, in it or not, but for the log's."""
    found = {str(file.relative_to(place)) for file in place.rglob("*.parquet")}
    return {name for name in found if not name.startswith("_delta_log/")}


def listed_files(place: Path) -> set[str]:
    """The files that the table lists."""
    table = deltalake.DeltaTable(str(place))
    return {str(Path(uri).relative_to(place)) for uri in table.file_uris()}
