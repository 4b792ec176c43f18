"""A cycle over many objects: what it holds in memory is bounded, and so is its time, if it is given one."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pytest

from penstock.buffer import GarbageCollector
from penstock.errors import InvalidInput
from penstock.storage import DeleteResult, ObjectMeta
from tests.buffer.collector.buffer_with_clock import Buffer
from tests.support.dated_buffer import GRACE, MANIFEST, NOW, NOW_MS, PREFIX, DatedBuffer, data_path, named_at
from tests.support.manifests import NATIVE_FIRST
from tests.support.minimal_stores import RecordingStore, ThinStore

MANIFESTS = NATIVE_FIRST
MANY = 10_000
OLD_MS = NOW_MS - 10_000_000


@dataclass
class StoreOfMany(ThinStore):
    """A store whose listing has `MANY` more objects, which are not there."""

    below: object  # type: ignore[assignment]
    at: int
    deleted: int = 0
    largest: int = 0
    seen: list[int] = field(default_factory=list)

    def list_objects(self, prefix: str = "") -> Iterator[ObjectMeta]:
        yield from super().list_objects(prefix)
        if prefix == PREFIX:
            for number in range(MANY):
                yield ObjectMeta(f"{PREFIX}/{named_at(self.at, number)}.batch", 1, NOW.replace(year=2020), "1")

    def delete(self, paths: Iterable[str]) -> list[DeleteResult]:
        asked = list(paths)
        self.deleted += len(asked)
        self.largest = max(self.largest, len(asked))
        return [DeleteResult(path) for path in asked]


def peak_mib(collector: GarbageCollector) -> float:
    tracemalloc.start()
    try:
        collector.collect_once()
        return tracemalloc.get_traced_memory()[1] / (1 << 20)
    finally:
        tracemalloc.stop()


def collector_of_many(buffer: Buffer, at: int) -> tuple[StoreOfMany, GarbageCollector]:
    buffer.produce(b"one")
    buffer.orphan(-20_000)
    buffer.collect()
    buffer.time.passes(GRACE)
    store = StoreOfMany(buffer.store, at)
    return store, GarbageCollector(store, clock=buffer.time)


@pytest.mark.parametrize("at", [OLD_MS, NOW_MS + 1, NOW_MS + 10**12], ids=["to be deleted", "kept", "far ahead"])
def test_a_cycle_holds_a_bounded_part_of_the_names_in_memory(buffer: Buffer, manifest: str, at: int) -> None:
    store, collector = collector_of_many(buffer, at)
    assert peak_mib(collector) < 1.0  # all of them take 3.3
    if manifest == "native":
        assert store.deleted == (MANY + 1 if at == OLD_MS else 1)
    assert store.largest <= 500


def test_a_cycle_that_is_short_of_time_deletes_a_piece_and_the_next_goes_on(dated_memory: DatedBuffer) -> None:
    dated_memory.enqueue(data_path(0))
    dated_memory.write(*map(data_path, range(1, 1201)))
    dated_memory.set_floor()
    now = [0.0]

    def uptime() -> float:
        now[0] += 1.0
        return now[0]

    outcomes = []
    for _ in range(4):
        collector = GarbageCollector(dated_memory.store, clock=lambda: NOW.timestamp() + GRACE, uptime=uptime)
        report = collector.collect_once(budget=1_000.0)
        outcomes.append((report.details.is_complete, len(dated_memory.data())))
    assert outcomes[0] == (False, 700)
    assert outcomes[-1] == (True, 0)


def test_a_cycle_that_was_short_of_time_does_not_raise_the_floor(buffer: Buffer, manifest: str) -> None:
    if manifest == "opendata":
        return
    store, _ = collector_of_many(buffer, OLD_MS)
    before = buffer.head
    buffer.orphan(-GRACE - 1, 5)
    times = iter(range(10_000_000))
    collector = GarbageCollector(store, clock=buffer.time, uptime=lambda: float(next(times)))
    assert not collector.collect_once(budget=100.0).details.is_complete
    assert buffer.head == before


@pytest.mark.parametrize("budget", [0, -1.0, "5", float("nan")])
def test_a_budget_is_a_number_of_seconds(buffer: Buffer, budget: object) -> None:
    with pytest.raises(InvalidInput, match="budget must be a number of seconds"):
        GarbageCollector(buffer.store).collect_once(budget=budget)  # type: ignore[arg-type]


def test_the_manifest_is_read_again_for_every_chunk(dated_memory: DatedBuffer) -> None:
    dated_memory.enqueue(data_path(0))
    dated_memory.write(*map(data_path, range(1, 4_501)))
    dated_memory.set_floor()
    watched = RecordingStore(dated_memory.store)
    assert dated_memory.collector(watched).collect_once().deleted == 4_500
    reads = [at for at, call in enumerate(watched.calls) if call == ("get", MANIFEST)]
    deletes = [at for at, (operation, _) in enumerate(watched.calls) if operation == "delete"]
    assert len(deletes) == 9  # of 500 each, and four of them in a chunk
    before = [max(at for at in reads if at < deletes[first]) for first in (0, 4, 8)]
    assert before[0] < deletes[3] < before[1] < deletes[7] < before[2]
