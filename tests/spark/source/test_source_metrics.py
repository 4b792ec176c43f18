"""What a query's progress shows of the source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from penstock import Producer
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


def test_the_seconds_are_the_age_of_the_oldest_that_waits(backlog: Backlog) -> None:
    with Producer(backlog.store) as producer:
        producer.produce([b"a"])
    (entry,) = backlog.entries()
    now = entry.metadata[0].ingestion_time_ms / 1000 + 12.5

    metrics = source_metrics([entry], 1, byte_budget=None, held_seconds=0, now=now)

    assert metrics["backlogSeconds"] == 12.5


@needs_spark(4, 2, "a reader cannot report how far the queue goes before 4.2")
def test_they_are_in_the_progress_of_a_query(session: Any, tmp_path: Path) -> None:
    backlog = Backlog((tmp_path / "buffer").as_uri())
    backlog.put_numbers(0, 5)
    stream = backlog.stream(session, maxBatchesPerTrigger=2).writeStream.foreachBatch(lambda frame, _: frame.count())
    query = stream.option("checkpointLocation", (tmp_path / "c").as_uri()).trigger(availableNow=True).start()
    assert query.awaitTermination(120)

    shown = [json.loads(one["sources"][0]["latestOffset"]) for one in query.recentProgress if one["numInputRows"]]

    assert [(one["sequence"], one["metrics"]["backlogBatches"]) for one in shown] == [(5, 3), (5, 1), (5, 0)]
