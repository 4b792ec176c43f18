"""Readers that are not ours: DuckDB and Polars. (pyiceberg itself reads in all other tests here.)"""

from __future__ import annotations

from pathlib import Path

import duckdb
import polars
import pytest

from penstock.spark.tables.iceberg.iceberg_table import IcebergTable
from tests.spark.tables.iceberg.blocks import opened, rows_of, staged, strangers_table

EXPECTED = [tuple(row.values()) for row in rows_of(0, 40)]


@pytest.fixture
def table(tmp_path: Path) -> IcebergTable:
    """A table of files that were appended, replaced by a compaction, and removed."""
    table = opened(tmp_path, partition_by=["bucket(2, id)"])
    for first in (0, 10, 20):
        assert staged(table, first, first + 10).commit()
    table.compact()
    table.vacuum(0)
    assert staged(table, 30, 40).commit()
    return table


def test_duckdb_reads_the_rows_that_pyiceberg_scans(table: IcebergTable, tmp_path: Path) -> None:
    connection = strangers_table(tmp_path).scan().to_duckdb("clicks")
    assert connection.sql("select id, name from clicks order by id").fetchall() == EXPECTED


def test_duckdb_reads_the_data_files_by_themselves(table: IcebergTable, tmp_path: Path) -> None:
    files = [task.file.file_path for task in strangers_table(tmp_path).scan().plan_files()]
    found = duckdb.connect().execute("select id, name from read_parquet(?) order by id", [files]).fetchall()
    assert found == EXPECTED


def test_duckdbs_extension_reads_the_metadata(table: IcebergTable, tmp_path: Path) -> None:
    connection = duckdb.connect(config={"autoinstall_known_extensions": "false"})
    try:
        connection.load_extension("iceberg")
    except duckdb.Error:
        pytest.skip("DuckDB's extension iceberg is not installed here")
    where = strangers_table(tmp_path).metadata_location
    found = connection.execute("select id, name from iceberg_scan(?) order by id", [where]).fetchall()
    assert found == EXPECTED


@pytest.mark.parametrize("reader", ["native", "pyiceberg"])
def test_polars_scans_the_table(
    table: IcebergTable, tmp_path: Path, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # or it warns that a plugin would be faster
    frame = polars.scan_iceberg(strangers_table(tmp_path), reader_override=reader)  # type: ignore[arg-type]
    assert frame.sort("id").collect().rows() == EXPECTED
    assert frame.filter(polars.col("id") >= 38).sort("id").collect().rows() == EXPECTED[38:]
