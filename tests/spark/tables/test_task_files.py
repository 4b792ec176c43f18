"""The files of a Parquet table that a task writes: their names, and values that every reader finds again."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from penstock.spark.tables.destinations import InDirectory
from penstock.spark.tables.parquet.task_files import ParquetWriter

NAME = "a" * 32


def test_two_tries_of_a_task_write_different_files(tmp_path: Path) -> None:
    rows = pa.RecordBatch.from_pydict({"id": [1, 2]})
    writer = ParquetWriter(rows.schema, (), InDirectory(str(tmp_path)), NAME)
    for _ in range(2):
        task = writer.open(7)
        task.add(rows)
        task.close()
    names = [path.name for path in tmp_path.glob("*.parquet")]
    assert len(set(names)) == 2
    assert all(name.startswith(f"part-00007-{NAME}-") for name in names)


INSTANT = dt.datetime(2024, 3, 31, 1, 30, 0, 123456, tzinfo=dt.UTC)
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (pa.string(), ["a", "a/b=c", "%2F", "é水 x", "1", ".", None]),
    "tiny": (pa.int8(), [-8, 127, None]),
    "small": (pa.int16(), [300, None]),
    "whole": (pa.int32(), [70_000, None]),
    "large": (pa.int64(), [1 << 40, -1, None]),
    "money": (pa.decimal128(20, 4), [Decimal("1234567.8901"), Decimal("-0.5000"), None]),
    "flag": (pa.bool_(), [True, False, None]),
    "day": (pa.date32(), [dt.date(1969, 12, 31), dt.date(2024, 2, 29), None]),
    "at": (pa.timestamp("us", "UTC"), [INSTANT, INSTANT.replace(microsecond=500_000), INSTANT.replace(microsecond=0)]),
    "clock": (pa.timestamp("us"), [dt.datetime(2024, 3, 31, 2, 30), None]),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_of_a_partition_column_are_found_by_arrow_and_duckdb(name: str, tmp_path: Path) -> None:
    kind, values = VALUES[name]
    batch = pa.RecordBatch.from_arrays([pa.array(range(len(values))), pa.array(values, kind)], names=["id", name])
    task = ParquetWriter(batch.schema, (name,), InDirectory(str(tmp_path)), NAME).open(0)
    task.add(batch)
    task.close()
    assert all(name not in pq.read_schema(path).names for path in tmp_path.rglob("*.parquet"))

    # The text has no zone: readers are told what it is in. Arrow takes no decimals for values of directories.
    plain = pa.timestamp("us") if pa.types.is_timestamp(kind) else pa.string() if pa.types.is_decimal(kind) else kind
    partitioning = ds.partitioning(pa.schema([(name, plain)]), flavor="hive")
    table: Any = ds.dataset(tmp_path, format="parquet", partitioning=partitioning).to_table().sort_by("id")
    assert table[name].cast(kind).to_pylist() == values

    types = {"text": "varchar", "at": "timestamp", "clock": "timestamp", "money": "decimal(20, 4)", "day": "date"}
    cast = types.get(name, {"flag": "boolean"}.get(name, "bigint"))
    query = f"select cast(\"{name}\" as {cast}) from read_parquet('{tmp_path}/**/*.parquet', hive_partitioning = true, "
    query += "hive_types_autocast = false) order by id"
    with duckdb.connect() as connection:
        found = [row[0] for row in connection.execute(query).fetchall()]
    if name == "at":
        found = [None if one is None else one.replace(tzinfo=dt.UTC) for one in found]
    assert found == values
