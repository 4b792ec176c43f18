"""What grows: with the backlog, with writers and with metadata the head does not, and an enqueue costs the same."""

from __future__ import annotations

import pytest

from penstock import Consumer, ConsumerConfig, Producer
from penstock.buffer import Manifest
from penstock.buffer.descriptors import Metadata, NewEntry
from penstock.buffer.manifest.state import Limits, Transaction
from tests.buffer.manifest.samples import Counted, claim, head_of, locations, new, queue_on
from tests.support.enqueuing import enqueue

MANIFESTS = ["native"]
MOST = 128 << 10
QUERY = "5f2b7c7e-8f0c-4b57-9d7e-0a4f6f5e9b11"


def named_like_data(count: int, start: int) -> list[NewEntry]:
    """Entries whose locations are as long as those of data objects."""
    return [
        NewEntry(
            f"ingest/01ARZ3NDEKTSV4RRFF{number:08d}.batch",
            (Metadata(0, 1_700_000_000_000),),
            size=1 << 20,
            records=1000,
        )
        for number in range(start, start + count)
    ]


@pytest.fixture
def counted(fresh_name: str) -> Counted:
    return Counted(fresh_name)


@pytest.mark.slow
def test_a_hundred_thousand_entries_leave_the_head_small_and_the_cost_of_an_enqueue_as_it_was(counted: Counted) -> None:
    queue = queue_on(counted)
    cost: list[int] = []
    for start in range(0, 100_000, 125):
        counted.clear()
        enqueue(queue, named_like_data(125, start))
        cost.append(counted.written)
    assert counted.largest_head <= MOST
    # A round is what it takes to fill a tail: the dearest and the mean of a late one, against those of an early one.
    early, late = cost[160:320], cost[-160:]
    assert max(late) <= 1.5 * max(early)
    assert sum(late) <= 1.5 * sum(early)
    assert max(cost) <= 2 * MOST
    assert head_of(counted).next_sequence == 100_000
    view = queue_on(counted).look()
    found = view.entries(0, 100_000)
    assert [entry.location for entry in found] == [entry.location for entry in named_like_data(100_000, 0)]


def test_of_a_backlog_a_thousand_times_as_large_an_enqueue_writes_only_some_references_more(fresh_name: str) -> None:
    def cost(backlog: int) -> int:
        store = Counted(f"{fresh_name}-{backlog}")
        enqueue(queue_on(store), named_like_data(backlog, 0))
        queue = queue_on(store)
        queue.look()
        store.clear()
        for number in range(520):  # at least two tails are sealed
            enqueue(queue, named_like_data(1, backlog + number))
        return store.written

    large = cost(100_000)
    assert large <= cost(100) + 520 * Limits().references * 100
    assert large <= 520 * (32 << 10)


@pytest.mark.slow
def test_one_enqueue_of_a_hundred_thousand_entries_leaves_the_head_small(counted: Counted) -> None:
    enqueue(queue_on(counted), named_like_data(100_000, 0))
    assert counted.largest_head <= MOST
    assert counted.calls["compare and set"] == 1
    assert len(head_of(counted).segments) <= Limits().references


def test_many_writers_leave_the_head_small(counted: Counted) -> None:
    backlog = queue_on(counted)
    for start in range(0, 70_000, 256):  # as many references as there can be
        enqueue(backlog, named_like_data(256, start))
    for number in range(1_300):
        enqueue(backlog, named_like_data(1, number), Transaction(f"writer-{number:09d}", 1 << 40, is_named=False))
    assert len(head_of(counted).writers) == 1_000
    assert counted.largest_head <= MOST


def test_a_hundred_queries_beside_a_thousand_producers_leave_the_head_small(counted: Counted) -> None:
    queue = queue_on(counted)
    enqueue(queue, named_like_data(70_000, 0))
    for number in range(100):
        enqueue(queue, named_like_data(1, number), Transaction(f"{QUERY[:-4]}{number:04d}", 1 << 40))
    for number in range(1_000):
        enqueue(queue, named_like_data(1, number), Transaction(f"writer-{number:09d}", 1 << 40, is_named=False))
    writers = head_of(counted).writers
    assert sum(writer.is_named for writer in writers.values()) == 100
    assert len(writers) == 1_100
    assert counted.largest_head <= MOST


def test_many_small_calls_with_metadata_leave_the_head_small(counted: Counted) -> None:
    sent: list[bytes] = []
    with Producer(counted) as producer:
        for number in range(3_000):
            sent.append(b"%d" % number * 40)
            producer.produce(b"%d" % number, metadata=sent[-1])
    assert counted.largest_head <= MOST
    found = Manifest.read(counted)
    assert [item.payload for entry in found.entries for item in entry.metadata] == sent
    with Consumer(counted, ConsumerConfig(gc=False)) as consumer:
        assert [value for batch in consumer for value in batch.entries] == [b"%d" % n for n in range(3_000)]


@pytest.mark.parametrize("size", [32 << 10, 200_000, 3_000_000])
def test_a_batch_whose_metadata_alone_are_over_32_kib_leaves_the_head_small(counted: Counted, size: int) -> None:
    queue = queue_on(counted)
    for number in range(4):
        enqueue(queue, new(1, number, bytes([number]) * size))
        enqueue(queue, new(1, 10 + number))
    assert counted.largest_head <= MOST
    assert locations(counted) == [f"data/{n}" for n in (0, 10, 1, 11, 2, 12, 3, 13)]
    view = queue_on(counted).look()
    assert [view.entries(at, at + 1)[0].metadata[0].payload[:1] for at in (0, 2, 4, 6)] == [b"\0", b"\1", b"\2", b"\3"]


def test_a_slow_group_beside_a_fast_one_leaves_the_head_small(counted: Counted) -> None:
    queue, fast = queue_on(counted), queue_on(counted, group="fast")
    enqueue(queue, new(1))
    claim(queue_on(counted))
    epoch = claim(fast)
    for start in range(1, 40_000, 400):
        enqueue(queue, named_like_data(400, start))
        fast.dequeue(epoch, start + 200)
    assert counted.largest_head <= MOST
    assert head_of(counted).first_sequence == 0


def test_what_is_acked_one_by_one_costs_one_write_each_and_reads_a_segment_once(counted: Counted) -> None:
    enqueue(queue_on(counted), named_like_data(5_000, 0))
    queue = queue_on(counted)
    epoch = claim(queue)
    counted.clear()
    for sequence in range(0, 5_000, 25):
        queue.dequeue(epoch, sequence)
    assert counted.calls["compare and set"] == 200
    segments = [path for path in counted.read if path.endswith(".seg")]
    assert len(segments) == len(set(segments)) == 5
    assert counted.written <= 200 * 4_096
    assert head_of(counted).first_sequence == 4_976
