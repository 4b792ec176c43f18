"""Partitions of an Iceberg table, by columns and by transforms of them."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.errors import InvalidInput
from tests.spark.tables.iceberg.blocks import opened, staged, strangers_rows, strangers_table

COLUMNS = StructType(
    [
        StructField("id", LongType()),
        StructField("event", StringType()),
        StructField("at", TimestampType()),
        StructField("local", TimestampNTZType()),
        StructField("day", DateType()),
        StructField("price", DecimalType(10, 2)),
        StructField("flag", BooleanType()),
        StructField("place", StructType([StructField("city", StringType())])),
    ]
)


def row(number: int) -> dict[str, Any]:
    at = datetime.datetime(2026, 1, 1) + datetime.timedelta(hours=7 * number)
    return {
        "id": number,
        "event": f"event/ä {number % 3}",
        "at": at.replace(tzinfo=datetime.UTC),
        "local": at,
        "day": at.date(),
        "price": Decimal(number % 4),
        "flag": number % 2 == 0,
        "place": {"city": f"city {number % 2}"},
    }


ROWS = [row(number) for number in range(30)] + [
    {"id": 30} | {name: None for name in COLUMNS.fieldNames() if name != "id"}
]


@pytest.mark.parametrize(
    "partition_by",
    [
        ["event"],
        ["days(at)"],
        ["hours(at)"],
        ["months(at)"],
        ["years(at)"],
        ["bucket(4, id)"],
        ["truncate(4, event)"],
        ["truncate(10, id)"],
        ["flag", "price"],
        ["day"],
        ["days(local)", "bucket(3, event)"],
        ["years(at)", "days(at)"],
        ["place.city"],
    ],
    ids=" ".join,
)
def test_rows_come_back_from_their_partitions(tmp_path: Path, partition_by: list[str]) -> None:
    table = opened(tmp_path, partition_by=partition_by)
    for first in (0, 15):
        assert staged(table, first, first + 15, ROWS[first : first + 15], columns=COLUMNS).commit()
    assert staged(table, 30, 31, ROWS[30:], columns=COLUMNS).commit()
    assert table.info().partition_by == tuple(partition_by)
    assert strangers_rows(tmp_path) == ROWS
    files = [task.file for task in strangers_table(tmp_path).scan().plan_files()]
    assert len({file.partition for file in files}) > 1
    done = table.compact()
    assert done.files_after <= done.files_before
    assert strangers_rows(tmp_path) == ROWS
    files = [task.file for task in strangers_table(tmp_path).scan().plan_files()]
    assert len({file.partition for file in files}) == len(files)


def test_a_filter_leaves_partitions_out(tmp_path: Path) -> None:
    table = opened(tmp_path, partition_by=["days(at)", "bucket(4, id)"])
    assert staged(table, 0, 30, ROWS[:30], columns=COLUMNS).commit()
    theirs = strangers_table(tmp_path)
    all_files = len(list(theirs.scan().plan_files()))
    some = theirs.scan(row_filter="at >= '2026-01-03T00:00:00+00:00' and at < '2026-01-04T00:00:00+00:00'")
    assert 0 < len(list(some.plan_files())) < all_files
    assert some.to_arrow().sort_by("id")["id"].to_pylist() == [n for n in range(30) if ROWS[n]["day"].day == 3]
    one = theirs.scan(row_filter="id = 7")
    assert len(list(one.plan_files())) == 1
    assert one.to_arrow()["id"].to_pylist() == [7]


@pytest.mark.parametrize(
    ("partition_by", "message"),
    [
        ("event", "must be a list"),
        ([7], "must be a list"),
        ([" "], "must be a list"),
        (["weeks(at)"], r"weeks\(at\)"),
        (["days(3, at)"], r"days\(3, at\)"),
        (["bucket(id)"], r"bucket\(id\)"),
        (["bucket(0, id)"], r"bucket\(0, id\)"),
        (["event", "Event"], "twice"),
    ],
)
def test_a_partitioning_that_cannot_be_read_is_refused(tmp_path: Path, partition_by: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        opened(tmp_path, partition_by=partition_by)


@pytest.mark.parametrize(
    ("partition_by", "message"),
    [
        (["days(nothing)"], "the column 'nothing'"),
        (["days(event)"], "day of the column 'event', which is string"),
        (["hours(day)"], "hour of the column 'day', which is date"),
        (["bucket(4, ratio)"], r"bucket\[4\] of the column 'ratio'"),
        (["many"], "identity of the column 'many'"),
    ],
)
def test_a_partitioning_that_the_columns_do_not_have_is_refused(
    tmp_path: Path, partition_by: list[str], message: str
) -> None:
    table = opened(tmp_path, partition_by=partition_by)
    columns = StructType([*COLUMNS, StructField("ratio", DoubleType()), StructField("many", ArrayType(LongType()))])
    with pytest.raises(InvalidInput, match=message):
        table.check(columns)
    with pytest.raises(InvalidInput, match=message):
        staged(table, 0, 1, ROWS[:1], columns=columns)


def test_another_partitioning_than_the_tables_is_refused_and_none_takes_the_tables(tmp_path: Path) -> None:
    assert staged(opened(tmp_path, partition_by=["days(at)"]), 0, 3, ROWS[:3], columns=COLUMNS).commit()
    with pytest.raises(InvalidInput, match=r"partitioned by \['days\(at\)'\], not by \['event'\]"):
        staged(opened(tmp_path, partition_by=["event"]), 3, 6, ROWS[3:6], columns=COLUMNS)
    assert staged(opened(tmp_path), 3, 6, ROWS[3:6], columns=COLUMNS).commit()
    assert strangers_rows(tmp_path) == ROWS[:6]


def test_files_of_an_earlier_partitioning_stay_readable_and_are_left_by_compaction(tmp_path: Path) -> None:
    table = opened(tmp_path, partition_by=["days(at)"])
    assert staged(table, 0, 10, ROWS[:10], columns=COLUMNS).commit()
    with strangers_table(tmp_path).update_spec() as update:
        update.add_identity("event")
    table = opened(tmp_path)
    for first in (10, 20):
        assert staged(table, first, first + 10, ROWS[first : first + 10], columns=COLUMNS).commit()
    table.compact()
    assert strangers_rows(tmp_path) == ROWS[:30]


@pytest.mark.parametrize("merge_on", [[], ["id"]])
def test_a_value_that_is_too_long_for_the_name_of_a_directory_is_a_partition_all_the_same(
    tmp_path: Path, merge_on: list[str]
) -> None:
    table = opened(tmp_path, partition_by=["event"], merge_on=merge_on)
    rows = [{"id": number, "event": event * length} for number, (event, length) in enumerate(_LONG)]
    columns = StructType(COLUMNS.fields[:2])
    for first, end in ((0, 2), (2, 5)):
        assert staged(table, first, end, rows[first:end], columns=columns, tasks=2).commit()
    assert strangers_rows(tmp_path) == rows
    partitions = strangers_table(tmp_path).inspect.partitions().column("partition").to_pylist()
    assert len(partitions) == len(rows)


_LONG = [("a", 1), ("a", 300), ("ä", 60), ("\U0010ffff", 33), ("/", 100)]
