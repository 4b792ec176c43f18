"""Producers' queues and consumers' queues on one manifest, whose store goes wrong; one thread, all from a seed.

While one of them is in the middle of a call, another one takes a whole step of its own: where the faults let a third
party in, and where a queue pauses before it tries again. A step meets faults too, wherever it is taken.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from penstock import metrics
from penstock.buffer.descriptors import NewEntry
from penstock.buffer.manifest.formats import Formats
from penstock.buffer.manifest.queue import BufferQueue
from penstock.buffer.measures import label_of
from penstock.errors import Fenced, InvalidInput, StorageError
from penstock.storage import MemoryStore
from penstock.testing import Fault, FaultyStore
from tests.buffer.manifest.faults import oracle
from tests.buffer.manifest.faults.recording import Ledger, Read, Watch
from tests.support.enqueuing import Shipment

PRODUCERS, CONSUMERS, STEPS = 3, 3, 7
DEEPEST = 3
RATES = (0.0, 0.05, 0.05, 0.15, 0.35)


@dataclass(frozen=True)
class Rules:
    """Which code is on trial: by default the real one."""

    queue: type[BufferQueue] = BufferQueue
    formats: Formats = field(default_factory=Formats)


def in_doubt(label: str) -> int:
    """How many batches of a buffer were counted as enqueued in doubt so far."""
    return int(next(iter(metrics.buffer_enqueue_in_doubt.labels(label).collect())).samples[0].value)


@dataclass(eq=False)
class Actor:
    """A queue of one role, with what its calls saw."""

    name: str
    watch: Watch
    queue: BufferQueue
    label: str
    epoch: int | None = None
    calls: list[oracle.Enqueued] = field(default_factory=list)


@dataclass(frozen=True)
class Outcome:
    """What was wrong in a run, if anything, and what came up in it."""

    complaints: list[str]
    met: Counter[tuple[str, Fault]]
    events: Counter[str]


class World:
    """One run. What is delivered to `sink` is what an application would have got, by its sequence."""

    def __init__(self, seed: int, below: MemoryStore, rules: Rules) -> None:
        path = f"{seed}/manifest"
        self._random = random.Random(seed)
        self._ledger = Ledger(below, path)
        self._faulty = FaultyStore(
            self._ledger,
            seed,
            rates={fault: self._random.choice(RATES) for fault in Fault},
            third_party=lambda store, path: self._others_act(),
            sleep=lambda _: None,
        )
        self._now = 0.0  # goes on with each look at it
        self._short_deadlines = self._random.choice((0.0, 0.0, 0.3))
        self._producers = [self._actor(f"simulated-producer-{n}", path, rules) for n in range(PRODUCERS)]
        self._consumers = [self._actor(f"simulated-consumer-{n}", path, rules) for n in range(CONSUMERS)]
        self._last = self._actor("simulated-consumer-at-the-end", path, rules)
        self._busy: list[tuple[Actor, str]] = []
        self._met_before = self._faulty.met
        self._numbers = 0
        self.sink: list[str] = []
        self.grants: list[int] = []
        self.complaints: list[str] = []
        self.met: Counter[tuple[str, Fault]] = Counter()
        self.events: Counter[str] = Counter()

    def _actor(self, name: str, path: str, rules: Rules) -> Actor:
        watch = Watch(self._faulty, f"memory://{name}")
        queue = rules.queue(
            watch,
            path,
            name.split("-")[1],
            "opendata",
            formats=rules.formats,
            sleep=self._pause,
            jitter=self._random.random,
            uptime=self._tick,
        )
        return Actor(name, watch, queue, label_of(watch, path))

    def _tick(self) -> float:
        self._now += 1.0
        return self._now

    def run(self) -> Outcome:
        """Let everybody act, then let what is late arrive, read what is left, and look at the whole."""
        for _ in range(STEPS):
            self._step()
        with self._faulty.quiet():
            self._claim(self._last, None)
            self._read(self._last, most=len(self._ledger.all_locations()))
        self.complaints += oracle.wrong_with_history(self._ledger)
        self.complaints += self._wrong_with_the_whole()
        return Outcome(self.complaints, self.met, self.events)

    def _step(self) -> None:
        busy = [actor for actor, _ in self._busy]
        producers = [actor for actor in self._producers if actor not in busy]
        consumers = [actor for actor in self._consumers if actor not in busy]
        dice = self._random.random()
        if dice < 0.5 and producers:
            self._enqueue(self._random.choice(producers))
        elif consumers:
            # Mostly the consumer with the epoch acts; a takeover, or a fenced consumer, comes now and then.
            actor = max(consumers, key=lambda one: -1 if one.epoch is None else one.epoch)
            self._consume(actor if dice < 0.9 else self._random.choice(consumers))

    def _consume(self, actor: Actor) -> None:
        if actor.epoch is None or self._random.random() < 0.05:
            self._claim(actor, self._random.choice((None, len(self.sink) - 1)) if self.sink else None)
        else:
            self._read(actor, self._random.randint(0, 9))
        if actor.epoch is not None and self.sink and self._random.random() < 0.8:
            self._dequeue(actor, self._random.randrange(max(0, len(self.sink) - 2), len(self.sink)))

    def _others_act(self) -> None:
        if len(self._busy) < DEEPEST:
            for _ in range(self._random.choice((1, 1, 2))):
                self._step()

    def _pause(self, _: float) -> None:
        if self._random.random() < 0.2:
            self._others_act()

    @contextmanager
    def _acting(self, actor: Actor, operation: str) -> Iterator[None]:
        actor.watch.events.clear()
        self._attribute()
        self._busy.append((actor, operation))
        try:
            yield
        finally:
            self._attribute()
            self._busy.pop()

    def _attribute(self) -> None:
        """Count the faults since the last call for the actor whose turn it was."""
        met = self._faulty.met
        if self._busy:
            for fault, times in (met - self._met_before).items():
                self.met[self._busy[-1][1], fault] += times
        self._met_before = met

    def _enqueue(self, actor: Actor) -> None:
        given = tuple(
            f"ingest/{actor.name}-{self._numbers + n}.batch" for n in range(self._random.choice((1, 1, 2, 3)))
        )
        self._numbers += len(given)
        shipment = Shipment([NewEntry(location, (), self._deadline()) for location in given])
        before = in_doubt(actor.label)
        answer: dict[str, int] | None = None
        with self._acting(actor, "enqueue"):
            try:
                answer = dict(shipment.enqueue(actor.queue).sequences)
            except StorageError:
                self.events["an enqueue failed"] += 1
        counted = in_doubt(actor.label) - before
        in_time = tuple(entry.location for entry in shipment.entries)
        call = oracle.Enqueued(given, in_time, tuple(actor.watch.events), answer, counted)
        self.complaints += oracle.wrong_with_enqueue(call, self._ledger)
        actor.calls.append(call)
        self.events["an entry was too late"] += len(shipment.late)
        self.events["an enqueue was in doubt"] += counted > 0
        self.events["an enqueue was seen to have happened"] += bool(answer) and isinstance(call.events[-1], Read)

    def _deadline(self) -> float:
        is_short = self._random.random() < self._short_deadlines
        return self._now + self._random.randint(1, 20) if is_short else math.inf

    def _claim(self, actor: Actor, last_acked: int | None) -> None:
        error = epoch = None
        with self._acting(actor, "claim"):
            try:
                epoch = actor.epoch = actor.queue.claim("earliest", last_acked, allow_gap=False).epoch
                self.grants.append(epoch)
            except (StorageError, InvalidInput) as raised:
                error = type(raised).__name__
                self.events[f"a claim met {error}"] += 1
        call = oracle.Claimed(last_acked, tuple(actor.watch.events), epoch, error)
        self.complaints += oracle.wrong_with_claim(call, self._ledger)

    def _read(self, actor: Actor, most: int) -> None:
        def deliver(epoch: int) -> str | None:
            found = actor.queue.read(epoch, fresh=self._random.random() < 0.2)
            for entry in found.entries(len(self.sink), len(self.sink) + most):
                if entry.sequence != len(self.sink):
                    self.complaints.append(f"gap: {entry.sequence} came where {len(self.sink)} was due")
                self.sink.append(entry.location)
            return found.version

        self._under_epoch(actor, "read", None, deliver)

    def _dequeue(self, actor: Actor, through: int) -> None:
        self._under_epoch(actor, "dequeue", through, lambda epoch: actor.queue.dequeue(epoch, through).version)

    def _under_epoch(
        self, actor: Actor, operation: str, through: int | None, work: Callable[[int], str | None]
    ) -> None:
        epoch, version, error = actor.epoch, None, None
        assert epoch is not None
        with self._acting(actor, operation):
            try:
                version = work(epoch)
            except (Fenced, StorageError) as raised:
                error = type(raised).__name__
                actor.epoch = None if isinstance(raised, Fenced) else epoch
                self.events[f"a {operation} met {error}"] += 1
        call = oracle.Dequeued(epoch, through, tuple(actor.watch.events), version, error)
        self.complaints += oracle.wrong_with_dequeue(call, self._ledger)

    def _wrong_with_the_whole(self) -> Iterator[str]:
        there = self._ledger.all_locations()
        if len(self.grants) != len(set(self.grants)):
            yield f"two consumers with one epoch: {self.grants}"
        if self.sink != there:
            yield f"delivery: {self.sink} came, and {there} was enqueued"
        times = Counter(there)
        for producer in self._producers:
            numbers = {location: number for number, call in enumerate(producer.calls) for location in call.given}
            order = [numbers[location] for location in there if location in numbers]
            if order != sorted(order):
                yield f"order: the entries of {producer.name} came as those of its calls {order}"
            for call in producer.calls:
                for location, sequence in (call.answer or {}).items():
                    if there[sequence : sequence + 1] != [location]:
                        yield f"lost: {location} was reported at {sequence}"
                repeated = sum(times[location] - 1 for location in call.given if location in times)
                if repeated > call.counted:
                    yield f"twice: of {call.given} {repeated} came again, and {call.counted} were counted"
                self.events["an entry came again"] += repeated


def run(seed: int, below: MemoryStore, rules: Rules = Rules()) -> Outcome:  # noqa: B008  frozen
    """Run a world, and leave nothing of it behind."""
    outcome = World(seed, below, rules).run()
    below.delete([f"{seed}/manifest"])
    return outcome
