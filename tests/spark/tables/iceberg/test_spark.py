"""An Iceberg table and Spark: tasks write a block's files, and read a table's, without JVM jars."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from penstock.errors import InvalidInput
from penstock.spark.tables.contract import BlockId, Position
from tests.spark.tables.iceberg.blocks import QUERY, opened, rows_of, staged, strangers_rows, strangers_table

EVERYTHING = (
    "id bigint, text string, raw binary, flag boolean, tiny int, whole int, real float, price decimal(20, 4), "
    "day date, at timestamp, local timestamp_ntz, tags array<string>, attributes map<string, int>, "
    "place struct<city: string, spots: array<struct<x: double>>>"
)
NOON = datetime.datetime(2026, 1, 31, 12, 30, 15, 123456)


def row(number: int) -> tuple[Any, ...]:
    if number % 5 == 4:
        return (number, *[None] * 13)
    return (
        number,
        f"text {number}",
        bytes([number % 256]),
        number % 2 == 0,
        number % 100,
        number,
        number / 2,
        Decimal(number) / 4,
        datetime.date(2026, 1, 1 + number % 28),
        NOON + datetime.timedelta(hours=number),
        NOON,
        ["a", None],
        {"k": number, "l": None},
        ("city", [(0.5,), None]),
    )


def test_a_dataframe_is_staged_by_tasks_and_read_by_tasks(spark: Any, tmp_path: Path) -> None:
    table = opened(tmp_path, partition_by=["months(at)", "bucket(2, id)"])
    expected = []
    for first in (0, 50):
        rows = spark.createDataFrame([row(number) for number in range(first, first + 50)], EVERYTHING)
        expected += rows.collect()
        block = table.stage(rows.repartition(3), BlockId(QUERY, first, first + 50, "object"))
        assert block.rows == 50
        assert block.commit()
    assert table.position(QUERY) == Position(end=100, first=50, last="object", rows=50)
    read = table.read(spark)
    assert read.schema.simpleString() == rows.schema.simpleString()
    assert sorted(read.collect()) == sorted(expected)
    assert read.where("id >= 90").count() == 10
    assert len(strangers_rows(tmp_path)) == 100


def test_what_spark_reads_has_the_columns_of_the_table_by_their_ids(spark: Any, tmp_path: Path) -> None:
    table = opened(tmp_path)
    assert staged(table, 0, 3).commit()
    theirs = strangers_table(tmp_path)
    with theirs.update_schema() as update:
        update.rename_column("name", "title")
    with theirs.update_schema() as update:  # a new column with the old name is another column
        update.add_column("name", theirs.schema().find_type("title"))
    wider = StructType(
        [StructField("id", LongType()), StructField("title", StringType()), StructField("extra", DoubleType())]
    )
    assert staged(table, 3, 4, [{"id": 3, "title": "t", "extra": 0.5}], columns=wider).commit()
    found = sorted(tuple(row) for row in table.read(spark).collect())
    assert table.read(spark).columns == ["id", "title", "name", "extra"]
    assert found == [*((n, f"event {n}", None, None) for n in range(3)), (3, "t", None, 0.5)]


def test_what_others_deleted_is_not_read(spark: Any, tmp_path: Path) -> None:
    table = opened(tmp_path)
    assert staged(table, 0, 10).commit()
    strangers_table(tmp_path).delete("id >= 4")
    assert sorted(row.id for row in table.read(spark).collect()) == [0, 1, 2, 3]


def test_a_table_without_rows_is_read_as_none(spark: Any, tmp_path: Path) -> None:
    table = opened(tmp_path)
    with pytest.raises(InvalidInput, match="no table"):
        table.read(spark)
    assert staged(table, 0, 10, []).commit()
    assert table.read(spark).collect() == []
    assert table.read(spark).columns == ["id", "name"]


def test_upserts_of_a_dataframe(spark: Any, tmp_path: Path) -> None:
    table = opened(tmp_path, merge_on=["id"])
    for first in (0, 10):
        rows = spark.createDataFrame(
            [(n % 15, f"from {first}") for n in range(first, first + 10)], "id long, name string"
        )
        assert table.stage(rows, BlockId(QUERY, first, first + 10)).commit()
    expected = dict.fromkeys(range(10), "from 0") | {n % 15: "from 10" for n in range(10, 20)}
    assert {row.id: row.name for row in table.read(spark).collect()} == expected


def test_a_dataframe_with_other_types_is_refused_before_a_job_runs(spark: Any, tmp_path: Path) -> None:
    table = opened(tmp_path)
    assert staged(table, 0, 3).commit()
    files = set(tmp_path.rglob("*"))
    with pytest.raises(InvalidInput, match=r"'id' is bigint in the table lake\.web\.clicks, not string"):
        table.stage(spark.createDataFrame([("x",)], "id string"), BlockId(QUERY, 3, 4))
    assert set(tmp_path.rglob("*")) == files
    assert strangers_rows(tmp_path) == rows_of(0, 3)
