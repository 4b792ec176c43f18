"""Producers, consumers and collectors of one buffer, in any order, with pauses and crooked clocks: what must hold.

The code is the real one: `Producer`'s own writing and enqueuing, `Consumer`, `GarbageCollector`, the queue of
either version, `MemoryStore`. Only threads and clocks are the model's; and the head of version 2 is full with a few
entries, so that there are segments.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias
from unittest.mock import patch

from penstock.buffer import Consumer, ConsumerConfig, GarbageCollector, Manifest, Producer, ProducerConfig
from penstock.buffer.locations import Names, location_time
from penstock.buffer.manifest.cas import ManifestObject
from penstock.buffer.manifest.v2.head import Head
from penstock.buffer.manifest.v2.segments import Segments, segment_time
from penstock.buffer.producer.pending_batch import PendingBatch
from penstock.errors import NotFound, PenstockError
from penstock.storage import ObjectStore
from penstock.testing import FaultyStore
from tests.buffer.collector.baton import HOUR, Actor, Happened, Over, Schedule
from tests.buffer.collector.stepped_store import SteppedStore, WatchedMemory
from tests.buffer.collector.weather import DEADLINE, FAULTS, GRACE, NATIVE_STEPS, STEPS, Weather
from tests.buffer.manifest.world import small_bounds
from tests.support import manifests

MANIFEST = "ingest/manifest"

Clock: TypeAlias = Callable[[], float]
MakeCollector: TypeAlias = Callable[[ObjectStore, ConsumerConfig, Clock], GarbageCollector]

TEN_YEARS = 3_650 * 24 * HOUR

_EPOCH = 1_700_000_000.0


class SteppedProducer(Producer):
    """A producer without threads: whoever has it does the work of all of them, in order."""

    written_again = 0

    def _start(self) -> None:
        self._is_stopped = True  # so that its loops end when there is nothing left to do

    def _put(self, batch: PendingBatch, floor: int) -> None:
        self.written_again += bool(batch.location)
        super()._put(batch, floor)

    def work_off(self) -> None:
        """Write and enqueue everything that was sealed, as its threads would."""
        self._write_batches()
        self._enqueue_batches()

    def seal(self) -> None:
        """End the open batch."""
        with self._lock:
            self._seal()


@dataclass(frozen=True)
class Rules:
    """Which code is on trial: by default the real one."""

    collector: MakeCollector = lambda store, config, clock: GarbageCollector(store, config, clock=clock)
    producer: type[SteppedProducer] = SteppedProducer
    config: ConsumerConfig = field(
        default_factory=lambda: ConsumerConfig(gc=False, gc_grace_period=GRACE, enqueue_deadline=DEADLINE)
    )


@dataclass(frozen=True)
class Run:
    """How one seed ended: what was lost, what was left lying about, and how it came to that."""

    seed: int
    lost: str | None
    litter: list[str]
    trace: list[Happened]
    paused: Counter[tuple[str, str]]
    counts: Counter[str]

    def story(self) -> str:
        """The whole run, for whoever has to find out."""
        steps = "\n".join(f"{step.at:>10.3f}  {step.who:<12} {step.what} {step.whom}" for step in self.trace)
        return f"seed {self.seed}: {self.lost or 'nothing lost'}; litter: {self.litter}\n{steps}"


class World:
    """One buffer, and everybody who works on it, for one seed."""

    def __init__(self, seed: int, weather: Weather, rules: Rules) -> None:
        self._seed = seed
        self._random = random.Random(seed)
        self._weather = weather
        self._rules = rules
        self._schedule = Schedule(self._random, weather.pace(self._random))
        self._store_time = weather.store_time(self._random)
        self._memory = WatchedMemory("collector-model", clock=self._store_clock)
        self._memory.delete([meta.path for meta in self._memory.list_objects()])
        self._faulty: FaultyStore | None = None
        if weather.faults and self._random.random() < 0.4:
            self._faulty = FaultyStore(self._memory, seed, rates=FAULTS, sleep=lambda _: None)
        self._enqueued: dict[bytes, tuple[int, str]] = {}
        self._delivered: set[bytes] = set()
        self._lost: str | None = None
        self._is_native = manifests.current() == "native"
        self._floor = 0
        self.counts: Counter[str] = Counter()

    def run(self) -> Run:
        """Let everybody work to the end of their wishes; then let it be quiet, and look at what is left."""
        is_old = self._random.random() < 0.3
        if is_old:
            self._memory.put(f"ingest/{0:026}.batch", b"of somebody who knows no owners, and died")
        self._schedule.now += 2 * GRACE
        if self._random.random() < 0.5:
            self._consumer(self._memory)
        roles = (
            ("producer", self._produce, 0 if is_old else 1, 3),
            ("consumer", self._consume, 0, 2),
            ("collector", self._collect, 1, 2),
        )
        for role, work, least, most in roles:
            for number in range(self._random.randint(least, most)):
                steps = NATIVE_STEPS[role] if self._is_native else STEPS[role]
                often_before = tuple(self._random.sample(steps, self._random.randint(1, 4)))
                self._schedule.add(f"{role}-{number}", work, often_before)
        self._schedule.run()
        litter = [] if self._lost else self._clear_up()
        return Run(self._seed, self._lost, litter, self._schedule.trace, self._schedule.paused, self.counts)

    # The actors.

    def _produce(self, actor: Actor) -> None:
        wall, up = self._clocks(actor)
        store = self._store_for(actor)
        # What makes version 1 safe is the deadline; on version 2 a producer may take as long as it likes.
        deadline = self._random.choice((DEADLINE, 100 * HOUR)) if self._is_native else DEADLINE
        producer = self._rules.producer(store, ProducerConfig(enqueue_deadline=deadline), clock=wall, uptime=up)
        for number in range(self._random.randint(1, 3)):
            self._rest(actor)
            handles = {}
            for part in range(self._random.randint(1, 2)):
                payload = f"{actor.name} {number} {part}".encode()
                handles[payload] = producer.produce(payload)
                producer.seal()
            actor.keeps_baton = not self._weather.interrupts_producers
            producer.work_off()
            actor.keeps_baton = False
            for payload, handle in handles.items():
                try:
                    written = handle.result(0)
                except PenstockError:
                    self.counts["given up"] += 1
                else:
                    self.counts["enqueued"] += 1
                    self._enqueued[payload] = written.sequence, written.location
        self.counts["written again"] += producer.written_again

    def _consume(self, actor: Actor) -> None:
        wall, _ = self._clocks(actor)
        for _ in range(self._random.randint(1, 3)):
            self._rest(actor)
            try:
                consumer = Consumer(self._store_for(actor), self._rules.config, clock=wall)
                for _ in range(self._random.randint(0, 4)):
                    batch = consumer.next_batch()
                    if batch is None:
                        self._rest(actor)
                        continue
                    self._delivered.update(batch.entries)
                    if self._random.random() < 0.7:
                        batch.ack()
                        self.counts["acked"] += 1
            except NotFound as error:
                self._lose(f"{actor.name} cannot have its entry: {error}")
            except PenstockError:
                self.counts["failed consumers"] += 1

    def _collect(self, actor: Actor) -> None:
        wall, _ = self._clocks(actor)
        collector = self._rules.collector(self._store_for(actor), self._rules.config, wall)
        for _ in range(self._random.randint(2, 10)):
            self._rest(actor)
            try:
                self.counts["collected"] += collector.collect_once().deleted
            except PenstockError:
                self.counts["failed cycles"] += 1

    def _rest(self, actor: Actor) -> None:
        actor.rest(self._random.choice((0.0, *self._schedule.pace.pauses)))

    # What must hold.

    def _check(self) -> None:
        """Look whether everything that was enqueued and not dequeued is there, with its object."""
        if not self._memory.changed:
            return
        self._memory.changed = False
        manifest = self._manifest()
        there = {meta.path for meta in self._memory.list_objects()}
        if manifest.head is not None:
            self._check_head(manifest.head, there)
        gone = [entry.location for entry in manifest.entries if entry.location not in there]
        if gone:
            self._lose(f"the manifest names {gone}, and there is no such object")
        named = {entry.sequence: entry.location for entry in manifest.entries}
        first = manifest.next_sequence - len(manifest.entries)
        for sequence, location in self._enqueued.values():
            if sequence >= first and named.get(sequence) != location:
                self._lose(f"{location} was enqueued as {sequence}, and there the manifest names {named.get(sequence)}")

    def _check_head(self, head: Head, there: set[str]) -> None:
        """Look whether the segments are there, the floor has not fallen, and nothing that is named is below it."""
        named = {f"{MANIFEST}.d/{name}": segment_time(name) for name in self._segment_names(head)}
        gone = sorted(named.keys() - there)
        if gone:
            self._lose(f"the head names {gone}, and there is no such segment")
        named |= {entry.location: location_time(entry.location) for entry in self._manifest().entries}
        below = sorted(path for path, at in named.items() if not head.may_name(at))
        if below:
            self._lose(f"the head names {below}, and its floor is {head.floor}, its closed ranges are {head.closed}")
        self.counts["closed"] += len(head.closed)
        if head.floor < self._floor:
            self._lose(f"the floor fell from {self._floor} to {head.floor}")
        self._floor = head.floor

    def _segment_names(self, head: Head) -> Iterator[str]:
        segments = Segments(self._memory, MANIFEST, Names())
        waiting = list(head.segments)
        while waiting:
            reference = waiting.pop()
            yield reference.name
            if reference.level and f"{MANIFEST}.d/{reference.name}" in self._paths():
                waiting += [child for child in segments.read(reference).references if child.last >= reference.first]

    def _clear_up(self) -> list[str]:
        """All is quiet, time has passed, the manifest is written once more: now the collector takes all it should."""
        if self._faulty is not None:
            self._faulty.settle()
        # A floor of a clock that leapt is set up to a day ahead of the store's time, and nothing goes before that.
        self._schedule.now += 30 * HOUR if self._is_native and self._weather.leaping_clocks else 3 * GRACE
        consumer = self._consumer(self._memory)
        collector = self._rules.collector(self._memory, self._rules.config, self._last_clock)
        collector.collect_once()
        # On version 2 what is queued holds back what is younger: there it can be told when the queue is drained.
        referenced = {entry.location for entry in self._manifest().entries}
        litter = set() if self._is_native else set(self._data_objects()) - referenced
        try:
            for batch in consumer:
                self._delivered.update(batch.entries)
                batch.ack()
        except NotFound as error:
            self._lost = f"the last consumer cannot have its entry: {error}"
            return sorted(litter)
        missing = sorted(set(self._enqueued) - self._delivered)
        if missing:
            self._lost = f"{missing} were enqueued, and nobody ever got them"
        for _ in range(3 if self._is_native else 1):  # one sets the floor, one carries it out
            # A minute more, for the collector goes by the store's dates, and the hosts of one may differ by that.
            self._schedule.now += GRACE + 60.0 if self._is_native else 0.0
            self._consumer(self._memory)  # a sign of the store's life
            collector.collect_once()
        return sorted(litter | set(self._data_objects()) | {path for path in self._paths() if path.endswith(".seg")})

    def _lose(self, how: str) -> None:
        self._lost = self._lost or how
        self._schedule.stop()
        raise Over

    # Stores and clocks.

    def _store_for(self, actor: Actor) -> ObjectStore:
        return SteppedStore(self._faulty or self._memory, actor.step, self._check)

    def _consumer(self, store: ObjectStore) -> Consumer:
        return Consumer(store, self._rules.config, clock=self._store_clock)

    def _manifest(self) -> Manifest:
        return Manifest.read(self._memory, MANIFEST)

    def _paths(self) -> list[str]:
        return [meta.path for meta in self._memory.list_objects()]

    def _data_objects(self) -> list[str]:
        return [path for path in self._paths() if path.endswith(".batch")]

    def _store_clock(self) -> float:
        return _EPOCH + self._store_time(self._schedule.now, self._random)

    def _last_clock(self) -> float:
        """The clock of the last collector: version 2 goes by it, and has to wait for what crooked clocks have named.

        It is believed for a day beyond the store's time, as the clocks were that leapt.
        """
        return _EPOCH + self._schedule.now + 240 * HOUR

    def _clocks(self, actor: Actor) -> tuple[Clock, Clock]:
        """A wall clock that may be hours off, and an uptime clock that is as exact as any. Reading one is a step."""
        off = self._random.randint(-6, 6) * HOUR if self._weather.crooked_clocks else 0.0
        leaps = self._random.choice((0.0, 0.2)) if self._weather.leaping_clocks else 0.0
        booted = self._random.randint(0, 100) * HOUR

        def wall() -> float:
            actor.step("read the wall clock")
            if leaps and self._random.random() < leaps:
                self.counts["wrong for one call"] += 1
                return _EPOCH + self._schedule.now + TEN_YEARS
            return _EPOCH + self._schedule.now + off

        def up() -> float:
            actor.step("read the uptime")
            return booted + self._schedule.now - (actor.suspended if self._weather.suspend_stops_uptime else 0.0)

        return wall, up


def runs(seeds: Iterable[int], weather: Weather = Weather(), rules: Rules = Rules()) -> Iterator[Run]:  # noqa: B008  frozen
    """Run seed after seed."""
    with _as_steps(), small_bounds():
        for seed in seeds:
            yield World(seed, weather, rules).run()


@contextmanager
def in_silence() -> Iterator[None]:
    """What goes wrong on purpose, thousands of times, is not logged."""
    log = logging.getLogger("penstock")
    before = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(before)


@contextmanager
def _as_steps() -> Iterator[None]:
    """Backing off is a step like any other, and takes no real time."""

    def pauses(_: ManifestObject) -> Iterator[None]:
        while True:
            actor = Actor.current()
            if actor is not None:
                actor.step("back off")
            yield

    with patch.object(ManifestObject, "pauses", pauses), in_silence():
        yield
