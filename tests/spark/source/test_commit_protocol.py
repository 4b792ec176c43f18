"""What Spark 4.0 and 4.1 ask of a stream read, in their order: `latestOffset()` has no start, and `commit` acks.

Every Spark can run such a reader, so the queries at the end run on all of them. A crash is a new reader.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import StreamingQueryException

from penstock.engine import ByteBudgetConfig
from penstock.errors import Fenced, InvalidInput, StorageError
from penstock.spark.source.commit_reader import CommitStreamReader
from penstock.spark.source.data_source import PenstockDataSource, known_to
from penstock.spark.source.options import ReadOptions
from penstock.spark.source.schemas import UNPARSED
from penstock.testing import Fault, FaultyStore
from tests.support.backlogs import Backlog, in_memory, numbers
from tests.support.manifests import KINDS

MANIFESTS = KINDS


class CommittingSource(PenstockDataSource):
    """A source whose stream reader is the one of Spark 4.0 and 4.1."""

    has_admission = False


class Query:
    """A query as Spark 4.0 runs it: its logs of offsets and commits outlive the reader."""

    def __init__(self, backlog: Backlog, **options: object) -> None:
        self._backlog = backlog
        self._options = {"pollInterval": 0, **options}
        self.planned: list[dict[str, Any]] = []
        self.committed = 0
        self.first: dict[str, Any] = {}
        self.rows: list[int] = []
        self.restart()

    def restart(self) -> None:
        """A new reader, to which Spark says how far it has planned."""
        reader = self._backlog.source(CommittingSource, **self._options).streamReader(UNPARSED)
        assert isinstance(reader, CommitStreamReader)
        self.reader = reader
        if self.planned:
            assert list(reader.partitions(self.planned[-1], self.planned[-1])) == []

    def plan(self) -> bool:
        """Plan a block, unless one is planned already. Whether there is one."""
        if self.committed < len(self.planned):
            return True
        end = self.reader.latestOffset()
        before = self.planned[-1] if self.planned else None
        if end == before:
            return False
        if before is not None:
            self.reader.commit(before)
        self.planned.append(end)
        return True

    def read(self) -> list[int]:
        """What the tasks of the planned block read."""
        if len(self.planned) == 1:
            self.first = self.reader.initialOffset()
        start = self.planned[-2] if len(self.planned) > 1 else self.first
        tasks = self.reader.partitions(start, self.planned[-1])
        return numbers(row for task in tasks for batch in self.reader.read(task) for row in batch.to_pylist())

    def commit(self, rows: list[int]) -> None:
        """The sink has the rows, and Spark's commit log the block."""
        self.rows += rows
        self.committed += 1

    def run_block(self) -> bool:
        """Run the next block to its end. Whether there was one."""
        if not self.plan():
            return False
        self.commit(self.read())
        return True


@pytest.fixture
def query(backlog: Backlog) -> Iterator[Query]:
    running = Query(backlog)
    yield running
    running.reader.stop()


def test_a_block_has_all_there_is_and_is_acked_when_spark_asks_again(backlog: Backlog, query: Query) -> None:
    backlog.put_numbers(0, 3)
    assert query.run_block()
    assert (query.rows, backlog.sequences()) == ([0, 1, 2], [0, 1, 2])

    assert not query.run_block()
    assert backlog.sequences() == []


def test_nothing_is_acked_before_a_block_is_committed(backlog: Backlog, query: Query) -> None:
    backlog.put_numbers(0, 3)
    query.plan()
    query.read()
    assert backlog.sequences() == [0, 1, 2]


def test_a_restart_acks_nothing_of_a_block_that_is_planned_and_not_committed(backlog: Backlog, query: Query) -> None:
    backlog.put_numbers(0, 2)
    query.run_block()
    backlog.put_numbers(2, 4)
    query.plan()
    query.read()

    query.restart()
    assert backlog.sequences() == [2, 3]
    backlog.put_numbers(4, 5)
    query.run_block()
    assert query.rows == [0, 1, 2, 3]
    query.run_block()
    assert query.rows == [0, 1, 2, 3, 4]


def test_the_last_block_of_a_run_is_acked_when_the_next_one_plans(backlog: Backlog, query: Query) -> None:
    backlog.put_numbers(0, 2)
    query.run_block()
    query.restart()
    assert not query.run_block()
    assert backlog.sequences() == [0, 1]

    backlog.put_numbers(2, 3)
    query.restart()
    query.plan()
    assert backlog.sequences() == [2]
    query.commit(query.read())
    assert query.rows == [0, 1, 2]


def test_an_offset_that_was_asked_for_and_not_planned_is_not_acked(backlog: Backlog, query: Query) -> None:
    # As Spark does where its own `availableNow` is laid over a source: it asks once before it begins.
    backlog.put_numbers(0, 3)
    query.reader.latestOffset()
    query.reader.latestOffset()
    assert backlog.sequences() == [0, 1, 2]


def test_a_block_whose_partitions_nobody_asked_for_does_not_stop_the_query(backlog: Backlog, query: Query) -> None:
    backlog.put_numbers(0, 2)
    query.plan()
    query.commit([0, 1])  # an optimizer that knows that the rows are not needed
    backlog.put_numbers(2, 4)
    assert query.run_block()
    assert query.rows == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("name", "value", "blocks"),
    [("maxBatchesPerTrigger", 2, 3), ("maxRecordsPerTrigger", 1, 5), ("selfRegulation", "on", 1)],
)
def test_a_block_is_as_large_as_the_caps_allow(backlog: Backlog, name: str, value: object, blocks: int) -> None:
    backlog.put_numbers(0, 5)
    query = Query(backlog, **{name: value})
    while query.run_block():
        pass
    query.reader.stop()
    assert (query.rows, len(query.planned), backlog.sequences()) == ([0, 1, 2, 3, 4], blocks, [])


