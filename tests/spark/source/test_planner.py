"""How large a block is, and how often the manifest is read for it: caps, the byte budget, and the poll interval."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine import ByteBudgetConfig
from penstock.spark.source.options import ReadOptions
from penstock.spark.source.planner import Planner
from penstock.spark.source.schemas import UNPARSED
from penstock.spark.source.stream_reader import BufferStreamReader
from penstock.storage import Object, ObjectMeta, ObjectStore
from tests.support.backlogs import AdmittingSource, Backlog, blocks_of, in_memory, parts, plan
from tests.support.manifests import KINDS

MANIFESTS = KINDS

NEVER = "1e9"  # a poll interval
MANIFEST = "ingest/manifest"


# Caps.


SIZES = st.lists(st.integers(0, 3000), min_size=1, max_size=40)


def filled(sizes: Iterable[int], records: int = 1) -> Backlog:
    return in_memory(*([b"x" * size] * records for size in sizes))


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
    backlog = in_memory(*([b"x" * 100] * count for count in records))
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
    ("limit", "number"),
    [("ReadAllAvailable", ()), ("ReadMaxRows", (1,)), ("ReadMaxFiles", (9,)), ("ReadMinRows", (9,))],
)
def test_the_caps_hold_whatever_limit_spark_passes(limit: str, number: tuple[int, ...]) -> None:
    limits = pytest.importorskip("pyspark.sql.streaming.datasource", reason="read limits are of Spark 4.2 and later")
    backlog = filled([10] * 7)

    blocks = blocks_of(backlog.stream_reader(maxBatchesPerTrigger=3), getattr(limits, limit)(*number))

    assert blocks == [range(3), range(3, 6), range(6, 7)]


@pytest.mark.parametrize("name", ["maxBytesPerTrigger", "maxRecordsPerTrigger", "maxBatchesPerTrigger"])
def test_one_batch_passes_every_cap(name: str) -> None:
    backlog = filled([5000, 5000, 5000], records=2)

    assert blocks_of(backlog.stream_reader(UNPARSED, **{name: 1})) == [range(1), range(1, 2), range(2, 3)]


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
    monkeypatch.setattr(ReadOptions, "store", store)
    return store


def test_each_objects_size_is_asked_for_once_where_the_manifest_does_not_know_it(
    backlog: Backlog, counting: CountingStore, manifest: str
) -> None:
    backlog.put_numbers(0, 90)
    reader = backlog.stream_reader(maxBatchesPerTrigger=40)
    start = 0
    while (end := plan(reader, start)) > start:
        parts(reader, start, end)
        start = end

    heads = [path for kind, path in counting.asked if kind == "head" and path != MANIFEST]
    assert len(heads) == len(set(heads)) == (90 if manifest == "opendata" else 0)


def test_objects_are_not_read_to_plan_a_block_unless_records_are_counted(
    backlog: Backlog, counting: CountingStore
) -> None:
    backlog.put_numbers(0, 9)
    reader = backlog.stream_reader(maxBytesPerTrigger="64m")
    parts(reader, 0, plan(reader, 0))

    assert {path for kind, path in counting.asked if kind == "get"} <= {MANIFEST, f"{MANIFEST}.id"}


def test_a_batch_that_is_gone_counts_for_what_the_manifest_knows_and_is_planned_all_the_same(
    backlog: Backlog, manifest: str
) -> None:
    backlog.put([b"x" * 3000], [b"x" * 3000], [b"x" * 3000])
    backlog.store.delete([backlog.entries()[0].location])

    assert plan(backlog.stream_reader(maxBytesPerTrigger=4000), 0) == (2 if manifest == "opendata" else 1)


# Self-regulation.


class SmallBudget(AdmittingSource):
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
    planner.close()


def test_the_end_that_is_reported_is_that_of_the_last_look(backlog: Backlog, counting: CountingStore) -> None:
    backlog.put_numbers(0, 2)
    reader = backlog.stream_reader(pollInterval=NEVER)
    plan(reader, 0)
    backlog.put_numbers(2, 5)
    before = counting.reads_of_the_manifest()

    assert reader.reportLatestOffset()["sequence"] == 2
    assert counting.reads_of_the_manifest() == before


def test_what_came_is_seen_when_the_manifest_was_read(backlog: Backlog) -> None:
    reader = backlog.stream_reader(pollInterval=0)
    assert plan(reader, 0) == 0
    backlog.put_numbers(0, 2)

    assert plan(reader, 0) == 2
    assert reader.reportLatestOffset()["sequence"] == 2
