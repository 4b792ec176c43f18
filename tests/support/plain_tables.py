"""Tables of Parquet files that are written and read without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructType

from penstock.spark.pipeline.dead_letters import TABLE as LETTERS
from penstock.spark.source.schemas import to_arrow
from penstock.spark.tables.contract import BlockId, StagedBlock, Table
from penstock.spark.tables.parquet.table import ParquetTable

QUERY = "8f1c.default"
SCHEMA = StructType().add("id", LongType()).add("event", StringType())


def staged(
    table: Table,
    rows: Sequence[dict[str, Any]],
    first: int,
    end: int | None = None,
    *,
    query: str = QUERY,
    schema: StructType = SCHEMA,
) -> StagedBlock:
    """A block whose files one task has written, ready to be committed."""
    block = BlockId(query, first, first + 1 if end is None else end, f"ingest/{first}.arrow")
    writer = table.writer(schema, block)
    assert writer is not None
    files = writer.open(0)
    files.add(pa.RecordBatch.from_pylist(list(rows), schema=to_arrow(schema)))
    return table.staged(block, files.close())


def put_block(table: Table, rows: Sequence[dict[str, Any]], first: int, **more: Any) -> None:
    """Commit a block."""
    assert staged(table, rows, first, **more).commit()


def put_numbers(table: Table, start: int, stop: int, query: str = QUERY) -> None:
    """Commit a block for each number, with one row that has it; every other one is of another event."""
    for number in range(start, stop):
        put_block(table, [{"id": number, "event": "ab"[number % 2]}], number, query=query)


def ids(table: ParquetTable) -> list[int]:
    """The column `id` of all rows, sorted."""
    found: list[Any] = [row for batch in table.rows() for row in batch.column("id").to_pylist()]
    return sorted(found)


def put_letters(table: Table, letters: Sequence[dict[str, Any]], first: int = 0) -> None:
    """Commit a block of dead letters; what a letter does not say is as most letters have it."""
    rows = [
        {
            "payload": b"{",
            "key": None,
            "headers": None,
            "reason": "it ends too early",
            "stage": "parse",
            "sequence": first,
            "index": number,
            "at": datetime(2026, 1, 31, 12, first, tzinfo=UTC),
        }
        | letter
        for number, letter in enumerate(letters)
    ]
    put_block(table, rows, first, schema=LETTERS)
