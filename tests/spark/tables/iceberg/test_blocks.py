"""A block is in an Iceberg table once, with its position, whoever commits it how often."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.errors import CorruptData, InvalidInput
from penstock.spark.tables.contract import BlockId, Position
from tests.spark.tables.iceberg.blocks import (
    COLUMNS,
    QUERY,
    ids,
    opened,
    rows_of,
    staged,
    strangers_rows,
    strangers_table,
)


def test_a_committed_block_is_there_with_its_position(tmp_path: Path) -> None:
    table = opened(tmp_path)
    assert table.position(QUERY) is None
    block = staged(table, 0, 10, tasks=3)
    assert block.rows == 10
    assert table.position(QUERY) is None
    assert block.commit()
    assert table.position(QUERY) == Position(end=10, first=0, last="ingest/10.arrow", rows=10)
    assert strangers_rows(tmp_path) == rows_of(0, 10)


def test_has_says_whether_the_first_events_of_a_block_are_there(tmp_path: Path) -> None:
    table = opened(tmp_path)
    assert not table.has(BlockId(QUERY, 0, 5))
    assert staged(table, 0, 10).commit()
    assert [table.has(BlockId(QUERY, first, first + 5)) for first in (0, 9, 10)] == [True, True, False]
    assert not table.has(BlockId("8f1c.other", 0, 5))


def test_a_block_that_begins_before_the_position_is_refused_and_its_files_are_removed(tmp_path: Path) -> None:
    table = opened(tmp_path)
    assert staged(table, 0, 10).commit()
    files = set(tmp_path.rglob("*.parquet"))
    late = staged(opened(tmp_path), 5, 20)
    assert set(tmp_path.rglob("*.parquet")) > files
    assert not late.commit()
    assert set(tmp_path.rglob("*.parquet")) == files
    assert strangers_rows(tmp_path) == rows_of(0, 10)


def test_blocks_of_two_queries_do_not_meet(tmp_path: Path) -> None:
    table = opened(tmp_path)
    # The second is the name that the first's end would have, were it written with a dot.
    for query in ("8f1c.a", "8f1c.a.end"):
        assert staged(table, 0, 5, query=query).commit()
    assert set(table.info().positions) == {"8f1c.a", "8f1c.a.end"}
    assert table.position("8f1c.a") == Position(end=5, first=0, last="ingest/5.arrow", rows=5)
    assert len(strangers_rows(tmp_path)) == 10


def test_an_empty_block_moves_the_position_in_a_snapshot(tmp_path: Path) -> None:
    table = opened(tmp_path)
    assert staged(table, 0, 5).commit()
    before = strangers_table(tmp_path).metadata.current_snapshot_id
    assert staged(table, 5, 9, []).commit()
    after = strangers_table(tmp_path)
    # Without a snapshot a driver with older metadata could move the property back.
    assert after.metadata.current_snapshot_id != before
    assert table.position(QUERY) == Position(end=9, first=5, last="ingest/9.arrow", rows=0)
    assert strangers_rows(tmp_path) == rows_of(0, 5)


def test_a_block_of_sparks_checkpoint_keeps_its_number(tmp_path: Path) -> None:
    table = opened(tmp_path)
    block = BlockId("spark-query", 100, 130, "o", number=7)
    table.writer(COLUMNS, block)
    assert table.staged(block, []).commit()
    assert strangers_table(tmp_path).properties["penstock.spark-query"] == "7"
    assert table.has(BlockId("spark-query", 0, 1, number=7))
    assert not table.has(BlockId("spark-query", 0, 1, number=8))
    assert table.position("spark-query") == Position(end=130, first=100, last="o", rows=0)


def test_a_discarded_block_leaves_nothing_and_a_committed_one_stays(tmp_path: Path) -> None:
    table = opened(tmp_path)
    block = staged(table, 0, 5)
    block.discard()
    assert not list(tmp_path.rglob("*.parquet"))
    kept = staged(table, 0, 5)
    assert kept.commit()
    kept.discard()
    assert strangers_rows(tmp_path) == rows_of(0, 5)


def test_a_task_that_fails_removes_its_files(tmp_path: Path) -> None:
    table = opened(tmp_path, partition_by=["id"])
    writer = table.writer(COLUMNS, BlockId(QUERY, 0, 5))
    files = writer.open(0)
    import pyarrow as pa

    files.add(pa.RecordBatch.from_pylist([dict(row) for row in rows_of(0, 5)], schema=writer.schema))
    assert files.close()
    files.abort()
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_block_whose_table_has_other_columns_by_now_is_staged_again(tmp_path: Path) -> None:
    table = opened(tmp_path)
    block = staged(table, 0, 5)
    with strangers_table(tmp_path).update_schema() as update:
        from pyiceberg.types import StringType

        update.add_column("extra", StringType())
    assert not block.commit()
    assert not list(tmp_path.rglob("*.parquet"))
    assert staged(table, 0, 5).commit()
    assert ids(strangers_rows(tmp_path)) == list(range(5))


def test_a_block_whose_table_has_another_partitioning_by_now_is_staged_again(tmp_path: Path) -> None:
    table = opened(tmp_path)
    assert staged(table, 0, 5).commit()
    block = staged(table, 5, 10)
    with strangers_table(tmp_path).update_spec() as update:
        update.add_identity("name")
    assert not block.commit()
    assert staged(table, 5, 10).commit()
    assert strangers_rows(tmp_path) == rows_of(0, 10)


def test_a_block_whose_table_was_dropped_is_refused(tmp_path: Path) -> None:
    table = opened(tmp_path)
    block = staged(table, 0, 5)
    strangers_table(tmp_path).catalog.drop_table("web.clicks")
    assert not block.commit()
    assert table.position(QUERY) is None


def test_positions_survive_the_expiry_of_snapshots(tmp_path: Path) -> None:
    table = opened(tmp_path)
    for first in range(0, 50, 10):
        assert staged(table, first, first + 10).commit()
    table.vacuum(0)
    assert len(strangers_table(tmp_path).snapshots()) == 1
    assert table.position(QUERY) == Position(end=50, first=40, last="ingest/50.arrow", rows=10)
    assert not staged(table, 40, 50).commit()
    assert strangers_rows(tmp_path) == rows_of(0, 50)


def test_the_summary_of_a_snapshot_names_its_block(tmp_path: Path) -> None:
    table = opened(tmp_path)
    assert staged(table, 0, 5).commit()
    snapshot = strangers_table(tmp_path).current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary["penstock.block"] == f"{QUERY}-000000000000"


@pytest.mark.parametrize(("name", "value"), [("", "many"), (":end", "[]"), (":end", "{")])
def test_a_position_that_cannot_be_read_is_an_error(tmp_path: Path, name: str, value: str) -> None:
    table = opened(tmp_path)
    assert staged(table, 0, 5).commit()
    with strangers_table(tmp_path).transaction() as transaction:
        transaction.set_properties({f"penstock.{QUERY}{name}": value})
    with pytest.raises(CorruptData, match=f"penstock.{QUERY}"):
        table.position(QUERY)


def test_a_position_without_its_end_is_read_from_the_version(tmp_path: Path) -> None:
    table = opened(tmp_path)
    assert staged(table, 0, 5).commit()
    with strangers_table(tmp_path).transaction() as transaction:
        transaction.remove_properties(f"penstock.{QUERY}:end")
    assert table.position(QUERY) == Position(end=5)


def test_info_counts_rows_files_and_positions(tmp_path: Path) -> None:
    table = opened(tmp_path, partition_by=["bucket(2, id)"])
    with pytest.raises(InvalidInput, match=r"no table lake\.web\.clicks in .*catalog\.db yet"):
        table.info()
    assert staged(table, 0, 10).commit()
    info = table.info()
    assert (info.kind, info.url, info.rows, info.files) == ("iceberg", "lake.web.clicks", 10, 2)
    assert info.bytes == sum(file.stat().st_size for file in tmp_path.rglob("*.parquet"))
    assert info.columns == (("id", "bigint"), ("name", "string"))
    assert info.partition_by == ("bucket(2, id)",)
    assert info.positions == {QUERY: table.position(QUERY)}
    assert info.last_commit_at is not None


def test_old_metadata_is_removed_by_later_commits(tmp_path: Path) -> None:
    table = opened(tmp_path)
    for first in range(60):
        assert staged(table, first, first + 1).commit()
    assert len(list(tmp_path.rglob("*.metadata.json"))) < 25
    # And manifests are merged: without that there is one for each of the 60.
    snapshot = strangers_table(tmp_path).current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(strangers_table(tmp_path).io)) < 50
    assert strangers_rows(tmp_path) == rows_of(0, 60)


def test_the_property_has_where_the_block_began_and_ended(tmp_path: Path) -> None:
    assert staged(opened(tmp_path), 3, 7).commit()
    properties = strangers_table(tmp_path).properties
    assert properties[f"penstock.{QUERY}"] == "6"
    end = json.loads(properties[f"penstock.{QUERY}:end"])
    assert {name: end[name] for name in ("first", "end", "last", "rows")} == {
        "first": 3,
        "end": 7,
        "last": "ingest/7.arrow",
        "rows": 4,
    }
