"""On a store that fails in every way it can, a collector deletes nothing that is referenced, and in the end the rest.

Each seed is a random sequence of writing, enqueuing, dequeuing and collecting, every call of which may go wrong, take
effect late, or take so long that a deadline passes. After each of them the truth is read from the store below.
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
from penstock.errors import Fenced, PenstockError, StorageError
from penstock.storage import MemoryStore
from penstock.testing import DEFAULT_RATES, Fault, FaultyStore
from tests.buffer.collector.simulation import in_silence
from tests.support.dated_buffer import queue_of

CONFIG = ConsumerConfig()
DEADLINE, GRACE = CONFIG.enqueue_deadline, CONFIG.gc_grace_period
# Two dates may be wrong by twice this together, and that still leaves the deadline.
HARMLESS_JUMP = (GRACE - DEADLINE) / 2
DAY = 86_400.0
STEPS = 30


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    with in_silence():
        yield


class Buffer:
    """A buffer on a faulty store, and whoever works on it. Time passes when the store is slow, and between calls."""

    def __init__(self, name: str, seed: int, faults: set[Fault], max_jump: float) -> None:
        self._now = 1e9
        self._memory = MemoryStore(name, clock=lambda: self._now)
        self._memory.delete([meta.path for meta in self._memory.list_objects()])
        rates = {fault: rate for fault, rate in DEFAULT_RATES.items() if fault in faults}
        self.store = FaultyStore(
            self._memory, seed, rates=rates, sleep=self.let_pass, max_delay=2 * GRACE, max_jump=max_jump
        )
        self._names = Names(lambda: self._now)
        self._queue = queue_of(self.store)
        self._collector = GarbageCollector(self.store, CONFIG, clock=lambda: self._now)
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
        self._queue.enqueue(written, self._in_time, self._write_again)

    def write_and_enqueue(self) -> None:
        """Do both, with nobody in between."""
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
        """What the manifest names and is not there."""
        return self.named() - self.there()

    def named(self) -> set[str]:
        return {entry.location for entry in Manifest.read(self._memory).entries}

    def there(self) -> set[str]:
        return {meta.path for meta in self._memory.list_objects("ingest") if meta.path.endswith(".batch")}

    def clear_up(self) -> None:
        """All is quiet, and time has passed: let the collector take all that it should.

        On version 2 what is old and queued holds back what is younger, and a floor is carried out a grace period after
        it was set: so first the queue is drained there.
        """
        self.let_pass(2 * GRACE)
        view = self._queue.claim("earliest", None, allow_gap=False)
        self.collect()
        if self._queue.native is not None:
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

    def _in_time(self, entries: Sequence[NewEntry]) -> Sequence[NewEntry]:
        return [entry for entry in entries if self._now < entry.deadline]


def wreak(buffer: Buffer, seed: int, doings: Sequence[str]) -> None:
    """Do random things; after each of them, everything that is named must be there."""
    chance = random.Random(seed)
    done: list[str] = []
    for _ in range(STEPS):
        done.append(chance.choice(doings))
        try:
            getattr(buffer, done[-1])()
        except PenstockError as error:
            done.append(type(error).__name__)
        buffer.let_pass(chance.choice((0.0, 0.0, 1.0, DEADLINE / 2, DEADLINE, GRACE)))
        assert not buffer.missing(), f"seed {seed}: {done}"


SEEDS = [60, pytest.param(10_000, marks=[pytest.mark.chaos, pytest.mark.timeout(1800)])]


@pytest.mark.parametrize("seeds", SEEDS)
def test_nothing_that_is_referenced_or_can_still_be_enqueued_is_deleted(fresh_name: str, seeds: int) -> None:
    for seed in range(seeds):
        buffer = Buffer(fresh_name, seed, set(Fault), HARMLESS_JUMP)
        wreak(buffer, seed, ("write", "enqueue", "enqueue", "dequeue", "collect"))


@pytest.mark.parametrize("seeds", SEEDS)
def test_nothing_that_is_referenced_is_deleted_though_the_stores_clock_jumps_by_days(
    fresh_name: str, seeds: int
) -> None:
    # What is on its way cannot be spared then: so nothing is, and no write comes late.
    for seed in range(seeds):
        buffer = Buffer(fresh_name, seed, set(Fault) - {Fault.LATE}, DAY)
        wreak(buffer, seed, ("write_and_enqueue", "dequeue", "collect"))


@pytest.mark.parametrize("seeds", SEEDS)
def test_when_the_faults_end_all_that_nobody_refers_to_goes(fresh_name: str, seeds: int) -> None:
    for seed in range(seeds):
        buffer = Buffer(fresh_name, seed, set(Fault), HARMLESS_JUMP)
        wreak(buffer, seed, ("write", "enqueue", "enqueue", "dequeue", "collect"))
        with buffer.store.quiet():
            buffer.clear_up()
        assert buffer.there() == buffer.named(), f"seed {seed}"


def test_every_fault_comes_and_objects_are_deleted_all_the_same(fresh_name: str) -> None:
    met: Counter[Fault] = Counter()
    deleted = 0
    for seed in range(200):
        buffer = Buffer(fresh_name, seed, set(Fault), HARMLESS_JUMP)
        wreak(buffer, seed, ("write", "enqueue", "enqueue", "dequeue", "collect"))
        met += buffer.store.met
        deleted += buffer.deleted
    assert set(met) == set(Fault)
    assert deleted > 50


def test_a_cycle_that_fails_raises_an_error_of_ours(fresh_name: str) -> None:
    failed = 0
    for seed in range(100):
        buffer = Buffer(fresh_name, seed, set(Fault), HARMLESS_JUMP)
        try:
            buffer.collect()
        except StorageError:
            failed += 1
    assert failed
