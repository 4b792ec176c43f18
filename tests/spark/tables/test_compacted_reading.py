"""Spark reads compacted tables, and writes to them, as before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import BUCKET, S3Server

pytest.importorskip("pyspark")

from penstock.errors import InvalidInput
from penstock.spark.tables.contract import BlockId
from penstock.spark.tables.parquet.directories import DirectoryBlocks
from penstock.spark.tables.parquet.hadoop_files import HadoopFiles
from penstock.spark.tables.parquet.table import ParquetTable, open_table, read_table
from tests.support.plain_tables import QUERY, put_numbers


@pytest.mark.parametrize("where", ["disk", "s3"])
def test_spark_reads_the_rows_of_a_compacted_table_and_of_blocks_after_it_once(
    spark: Any, tmp_path: Path, s3_server: S3Server, fresh_name: str, where: str
) -> None:
    options = {name: str(value).lower() for name, value in s3_server.options.items()} if where == "s3" else None
    url = f"s3://{BUCKET}/{fresh_name}" if where == "s3" else str(tmp_path / "table")
    table = open_table(spark, url, partition_by=["event"], options=options)
    put_numbers(table, 0, 6)
    assert table.compact().files_after == 2
    rows = spark.createDataFrame([(6, "a"), (7, "c")], "id bigint, event string")
    assert table.stage(rows, BlockId(QUERY, 6, 8)).commit()
    found = read_table(spark, url, options).collect()
    assert sorted((row.id, row.event) for row in found) == [*((n, "ab"[n % 2]) for n in range(6)), (6, "a"), (7, "c")]
    table.compact()
    table.vacuum(0)
    assert read_table(spark, url, options).count() == 8
    if where == "disk":
        plain = spark.read.parquet(url)
        assert sorted(row.id for row in plain.collect()) == list(range(8))
        assert {row.block for row in plain.collect()} == {"compacted.000000000002"}


def test_hadoops_file_systems_refuse_compaction_and_vacuum(spark: Any, tmp_path: Path) -> None:
    root = f"file://{tmp_path}/table"
    table = ParquetTable(DirectoryBlocks(HadoopFiles(spark, root), root, root))
    for start in (0, 3):
        assert table.stage(spark.range(start, start + 3), BlockId(QUERY, start, start + 3)).commit()
    with pytest.raises(InvalidInput, match="cannot exchange two directories"):
        table.compact()
    with pytest.raises(InvalidInput, match="cannot be vacuumed"):
        table.vacuum(0)
    assert table.read(spark).count() == 6
