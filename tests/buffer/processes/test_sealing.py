"""Version 2 with many processes: nothing sealed is lost or doubled, wherever a producer dies while it seals."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from penstock.buffer import Consumer, ConsumerConfig, GarbageCollector, Manifest, Producer, ProducerConfig
from penstock.buffer.manifest.state import Limits
from penstock.buffer.manifest.v2.head import Head
from penstock.storage import LocalStore
from tests.buffer.processes.stop_points import (
    HANDLE_COMPLETED,
    MANIFEST_NOT_WRITTEN,
    MANIFEST_WRITTEN,
    Stop,
    produce_and_stop,
)
from tests.support.filled_buffers import each_alone
from tests.support.processes import PATIENCE, Parent, Start, let_go

MANIFESTS = ["native"]
PROCESSES = 10
EACH = 200
LARGEST_HEAD = 128 << 10
MANIFEST = "ingest/manifest"
SEGMENT_WRITTEN = Stop("after", "put", ".seg")
SEGMENT_NOT_WRITTEN = Stop("before", "put", ".seg")


def enqueue_one_by_one(parent: Parent, root: str, name: str, rounds: int) -> None:
    """Produce entries, each an enqueue of its own, and send their sequences after each round."""
    with Producer(LocalStore(root, sync=False), each_alone()) as producer:
        parent.tell("ready")
        parent.wait()
        for start in range(0, rounds * EACH, EACH):
            numbers = range(start, start + EACH)
            parent.tell([producer.produce(f"{name}-{number}").result().sequence for number in numbers])


class HeadsOf:
    """Measures the head of a buffer again and again, in its own thread, and keeps the largest size."""

    def __init__(self, root: Path) -> None:
        self._path = root / MANIFEST
        self._is_over = threading.Event()
        self.largest = self.seen = 0
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(PATIENCE)

    def _look(self) -> None:
        while not self._is_over.wait(0.002):
            if self._path.exists():
                self.largest = max(self.largest, self._path.stat().st_size)
                self.seen += 1


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=[pytest.mark.chaos, pytest.mark.timeout(1800)])])
def test_two_thousand_concurrent_enqueues_of_ten_processes_leave_no_gap_and_no_double_and_keep_each_ones_order(
    tmp_path: Path, start: Start, rounds: int
) -> None:
    count = PROCESSES * rounds * EACH
    names = [f"p{number}" for number in range(PROCESSES)]
    heads = HeadsOf(tmp_path)
    children = [start(enqueue_one_by_one, str(tmp_path), name, rounds) for name in names]
    let_go(children)
    sequences: dict[str, list[int]] = {name: [] for name in names}
    for _ in range(rounds):
        for name, child in zip(names, children, strict=True):
            sequences[name] += child.hear()
    heads.stop()

    # No gap, no double: the sequences that the processes got are all that there are, each of them once.
    assert sorted(place for places in sequences.values() for place in places) == list(range(count))
    assert all(places == sorted(places) for places in sequences.values())
    manifest = Manifest.read(tmp_path)
    assert [entry.sequence for entry in manifest.entries] == list(range(count))
    assert len({entry.location for entry in manifest.entries}) == count
    with Consumer(LocalStore(tmp_path, sync=False), ConsumerConfig(gc=False)) as consumer:
        received = {batch.sequence: batch.entries for batch in consumer}
    assert received == {
        place: [f"{name}-{number}".encode()]
        for name, places in sequences.items()
        for number, place in enumerate(places)
    }
    # It was sealed on the way, and the head stayed small.
    assert len(head_of(tmp_path).segments) >= count // Limits().tail_entries
    assert heads.seen > 10
    assert 0 < heads.largest <= LARGEST_HEAD


def head_of(root: Path) -> Head:
    head = Manifest.read(root).head
    assert head is not None
    return head


def segments_in(root: Path) -> set[str]:
    return {path.name for path in (root / f"{MANIFEST}.d").glob("*.seg")}


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """A buffer whose tail is full: the next enqueue seals it."""
    with Producer(LocalStore(tmp_path, sync=False), ProducerConfig(flush_size_bytes=1)) as producer:
        for number in range(Limits().tail_entries):
            producer.produce(b"%d" % number)
    assert len(head_of(tmp_path).tail) == Limits().tail_entries
    return tmp_path


# In the order in which they come: how many segments are there, how many the head names, and whether it is enqueued.
DEATHS = {
    SEGMENT_NOT_WRITTEN: (0, 0, False),
    SEGMENT_WRITTEN: (1, 0, False),
    MANIFEST_NOT_WRITTEN: (1, 0, False),
    MANIFEST_WRITTEN: (1, 1, True),
    HANDLE_COMPLETED: (1, 1, True),
}


@pytest.mark.parametrize("stop", DEATHS, ids=str)
def test_a_producer_killed_while_it_seals_leaves_an_orphan_at_most_and_nothing_is_lost(
    stop: Stop, full: Path, start: Start
) -> None:
    there, named, is_enqueued = DEATHS[stop]
    victim = start(produce_and_stop, str(full), [b"victim"], 1, stop)
    assert victim.hear() == stop
    victim.kill()

    live = {reference.name for reference in head_of(full).segments}
    assert (len(segments_in(full)), len(live)) == (there, named)
    with Producer(full, each_alone()) as producer:
        producer.produce(b"next")
    expected = [b"%d" % number for number in range(Limits().tail_entries)] + [b"victim"] * is_enqueued + [b"next"]
    with Consumer(full, ConsumerConfig(gc=False)) as consumer:
        received = [(batch.sequence, batch.entries) for batch in consumer]
    assert received == [(place, [entry]) for place, entry in enumerate(expected)]
    # The next producer has sealed under another name: at most the segment of the victim is not in the head.
    live = {reference.name for reference in head_of(full).segments}
    assert live <= segments_in(full)
    assert len(segments_in(full) - live) == (there - named)


def test_the_orphan_segment_of_a_killed_producer_is_collected_in_the_end(full: Path, start: Start) -> None:
    victim = start(produce_and_stop, str(full), [b"victim"], 1, SEGMENT_WRITTEN)
    assert victim.hear() == SEGMENT_WRITTEN
    victim.kill()
    (orphan,) = segments_in(full)
    with Producer(full, each_alone()) as producer:
        producer.produce(b"next")
    with Consumer(full, ConsumerConfig(gc=False)) as consumer:
        consumer.next_descriptors(1000)
        consumer.ack_through(Limits().tail_entries)
    assert orphan in segments_in(full)
    now = time.time()
    for _ in range(3):
        now += 3600
        GarbageCollector(full, clock=lambda: now).collect_once()  # noqa: B023  it is over before the next hour
    assert segments_in(full) == set()