class SmallBudget(CommittingSource):
    budget = ByteBudgetConfig(
        start_bytes=4000, max_bytes=8000, floor_bytes=1000, ai_step=1000, target_block_seconds=60.0
    )


@pytest.mark.parametrize(("options", "end"), [({}, 20), ({"selfRegulation": "on"}, 1), ({"selfRegulation": "off"}, 20)])
def test_there_is_no_budget_unless_it_is_asked_for(backlog: Backlog, options: dict[str, str], end: int) -> None:
    backlog.put(*([b"x" * 3000] for _ in range(20)))
    reader = backlog.source(SmallBudget, **options).streamReader(UNPARSED)
    assert isinstance(reader, CommitStreamReader)
    assert reader.latestOffset()["sequence"] == end
    reader.stop()


def test_a_checkpoint_that_is_older_than_the_acks_is_refused(backlog: Backlog, query: Query) -> None:
    backlog.put_numbers(0, 2)
    query.run_block()
    older = list(query.planned)
    backlog.put_numbers(2, 4)
    while query.run_block():
        pass

    query.planned, query.committed = older, 1
    with pytest.raises(InvalidInput, match="the checkpoint is older than the acks"):
        query.restart()


def test_a_checkpoint_of_another_buffer_is_refused_and_acks_nothing(
    backlog: Backlog, query: Query, tmp_path: Path
) -> None:
    backlog.put_numbers(0, 2)
    query.run_block()
    other = Query(Backlog(str(tmp_path / "other")))
    other._backlog.put_numbers(0, 4)
    other.planned = query.planned
    with pytest.raises(InvalidInput, match="the checkpoint is of the buffer"):
        other.restart()
    with pytest.raises(InvalidInput, match="the checkpoint is of the buffer"):
        other.reader.commit(query.planned[-1])
    other.reader.stop()
    assert other._backlog.sequences() == [0, 1, 2, 3]


def test_a_reader_that_was_fenced_acks_nothing(backlog: Backlog, query: Query) -> None:
    backlog.put_numbers(0, 2)
    query.run_block()
    newer = Query(backlog)
    newer.reader.initialOffset()

    with pytest.raises(Fenced):
        query.reader.commit(query.planned[-1])
    with pytest.raises(Fenced):
        query.reader.latestOffset()
    newer.reader.stop()
    assert backlog.sequences() == [0, 1]


STEPS = st.lists(st.sampled_from(["put", "block", "block", "plan and die", "read and die", "die"]), max_size=25)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.sampled_from([1, 2, 100]))
def test_wherever_it_dies_every_event_is_committed_once_and_none_is_acked_before(steps: list[str], cap: int) -> None:
    backlog = in_memory([b"0"])
    query, count = Query(backlog, maxBatchesPerTrigger=cap), 1
    for step in steps:
        if step == "put":
            backlog.put_numbers(count, count + 2)
            count += 2
        elif step == "block":
            query.run_block()
        else:
            if step != "die" and query.plan() and step == "read and die":
                query.read()
            query.reader.stop()
            query.restart()
        assert set(range(len(query.rows), count)) <= set(backlog.sequences())
    while query.run_block():
        pass
    query.reader.stop()
    assert query.rows == list(range(count))


def test_an_ack_that_fails_leaves_all_to_the_next_run(backlog: Backlog, monkeypatch: pytest.MonkeyPatch) -> None:
    backlog.put_numbers(0, 2)
    faulty = FaultyStore(backlog.store, rates={})
    monkeypatch.setattr(ReadOptions, "store", faulty)
    query = Query(backlog)
    query.run_block()
    faulty.inject(Fault.READ_ERROR, operation="get", path="ingest/manifest", times=100)
    with pytest.raises(StorageError):
        query.reader.commit(query.planned[-1])
    with suppress(StorageError):
        query.reader.stop()
    assert backlog.sequences() == [0, 1]

    monkeypatch.undo()
    query.restart()
    backlog.put_numbers(2, 4)
    while query.run_block():
        pass
    query.reader.stop()
    assert (query.rows, backlog.sequences()) == ([0, 1, 2, 3], [])


# With Spark.


@pytest.mark.slow
def test_a_query_replays_the_block_that_failed_and_loses_none(spark: Any, tmp_path: Path) -> None:
    backlog = Backlog((tmp_path / "buffer").as_uri())
    spark.dataSource.register(known_to(spark, CommittingSource))
    found: list[int] = []
    failures = [1, 2]

    def sink(frame: Any, block: int) -> None:
        rows = numbers(frame.collect())
        if block in failures:
            failures.remove(block)
            raise RuntimeError("the sink is gone")
        found.extend(rows)

    def run() -> None:
        stream = backlog.stream(spark)
        writing = stream.writeStream.foreachBatch(sink).option("checkpointLocation", (tmp_path / "checkpoint").as_uri())
        assert writing.trigger(availableNow=True).start().awaitTermination(120)

    for number in range(4):
        backlog.put_numbers(3 * number, 3 * number + 3)
        with suppress(StreamingQueryException):
            run()
        assert set(backlog.sequences()) >= set(range(len(found), 3 * number + 3))
    run()
    run()
    assert sorted(found) == list(range(12))
