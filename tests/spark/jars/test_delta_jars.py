"""Delta's own jars read the tables that pipelines write, with each row and under conditions that leave out files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.spark import Pipeline
from penstock.spark.tables.delta.table import open_delta
from tests.spark.jars.events import SCHEMA, check, payloads, row, rows_of
from tests.support.pipeline_places import Places

COMMITS = 160
"""More than there are between two checkpoints of the log."""


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


def parsed(places: Places, schema: str = SCHEMA) -> Pipeline:
    return places.pipeline(maxBatchesPerTrigger=1, selfRegulation="off").parse("json", schema)


def put(places: Places, first: int, end: int, size: int = 5) -> None:
    """Append events, each batch of which becomes a block."""
    places.put(*(payloads(map(row, range(begin, min(begin + size, end)))) for begin in range(first, end, size)))


@pytest.mark.parametrize("partition_by", [None, ["event"], ["day", "event"], ["at"]])
def test_appended_rows_are_read(spark: Any, places: Places, partition_by: list[str] | None) -> None:
    put(places, 0, 30)
    assert parsed(places).to_delta(places.table, partition_by).run(spark, "available_now").rows == 30
    check(lambda: spark.read.format("delta").load(str(places.table)), map(row, range(30)))


def test_a_log_is_read_from_its_checkpoint(spark: Any, places: Places) -> None:
    """The commits that the checkpoint stands for are removed, as they are when they expire."""
    put(places, 0, COMMITS, 1)
    assert parsed(places).to_delta(places.table, ["event"]).run(spark, "available_now").rows == COMMITS
    log = places.table / "_delta_log"
    checkpoint = json.loads((log / "_last_checkpoint").read_text())["version"]
    assert 0 < checkpoint < COMMITS
    for commit in log.glob("*.json"):
        if int(commit.stem) <= checkpoint:
            commit.unlink()
    check(lambda: spark.read.format("delta").load(str(places.table)), map(row, range(COMMITS)))


def test_upserts_and_deletes_are_read(spark: Any, places: Places) -> None:
    expected = {number: row(number) | {"op": "u"} for number in range(30)}
    changed = {number: row(number + 100) | {"id": number, "op": "u"} for number in range(5, 15)}
    deleted = {number: {"id": number, "op": "d"} for number in (0, 7, 29)}
    places.put(*(payloads(changes.values()) for changes in (expected, changed, deleted)))
    pipeline = parsed(places, f"{SCHEMA}, op string")
    pipeline = pipeline.to_delta(places.table, ["event"], merge_on=["id"], delete_when="op = 'd'")
    pipeline.run(spark, "available_now")
    left = {number: one for number, one in (expected | changed).items() if number not in deleted}
    check(lambda: spark.read.format("delta").load(str(places.table)), left.values())


def test_a_table_that_was_compacted_and_vacuumed_is_read(spark: Any, places: Places) -> None:
    put(places, 0, 30)
    pipeline = parsed(places).to_delta(places.table, ["event"])
    pipeline.run(spark, "available_now")
    table = open_delta(str(places.table))
    compacted = table.compact(1 << 20)
    assert compacted.files_after < compacted.files_before
    table.vacuum(0)
    put(places, 30, 40)
    pipeline.run(spark, "available_now")
    check(lambda: spark.read.format("delta").load(str(places.table)), map(row, range(40)))


def test_columns_that_came_later_are_read(spark: Any, places: Places) -> None:
    put(places, 0, 10)
    parsed(places, "id bigint, event string, place struct<lat: double>").to_delta(places.table).run(
        spark, "available_now"
    )
    put(places, 10, 20)
    parsed(places).to_delta(places.table).run(spark, "available_now")
    kept = {"id", "event", "place"}
    early = [{name: value if name in kept else None for name, value in row(number).items()} for number in range(10)]
    for one in early:
        if one["place"] is not None:
            one["place"] = {"lat": one["place"]["lat"], "name": None}
    check(lambda: spark.read.format("delta").load(str(places.table)), [*early, *map(row, range(10, 20))])


def test_a_pipeline_and_spark_write_one_table_in_turns(spark: Any, places: Places) -> None:
    """Each goes on behind checkpoints of the other."""
    where = f"delta.`{places.table}`"
    spark.sql(
        f"create table {where} ({SCHEMA}) using delta partitioned by (event)"
        " tblproperties ('delta.checkpointInterval' = '2')"
    )
    pipeline = parsed(places).to_delta(places.table, ["event"])
    expected = []
    for first in (0, 10):
        put(places, first, first + 10)
        pipeline.run(spark, "available_now")
        strange = spark.read.schema(SCHEMA).json(spark.sparkContext.parallelize([json.dumps(row(1000 + first))]))
        strange.write.format("delta").mode("append").save(str(places.table))
        spark.sql(f"optimize {where}")
        expected += [row(1000 + first), *map(row, range(first, first + 10))]
    check(lambda: spark.read.format("delta").load(str(places.table)), expected)
    check(lambda: Pipeline.read_table(spark, places.table), expected)


def test_a_stream_of_deltas_reads_each_row_once(spark: Any, places: Places) -> None:
    pipeline = parsed(places).to_delta(places.table)
    for first in (0, 10):
        put(places, first, first + 10)
        pipeline.run(spark, "available_now")
        stream = spark.readStream.format("delta").load(str(places.table)).writeStream.format("parquet")
        stream = stream.option("checkpointLocation", str(places.root / "stream")).trigger(availableNow=True)
        stream.start(str(places.root / "copy")).awaitTermination()
    assert rows_of(spark.read.parquet(str(places.root / "copy"))) == list(map(row, range(20)))
