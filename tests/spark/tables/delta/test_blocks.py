"""Blocks of a Delta table: each is committed once, and the table says how far it is. Strangers read it."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import polars
import pyarrow as pa
import pytest
from pyspark.sql import types as t

from penstock.errors import InvalidInput
from penstock.spark.tables.contract import BlockId, Position
from penstock.spark.tables.delta.table import open_delta
from tests.support.delta_blocks import COLUMNS, QUERY, block, commit, data_files, ids, listed_files, read, rows, stage


def test_a_table_that_is_not_there_has_no_position_and_no_block(tmp_path: Path) -> None:
    table = open_delta(str(tmp_path / "table"))
    assert table.position(QUERY) is None
    assert not table.has(block(0, 5))
    assert not (tmp_path / "table").exists()
    with pytest.raises(InvalidInput, match="there is no Delta table at file://"):
        table.info()


def test_a_commit_moves_the_position_and_keeps_what_the_block_was(tmp_path: Path) -> None:
    table = open_delta(str(tmp_path))
    staged = stage(table, block(0, 5))
    assert staged.rows == 5
    assert table.position(QUERY) is None
    assert staged.commit()
    assert table.position(QUERY) == Position(5, 0, "ingest/000005.arrow", 5)
    assert commit(table, block(5, 9))
    assert open_delta(str(tmp_path)).position(QUERY) == Position(9, 5, "ingest/000009.arrow", 4)
    assert ids(tmp_path) == list(range(9))


@pytest.mark.parametrize("again", [block(0, 5), block(0, 3), block(0, 9), block(4, 9)], ids=str)
def test_a_block_whose_first_events_are_there_is_refused_and_leaves_nothing(tmp_path: Path, again: BlockId) -> None:
    table = open_delta(str(tmp_path))
    commit(table, block(0, 5))
    staged = stage(table, again)
    assert table.has(again)
    assert not staged.commit()
    assert ids(tmp_path) == list(range(5))
    assert data_files(tmp_path) == listed_files(tmp_path)
    assert table.position(QUERY) == Position(5, 0, "ingest/000005.arrow", 5)


def test_queries_have_positions_of_their_own(tmp_path: Path) -> None:
    table = open_delta(str(tmp_path))
    assert commit(table, block(0, 5))
    assert commit(table, block(0, 3, "other.default"), rows(100, 103))
    assert table.position(QUERY) == Position(5, 0, "ingest/000005.arrow", 5)
    assert table.position("other.default") == Position(3, 0, "ingest/000003.arrow", 3)
    assert not table.has(block(5, 6))
    assert table.info().positions == {QUERY: table.position(QUERY), "other.default": table.position("other.default")}


def test_a_block_of_an_earlier_checkpoint_keeps_its_number(tmp_path: Path) -> None:
    table = open_delta(str(tmp_path))
    old = BlockId("0e8f7c1a", 40, 60, number=3)
    assert not table.has(old)
    assert commit(table, old)
    assert table.has(old)
    assert not table.has(BlockId("0e8f7c1a", 60, 70, number=4))
    assert not commit(table, old)


def test_a_block_without_rows_moves_the_position(tmp_path: Path) -> None:
    table = open_delta(str(tmp_path))
    assert commit(table, block(0, 5), [])
    assert table.position(QUERY) == Position(5, 0, "ingest/000005.arrow", 0)
    assert ids(tmp_path) == []


def test_a_block_that_is_discarded_leaves_nothing(tmp_path: Path) -> None:
    table = open_delta(str(tmp_path))
    stage(table, block(0, 5)).discard()
    assert data_files(tmp_path) == set()


def test_a_block_that_is_committed_is_not_discarded(tmp_path: Path) -> None:
    staged = stage(open_delta(str(tmp_path)), block(0, 5))
    staged.commit()
    staged.discard()
    assert ids(tmp_path) == list(range(5))


def test_a_task_that_fails_removes_what_it_wrote(tmp_path: Path) -> None:
    writer = open_delta(str(tmp_path)).writer(COLUMNS, block(0, 5))
    files = writer.open(0)
    files.add(pa.RecordBatch.from_pylist(rows(0, 5), schema=writer.schema))
    files.close()
    files.abort()
    assert data_files(tmp_path) == set()


def test_what_the_log_knows_of_a_table_is_in_info(tmp_path: Path) -> None:
    table = open_delta(str(tmp_path), partition_by=["event"])
    commit(table, block(0, 5), [*rows(0, 3), *rows(3, 5, "view")])
    info = table.info()
    assert (info.kind, info.url, info.rows, info.files) == ("delta", f"file://{tmp_path}", 5, 2)
    assert info.bytes == sum((tmp_path / name).stat().st_size for name in listed_files(tmp_path))
    assert info.columns == (("id", "bigint"), ("event", "string"), ("at", "timestamp"))
    assert info.partition_by == ("event",)
    assert info.last_commit_at is not None
    assert abs((info.last_commit_at - datetime.now(UTC)).total_seconds()) < 600


MANY_TYPES = t.StructType(
    [
        t.StructField("id", t.LongType()),
        t.StructField("tiny", t.ByteType()),
        t.StructField("small", t.ShortType()),
        t.StructField("whole", t.IntegerType()),
        t.StructField("ratio", t.DoubleType()),
        t.StructField("single", t.FloatType()),
        t.StructField("yes", t.BooleanType()),
        t.StructField("text", t.StringType()),
        t.StructField("bytes", t.BinaryType()),
        t.StructField("day", t.DateType()),
        t.StructField("at", t.TimestampType()),
        t.StructField("local", t.TimestampNTZType()),
        t.StructField("money", t.DecimalType(20, 4)),
        t.StructField("tags", t.ArrayType(t.StringType())),
        t.StructField("counts", t.MapType(t.StringType(), t.LongType())),
        t.StructField(
            "where",
            t.StructType([t.StructField("lat", t.DoubleType()), t.StructField("all", t.ArrayType(t.LongType()))]),
        ),
    ]
)
MANY_VALUES: dict[str, Any] = {
    "id": 1,
    "tiny": -5,
    "small": 300,
    "whole": 70_000,
    "ratio": float("nan"),
    "single": 0.5,
    "yes": True,
    "text": "ü" * 40,
    "bytes": b"\x00\xff",
    "day": date(2026, 1, 31),
    "at": datetime(2026, 1, 31, 12, 0, 0, 123456, UTC),
    "local": datetime(2026, 1, 31, 12, 0, 0, 123456),
    "money": Decimal("12345678901234.5678"),
    "tags": ["a", None],
    "counts": [("x", 1)],
    "where": {"lat": 1.5, "all": [1, 2]},
}
NO_VALUES: dict[str, Any] = {"id": 2}


def test_every_type_is_read_by_strangers_as_it_was_written(tmp_path: Path) -> None:
    commit(open_delta(str(tmp_path)), block(0, 2), [MANY_VALUES, NO_VALUES], MANY_TYPES)
    nulls = dict.fromkeys(MANY_TYPES.fieldNames()) | NO_VALUES
    by_delta = sorted(read(tmp_path).to_pylist(), key=lambda row: row["id"])
    assert repr(by_delta[0]) == repr(MANY_VALUES | {"at": by_delta[0]["at"]})
    assert by_delta[0]["at"] == MANY_VALUES["at"]
    assert by_delta[1] == nulls
    by_polars = polars.scan_delta(str(tmp_path)).sort("id").collect().to_dicts()
    assert (by_polars[0]["at"], by_polars[0]["money"]) == (MANY_VALUES["at"], MANY_VALUES["money"])
    assert by_polars[1]["where"] in (None, {"lat": None, "all": None})
    files = [str(tmp_path / name) for name in listed_files(tmp_path)]
    found = duckdb.sql(f'select id, text, day, local, money, tags, "where" from read_parquet({files}) order by id')
    assert found is not None
    assert found.fetchall()[0] == tuple(
        MANY_VALUES[name] for name in ("id", "text", "day", "local", "money", "tags", "where")
    )


def test_strangers_leave_out_files_by_statistics_and_still_find_each_row(tmp_path: Path) -> None:
    table = open_delta(str(tmp_path))
    for number in range(4):
        values = MANY_VALUES | {"id": number, "text": f"{number}" + "z" * 40, "ratio": float(number), "whole": number}
        commit(table, block(number, number + 1), [values], MANY_TYPES)
    actions = pa.table(deltalake.DeltaTable(str(tmp_path)).get_add_actions(flatten=True)).to_pylist()
    assert sorted((one["min.id"], one["max.id"], one["num_records"], one["null_count.id"]) for one in actions) == [
        (number, number, 1, 0) for number in range(4)
    ]
    delta = deltalake.DeltaTable(str(tmp_path))
    cases: list[tuple[list[tuple[str, str, Any]], list[int]]] = [
        ([("id", "=", 2)], [2]),
        ([("text", "=", "1" + "z" * 40)], [1]),
        ([("ratio", ">", 1.5)], [2, 3]),
        ([("at", "=", MANY_VALUES["at"])], [0, 1, 2, 3]),
        ([("local", "=", MANY_VALUES["local"])], [0, 1, 2, 3]),
        ([("day", "=", MANY_VALUES["day"])], [0, 1, 2, 3]),
        ([("money", ">=", MANY_VALUES["money"])], [0, 1, 2, 3]),
        ([("money", "<=", MANY_VALUES["money"])], [0, 1, 2, 3]),
        ([("yes", "=", True)], [0, 1, 2, 3]),
        ([("bytes", "=", MANY_VALUES["bytes"])], [0, 1, 2, 3]),
    ]
    for filters, expected in cases:
        kept: list[Any] = delta.to_pyarrow_table(filters=filters).column("id").to_pylist()
        assert sorted(kept) == expected, filters
    by_polars = polars.scan_delta(str(tmp_path)).filter(polars.col("at") == MANY_VALUES["at"]).collect()
    assert by_polars.height == 4


def test_a_number_that_is_none_does_not_hide_a_file(tmp_path: Path) -> None:
    commit(open_delta(str(tmp_path)), block(0, 1), [MANY_VALUES | {"ratio": 1.0}, MANY_VALUES], MANY_TYPES)
    log = (tmp_path / "_delta_log" / f"{1:020d}.json").read_text()
    stats = [json.loads(json.loads(line)["add"]["stats"]) for line in log.splitlines() if '"add"' in line]
    # All bounds or none: delta-rs takes those that are missing for null.
    assert sorted("maxValues" in one for one in stats) == [False, True]
    for column, value in (("ratio", 1.0), ("yes", True), ("whole", 70_000)):
        found = deltalake.DeltaTable(str(tmp_path)).to_pyarrow_table(filters=[(column, "=", value)])
        assert found.num_rows == (1 if column == "ratio" else 2)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("text", ["a b/c%25ü", "=", ".."]),
        ("yes", [True, False]),
        ("day", [date(2026, 1, 31)]),
        ("at", [datetime(2026, 1, 31, 12, 0, 0, 123456, UTC), datetime(1969, 1, 1, tzinfo=UTC)]),
        ("local", [datetime(2026, 1, 31, 12, 0, 0, 123456)]),
        ("small", [-1, 300]),
    ],
)
def test_a_value_of_a_partition_column_comes_back_to_strangers(tmp_path: Path, column: str, values: list[Any]) -> None:
    table = open_delta(str(tmp_path), partition_by=[column])
    expected = [*values, None]
    given = [MANY_VALUES | {"id": number, column: value} for number, value in enumerate(expected)]
    commit(table, block(0, len(given)), given, MANY_TYPES)
    by_delta = {row["id"]: row[column] for row in read(tmp_path).to_pylist()}
    assert by_delta == dict(enumerate(expected))
    by_polars = polars.scan_delta(str(tmp_path)).select("id", column).collect().to_dicts()
    assert {row["id"]: row[column] for row in by_polars} == dict(enumerate(expected))


def test_a_partition_whose_name_no_file_system_takes_is_in_the_table_all_the_same(tmp_path: Path) -> None:
    table = open_delta(str(tmp_path), partition_by=["event"])
    commit(table, block(0, 2), [*rows(0, 1, "ü" * 300), *rows(1, 2, "click")])
    assert {row["id"]: row["event"] for row in read(tmp_path).to_pylist()} == {0: "ü" * 300, 1: "click"}


def test_an_empty_text_in_a_partition_column_is_null(tmp_path: Path) -> None:
    table = open_delta(str(tmp_path), partition_by=["event"])
    commit(table, block(0, 2), [*rows(0, 1, ""), *rows(1, 2, "click")])
    assert {row["id"]: row["event"] for row in read(tmp_path).to_pylist()} == {0: None, 1: "click"}


@pytest.mark.slow
def test_four_hundred_blocks_stay_fast_by_checkpoints(tmp_path: Path) -> None:
    table = open_delta(str(tmp_path))
    for number in range(401):
        assert commit(table, block(number, number + 1))
    checkpoints = sorted(tmp_path.glob("_delta_log/*.checkpoint.parquet"))
    assert [int(file.name[:20]) for file in checkpoints] == [100, 200, 300, 400]
    assert open_delta(str(tmp_path)).position(QUERY) == Position(401, 400, "ingest/000401.arrow", 1)
    assert ids(tmp_path) == list(range(401))


def test_a_position_outlives_the_log_entry_of_its_commit(tmp_path: Path) -> None:
    table = open_delta(str(tmp_path))
    commit(table, block(0, 5))
    deltalake.DeltaTable(str(tmp_path)).alter.set_table_properties({"delta.checkpointInterval": "3"})
    table = open_delta(str(tmp_path))
    for number in range(4):
        commit(table, block(number, number + 1, "other.default"))
    assert sorted(int(file.name[:20]) for file in tmp_path.glob("_delta_log/*.checkpoint.parquet")) == [2, 5]
    for version in range(6):
        (tmp_path / "_delta_log" / f"{version:020d}.json").unlink()
    again = open_delta(str(tmp_path))
    assert again.position(QUERY) == Position(5)
    assert again.has(block(0, 5))
    assert not commit(again, block(3, 6))
    assert commit(again, block(5, 6))
    assert ids(tmp_path) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 5]
