"""What Spark asks of a stream read, in Spark's order: offsets, acks, fences, and what a crash leaves.

A crash is a new reader. It is asked `partitions` for a block that was planned, and `initialOffset` again if that was
the first one.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle

from penstock import Consumer, open_store
from penstock.buffer import Manifest
from penstock.errors import Fenced, InvalidInput, StorageError
from penstock.spark.source.options import ReadOptions
from penstock.spark.source.stream_reader import BufferStreamReader
from penstock.spark.versions import ReadAllAvailable
from penstock.storage import ObjectStore
from penstock.testing import Fault, FaultyStore
from tests.support.backlogs import ALL, Backlog, at, block_rows, blocks_of, in_memory, numbers, parts, plan
from tests.support.manifests import KINDS

MANIFESTS = KINDS

NEVER = "1e9"  # a poll interval
MANIFEST = "ingest/manifest"


def pickled(what: Any) -> bytes:
    """What travels, as Spark pickles it."""
    data: bytes = cloudpickle.dumps(what)  # type: ignore[no-untyped-call]
    return data


# A reader that only reads.


def test_making_a_reader_touches_no_store(backlog: Backlog, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: ReadOptions) -> ObjectStore:
        raise AssertionError("the store was opened")

    monkeypatch.setattr(ReadOptions, "store", property(refuse))
    reader = backlog.stream_reader()
    pickle.loads(pickled(reader))
    reader.commit({"buffer": "any", "sequence": 0})
    reader.stop()


def test_a_reader_that_is_stopped_leaves_no_thread_behind(backlog: Backlog) -> None:
    before = set(threading.enumerate())
    reader = backlog.stream_reader()
    plan(reader, 0)
    assert set(threading.enumerate()) != before
    reader.stop()
    reader.stop()
    assert set(threading.enumerate()) == before


def test_reading_takes_no_epoch(backlog: Backlog) -> None:
    backlog.put_numbers(0, 3)
    tasks = parts(backlog.stream_reader(), 0, 3)
    epoch = backlog.epoch()

    others = backlog.stream_reader()
    assert [row for task in tasks for batch in others.read(task) for row in numbers(batch.to_pylist())] == [0, 1, 2]

    assert backlog.epoch() == epoch


def test_a_reader_and_its_partitions_are_small_when_they_travel(backlog: Backlog) -> None:
    backlog.put_numbers(0, 1)
    reader = backlog.stream_reader(maxBytesPerTrigger="64m", format="raw")
    (task,) = parts(backlog.stream_reader(), 0, 1)

    assert len(pickled(reader)) < 4000
    assert len(pickled(task)) < 1000


def test_a_partition_is_read_by_a_reader_that_travelled(backlog: Backlog) -> None:
    backlog.put_numbers(0, 3)
    reader = backlog.stream_reader()
    there = pickle.loads(pickled(reader))
    tasks = pickle.loads(pickled(parts(reader, 0, 3)))

    assert [row for task in tasks for batch in there.read(task) for row in numbers(batch.to_pylist())] == [0, 1, 2]


# Epochs.


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda reader: reader.prepareForTriggerAvailableNow(), id="prepareForTriggerAvailableNow"),
        pytest.param(lambda reader: reader.getDefaultReadLimit(), id="getDefaultReadLimit"),
        pytest.param(lambda reader: reader.initialOffset(), id="initialOffset"),
        pytest.param(lambda reader: reader.latestOffset(at(reader, 0), ALL), id="latestOffset"),
        pytest.param(lambda reader: reader.reportLatestOffset(), id="reportLatestOffset"),
        pytest.param(lambda reader: parts(reader, 0, 1), id="partitions"),
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
    assert isinstance(backlog.stream_reader().getDefaultReadLimit(), ReadAllAvailable)


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
        parts(older, 1, 2)

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
    parts(reader, 0, 2)
    assert backlog.sequences() == [0, 1, 2, 3, 4, 5]
    assert plan(reader, 2) == 4
    assert backlog.sequences() == [2, 3, 4, 5]


def test_sparks_commit_acks_nothing(backlog: Backlog) -> None:
    backlog.put_numbers(0, 3)
    reader = backlog.stream_reader()
    plan(reader, 0)

    reader.commit(at(reader, 3))

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
    assert again.initialOffset() == start == at(again, 1)
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
    monkeypatch.setattr(ReadOptions, "store", faulty)
    reader = backlog.stream_reader()
    reader.initialOffset()
    faulty.inject(Fault.READ_ERROR, operation="get", path=MANIFEST, times=100)
    with pytest.raises(StorageError):
        plan(reader, 2)
    assert backlog.sequences() == [0, 1, 2, 3]

    monkeypatch.undo()
    assert plan(backlog.stream_reader(), 2) == 4
    assert backlog.sequences() == [2, 3]


ACTIONS = st.one_of(st.integers(1, 5), st.sampled_from(["plan", "finish", "crash"]))


@settings(max_examples=40, deadline=None)
@given(st.lists(ACTIONS, max_size=30), st.integers(1, 4))
def test_whatever_crashes_when_each_event_comes_once_and_is_acked_after_its_block(
    script: list[int | str], cap: int
) -> None:
    spark = SparkModel(cap)
    for action in (1, *script):
        spark.act(action)
        assert min(spark.backlog.sequences(), default=spark.produced) <= spark.committed
    while spark.committed < spark.produced:
        spark.act("plan")
        spark.act("finish")
    spark.act("plan")
    assert spark.sink == list(range(spark.produced))
    assert spark.backlog.sequences() == []


class SparkModel:
    """A query: what it has in its checkpoint, its sink, and the reader of the run that lives."""

    def __init__(self, cap: int) -> None:
        self.backlog = in_memory()
        self.produced = 0
        self.committed = 0
        self.sink: list[int] = []
        self._planned: int | None = None
        self._cap = cap
        self._reader = self._new_reader()

    def act(self, action: int | str) -> None:
        """Produce so many events, or do what Spark does next."""
        if isinstance(action, int):
            self.backlog.put_numbers(self.produced, self.produced + action)
            self.produced += action
        elif action == "crash":
            self._reader = self._new_reader()
        elif action == "plan" and self._planned is None:
            end = plan(self._reader, self._start())
            self._planned = end if end > self.committed else None
        elif action == "finish" and self._planned is not None:
            self.sink += numbers(block_rows(self._reader, self._start(), self._planned))
            self.committed, self._planned = self._planned, None

    def _start(self) -> int:
        """Where the next block starts: that of the first one is not in the checkpoint."""
        return self.committed or int(self._reader.initialOffset()["sequence"])

    def _new_reader(self) -> BufferStreamReader:
        return self.backlog.stream_reader(maxBatchesPerTrigger=self._cap, pollInterval=0)


# Checkpoints that do not belong to the queue.


@pytest.mark.parametrize(
    ("start", "problem"),
    [
        (1, r"goes on at sequence 1, and .*/ingest/manifest is acked up to 2 .*older"),
        (8, r"knows of sequence 7, and the next sequence of .*/ingest/manifest is 5"),
    ],
    ids=["older than the acks", "beyond the buffer"],
)
@pytest.mark.parametrize("is_planned", [False, True], ids=["a start", "a planned block"])
def test_a_checkpoint_that_is_not_of_this_queue_fails_with_both_sequences_and_acks_nothing(
    backlog: Backlog, start: int, problem: str, is_planned: bool
) -> None:
    backlog.put_numbers(0, 5)
    plan(backlog.stream_reader(), 3)
    reader = backlog.stream_reader()

    with pytest.raises(InvalidInput, match=problem):
        parts(reader, min(start, 3), 8) if is_planned else plan(reader, start)

    assert backlog.sequences() == [3, 4]


def of_another(reader: BufferStreamReader, sequence: int) -> dict[str, Any]:
    return {**at(reader, sequence), "buffer": str(UUID(int=7))}


ANOTHERS: list[Any] = [
    pytest.param(lambda reader: reader.latestOffset(of_another(reader, 3), ALL), str(UUID(int=7)), id="a start"),
    pytest.param(
        lambda reader: reader.partitions(of_another(reader, 0), of_another(reader, 3)),
        str(UUID(int=7)),
        id="a planned block",
    ),
    pytest.param(
        lambda reader: reader.partitions(at(reader, 0), of_another(reader, 3)), str(UUID(int=7)), id="its end alone"
    ),
    pytest.param(lambda reader: reader.latestOffset({"sequence": 3}, ALL), "no buffer", id="without a buffer"),
]


@pytest.mark.parametrize(("ask", "whose"), ANOTHERS)
def test_a_checkpoint_of_another_buffer_fails_with_both_ids_and_acks_nothing(
    backlog: Backlog, ask: Callable[[BufferStreamReader], object], whose: str
) -> None:
    backlog.put_numbers(0, 5)
    mine = Manifest.read(backlog.store).id

    with pytest.raises(InvalidInput, match=rf"the checkpoint is of .*{whose}.*, and .*/ingest/manifest is .*{mine}"):
        ask(backlog.stream_reader())

    assert backlog.sequences() == [0, 1, 2, 3, 4]


def test_a_checkpoint_of_a_buffer_that_was_deleted_and_created_again_acks_nothing_of_the_new_one(
    backlog: Backlog,
) -> None:
    backlog.put_numbers(0, 5)
    reader = backlog.stream_reader()
    end = reader.latestOffset(reader.initialOffset(), ALL)  # what a checkpoint keeps
    backlog.store.delete([meta.path for meta in backlog.store.list_objects()])
    backlog.put_numbers(10, 17)

    with pytest.raises(InvalidInput, match="deleted and created again"):
        backlog.stream_reader().latestOffset(end, ALL)

    assert len(backlog.sequences()) == 7


def test_a_planned_block_of_another_buffer_acks_nothing(backlog: Backlog) -> None:
    backlog.put_numbers(0, 5)

    with pytest.raises(InvalidInput):
        parts(backlog.stream_reader(), 2, 8)

    assert backlog.sequences() == [0, 1, 2, 3, 4]


def test_a_checkpoint_at_the_end_of_the_queue_is_none_of_these(backlog: Backlog) -> None:
    backlog.put_numbers(0, 5)

    assert plan(backlog.stream_reader(), 5) == 5
    assert backlog.sequences() == []
    assert plan(backlog.stream_reader(), 5) == 5


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


def collected(backlog: Backlog) -> bool:
    """Whether a cycle of the collector was run."""
    return any(meta.path == "ingest/.collected" for meta in backlog.store.list_objects())


def test_the_end_of_an_available_now_run_is_where_it_collects(backlog: Backlog) -> None:
    backlog.put_numbers(0, 3)
    reader = backlog.stream_reader(maxBatchesPerTrigger=2)
    reader.prepareForTriggerAvailableNow()
    assert plan(reader, 0) == 2
    assert plan(reader, 2) == 3
    assert not collected(backlog)
    assert plan(reader, 3) == 3  # nothing is left: Spark calls nothing after this one
    assert collected(backlog)
    assert backlog.sequences() == []


def test_what_goes_wrong_with_collecting_does_not_fail_the_run(
    backlog: Backlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StorageError("the store is down")

    backlog.put_numbers(0, 3)
    monkeypatch.setattr("penstock.buffer.GarbageCollector.collect_if_due", fail)
    reader = backlog.stream_reader()
    reader.prepareForTriggerAvailableNow()
    assert blocks_of(reader) == [range(3)]
    assert backlog.sequences() == []


def test_a_stream_that_goes_on_collects_in_its_own_time(backlog: Backlog) -> None:
    backlog.put_numbers(0, 3)
    reader = backlog.stream_reader()
    assert plan(reader, 0) == 3
    assert plan(reader, 3) == 3
    assert not collected(backlog)


@pytest.mark.parametrize("acked", [0, 3])
def test_a_first_block_without_events_is_planned(backlog: Backlog, acked: int) -> None:
    # Spark plans the first block of a new checkpoint even if it ends where it starts.
    backlog.put_numbers(0, acked)
    plan(backlog.stream_reader(), acked)
    reader = backlog.stream_reader()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert start == end
    assert end["sequence"] == acked

    assert list(reader.partitions(start, end)) == []


def test_the_last_block_of_a_trigger_once_is_acked_by_the_next_run(backlog: Backlog) -> None:
    backlog.put_numbers(0, 3)
    once = backlog.stream_reader()
    end = plan(once, once.initialOffset()["sequence"])
    block_rows(once, 0, end)
    assert backlog.sequences() == [0, 1, 2]

    assert plan(backlog.stream_reader(), end) == end
    assert backlog.sequences() == []


# Where a group begins.


@pytest.mark.parametrize(("given", "first"), [("earliest", 0), ("0", 0), ("3", 3), ("4", 4), ("latest", 5)])
def test_a_new_group_begins_where_it_is_told(backlog: Backlog, given: str, first: int) -> None:
    backlog.put_numbers(0, 5)
    reader = backlog.stream_reader(startingSequence=given, pollInterval=0)

    assert reader.initialOffset()["sequence"] == first
    assert backlog.sequences() == list(range(first, 5))
    backlog.put_numbers(5, 7)
    assert numbers(block_rows(reader, first, plan(reader, first))) == list(range(first, 7))


def test_where_a_group_begins_does_not_move_when_its_first_block_crashes(backlog: Backlog) -> None:
    backlog.put_numbers(0, 5)
    assert backlog.stream_reader(startingSequence="latest").initialOffset()["sequence"] == 5
    backlog.put_numbers(5, 9)

    assert backlog.stream_reader(startingSequence="latest").initialOffset()["sequence"] == 5


def test_a_starting_sequence_is_ignored_when_the_group_is_there(backlog: Backlog) -> None:
    backlog.put_numbers(0, 5)
    backlog.stream_reader().initialOffset()

    assert backlog.stream_reader(startingSequence=3).initialOffset()["sequence"] == 0
    assert backlog.stream_reader(startingSequence=99).initialOffset()["sequence"] == 0
    assert len(backlog.sequences()) == 5


@pytest.mark.parametrize("given", ["5", "18446744073709551615"])
def test_a_starting_sequence_that_is_not_there_is_refused_with_those_that_are(backlog: Backlog, given: str) -> None:
    backlog.put_numbers(0, 5)

    with pytest.raises(InvalidInput, match=rf"a sequence that is in .* \(there are 0 to 4\), not at {given}$"):
        backlog.stream_reader(startingSequence=given).initialOffset()

    assert (backlog.epoch(), len(backlog.sequences())) == (0, 5)


def test_latest_of_a_buffer_that_is_not_there_yet_is_its_beginning(backlog: Backlog) -> None:
    assert backlog.stream_reader(startingSequence="latest").initialOffset()["sequence"] == 0


def test_a_reader_goes_by_the_manifest_it_is_told(backlog: Backlog) -> None:
    backlog.put_numbers(0, 5)

    reader = backlog.stream_reader(manifestPath="queues/other", dataPathPrefix="data/other")
    assert reader.latestOffset(reader.initialOffset(), ALL)["sequence"] == 0
    assert open_store(backlog.url).head("queues/other").size
