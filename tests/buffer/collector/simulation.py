"""A simulation of producers, consumers and collectors of one buffer, in any order, with pauses and wrong clocks.

The code is the real one: a producer's writing and enqueuing, `Consumer`, `GarbageCollector`, the queue of either
version, `MemoryStore`. Only threads and clocks are simulated; and the head of version 2 is full with a few entries,
so that there are segments.
"""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from penstock.buffer import Consumer, ConsumerConfig, GarbageCollector, Manifest, ProducerConfig
from penstock.buffer.locations import Names, location_time, segment_time
from penstock.buffer.manifest.formats import Formats
from penstock.buffer.manifest.queue import BufferQueue
from penstock.buffer.manifest.v2.head import Head
from penstock.buffer.manifest.v2.segments import Segments
from penstock.errors import NotFound, PenstockError
from penstock.storage import ObjectStore
from penstock.testing import FaultyStore
from tests.buffer.collector.conditions import DEADLINE, FAULTS, GRACE, NATIVE_STEPS, STEPS, Conditions
from tests.buffer.collector.interleaved_store import ChangeTrackingMemory, InterleavedStore
from tests.buffer.collector.interleaving import HOUR, Actor, Ended, Schedule, TracedStep
from tests.buffer.manifest.world import SMALL
from tests.support import manifests
from tests.support.producing import CountingShipper, SteppedProducer

MANIFEST = "ingest/manifest"

Clock: TypeAlias = Callable[[], float]
QueueWith: TypeAlias = Callable[[Clock], BufferQueue]
"""Makes the queue of a producer, with an uptime clock."""

TEN_YEARS = 3_650 * 24 * HOUR

_EPOCH = 1_700_000_000.0


class SimulatedShipper(CountingShipper):
    """The steps of a producer, with a queue whose deadlines are on its own uptime clock."""

    def __init__(
        self, store: ObjectStore, config: ProducerConfig, queue_with: QueueWith, names: Names, uptime: Clock
    ) -> None:
        super().__init__(store, config, queue_with(uptime), names, uptime)


@dataclass(frozen=True)
class Rules:
    """Which code is tested: by default the real one."""

    formats: Formats = field(default_factory=lambda: Formats(limits=SMALL))
    shipper: type[SimulatedShipper] = SimulatedShipper
    config: ConsumerConfig = field(
        default_factory=lambda: ConsumerConfig(gc=False, gc_grace_period=GRACE, enqueue_deadline=DEADLINE)
    )


@dataclass(frozen=True)
class Run:
    """How one seed ended: what was lost, what was not collected, and all steps."""

    seed: int
    lost: str | None
    uncollected: list[str]
    trace: list[TracedStep]
    paused: Counter[tuple[str, str]]
    counts: Counter[str]

    def report(self) -> str:
        """The whole run, for the message of a failed assertion."""
        steps = "\n".join(f"{step.at:>10.3f}  {step.actor:<12} {step.what} {step.path}" for step in self.trace)
        return f"seed {self.seed}: {self.lost or 'nothing lost'}; not collected: {self.uncollected}\n{steps}"


