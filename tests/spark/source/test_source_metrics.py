"""What a query's progress shows of the source."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from penstock import Producer
from penstock.buffer import Waiting
from penstock.spark.source.admission import Admission
from penstock.spark.source.schemas import UNPARSED
from penstock.spark.source.source_metrics import source_metrics
from tests.support.backlogs import Backlog, plan
from tests.support.manifests import KINDS
from tests.support.spark_session import needs_spark

MANIFESTS = KINDS


def test_what_waits_behind_the_block_is_counted(backlog: Backlog, manifest: str) -> None:
    backlog.put([b"a", b"b"], [b"c", b"d", b"e"], [b"f"])
    sizes = backlog.sizes()
    reader = backlog.stream_reader(UNPARSED, maxBatchesPerTrigger=1, pollInterval=0)
    assert plan(reader, 0) == 1

    metrics = reader.reportLatestOffset()["metrics"]

    assert metrics["backlogBatches"] == 2
    if manifest == "opendata":  # a manifest of version 1 has neither
        assert (metrics["backlogEvents"], metrics["backlogBytes"]) == (None, None)
    else:
        assert (metrics["backlogEvents"], metrics["backlogBytes"]) == (4, sum(sizes[1:]))
    assert metrics["budgetBytes"] == 256 << 20
    assert metrics["heldSeconds"] < 1


def test_nothing_waits_when_all_is_planned(backlog: Backlog) -> None:
    backlog.put([b"a"])
    reader = backlog.stream_reader(selfRegulation="off", pollInterval=0)
    plan(reader, 0)

    metrics = reader.reportLatestOffset()["metrics"]

    assert metrics == {
        "backlogBatches": 0,
        "backlogEvents": 0,
        "backlogBytes": 0,
        "backlogSeconds": 0.0,
        "budgetBytes": None,
        "heldSeconds": 0.0,
    }


def test_all_that_waits_is_counted_before_a_list_of_batches_was_read(backlog: Backlog, manifest: str) -> None:
    backlog.put([b"a", b"b"], [b"c"])
    reader = backlog.stream_reader()

    metrics = reader.reportLatestOffset()["metrics"]

    counts = (None, None) if manifest == "opendata" else (3, sum(backlog.sizes()))
    assert (metrics["backlogBatches"], metrics["backlogEvents"], metrics["backlogBytes"]) == (2, *counts)
    assert metrics["backlogSeconds"] is None  # the age is in the list


def test_the_seconds_are_the_age_of_the_oldest_that_waits(backlog: Backlog) -> None:
    with Producer(backlog.store) as producer:
        producer.produce([b"a"])
    (entry,) = backlog.entries()
    came = entry.metadata[0].ingestion_time_ms / 1000
    reader = backlog.stream_reader(pollInterval=0)
    reader.prepareForTriggerAvailableNow()  # looks at the manifest, and plans nothing

    before = time.time()
    metrics = reader.reportLatestOffset()["metrics"]

    assert round(before - came, 3) <= metrics["backlogSeconds"] <= round(time.time() - came, 3)


def test_how_long_memory_held_blocks_is_shown() -> None:
    admission = Admission()
    admission.held_seconds = 1.23456

    assert source_metrics(Waiting(0, 0, 0), None, admission)["heldSeconds"] == 1.235


@needs_spark(4, 2, "a reader cannot report how far the queue goes before 4.2")
def test_they_are_in_the_progress_of_a_query(session: Any, tmp_path: Path) -> None:
    backlog = Backlog((tmp_path / "buffer").as_uri())
    backlog.put_numbers(0, 5)
    stream = backlog.stream(session, maxBatchesPerTrigger=2).writeStream.foreachBatch(lambda frame, _: frame.count())
    query = stream.option("checkpointLocation", (tmp_path / "c").as_uri()).trigger(availableNow=True).start()
    assert query.awaitTermination(120)

    shown = [json.loads(one["sources"][0]["latestOffset"]) for one in query.recentProgress if one["numInputRows"]]

    assert [(one["sequence"], one["metrics"]["backlogBatches"]) for one in shown] == [(5, 3), (5, 1), (5, 0)]
