"""Cases that once lost events, or failed with a misleading error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

from penstock import peek
from penstock.buffer import Manifest
from penstock.buffer.producer.block_appender import BlockAppender, BlockName
from penstock.errors import CorruptData, DeadLetterRouteFailed, InvalidInput, SinkFailed
from penstock.records import values_to_arrow
from penstock.spark import Pipeline
from penstock.spark.source.partitions import BatchRun
from penstock.spark.source.schemas import SET_ASIDE, UNPARSED
from penstock.spark.tables.contract import BlockId
from penstock.spark.tables.parquet.table import open_table
from penstock.storage import open_store
from tests.support.backlogs import Backlog, parts
from tests.support.pipeline_places import Places
from tests.support.spark_session import needs_spark

SCHEMA = "id bigint"


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


@needs_spark(4, 0, "it has no data sources in Python")
def test_a_batch_that_may_be_set_aside_is_never_cut_so_that_a_part_of_it_cannot_vanish(tmp_path: Path) -> None:
    backlog = Backlog(str(tmp_path))
    backlog.put([bytes(2000) for _ in range(1000)])
    aside = StructType([*UNPARSED, *SET_ASIDE])
    reader = backlog.stream_reader(aside, onCorruptBatch="dlq", targetPartitionBytes="300k")
    runs = [run for run in parts(reader, 0, 1) if isinstance(run, BatchRun)]
    assert [piece.of for run in runs for piece in run.pieces] == [1]
    whole = parts(backlog.stream_reader(targetPartitionBytes="300k"), 0, 1)
    assert len(whole) > 1


def test_another_block_under_a_queued_name_is_an_error_and_is_not_appended(tmp_path: Path) -> None:
    appender = BlockAppender(open_store(tmp_path))
    written = appender.write(values_to_arrow([b"one"]))
    assert appender.append([written], BlockName("query", 0, "3"))
    again = appender.write(values_to_arrow([b"one", b"two"]))
    with pytest.raises(CorruptData, match="the checkpoint has lost what it had planned"):
        appender.append([again], BlockName("query", 0, "6"))
    assert not appender.append([again], BlockName("query", 0, "3"))
    assert len(Manifest.read(tmp_path).entries) == 1


def test_a_name_is_not_taken_for_a_longer_one(tmp_path: Path) -> None:
    appender = BlockAppender(open_store(tmp_path))
    assert appender.append([appender.write(values_to_arrow([b"one"]))], BlockName("query", 1))
    assert appender.append([appender.write(values_to_arrow([b"two"]))], BlockName("query", 12))
    assert appender.append([appender.write(values_to_arrow([b"three"]))], BlockName("quer", 1))


def test_no_secret_of_a_place_is_in_what_a_pipeline_shows() -> None:
    assert "hunter22" not in repr(Pipeline("s3://bucket/events", "hdfs://me:hunter22@host/checkpoint"))


@pytest.mark.parametrize(("rows", "letters"), [("real/t", "link/t"), ("t", "t/dead"), ("t/rows", "t")])
def test_tables_that_are_one_or_lie_in_each_other_are_refused(
    spark: Any, places: Places, rows: str, letters: str
) -> None:
    (places.root / "real").mkdir()
    (places.root / "link").symlink_to(places.root / "real")
    pipeline = places.pipeline().parse("json", SCHEMA).to_parquet(places.root / rows)
    with pytest.raises(InvalidInput, match="need places of their own"):
        pipeline.dead_letters(places.root / letters).run(spark, "available_now")


@pytest.mark.parametrize(
    ("before", "now", "problem"), [("id bigint", "id string", "'id' is bigint"), ("id int", "ID int", "'ID'")]
)
def test_columns_that_cannot_be_read_together_with_the_tables_are_refused_before_anything_is_written(
    spark: Any, places: Places, before: str, now: str, problem: str
) -> None:
    first = open_table(spark, str(places.table))
    assert first.stage(spark.createDataFrame([], before), BlockId("q", 0, 1)).commit()
    with pytest.raises(InvalidInput, match=problem):
        open_table(spark, str(places.table)).stage(spark.createDataFrame([], now), BlockId("q", 1, 2))


def test_letters_that_a_changed_pipeline_makes_anew_are_not_lost(spark: Any, places: Places) -> None:
    places.put([b'{"id": 1}', b'{"id": "x"}', b"broken"])
    blocks: list[str] = []

    def fail_once(_rows: Any, block: str) -> None:
        blocks.append(block)
        if len(blocks) == 1:
            raise OSError("the sink is gone")

    with pytest.raises(SinkFailed):
        places.pipeline().parse("json", "id string").dead_letters(places.dead_letters).to(fail_once).run(
            spark, "available_now"
        )
    changed = places.pipeline().parse("json", "id bigint").dead_letters(places.dead_letters).to(fail_once)
    with pytest.raises(DeadLetterRouteFailed, match=r"has 1 dead letters .* makes 2 now: the pipeline was changed"):
        changed.run(spark, "available_now")
    assert places.queued() == [0]
    assert len(blocks) == 1


def test_a_sink_is_not_called_for_a_block_without_rows_and_records_go_to_a_buffer_as_they_are(
    spark: Any, places: Places
) -> None:
    places.put([b"broken"])
    called: list[str] = []
    pipeline = places.pipeline().parse("json", SCHEMA).dead_letters(places.dead_letters)
    done = pipeline.to(lambda _rows, block: called.append(block)).run(spark, "available_now")
    assert (called, done.dead_letters, places.queued()) == ([], 1, [])

    places.put([b"as it is"])
    out = places.root / "out"
    Pipeline(places.events, places.root / "other").to_buffer(out).run(spark, "available_now")
    assert [record.value for record in peek(out)] == [b"as it is"]
