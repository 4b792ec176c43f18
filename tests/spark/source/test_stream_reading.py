"""Consuming a buffer with real queries: what only Spark can show. Its calls are tried in `test_stream_protocol.py`."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from penstock.engine import ByteBudgetConfig
from penstock.spark.source.data_source import PenstockDataSource, known_to, register
from penstock.spark.versions import HAS_ADMISSION
from tests.support.backlogs import Backlog, numbers
from tests.support.spark_session import needs_spark

PATIENCE = 120  # seconds until a query counts as stuck
SLOW = 4.0  # seconds that a block may take in the test of self-regulation


@pytest.fixture
def backlog(tmp_path: Path) -> Backlog:
    return Backlog((tmp_path / "buffer").as_uri())


@pytest.fixture
def session(spark: Any) -> Any:
    """For each test anew: some register a source of their own."""
    register(spark)
    return spark


class Sink:
    """Keeps the rows of each block; `before` may do anything first, and fail the block."""

    def __init__(self, before: Callable[[int], object] = lambda _: None) -> None:
        self.blocks: list[tuple[int, list[int]]] = []
        self._before = before

    def __call__(self, frame: Any, block: int) -> None:
        rows = numbers(frame.orderBy("sequence").collect())
        self._before(block)
        self.blocks.append((block, rows))

    @property
    def numbers(self) -> list[int]:
        return [number for _, rows in self.blocks for number in rows]


def start(frame: Any, sink: Callable[[Any, int], None], checkpoint: Path, **trigger: Any) -> Any:
    writing = frame.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint.as_uri())
    return (writing.trigger(**trigger) if trigger else writing).start()


def run(frame: Any, sink: Callable[[Any, int], None], checkpoint: Path, **trigger: Any) -> Any:
    """Run a query to its end, and return it. Raises what it ended with."""
    query = start(frame, sink, checkpoint, **(trigger or {"availableNow": True}))
    assert query.awaitTermination(PATIENCE), "the query is stuck"
    return query


@needs_spark(4, 2, "availableNow is a single block before 4.2, and acked by the next run")
def test_available_now_works_off_what_was_there_and_acks_it_though_more_comes(
    session: Any, on_s3: Backlog, tmp_path: Path
) -> None:
    on_s3.put_numbers(0, 5)
    sink = Sink(lambda block: on_s3.put_numbers(5, 7) if block == 0 else None)
    stream = on_s3.stream(session, maxBatchesPerTrigger=2)

    run(stream, sink, tmp_path / "checkpoint")

    assert sink.blocks == [(0, [0, 1]), (1, [2, 3]), (2, [4])]
    assert on_s3.sequences() == [5, 6]


def test_a_parsed_stream_has_rows_and_what_is_set_aside(session: Any, backlog: Backlog, tmp_path: Path) -> None:
    backlog.put([b'{"id": 1, "event": "a"}', b"no JSON"], [b'{"id": 2}'])
    found: list[tuple[Any, ...]] = []
    stream = backlog.stream(session, format="json", columns="id bigint, event string")

    run(stream, lambda frame, _: found.extend((row.id, row.event, row._raw) for row in frame.collect()), tmp_path / "c")

    assert found == [(1, "a", None), (None, None, b"no JSON"), (2, None, None)]
    assert backlog.sequences() == ([] if HAS_ADMISSION else [0, 1])  # by the next block


@needs_spark(4, 2, "a reader cannot report how far the queue goes before 4.2")
def test_a_trigger_once_runs_one_block_whose_progress_shows_the_lag(
    session: Any, backlog: Backlog, tmp_path: Path
) -> None:
    backlog.put_numbers(0, 5)
    sink = Sink()

    query = run(backlog.stream(session, maxBatchesPerTrigger=2), sink, tmp_path / "checkpoint", once=True)

    assert sink.numbers == [0, 1]
    assert backlog.sequences() == [0, 1, 2, 3, 4]
    (source,) = query.lastProgress["sources"]
    assert [json.loads(source[name])["sequence"] for name in ("endOffset", "latestOffset")] == [2, 5]


@pytest.mark.slow
@needs_spark(4, 2, "availableNow is a single block before 4.2, and acked by the next run")
def test_whichever_block_crashes_it_comes_again_as_it_was(session: Any, backlog: Backlog, tmp_path: Path) -> None:
    backlog.put_numbers(0, 5)
    stream = backlog.stream(session, startingSequence=1, maxBatchesPerTrigger=2)
    crashes = [0, 1]

    def crash_once(block: int) -> None:
        if block in crashes:
            crashes.remove(block)
            raise RuntimeError("the sink is gone")

    sink = Sink(crash_once)
    with pytest.raises(StreamingQueryException, match="the sink is gone"):
        run(stream, sink, tmp_path / "checkpoint")
    assert backlog.sequences() == [1, 2, 3, 4]
    backlog.put_numbers(5, 6)
    with pytest.raises(StreamingQueryException, match="the sink is gone"):
        run(stream, sink, tmp_path / "checkpoint")
    assert backlog.sequences() == [3, 4, 5]
    backlog.put_numbers(6, 7)

    run(stream, sink, tmp_path / "checkpoint")

    assert sink.blocks == [(0, [1, 2]), (1, [3, 4]), (2, [5, 6])]
    assert backlog.sequences() == []


@pytest.mark.slow
def test_a_query_waits_at_a_buffer_that_has_no_events_yet(session: Any, backlog: Backlog, tmp_path: Path) -> None:
    sink = Sink()
    query = start(backlog.stream(session, pollInterval=0), sink, tmp_path / "checkpoint")
    try:
        query.processAllAvailable()
        backlog.put_numbers(0, 3)
        query.processAllAvailable()
    finally:
        query.stop()

    assert sink.numbers == [0, 1, 2]


def test_of_two_queries_the_older_is_fenced_and_no_event_is_lost_or_comes_twice(
    session: Any, backlog: Backlog, tmp_path: Path
) -> None:
    backlog.put_numbers(0, 3)
    stream = backlog.stream(session, pollInterval=0)
    sinks = Sink(), Sink()
    older = start(stream, sinks[0], tmp_path / "older")
    queries = [older]
    try:
        older.processAllAvailable()
        queries.append(start(stream, sinks[1], tmp_path / "newer"))
        queries[1].processAllAvailable()
        backlog.put_numbers(3, 6)

        with pytest.raises(StreamingQueryException, match=r"penstock\.errors\.Fenced: a newer consumer has taken over"):
            older.awaitTermination(PATIENCE)
        queries[1].processAllAvailable()
    finally:
        for query in queries:
            query.stop()

    assert [sink.numbers for sink in sinks] == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.slow
def test_a_batch_that_is_gone_fails_the_query_until_it_is_put_back(
    session: Any, backlog: Backlog, tmp_path: Path
) -> None:
    backlog.put_numbers(0, 3)
    location = backlog.entries()[1].location
    data = backlog.store.get(location).data
    backlog.store.delete([location])
    sink = Sink()
    with pytest.raises(StreamingQueryException) as failed:
        run(backlog.stream(session), sink, tmp_path / "checkpoint")
    assert f"penstock.errors.NotFound: the data of sequence 1 ({location})" in str(failed.value)
    assert (sink.numbers, backlog.sequences()) == ([], [0, 1, 2])

    backlog.store.put(location, data)
    run(backlog.stream(session), sink, tmp_path / "checkpoint")

    assert (sink.numbers, backlog.sequences()) == ([0, 1, 2], [] if HAS_ADMISSION else [0, 1, 2])


@pytest.mark.slow
@needs_spark(4, 2, "availableNow is a single block before 4.2, and acked by the next run")
def test_blocks_become_smaller_when_the_sink_is_slow_and_recover(
    session: Any, backlog: Backlog, tmp_path: Path
) -> None:
    backlog.put(*([b"%d" % number] for number in range(42)))
    (size,) = set(backlog.sizes())
    config = ByteBudgetConfig(
        start_bytes=8 * size,
        max_bytes=8 * size,
        floor_bytes=size,
        ai_step=2 * size,
        target_block_seconds=SLOW,
        ema_alpha=1.0,
    )
    session.dataSource.register(known_to(session, PenstockDataSource, budget=config))
    sizes: list[int] = []
    never = threading.Event()

    def slow_while_full(frame: Any, _: int) -> None:
        # More than once, and not as long each time: a block that by chance takes from one whole multiple of its
        # seconds to the next looks as if it had waited for a trigger, and says nothing about its size.
        rows = frame.count()
        if set(sizes) <= {8} and rows == 8:
            never.wait(1.1 * SLOW + 0.7 * len(sizes))
        sizes.append(rows)

    run(backlog.stream(session), slow_while_full, tmp_path / "checkpoint")

    smaller = sizes.index(4)
    assert sizes[:smaller] == [8] * smaller
    assert max(sizes[smaller + 1 :]) > 4


def test_a_data_source_knows_how_many_tasks_the_session_runs_at_once(session: Any) -> None:
    assert known_to(session, PenstockDataSource).cores == session.sparkContext.defaultParallelism == 2