class Simulation:
    """One buffer and all its actors, for one seed."""

    def __init__(self, seed: int, conditions: Conditions, rules: Rules) -> None:
        self._seed = seed
        self._random = random.Random(seed)
        self._conditions = conditions
        self._rules = rules
        self._schedule = Schedule(self._random, conditions.pace(self._random))
        self._store_time = conditions.store_time(self._random)
        self._memory = ChangeTrackingMemory("collector-model", clock=self._store_clock)
        self._memory.delete([meta.path for meta in self._memory.list_objects()])
        self._faulty: FaultyStore | None = None
        if conditions.faults and self._random.random() < 0.4:
            self._faulty = FaultyStore(self._memory, seed, rates=FAULTS, sleep=lambda _: None)
        self._enqueued: dict[bytes, tuple[int, str]] = {}
        self._delivered: set[bytes] = set()
        self._lost: str | None = None
        self._is_native = manifests.current() == "native"
        self._config = replace(rules.config, manifest_format=manifests.current())
        self._floor = 0
        self.counts: Counter[str] = Counter()

    def run(self) -> Run:
        """Run all actors to their end; then collect once more, and see what is not collected."""
        is_old = self._random.random() < 0.3
        if is_old:
            self._memory.put(f"ingest/{0:026}.batch", b"of a producer without an owner, which died")
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
        uncollected = [] if self._lost else self._collect_the_rest()
        return Run(self._seed, self._lost, uncollected, self._schedule.trace, self._schedule.paused, self.counts)

    # The actors.

    def _produce(self, actor: Actor) -> None:
        wall, up = self._clocks(actor)
        store = self._store_for(actor)
        # On version 1 the deadline is what makes a producer safe; on version 2 it may take any time.
        deadline = self._random.choice((DEADLINE, 100 * HOUR)) if self._is_native else DEADLINE
        names = Names(wall)
        shipper = self._rules.shipper(
            store,
            ProducerConfig(enqueue_deadline=deadline),
            lambda uptime: self._queue(store, actor, "producer", wall, uptime, names),
            names,
            up,
        )
        producer = SteppedProducer(shipper, wall)
        for number in range(self._random.randint(1, 3)):
            self._rest(actor)
            payloads = [f"{actor.name} {number} {part}".encode() for part in range(self._random.randint(1, 2))]
            batches = [producer.take(payload) for payload in payloads]
            actor.keeps_turn = not self._conditions.interrupts_producers
            outcomes = producer.ship(batches)
            actor.keeps_turn = False
            for payload, written in zip(payloads, outcomes, strict=True):
                if isinstance(written, PenstockError):
                    self.counts["given up"] += 1
                else:
                    self.counts["enqueued"] += 1
                    self._enqueued[payload] = written.sequence, written.location
        self.counts["written again"] += shipper.written_again

    def _consume(self, actor: Actor) -> None:
        wall, _ = self._clocks(actor)
        for _ in range(self._random.randint(1, 3)):
            self._rest(actor)
            try:
                store = self._store_for(actor)
                queue = self._queue(store, actor, "consumer", wall)
                consumer = Consumer(store, self._config, clock=wall, queue=queue)
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
                self._lose(f"{actor.name} cannot read its entry: {error}")
            except PenstockError:
                self.counts["failed consumers"] += 1

    def _collect(self, actor: Actor) -> None:
        wall, _ = self._clocks(actor)
        collector = self._collector(self._store_for(actor), actor, wall)
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
        """Check that everything that was enqueued and not dequeued is there, with its object."""
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
        """Check that the segments are there, the floor has not fallen, and nothing that is named is below it."""
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
        segments = Segments(self._memory, MANIFEST)
        waiting = list(head.segments)
        while waiting:
            reference = waiting.pop()
            yield reference.name
            if reference.level and f"{MANIFEST}.d/{reference.name}" in self._paths():
                waiting += [child for child in segments.read(reference).references if child.last >= reference.first]

    def _collect_the_rest(self) -> list[str]:
        """After all actors have ended, let time pass, write the manifest, and collect. Return what is left."""
        if self._faulty is not None:
            self._faulty.settle()
        # A clock that leapt sets the floor up to a day ahead of the store's time, and nothing is deleted before that.
        self._schedule.now += 30 * HOUR if self._is_native and self._conditions.leaping_clocks else 3 * GRACE
        consumer = self._consumer(self._memory)
        collector = self._collector(self._memory, None, self._last_clock)
        collector.collect_once()
        # On version 2 queued entries hold back what is younger: there it counts only after the queue is drained.
        referenced = {entry.location for entry in self._manifest().entries}
        uncollected = set() if self._is_native else set(self._data_objects()) - referenced
        try:
            for batch in consumer:
                self._delivered.update(batch.entries)
                batch.ack()
        except NotFound as error:
            self._lost = f"the last consumer cannot read its entry: {error}"
            return sorted(uncollected)
        missing = sorted(set(self._enqueued) - self._delivered)
        if missing:
            self._lost = f"{missing} were enqueued, and no consumer received them"
        for _ in range(3 if self._is_native else 1):  # one sets the floor, one carries it out
            # A minute more: the collector compares dates of the store, whose hosts may differ by that.
            self._schedule.now += GRACE + 60.0 if self._is_native else 0.0
            self._consumer(self._memory)  # writes the manifest, which shows the store's time
            collector.collect_once()
        segments = {path for path in self._paths() if path.endswith(".seg")}
        return sorted(uncollected | set(self._data_objects()) | segments)

    def _lose(self, how: str) -> None:
        self._lost = self._lost or how
        self._schedule.stop()
        raise Ended

    # Stores and clocks.

    def _store_for(self, actor: Actor) -> ObjectStore:
        return InterleavedStore(self._faulty or self._memory, actor.step, self._check)

    def _queue(
        self,
        store: ObjectStore,
        actor: Actor | None,
        role: str,
        clock: Clock,
        uptime: Clock = time.monotonic,
        names: Names | None = None,
    ) -> BufferQueue:
        """A queue for which backing off is a step like any other, and takes no real time."""
        return BufferQueue(
            store,
            MANIFEST,
            role,
            prefix="ingest",
            names=names or Names(clock),
            formats=self._rules.formats,
            clock=clock,
            uptime=uptime,
            sleep=lambda _: None if actor is None else actor.step("back off"),
            sealing_threads=1,
        )

    def _collector(self, store: ObjectStore, actor: Actor | None, clock: Clock) -> GarbageCollector:
        queue = self._queue(store, actor, "consumer", clock)
        return GarbageCollector(store, self._config, clock=clock, queue=queue)

    def _consumer(self, store: ObjectStore) -> Consumer:
        return Consumer(store, self._config, clock=self._store_clock)

    def _manifest(self) -> Manifest:
        return Manifest.read(self._memory, MANIFEST)

    def _paths(self) -> list[str]:
        return [meta.path for meta in self._memory.list_objects()]

    def _data_objects(self) -> list[str]:
        return [path for path in self._paths() if path.endswith(".batch")]

    def _store_clock(self) -> float:
        return _EPOCH + self._store_time(self._schedule.now, self._random)

    def _last_clock(self) -> float:
        """The clock of the last collector, far ahead: on version 2 it must pass what wrong clocks have named.

        A collector trusts it up to a day beyond the store's time, as it trusted the clocks that leapt.
        """
        return _EPOCH + self._schedule.now + 240 * HOUR

    def _clocks(self, actor: Actor) -> tuple[Clock, Clock]:
        """A wall clock that may be hours off, and an exact uptime clock. Reading one is a step."""
        off = self._random.randint(-6, 6) * HOUR if self._conditions.wrong_clocks else 0.0
        leaps = self._random.choice((0.0, 0.2)) if self._conditions.leaping_clocks else 0.0
        booted = self._random.randint(0, 100) * HOUR

        def wall() -> float:
            actor.step("read the wall clock")
            if leaps and self._random.random() < leaps:
                self.counts["wrong for one call"] += 1
                return _EPOCH + self._schedule.now + TEN_YEARS
            return _EPOCH + self._schedule.now + off

        def up() -> float:
            actor.step("read the uptime")
            return booted + self._schedule.now - (actor.suspended if self._conditions.suspend_stops_uptime else 0.0)

        return wall, up


def runs(seeds: Iterable[int], conditions: Conditions | None = None, rules: Rules | None = None) -> Iterator[Run]:
    """Run seed after seed."""
    with in_silence():
        for seed in seeds:
            yield Simulation(seed, conditions or Conditions(), rules or Rules()).run()


def first_loss(conditions: Conditions, rules: Rules, seeds: range = range(600)) -> Run | None:
    """The first of these seeds that loses data: by default as many seeds as any wrong rule needs."""
    return next((run for run in runs(seeds, conditions, rules) if run.lost), None)


@contextmanager
def in_silence() -> Iterator[None]:
    """Do not log the thousands of failures that are injected."""
    log = logging.getLogger("penstock")
    before = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(before)
