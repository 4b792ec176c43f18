"""Delta tables and Spark: a DataFrame is staged by its tasks, and the table is read back without Delta's jars."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import types as t

from penstock.errors import InvalidInput
from penstock.spark.tables.delta.table import open_delta
from tests.spark.tables.delta.test_blocks import MANY_TYPES, MANY_VALUES, NO_VALUES
from tests.support.delta_blocks import (
    COLUMNS,
    QUERY,
    block,
    commit,
    data_files,
    ids,
    listed_files,
    position,
    read,
    rows,
)


def test_a_dataframe_is_staged_committed_and_read_back(spark: Any, tmp_path: Path) -> None:
    table = open_delta(str(tmp_path), partition_by=["event"])
    df = spark.range(0, 100, 1, 3).selectExpr(
        "id", "if(id % 3 = 0, null, concat('e ', id % 3)) as event", "timestamp_micros(id) as at"
    )
    staged = table.stage(df, block(0, 100))
    assert staged.rows == 100
    assert staged.commit()
    assert position(table) == 100
    assert not table.stage(df, block(0, 100)).commit()
    assert data_files(tmp_path) == listed_files(tmp_path)
    found = table.read(spark)
    assert found.schema.fieldNames() == ["id", "event", "at"]
    assert sorted(found.collect()) == sorted(df.collect())
    assert found.where("event = 'e 1'").count() == 33


def test_every_type_comes_back_to_spark(spark: Any, tmp_path: Path) -> None:
    table = open_delta(str(tmp_path))
    commit(table, block(0, 2), [MANY_VALUES, NO_VALUES], MANY_TYPES)
    found = {row["id"]: row.asDict(recursive=True) for row in table.read(spark).collect()}
    assert found[2] == dict.fromkeys(MANY_TYPES.fieldNames()) | NO_VALUES
    same = [name for name in MANY_TYPES.fieldNames() if name not in ("ratio", "at", "counts", "bytes")]
    assert {name: found[1][name] for name in same} == {name: MANY_VALUES[name] for name in same}
    assert bytes(found[1]["bytes"]) == MANY_VALUES["bytes"]
    assert found[1]["counts"] == {"x": 1}
    assert table.read(spark).where("at = timestamp '2026-01-31 12:00:00.123456Z'").count() == 1


def test_columns_that_came_later_are_null_in_earlier_rows(spark: Any, tmp_path: Path) -> None:
    def nested(*names: str) -> t.StructType:
        inner = t.StructType([t.StructField(name, t.LongType()) for name in names])
        return t.StructType([t.StructField("id", t.LongType()), t.StructField("s", inner)])

    table = open_delta(str(tmp_path))
    commit(table, block(0, 1), [{"id": 0, "s": {"a": 1}}], nested("a"))
    commit(table, block(1, 2), [{"id": 1, "s": {"a": 1, "b": 2}}], nested("a", "b"))
    assert sorted((row["id"], row["s"]["b"]) for row in table.read(spark).collect()) == [(0, None), (1, 2)]


def test_a_table_of_delta_rs_is_read(spark: Any, tmp_path: Path) -> None:
    given = pa.table({"id": [1, 2, 3], "event": ["a b/c%25ü", None, "z"]})
    deltalake.write_deltalake(str(tmp_path), given, partition_by=["event"])
    found = open_delta(str(tmp_path)).read(spark)
    assert {row["id"]: row["event"] for row in found.collect()} == {1: "a b/c%25ü", 2: None, 3: "z"}


def test_an_empty_table_has_columns_and_no_rows(spark: Any, tmp_path: Path) -> None:
    table = open_delta(str(tmp_path))
    with pytest.raises(InvalidInput, match="there is no Delta table at"):
        table.read(spark)
    table.writer(COLUMNS, block(0, 1))
    assert table.read(spark).collect() == []
    assert table.read(spark).schema.fieldNames() == ["id", "event", "at"]


def test_a_table_with_deletion_vectors_is_not_read(spark: Any, tmp_path: Path) -> None:
    table = open_delta(str(tmp_path))
    commit(table, block(0, 1))
    deltalake.DeltaTable(str(tmp_path)).alter.add_feature(
        deltalake.TableFeatures.DeletionVectors, allow_protocol_versions_increase=True
    )
    with pytest.raises(InvalidInput, match="has deletionVectors, which Penstock cannot read"):
        table.read(spark)


def test_changes_are_merged_in_the_order_of_the_tasks(spark: Any, tmp_path: Path) -> None:
    table = open_delta(str(tmp_path), merge_on=["id"])
    df = spark.range(0, 1000, 1, 4).selectExpr(
        "id % 10 as id", "cast(id as string) as event", "timestamp_micros(id) as at"
    )
    assert table.stage(df, block(0, 1000)).commit()
    assert {row["id"]: row["event"] for row in read(tmp_path).to_pylist()} == {n: str(990 + n) for n in range(10)}


def test_a_task_that_meets_a_null_where_none_may_be_leaves_nothing(spark: Any, tmp_path: Path) -> None:
    fields: list[pa.Field[Any]] = [pa.field("id", pa.int64(), nullable=False), pa.field("event", pa.string())]
    arrow = pa.schema(fields)
    deltalake.DeltaTable.create(str(tmp_path), deltalake.Schema.from_arrow(arrow))
    table = open_delta(str(tmp_path))
    df = spark.range(0, 10, 1, 2).selectExpr("nullif(id, 7) as id", "'x' as event")
    with pytest.raises(Exception, match="the column 'id' is NOT NULL in the table, and a row has null there"):
        table.stage(df, block(0, 10))
    assert table.position(QUERY) is None
    assert ids(tmp_path) == []
    assert commit(table, block(0, 1), rows(0, 1))
