"""What Spark asks of a stream read, in Spark's order: offsets, caps, acks, fences, and what a crash leaves.

A crash is a new reader. It is asked `partitions` for a block that was planned, and `initialOffset` again if that was the
first one.
"""

from __future__ import annotations

import pickle
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, ReadMaxRows, ReadMinRows
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from penstock import Consumer, open_store
from penstock.engine import ByteBudgetConfig
from penstock.errors import CorruptData, Fenced, InvalidInput, NotFound, StorageError
from penstock.spark.data_source import PenstockDataSource
from penstock.spark.options import ReadOptions
from penstock.spark.planner import Planner
from penstock.spark.schemas import SET_ASIDE, UNPARSED
from penstock.spark.stream_reader import BufferStreamReader
from penstock.storage import Object, ObjectMeta, ObjectStore
from penstock.testing import Fault, FaultyStore
from tests.spark.backlogs import Backlog, block_rows, numbers

ALL = ReadAllAvailable()
NEVER = "1e9"  # a poll interval
MANIFEST = "ingest/manifest"


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[None]:
    """A task ignores Ctrl-C, and here it runs in the tests' own process."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def backlog(tmp_path: Path) -> Backlog:
    return Backlog(str(tmp_path / "buffer"))


def at(sequence: int) -> dict[str, Any]:
    return {"sequence": sequence}


def plan(reader: BufferStreamReader, start: int, limit: ReadLimit = ALL) -> int:
    """Ask for the next block, as Spark does when what lies before it is in its commit log."""
    return int(reader.latestOffset(at(start), limit)["sequence"])


# A reader that only reads.


def test_making_a_reader_touches_no_store(backlog: Backlog, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: ReadOptions) -> ObjectStore:
        raise AssertionError("the store was opened")

    monkeypatch.setattr(ReadOptions, "open", refuse)
    reader = backlog.stream_reader()
    pickle.loads(cloudpickle.dumps(reader))
    reader.commit(at(0))
    reader.stop()


def test_reading_takes_no_epoch(backlog: Backlog) -> None:
    backlog.put_numbers(0, 3)
    tasks = backlog.stream_reader().partitions(at(0), at(3))
    epoch = backlog.epoch()

    others = backlog.stream_reader()
    assert [row for task in tasks for batch in others.read(task) for row in numbers(batch.to_pylist())] == [0, 1, 2]

    assert backlog.epoch() == epoch


def test_a_reader_and_its_partitions_are_small_when_they_travel(backlog: Backlog) -> None:
    backlog.put_numbers(0, 1)
    reader = backlog.stream_reader(maxBytesPerTrigger="64m", format="raw")
    (task,) = backlog.stream_reader().partitions(at(0), at(1))

    assert len(cloudpickle.dumps(reader)) < 4000
    assert len(cloudpickle.dumps(task)) < 1000


def test_a_partition_is_read_by_a_reader_that_travelled(backlog: Backlog) -> None:
    backlog.put_numbers(0, 3)
    reader = backlog.stream_reader()
    there = pickle.loads(cloudpickle.dumps(reader))
    tasks = pickle.loads(cloudpickle.dumps(reader.partitions(at(0), at(3))))

    assert [row for task in tasks for batch in there.read(task) for row in numbers(batch.to_pylist())] == [0, 1, 2]


# Epochs.


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda reader: reader.prepareForTriggerAvailableNow(), id="prepareForTriggerAvailableNow"),
        pytest.param(lambda reader: reader.getDefaultReadLimit(), id="getDefaultReadLimit"),
        pytest.param(lambda reader: reader.initialOffset(), id="initialOffset"),
        pytest.param(lambda reader: reader.latestOffset(at(0), ALL), id="latestOffset"),
        pytest.param(lambda reader: reader.reportLatestOffset(), id="reportLatestOffset"),
        pytest.param(lambda reader: reader.partitions(at(0), at(1)), id="partitions"),
    ],
)
def test_the_planning_method_that_comes_first_takes_the_epoch(
    backlog: Backlog, ask: Callable[[BufferStreamReader], object]
) -> None:
    backlog.put_numbers(0, 2)
    reader = backlog.stream_reader()

    ask(reader)
    assert backlog.epoch() == 1

    reader.getDefaultReadLimit()
    assert plan(reader, reader.initialOffset()["sequence"]) == 2
    assert backlog.epoch() == 1


def test_a_reader_asks_spark_for_no_limit(backlog: Backlog) -> None:
    assert backlog.stream_reader().getDefaultReadLimit() == ReadAllAvailable()


def test_an_older_reader_is_fenced_when_it_looks_at_the_manifest(backlog: Backlog) -> None:
    backlog.put_numbers(0, 2)
    older = backlog.stream_reader(pollInterval=0)
    assert plan(older, 0) == 2
    backlog.stream_reader().initialOffset()

    with pytest.raises(Fenced, match=r"its epoch is 2, and this one's 1"):
        plan(older, 0)


def test_an_older_reader_is_fenced_before_it_acks(backlog: Backlog) -> None:
    backlog.put_numbers(0, 2)
    older = backlog.stream_reader(pollInterval=NEVER)
    assert plan(older, 0) == 2
    backlog.stream_reader().initialOffset()

    with pytest.raises(Fenced):
        plan(older, 2)

    assert backlog.sequences() == [0, 1]


def test_an_older_reader_is_fenced_when_it_plans_a_block_that_comes_after_another(backlog: Backlog) -> None:
    backlog.put_numbers(0, 2)
    older = backlog.stream_reader(pollInterval=NEVER)
    older.initialOffset()
    backlog.stream_reader().initialOffset()

    with pytest.raises(Fenced):
        older.partitions(at(1), at(2))

    assert backlog.sequences() == [0, 1]


def test_a_consumer_of_another_kind_fences_a_query_too(backlog: Backlog) -> None:
    backlog.put_numbers(0, 2)
    reader = backlog.stream_reader(pollInterval=0)
    reader.initialOffset()

    with Consumer(backlog.store), pytest.raises(Fenced):
        plan(reader, 0)


# Acks.


def test_asking_for_the_next_block_acks_exactly_what_lies_before_it(backlog: Backlog) -> None:
    backlog.put_numbers(0, 6)
    reader = backlog.stream_reader(maxBatchesPerTrigger=2)

    assert plan(reader, 0) == 2
    assert backlog.sequences() == [0, 1, 2, 3, 4, 5]
    reader.partitions(at(0), at(2))
    assert backlog.sequences() == [0, 1, 2, 3, 4, 5]
    assert plan(reader, 2) == 4
    assert backlog.sequences() == [2, 3, 4, 5]


def test_sparks_commit_acks_nothing(backlog: Backlog) -> None:
    backlog.put_numbers(0, 3)
    reader = backlog.stream_reader()
    plan(reader, 0)

    reader.commit(at(3))

    assert backlog.sequences() == [0, 1, 2]


def test_a_planned_block_that_comes_again_acks_what_lies_before_it_and_nothing_of_its_own(backlog: Backlog) -> None:
    backlog.put_numbers(0, 6)
    plan(backlog.stream_reader(), 0)

    assert numbers(block_rows(backlog.stream_reader(), 2, 4)) == [2, 3]

    assert backlog.sequences() == [2, 3, 4, 5]


def test_after_a_crash_in_the_first_block_it_starts_where_it_started(backlog: Backlog) -> None:
    backlog.put_numbers(0, 3)
    Consumer(backlog.store, last_acked_sequence=0).close()
    reader = backlog.stream_reader()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    block_rows(reader, start["sequence"], end["sequence"])
    backlog.put_numbers(3, 5)

    again = backlog.stream_reader()
    assert again.initialOffset() == start == at(1)
    assert numbers(block_rows(again, 1, end["sequence"])) == [1, 2]
    assert backlog.sequences() == [1, 2, 3, 4]


def test_a_block_that_comes_again_has_the_rows_it_had_though_more_came_meanwhile(backlog: Backlog) -> None:
    backlog.put_numbers(0, 4)
    before = block_rows(backlog.stream_reader(), 0, 4)
    backlog.put_numbers(4, 9)

    assert block_rows(backlog.stream_reader(), 0, 4) == before


def test_the_same_block_planned_twice_by_one_reader_has_the_same_rows(backlog: Backlog) -> None:
    backlog.put_numbers(0, 4)
    reader = backlog.stream_reader()

    assert block_rows(reader, 1, 3) == block_rows(reader, 1, 3)


def test_an_ack_that_fails_leaves_all_to_the_next_run(backlog: Backlog, monkeypatch: pytest.MonkeyPatch) -> None:
    backlog.put_numbers(0, 4)
    faulty = FaultyStore(backlog.store, rates={})
    monkeypatch.setattr(ReadOptions, "open", lambda _: faulty)
    reader = backlog.stream_reader()
    reader.initialOffset()
    faulty.inject(Fault.READ_ERROR, operation="get", path=MANIFEST, times=100)
    with pytest.raises(StorageError):
        plan(reader, 2)
    assert backlog.sequences() == [0, 1, 2, 3]

    monkeypatch.undo()
    assert plan(backlog.stream_reader(), 2) == 4
    assert backlog.sequences() == [2, 3]


actions = st.lists(
    st.one_of(
        st.tuples(st.just("produce"), st.integers(1, 5)),
        st.tuples(st.just("plan"), st.just(0)),
        st.tuples(st.just("finish"), st.just(0)),
        st.tuples(st.just("crash"), st.just(0)),
    ),
    max_size=30,
)


@settings(max_examples=40, deadline=None)
@given(actions, st.integers(1, 4))
def test_whatever_crashes_when_each_event_comes_once_and_is_acked_after_its_block(
    script: list[tuple[str, int]], cap: int
) -> None:
    spark = SparkModel(cap)
    for action, count in [("produce", 1), *script, ("plan", 0), ("finish", 0)]:
        {
            "produce": lambda count=count: spark.produce(count),
            "plan": spark.plan,
            "finish": spark.finish,
            "crash": spark.crash,
        }[action]()
        first = min(spark.backlog.sequences(), default=spark.produced)
        assert first <= spark.committed  # nothing is acked that is not committed
    while spark.committed < spark.produced:
        spark.plan()
        spark.finish()
    spark.plan()
    assert spark.sink == list(range(spark.produced))
    assert spark.backlog.sequences() == []


class SparkModel:
    """A query: what it has in its checkpoint, its sink, and the reader of the run that lives."""

    _count = 0

    def __init__(self, cap: int) -> None:
        SparkModel._count += 1
        self.backlog = Backlog(f"memory://spark-model-{SparkModel._count}")
        self.cap = cap
        self.produced = 0
        self.committed = 0
        self.planned: int | None = None
        self.sink: list[int] = []
        self.reader: BufferStreamReader
        self.crash()

    def produce(self, count: int) -> None:
        self.backlog.put_numbers(self.produced, self.produced + count)
        self.produced += count

    def crash(self) -> None:
        self.reader = self.backlog.stream_reader(maxBatchesPerTrigger=self.cap, pollInterval=0)

    def plan(self) -> None:
        if self.planned is not None:
            return
        start = self.committed if self.committed else self.reader.initialOffset()["sequence"]
        assert start == self.committed
        end = plan(self.reader, start)
        self.planned = end if end > start else None

    def finish(self) -> None:
        if self.planned is None:
            return
        start = self.committed if self.committed else self.reader.initialOffset()["sequence"]
        self.sink += numbers(block_rows(self.reader, start, self.planned))
        self.committed, self.planned = self.planned, None


# Checkpoints that do not belong to the queue.


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda reader: reader.latestOffset(at(1), ALL), id="a start"),
        pytest.param(lambda reader: reader.partitions(at(1), at(4)), id="a planned block"),
    ],
)
def test_a_checkpoint_that_is_older_than_the_acks_fails_with_both_sequences(
    backlog: Backlog, ask: Callable[[BufferStreamReader], object]
) -> None:
    backlog.put_numbers(0, 5)
    plan(backlog.stream_reader(), 3)

    with pytest.raises(InvalidInput, match=r"goes on at sequence 1, and .*/ingest/manifest is acked up to 2 .*older"):
        ask(backlog.stream_reader())

    assert backlog.sequences() == [3, 4]


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda reader: reader.latestOffset(at(8), ALL), id="a start"),
        pytest.param(lambda reader: reader.partitions(at(2), at(8)), id="a planned block"),
    ],
)
def test_a_checkpoint_that_knows_more_than_the_buffer_fails_with_both_sequences(
    backlog: Backlog, ask: Callable[[BufferStreamReader], object]
) -> None:
    backlog.put_numbers(0, 5)

    with pytest.raises(InvalidInput, match=r"knows of sequence 7, and the next sequence of .*/ingest/manifest is 5"):
        ask(backlog.stream_reader())

    assert 4 in backlog.sequences()


def test_a_checkpoint_of_another_buffer_acks_nothing(backlog: Backlog) -> None:
    backlog.put_numbers(0, 5)

    with pytest.raises(InvalidInput):
        plan(backlog.stream_reader(), 8)

    assert backlog.sequences() == [0, 1, 2, 3, 4]


@pytest.mark.xfail(reason="partitions acks what lies before its start, and then looks whether its end is there")
def test_a_planned_block_of_another_buffer_acks_nothing(backlog: Backlog) -> None:
    backlog.put_numbers(0, 5)

    with pytest.raises(InvalidInput):
        backlog.stream_reader().partitions(at(2), at(8))

    assert backlog.sequences() == [0, 1, 2, 3, 4]


def test_a_checkpoint_at_the_end_of_the_queue_is_none_of_these(backlog: Backlog) -> None:
    backlog.put_numbers(0, 5)

    assert plan(backlog.stream_reader(), 5) == 5
    assert backlog.sequences() == []
    assert plan(backlog.stream_reader(), 5) == 5


# Caps.


SIZES = st.lists(st.integers(0, 3000), min_size=1, max_size=40)


def filled(sizes: Iterable[int], records: int = 1) -> Backlog:
    SparkModel._count += 1
    backlog = Backlog(f"memory://sizes-{SparkModel._count}")
    backlog.put(*([b"x" * size] * records for size in sizes))
    return backlog


def blocks_of(reader: BufferStreamReader, limit: ReadLimit = ALL) -> list[range]:
    """Run all blocks to the end of the queue."""
    start = reader.initialOffset()["sequence"]
    blocks: list[range] = []
    while (end := plan(reader, start, limit)) > start:
        blocks.append(range(start, end))
        start = end
    return blocks


@settings(max_examples=40, deadline=None)
@given(SIZES, st.integers(1, 20_000))
def test_a_block_never_has_more_bytes_than_its_cap_unless_it_is_one_batch(sizes: list[int], cap: int) -> None:
    backlog = filled(sizes)
    stored = backlog.sizes()

    blocks = blocks_of(backlog.stream_reader(maxBytesPerTrigger=cap))

    assert [sequence for block in blocks for sequence in block] == list(range(len(sizes)))
    for block in blocks:
        assert sum(stored[sequence] for sequence in block) <= cap or len(block) == 1
    for block in blocks[:-1]:  # and it is as large as it may be
        assert sum(stored[sequence] for sequence in block) + stored[block.stop] > cap


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=25), st.integers(1, 60), st.integers(1, 8), st.integers(500, 9000)
)
def test_caps_together_leave_the_smallest_block(
    records: list[int], most_records: int, most_batches: int, most_bytes: int
) -> None:
    SparkModel._count += 1
    backlog = Backlog(f"memory://caps-{SparkModel._count}")
    backlog.put(*([b"x" * 100] * count for count in records))
    stored = backlog.sizes()

    def fits(block: range) -> bool:
        return (
            sum(records[sequence] for sequence in block) <= most_records
            and len(block) <= most_batches
            and sum(stored[sequence] for sequence in block) <= most_bytes
        )

    blocks = blocks_of(
        backlog.stream_reader(
            maxRecordsPerTrigger=most_records, maxBatchesPerTrigger=most_batches, maxBytesPerTrigger=most_bytes
        )
    )

    assert [sequence for block in blocks for sequence in block] == list(range(len(records)))
    assert all(fits(block) or len(block) == 1 for block in blocks)
    assert not any(fits(range(block.start, block.stop + 1)) for block in blocks[:-1])


@pytest.mark.parametrize(
    "limit", [ReadAllAvailable(), ReadMaxRows(1), ReadMaxFiles(100), ReadMinRows(1000)], ids=lambda one: repr(one)
)
def test_the_caps_hold_whatever_limit_spark_passes(limit: ReadLimit) -> None:
    backlog = filled([10] * 7)

    blocks = blocks_of(backlog.stream_reader(maxBatchesPerTrigger=3), limit)

    assert blocks == [range(3), range(3, 6), range(6, 7)]


@pytest.mark.parametrize("name", ["maxBytesPerTrigger", "maxRecordsPerTrigger", "maxBatchesPerTrigger"])
def test_one_batch_passes_every_cap(name: str) -> None:
    backlog = filled([5000, 5000, 5000], records=2)

    assert blocks_of(backlog.stream_reader(**{name: 1})) == [range(1), range(1, 2), range(2, 3)]


def test_without_a_cap_one_block_has_all_there_is() -> None:
    assert blocks_of(filled([10] * 200).stream_reader(selfRegulation="off")) == [range(200)]


def test_a_backlog_of_more_than_a_thousand_batches_is_one_block_too() -> None:
    reader = filled([1] * 2100).stream_reader()

    (block,) = blocks_of(reader)

    assert block == range(2100)


@dataclass
class CountingStore:
    """A store, and what was asked of it."""

    store: ObjectStore
    asked: list[tuple[str, str]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.store.url

    def get(self, path: str) -> Object:
        self.asked.append(("get", path))
        return self.store.get(path)

    def head(self, path: str) -> ObjectMeta:
        self.asked.append(("head", path))
        return self.store.head(path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def reads_of_the_manifest(self) -> int:
        return self.asked.count(("get", MANIFEST))


@pytest.fixture
def counting(backlog: Backlog, monkeypatch: pytest.MonkeyPatch) -> CountingStore:
    """What every reader of the backlog asks of its store from now on."""
    store = CountingStore(backlog.store)
    monkeypatch.setattr(ReadOptions, "open", lambda _: store)
    return store


def test_each_objects_size_is_asked_for_once(backlog: Backlog, counting: CountingStore) -> None:
    backlog.put_numbers(0, 90)
    reader = backlog.stream_reader(maxBatchesPerTrigger=40)
    start = 0
    while (end := plan(reader, start)) > start:
        reader.partitions(at(start), at(end))
        start = end

    heads = [path for kind, path in counting.asked if kind == "head" and path != MANIFEST]
    assert len(heads) == len(set(heads)) == 90


def test_objects_are_not_read_to_plan_a_block_unless_records_are_counted(
    backlog: Backlog, counting: CountingStore
) -> None:
    backlog.put_numbers(0, 9)
    reader = backlog.stream_reader(maxBytesPerTrigger="64m")
    reader.partitions(at(0), at(plan(reader, 0)))

    assert {path for kind, path in counting.asked if kind == "get"} == {MANIFEST}


def test_a_batch_that_is_gone_counts_for_nothing_and_is_planned_all_the_same(backlog: Backlog) -> None:
    backlog.put([b"x" * 3000], [b"x" * 3000], [b"x" * 3000])
    backlog.store.delete([backlog.entries()[0].location])

    assert plan(backlog.stream_reader(maxBytesPerTrigger=4000), 0) == 2


# Self-regulation.


class SmallBudget(PenstockDataSource):
    budget = ByteBudgetConfig(
        start_bytes=4000, max_bytes=8000, floor_bytes=1000, ai_step=1000, target_block_seconds=60.0
    )


def regulated(backlog: Backlog, **options: str) -> BufferStreamReader:
    reader = SmallBudget({"path": backlog.url, "pollInterval": "0", **options}).streamReader(UNPARSED)
    assert isinstance(reader, BufferStreamReader)
    return reader


def test_self_regulation_caps_each_block_by_its_budget() -> None:
    backlog = filled([3000] * 20)
    size = backlog.sizes()[0]

    blocks = blocks_of(regulated(backlog))

    assert len(blocks[0]) == 4000 // size
    assert max(len(block) for block in blocks) == 8000 // size


def test_a_cap_that_is_smaller_than_the_budget_counts() -> None:
    backlog = filled([500] * 20)
    size = backlog.sizes()[0]

    assert {len(block) for block in blocks_of(regulated(backlog, maxBytesPerTrigger=str(2 * size)))} == {2}


def test_a_budget_that_is_smaller_than_a_cap_counts() -> None:
    backlog = filled([500] * 20)

    assert plan(regulated(backlog, maxBytesPerTrigger="1g"), 0) == 4000 // backlog.sizes()[0]


def test_without_self_regulation_there_is_no_budget() -> None:
    assert blocks_of(regulated(filled([3000] * 20), selfRegulation="off")) == [range(20)]


# Triggers.


def test_available_now_stops_at_the_sequence_seen_at_its_start(backlog: Backlog) -> None:
    backlog.put_numbers(0, 3)
    reader = backlog.stream_reader(maxBatchesPerTrigger=2, pollInterval=0)
    reader.prepareForTriggerAvailableNow()
    backlog.put_numbers(3, 9)

    assert blocks_of(reader) == [range(2), range(2, 3)]
    assert backlog.sequences() == [3, 4, 5, 6, 7, 8]


def test_available_now_sees_what_came_after_the_reader_was_asked_something_else(backlog: Backlog) -> None:
    reader = backlog.stream_reader(pollInterval=NEVER)
    reader.getDefaultReadLimit()
    backlog.put_numbers(0, 3)

    reader.prepareForTriggerAvailableNow()

    assert plan(reader, 0) == 3


def test_available_now_on_an_empty_buffer_ends_at_once(backlog: Backlog) -> None:
    reader = backlog.stream_reader()
    reader.prepareForTriggerAvailableNow()

    assert blocks_of(reader) == []


def test_the_last_block_of_a_trigger_once_is_acked_by_the_next_run(backlog: Backlog) -> None:
    backlog.put_numbers(0, 3)
    once = backlog.stream_reader()
    end = plan(once, once.initialOffset()["sequence"])
    block_rows(once, 0, end)
    assert backlog.sequences() == [0, 1, 2]

    assert plan(backlog.stream_reader(), end) == end
    assert backlog.sequences() == []


# How often the manifest is read.


def test_idle_calls_do_not_read_the_manifest_within_the_poll_interval(
    backlog: Backlog, counting: CountingStore
) -> None:
    backlog.put_numbers(0, 2)
    reader = backlog.stream_reader(pollInterval=NEVER)
    plan(reader, 2)
    before = counting.reads_of_the_manifest()

    for _ in range(100):
        plan(reader, 2)
        reader.reportLatestOffset()

    assert counting.reads_of_the_manifest() == before


def test_with_a_poll_interval_of_0_every_call_looks(backlog: Backlog, counting: CountingStore) -> None:
    reader = backlog.stream_reader(pollInterval=0)
    plan(reader, 0)
    before = counting.reads_of_the_manifest()

    for _ in range(10):
        plan(reader, 0)

    assert counting.reads_of_the_manifest() == before + 10


def test_the_planner_looks_when_the_poll_interval_is_over(backlog: Backlog) -> None:
    now = [100.0]
    planner = Planner(ReadOptions.of({"path": backlog.url, "pollInterval": "0.5"}), clock=lambda: now[0])
    backlog.put_numbers(0, 2)

    now[0] = 100.49
    assert not planner.look()
    assert planner.next_sequence == 0
    now[0] = 100.5
    assert planner.look()
    assert planner.next_sequence == 2
    now[0] = 100.99
    assert not planner.look()


def test_the_end_that_is_reported_is_that_of_the_last_look(backlog: Backlog, counting: CountingStore) -> None:
    backlog.put_numbers(0, 2)
    reader = backlog.stream_reader(pollInterval=NEVER)
    plan(reader, 0)
    backlog.put_numbers(2, 5)
    before = counting.reads_of_the_manifest()

    assert reader.reportLatestOffset() == at(2)
    assert counting.reads_of_the_manifest() == before


def test_what_came_is_seen_when_the_manifest_was_read(backlog: Backlog) -> None:
    reader = backlog.stream_reader(pollInterval=0)
    assert plan(reader, 0) == 0
    backlog.put_numbers(0, 2)

    assert plan(reader, 0) == 2
    assert reader.reportLatestOffset() == at(2)


# Where a group begins.


@pytest.mark.parametrize(
    ("given", "first"), [("earliest", 0), ("0", 0), ("3", 3), ("5", 5), ("latest", 5)]
)
def test_a_new_group_begins_where_it_is_told(backlog: Backlog, given: str, first: int) -> None:
    backlog.put_numbers(0, 5)
    reader = backlog.stream_reader(startingSequence=given, pollInterval=0)

    assert reader.initialOffset() == at(first)
    assert backlog.sequences() == list(range(first, 5))
    backlog.put_numbers(5, 7)
    assert numbers(block_rows(reader, first, plan(reader, first))) == list(range(first, 7))


def test_where_a_group_begins_does_not_move_when_its_first_block_crashes(backlog: Backlog) -> None:
    backlog.put_numbers(0, 5)
    assert backlog.stream_reader(startingSequence="latest").initialOffset() == at(5)
    backlog.put_numbers(5, 9)

    assert backlog.stream_reader(startingSequence="latest").initialOffset() == at(5)


def test_a_starting_sequence_is_ignored_when_the_group_is_there(backlog: Backlog) -> None:
    backlog.put_numbers(0, 5)
    backlog.stream_reader().initialOffset()

    assert backlog.stream_reader(startingSequence=3).initialOffset() == at(0)
    assert backlog.stream_reader(startingSequence=99).initialOffset() == at(0)
    assert len(backlog.sequences()) == 5


@pytest.mark.parametrize("given", ["6", "18446744073709551615"])
def test_a_starting_sequence_that_is_not_there_is_refused_with_those_that_are(backlog: Backlog, given: str) -> None:
    backlog.put_numbers(0, 5)

    with pytest.raises(
        InvalidInput, match=rf"^startingSequence must be a sequence that is there, from 0 to 5 in .*, not {given}$"
    ):
        backlog.stream_reader(startingSequence=given).initialOffset()

    assert (backlog.epoch(), len(backlog.sequences())) == (0, 5)


def test_latest_of_a_buffer_that_is_not_there_yet_is_its_beginning(backlog: Backlog) -> None:
    assert backlog.stream_reader(startingSequence="latest").initialOffset() == at(0)


def test_a_group_needs_the_native_manifest(backlog: Backlog) -> None:
    with pytest.raises(InvalidInput, match="^group must be 'default' on a manifest of version 1, not 'reports'$"):
        backlog.stream_reader(group="reports").initialOffset()


def test_a_reader_goes_by_the_manifest_it_is_told(backlog: Backlog) -> None:
    backlog.put_numbers(0, 5)

    assert plan(backlog.stream_reader(manifestPath="queues/other", dataPathPrefix="data/other"), 0) == 0
    assert open_store(backlog.url).head("queues/other").size


# Batches that cannot be read.


@dataclass(frozen=True)
class Damage:
    """What was done to a batch, and how to undo it."""

    backlog: Backlog
    location: str
    data: bytes
    left: bytes | None

    def repair(self) -> None:
        self.backlog.store.put(self.location, self.data)


@pytest.fixture(params=["missing", "corrupt"])
def damage(request: pytest.FixtureRequest, backlog: Backlog) -> Damage:
    """Five batches, of which the one with sequence 2 cannot be read."""
    backlog.put_numbers(0, 5)
    location = backlog.entries()[2].location
    data = backlog.store.get(location).data
    if request.param == "missing":
        backlog.store.delete([location])
        return Damage(backlog, location, data, None)
    backlog.store.put(location, data[: len(data) // 2])
    return Damage(backlog, location, data, data[: len(data) // 2])


def test_a_batch_that_cannot_be_read_fails_with_its_sequence_and_location(damage: Damage) -> None:
    reader = damage.backlog.stream_reader()

    with pytest.raises((NotFound, CorruptData), match=rf"the data of sequence 2 \({damage.location}\)"):
        block_rows(reader, 0, plan(reader, 0))

    assert damage.backlog.sequences() == [0, 1, 2, 3, 4]


def test_a_block_with_a_batch_that_was_repaired_is_read_by_the_next_run(damage: Damage) -> None:
    reader = damage.backlog.stream_reader()
    end = plan(reader, 0)
    with pytest.raises((NotFound, CorruptData)):
        block_rows(reader, 0, end)
    damage.repair()

    assert numbers(block_rows(damage.backlog.stream_reader(), 0, end)) == [0, 1, 2, 3, 4]


def test_a_raw_read_sets_a_batch_aside_as_one_row(damage: Damage) -> None:
    reader = damage.backlog.stream_reader(StructType([*UNPARSED, *SET_ASIDE]), onCorruptBatch="dlq")

    rows = block_rows(reader, 0, 5)

    assert [row["sequence"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["sequence"] for row in rows if row["_error"] is not None] == [2]
    assert f"the data of sequence 2 ({damage.location})" in rows[2]["_error"]
    assert rows[2]["_raw"] == damage.left
    assert {name for name, value in rows[2].items() if value is not None} <= {"sequence", "_error", "_raw"}


def test_a_parsed_read_sets_a_batch_aside_as_one_row(damage: Damage) -> None:
    schema = StructType([StructField("id", LongType()), *SET_ASIDE])
    reader = damage.backlog.stream_reader(schema, format="json", onCorruptBatch="dlq", onError="skip")

    (row,) = block_rows(reader, 2, 3)

    assert row["id"] is None
    assert f"the data of sequence 2 ({damage.location})" in row["_error"]


def test_a_batch_that_is_set_aside_may_leave_its_bytes_out(damage: Damage) -> None:
    schema = StructType([StructField("_error", StringType()), StructField("value", BinaryType())])

    (row,) = block_rows(damage.backlog.stream_reader(schema, onCorruptBatch="dlq"), 2, 3)

    assert "sequence 2" in row["_error"]


def test_a_corrupt_batch_that_is_cut_into_row_ranges_is_set_aside_once(backlog: Backlog) -> None:
    backlog.put([b"x" * 1000] * 10)
    (entry,) = backlog.entries()
    data = backlog.store.get(entry.location).data
    backlog.store.put(entry.location, data[:-200] + bytes(200))
    schema = StructType([*UNPARSED, *SET_ASIDE])
    reader = backlog.stream_reader(schema, onCorruptBatch="dlq", targetPartitionBytes=1000)
    assert len(reader.partitions(at(0), at(1))) > 5

    assert len(block_rows(reader, 0, 1)) == 1


# Stopping, as a pipeline asks for it.


def test_a_reader_that_is_told_to_stop_acks_and_admits_nothing_more(backlog: Backlog, tmp_path: Path) -> None:
    backlog.put_numbers(0, 5)
    control = tmp_path / "control"
    control.mkdir()
    reader = backlog.stream_reader(controlDirectory=control, maxBatchesPerTrigger=2)
    assert plan(reader, 0) == 2
    (control / "stop").touch()

    assert plan(reader, 2) == 2
    assert backlog.sequences() == [2, 3, 4]
    assert (control / "stopped").exists()
