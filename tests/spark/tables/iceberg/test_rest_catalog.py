"""A table whose catalog is behind Iceberg's REST protocol, with pyiceberg's own client of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.spark.tables.contract import Position
from penstock.spark.tables.iceberg.durable_files import DurableFileIO
from penstock.spark.tables.iceberg.iceberg_table import IcebergTable
from penstock.spark.tables.iceberg.table import open_iceberg
from tests.spark.tables.iceberg.blocks import COLUMNS, QUERY, rows_of, staged, strangers_rows
from tests.spark.tables.iceberg.rest_server import RestServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RestServer]:
    with RestServer(tmp_path).running() as server:
        yield server


def through(server: RestServer, **options: Any) -> IcebergTable:
    return open_iceberg("lake.web.clicks", catalog={"type": "rest", "uri": server.uri}, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"partition_by": ["bucket(2, id)"]}, {"merge_on": ["id"]}], ids=["plain", "partitions", "merge"]
)
def test_blocks_are_committed_through_rest(server: RestServer, tmp_path: Path, options: dict[str, Any]) -> None:
    table = through(server, **options)
    assert table.position(QUERY) is None
    for first in (0, 10, 20):
        assert staged(table, first, first + 10).commit()
    assert not staged(through(server, **options), 20, 30).commit()
    assert table.position(QUERY) == Position(end=30, first=20, last="ingest/30.arrow", rows=10)
    table.compact()
    table.vacuum(0)
    assert strangers_rows(tmp_path) == rows_of(0, 30)


def test_columns_are_added_through_rest(server: RestServer, tmp_path: Path) -> None:
    from pyspark.sql.types import DoubleType, StructField, StructType

    table = through(server)
    assert staged(table, 0, 2).commit()
    wider = StructType([*COLUMNS, StructField("extra", DoubleType())])
    assert staged(table, 2, 3, [{"id": 2, "extra": 0.5}], columns=wider).commit()
    assert [row["extra"] for row in strangers_rows(tmp_path)] == [None, None, 0.5]


def test_two_drivers_with_stale_metadata_commit_once(server: RestServer, tmp_path: Path) -> None:
    assert staged(through(server), 0, 10).commit()
    blocks = [staged(through(server), 10, 20) for _ in range(3)]
    assert [block.commit() for block in blocks] == [True, False, False]
    assert strangers_rows(tmp_path) == rows_of(0, 20)


@pytest.mark.parametrize("fault", ["dropped", "500", "409", "refused"])
@pytest.mark.parametrize("options", [{}, {"merge_on": ["id"]}], ids=["append", "merge"])
def test_a_commit_whose_answer_is_lost_or_wrong_is_found(
    server: RestServer, tmp_path: Path, fault: str, options: dict[str, Any]
) -> None:
    table = through(server, **options)
    assert staged(table, 0, 10).commit()
    server.faults, server.commits = [fault, fault], 0
    assert staged(table, 10, 20).commit()
    assert server.commits == 1  # it was looked up, and not sent again; a request that was refused was
    assert staged(table, 20, 30).commit()
    assert strangers_rows(tmp_path) == rows_of(0, 30)


def test_data_files_on_this_hosts_disk_are_durable_behind_rest_too(server: RestServer) -> None:
    from penstock.spark.tables.contract import BlockId

    assert isinstance(through(server).writer(COLUMNS, BlockId("q", 0, 1)).layout.io, DurableFileIO)
