"""On a store with every kind of fault, a collector deletes nothing that is referenced, and in the end all the rest.

Each seed is a random sequence of writing, enqueuing, dequeuing and collecting, each of which may fail, take
effect late, or take longer than a deadline. After each of them the test reads the store below the faults.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from penstock.buffer import ConsumerConfig, GarbageCollector, Manifest
from penstock.buffer.descriptors import NewEntry
from penstock.buffer.locations import Names
from penstock.buffer.manifest.queue import BufferQueue
from penstock.errors import Fenced, PenstockError, StorageError
from penstock.storage import MemoryStore
from penstock.testing import DEFAULT_RATES, Fault, FaultyStore
from tests.buffer.collector.simulation import in_silence
from tests.support.dated_buffer import MANIFEST
from tests.support.enqueuing import Shipment

DEADLINE, GRACE = ConsumerConfig().enqueue_deadline, ConsumerConfig().gc_grace_period
# Two dates may be wrong by twice this together, and that still leaves the deadline.
HARMLESS_JUMP = (GRACE - DEADLINE) / 2
DAY = 86_400.0
STEPS = 30


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    with in_silence():
        yield


class Buffer:
    """A buffer on a faulty store. Time passes when the store is slow, and between calls."""

    def __init__(self, name: str, seed: int, faults: set[Fault], max_jump: float) -> None:
        self._now = 1e9
        self._memory = MemoryStore(name, clock=lambda: self._now)
        self._memory.delete([meta.path for meta in self._memory.list_objects()])
        rates = {fault: rate for fault, rate in DEFAULT_RATES.items() if fault in faults}
        self.store = FaultyStore(
            self._memory, seed, rates=rates, sleep=self.let_pass, max_delay=2 * GRACE, max_jump=max_jump
        )
        self._names = Names(lambda: self._now)
        self._queue = BufferQueue(self.store, MANIFEST, "producer", uptime=lambda: self._now, sleep=lambda _: None)
        self._collector = GarbageCollector(self.store, clock=lambda: self._now)
        self._written: list[NewEntry] = []
        self._epoch: int | None = None
        self.deleted = self.rewritten = 0

    def let_pass(self, seconds: float) -> None:
        self._now += seconds

    def write(self) -> None:
        """Write a data object, with a deadline that counts from before."""
        location = self._names.location("ingest", self._queue.floor)
        entry = NewEntry(location, (), self._now + DEADLINE)
        self.store.put(entry.location, b"data")
        self._written.append(entry)

    def enqueue(self) -> None:
        """Enqueue what was written and is still in time."""
        written, self._written = self._written, []
        Shipment(written, self._write_again).enqueue(self._queue)

    def write_and_enqueue(self) -> None:
        """Do both, with nothing in between."""
        self.write()
        self.enqueue()

    def dequeue(self) -> None:
        """Take an epoch where there is none, and dequeue the oldest entry."""
        if self._epoch is None:
            self._epoch = self._queue.claim("earliest", None, allow_gap=False).epoch
        try:
            self._queue.dequeue(self._epoch, self._queue.read(self._epoch).first_sequence)
        except Fenced:
            self._epoch = None

    def collect(self) -> None:
        """Run a cycle."""
        self.deleted += self._collector.collect_once().deleted

    def missing(self) -> set[str]:
        """The locations in the manifest whose object is missing."""
        return self.named() - self.objects()

    def named(self) -> set[str]:
        return {entry.location for entry in Manifest.read(self._memory).entries}

    def objects(self) -> set[str]:
        return {meta.path for meta in self._memory.list_objects("ingest") if meta.path.endswith(".batch")}

    def collect_the_rest(self) -> None:
        """After time without faults, let the collector delete all that it should.

        On version 2 an old queued entry holds back what is younger, and a floor is applied a grace period after it was
        set: so the queue is drained first.
        """
        self.let_pass(2 * GRACE)
        view = self._queue.claim("earliest", None, allow_gap=False)
        self.collect()
        if self._queue.guards_new_objects:
            self._queue.dequeue(view.epoch, view.next_sequence - 1)
            for _ in range(2):
                self.collect()
                self.let_pass(GRACE)
            self.collect()

    def _write_again(self, entry: NewEntry, floor: int) -> NewEntry:
        self.rewritten += 1
        location = self._names.location("ingest", floor)
        self.store.put(location, b"data")
        return replace(entry, location=location)


def run_randomly(buffer: Buffer, seed: int, calls: Sequence[str]) -> None:
    """Make random calls; after each of them everything in the manifest must be there."""
    chance = random.Random(seed)
    done: list[str] = []
    for _ in range(STEPS):
        done.append(chance.choice(calls))
        try:
            getattr(buffer, done[-1])()
        except PenstockError as error:
            done.append(type(error).__name__)
        buffer.let_pass(chance.choice((0.0, 0.0, 1.0, DEADLINE / 2, DEADLINE, GRACE)))
        assert not buffer.missing(), f"seed {seed}: {done}"


SEEDS = [60, pytest.param(10_000, marks=[pytest.mark.chaos, pytest.mark.timeout(1800)])]


@pytest.mark.parametrize("seeds", SEEDS)
def test_nothing_that_is_referenced_is_deleted_though_the_stores_clock_jumps_by_days(
    fresh_name: str, seeds: int
) -> None:
    # With such jumps an object that is not enqueued yet may be deleted: so each is enqueued at once.
    for seed in range(seeds):
        buffer = Buffer(fresh_name, seed, set(Fault) - {Fault.LATE}, DAY)
        run_randomly(buffer, seed, ("write_and_enqueue", "dequeue", "collect"))


@pytest.mark.parametrize("seeds", SEEDS)
def test_nothing_that_is_referenced_or_can_still_be_enqueued_is_deleted_and_in_the_end_all_the_rest_is(
    fresh_name: str, seeds: int
) -> None:
    met: Counter[Fault] = Counter()
    deleted = 0
    for seed in range(seeds):
        buffer = Buffer(fresh_name, seed, set(Fault), HARMLESS_JUMP)
        run_randomly(buffer, seed, ("write", "enqueue", "enqueue", "dequeue", "collect"))
        met += buffer.store.met
        deleted += buffer.deleted
        with buffer.store.quiet():
            buffer.collect_the_rest()
        assert buffer.objects() == buffer.named(), f"seed {seed}"
    assert set(met) == set(Fault)
    assert deleted > seeds / 4


def test_a_cycle_that_fails_raises_a_storage_error(fresh_name: str) -> None:
    failed = 0
    for seed in range(100):
        buffer = Buffer(fresh_name, seed, set(Fault), HARMLESS_JUMP)
        try:
            buffer.collect()
        except StorageError:
            failed += 1
    assert failed
