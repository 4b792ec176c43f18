"""Iceberg's own jar reads the tables that pipelines write, from their catalog and under conditions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.spark import Pipeline
from penstock.spark.tables.iceberg.table import open_iceberg
from tests.spark.jars.events import SCHEMA, check, payloads, row
from tests.spark.jars.lake import Lake
from tests.support.pipeline_places import Places

BLOCKS = 60
"""More than there are manifests before they are merged."""


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


def parsed(places: Places, schema: str = SCHEMA) -> Pipeline:
    return places.pipeline(maxBatchesPerTrigger=1, selfRegulation="off").parse("json", schema)


def put(places: Places, first: int, end: int, size: int = 5) -> None:
    """Append events, each batch of which becomes a block."""
    places.put(*(payloads(map(row, range(begin, min(begin + size, end)))) for begin in range(first, end, size)))


@pytest.mark.parametrize(
    "partition_by",
    [
        None,
        ["event"],
        ["days(at)", "bucket(4, id)", "truncate(9, event)"],
        ["hours(at)"],
        ["months(at)", "truncate(10, whole)"],
        ["years(day)", "bucket(3, event)"],
        ["bucket(3, money)", "bucket(3, at)", "truncate(1, money)"],
    ],
)
def test_appended_rows_are_read(spark: Any, places: Places, lake: Lake, partition_by: list[str] | None) -> None:
    put(places, 0, 30)
    pipeline = parsed(places).to_iceberg(lake.table, lake.catalog, partition_by)
    assert pipeline.run(spark, "available_now").rows == 30
    check(lake.read, map(row, range(30)))


def test_many_blocks_are_read(spark: Any, places: Places, lake: Lake) -> None:
    put(places, 0, BLOCKS, 1)
    pipeline = parsed(places).to_iceberg(lake.table, lake.catalog, ["days(at)"])
    assert pipeline.run(spark, "available_now").rows == BLOCKS
    check(lake.read, map(row, range(BLOCKS)))


def test_upserts_and_deletes_are_read(spark: Any, places: Places, lake: Lake) -> None:
    expected = {number: row(number) | {"op": "u"} for number in range(30)}
    changed = {number: row(number + 100) | {"id": number, "op": "u"} for number in range(5, 15)}
    deleted = {number: {"id": number, "op": "d"} for number in (0, 7, 29)}
    places.put(*(payloads(changes.values()) for changes in (expected, changed, deleted)))
    pipeline = parsed(places, f"{SCHEMA}, op string")
    pipeline = pipeline.to_iceberg(lake.table, lake.catalog, ["bucket(4, id)"], merge_on=["id"], delete_when="op = 'd'")
    pipeline.run(spark, "available_now")
    left = {number: one for number, one in (expected | changed).items() if number not in deleted}
    check(lake.read, left.values())


def test_a_table_that_was_compacted_and_vacuumed_is_read(spark: Any, places: Places, lake: Lake) -> None:
    put(places, 0, 30)
    pipeline = parsed(places).to_iceberg(lake.table, lake.catalog, ["truncate(9, event)"])
    pipeline.run(spark, "available_now")
    table = open_iceberg(lake.table, catalog=lake.catalog)
    compacted = table.compact()
    assert compacted.files_after < compacted.files_before
    table.vacuum(0)
    put(places, 30, 40)
    pipeline.run(spark, "available_now")
    check(lake.read, map(row, range(40)))


def test_columns_that_came_later_and_types_that_widened_are_read(spark: Any, places: Places, lake: Lake) -> None:
    put(places, 0, 10)
    narrow = "id int, event string, money decimal(12, 4), place struct<lat: float>"
    parsed(places, narrow).to_iceberg(lake.table, lake.catalog).run(spark, "available_now")
    put(places, 10, 20)
    parsed(places).to_iceberg(lake.table, lake.catalog).run(spark, "available_now")
    kept = {"id", "event", "money", "place"}
    early = [{name: value if name in kept else None for name, value in row(number).items()} for number in range(10)]
    for one in early:
        if one["place"] is not None:
            one["place"] = {"lat": one["place"]["lat"], "name": None}
    columns = list(row(0))
    check(lambda: lake.read().select(columns), [*early, *map(row, range(10, 20))])


def test_a_pipeline_and_spark_write_one_table_in_turns(spark: Any, places: Places, lake: Lake) -> None:
    spark.sql(f"create namespace {lake.table.rpartition('.')[0]}")
    spark.sql(f"create table {lake.table} ({SCHEMA}) using iceberg partitioned by (days(at), bucket(4, id))")
    pipeline = parsed(places).to_iceberg(lake.table, lake.catalog)
    expected = []
    for first in range(0, 40, 20):
        put(places, first, first + 20)
        pipeline.run(spark, "available_now")
        strange = spark.read.schema(SCHEMA).json(spark.sparkContext.parallelize([json.dumps(row(1000 + first))]))
        strange.writeTo(lake.table).append()
        spark.sql(f"delete from {lake.table} where id = {first + 3}")
        expected += [row(1000 + first), *(row(number) for number in range(first, first + 20) if number != first + 3)]
    check(lake.read, expected)
    check(lambda: Pipeline.read_table(spark, lake.table, catalog=lake.catalog), expected)
