"""`Pipeline.maintain`: a table is compacted beside the pipeline that writes it, and what fails there stops nothing."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import InvalidInput, StorageError
from penstock.spark import Pipeline
from penstock.spark.pipeline.maintenance import Maintain, Maintenance
from penstock.spark.tables.contract import Compacted, Table
from tests.spark.kills.kinds import TABLES, open_rows
from tests.support.pipeline_places import Places
from tests.support.waiting import Gate

BLOCKS = 8
KINDS = ["parquet", pytest.param("delta", marks=pytest.mark.slow), pytest.param("iceberg", marks=pytest.mark.slow)]


def into(pipeline: Pipeline, kind: str, places: Places) -> Pipeline:
    if kind == "parquet":
        return pipeline.to_parquet(places.table)
    if kind == "delta":
        pytest.importorskip("deltalake")
        return pipeline.to_delta(places.table)
    pytest.importorskip("pyiceberg")
    return pipeline.to_iceberg("local.db.events", {"warehouse": str(places.root / "warehouse")})


def numbers_in(spark: Any, kind: str, places: Places) -> list[int]:
    if kind == "iceberg":
        catalog = {"warehouse": str(places.root / "warehouse")}
        rows = Pipeline.read_table(spark, "local.db.events", kind=kind, catalog=catalog)
    else:
        rows = Pipeline.read_table(spark, places.table, kind=kind)
    return sorted(row["n"] for row in rows.collect())


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_is_compacted_while_the_pipeline_writes_it_and_each_row_stays_once(
    spark: Any, tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each block but the first waits for a round of the maintenance that began after the block before it."""
    places = Places(tmp_path)
    places.put(*([b'{"n": %d}' % number] for number in range(BLOCKS)))
    rounds = threading.Semaphore(0)
    run_once = Maintenance.run_once

    def counted(maintenance: Maintenance) -> None:
        run_once(maintenance)
        rounds.release()

    monkeypatch.setattr(Maintenance, "run_once", counted)

    def wait_for_a_round(_report: object) -> None:
        while rounds.acquire(blocking=False):
            pass
        assert rounds.acquire(timeout=60)

    pipeline = places.pipeline(maxBatchesPerTrigger=1, selfRegulation="off").parse("json", "n bigint")
    pipeline = into(pipeline, kind, places).maintain("20 milliseconds", vacuum_older_than="1 hour")
    with caplog.at_level(logging.INFO, "penstock"):
        assert pipeline.on_block(wait_for_a_round).run(spark, "available_now").rows == BLOCKS
    assert numbers_in(spark, kind, places) == list(range(BLOCKS))
    assert any("files are now" in line for line in caplog.messages)
    assert not [line for line in caplog.messages if "not maintained" in line]
    assert places.queued() == []


class Stubborn:
    """A table whose compaction fails in another way each time."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)
        self.has_gone_on = Gate()

    def exists(self) -> bool:
        return True

    def compact(self, _target: int) -> Compacted:
        if self._errors:
            raise self._errors.pop(0)
        self.has_gone_on.open()
        return Compacted(0, 0, 0)


def test_what_fails_is_logged_and_the_next_round_comes(caplog: pytest.LogCaptureFixture) -> None:
    table: Any = Stubborn(StorageError("the disk is full"), RuntimeError("of a library"))
    with Maintenance(Maintain(0.001, 1, None), lambda: table):
        table.has_gone_on()
    assert "the table was not maintained this time: the disk is full" in caplog.messages
    assert any(record.exc_info and "of a library" in str(record.exc_info[1]) for record in caplog.records)


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_that_is_not_there_yet_is_not_worth_a_word(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table: Any = open_rows(kind, None, tmp_path / "table")
    with caplog.at_level(logging.INFO, "penstock"):
        Maintenance(Maintain(1.0, 1 << 20, 0.0), lambda: table).run_once()
    assert caplog.messages == []


def test_a_table_that_cannot_be_opened_is_logged_too(caplog: pytest.LogCaptureFixture) -> None:
    def closed() -> Table:
        raise StorageError("no such bucket")

    Maintenance(Maintain(1.0, 1, None), closed).run_once()
    assert "the table was not maintained this time: no such bucket" in caplog.messages


def test_a_sink_that_is_no_table_cannot_be_maintained(spark: Any, tmp_path: Path) -> None:
    places = Places(tmp_path)
    places.put([b"1"])
    pipeline = places.pipeline().to(lambda _rows, _block: None).maintain()
    with pytest.raises(InvalidInput, match="maintain is for tables"):
        pipeline.run(spark, "available_now")
    assert places.queued() == [0]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"every": "often"}, "every must be a time"),
        ({"every": None}, "every must be a time"),
        ({"every": "0 seconds"}, "every must be a time"),
        ({"target": "large"}, "target must be a number of bytes"),
        ({"target": "0"}, "target must be a number of bytes"),
        ({"target": 0.5}, "target must be a number of bytes"),
        ({"vacuum_older_than": "a week"}, "vacuum_older_than must be a time"),
    ],
)
def test_what_cannot_be_right_is_refused_at_once(tmp_path: Path, given: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        Pipeline(tmp_path / "events").maintain(**given)


def test_maintain_is_said_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="there already"):
        Pipeline(tmp_path / "events").maintain().maintain()
