"""Blocks of a table in the tests, without Spark: their files are written by calling the writer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table as StrangersTable
from pyspark.sql.types import LongType, StringType, StructField, StructType

from penstock.spark.tables.contract import BlockId
from penstock.spark.tables.iceberg.commits import StagedBlock
from penstock.spark.tables.iceberg.iceberg_table import IcebergTable
from penstock.spark.tables.iceberg.table import open_iceberg

QUERY = "8f1c.default"
NAME = "lake.web.clicks"
COLUMNS = StructType([StructField("id", LongType()), StructField("name", StringType())])

Row = Mapping[str, Any]


def opened(warehouse: Path, name: str = NAME, **options: Any) -> IcebergTable:
    return open_iceberg(name, catalog={"warehouse": str(warehouse)}, **options)


def rows_of(first: int, end: int) -> list[Row]:
    """The rows that the events of a block give."""
    return [{"id": number, "name": f"event {number}"} for number in range(first, end)]


def staged(
    table: IcebergTable,
    first: int,
    end: int,
    rows: Iterable[Row] | None = None,
    *,
    columns: StructType = COLUMNS,
    query: str = QUERY,
    tasks: int = 1,
) -> StagedBlock:
    """A block whose rows are split over so many tasks."""
    block = BlockId(query, first, end, f"ingest/{end}.arrow")
    all_rows = list(rows_of(first, end) if rows is None else rows)
    writer = table.writer(columns, block)
    files: list[bytes] = []
    size = -(-len(all_rows) // tasks)
    for task in range(tasks):
        part = all_rows[task * size : (task + 1) * size]
        if part:
            open_files = writer.open(task)
            open_files.add(pa.RecordBatch.from_pylist([dict(row) for row in part], schema=writer.schema))
            files += open_files.close()
    return table.staged(block, files)


def strangers_table(warehouse: Path, name: str = NAME) -> StrangersTable:
    """The table as pyiceberg opens it."""
    catalog, _, rest = name.partition(".")
    properties = {"type": "sql", "uri": f"sqlite:///{warehouse}/catalog.db", "warehouse": str(warehouse)}
    return load_catalog(catalog, **properties).load_table(rest)


def strangers_rows(warehouse: Path, name: str = NAME) -> list[dict[str, Any]]:
    """The rows as pyiceberg reads them, by id."""
    rows = strangers_table(warehouse, name).scan().to_arrow().to_pylist()
    return sorted(rows, key=lambda row: (row["id"] is not None, row["id"]))


def ids(rows: Sequence[Row]) -> list[Any]:
    return [row["id"] for row in rows]
