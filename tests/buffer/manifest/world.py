"""Producers, writers with names, groups, administrators and collectors of one buffer, whose store goes wrong.

One thread, all from a seed: also the names of objects and writers, and every clock. Before and after every call to the
store other hosts may take whole steps, hours may pass, and the host in the call may die; every host has a clock of its
own, wrong by up to a day, and in some worlds by ten years for single calls. The code is the real one down to the store;
the limits of the head are small, so that everything is sealed and folded all the time.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from penstock.buffer.collector.collector import GarbageCollector
from penstock.buffer.config import ConsumerConfig
from penstock.buffer.descriptors import Metadata, NewEntry
from penstock.buffer.locations import Names
from penstock.buffer.manifest.formats import Formats
from penstock.buffer.manifest.queue import BufferQueue
from penstock.buffer.manifest.state import DEFAULT_GROUP, Limits, Transaction
from penstock.errors import Fenced, InvalidInput, NotFound, StorageError
from penstock.storage import DeleteResult, MemoryStore, ObjectMeta, ObjectStore
from penstock.storage.object_store import Data
from penstock.testing import Fault, FaultyStore
from tests.buffer.manifest.auditor import MANIFEST, Auditor
from tests.support.enqueuing import Shipment
from tests.support.minimal_stores import Answer, StoreCall, ThinStore

GRACE = 600.0
DAY = 86_400.0
GROUPS = (DEFAULT_GROUP, "audit", "late")
STEPS = 24
DEEPEST = 3
RATES = (0.0, 0.0, 0.03, 0.1, 0.25)
LEAPS = (40 * DAY, 3_650 * DAY, -3_650 * DAY)
SKEWS = (0.0, 0.0, 0.0, 3.0, -3.0, 900.0, -900.0, DAY, -DAY)


class Died(BaseException):
    """A process is gone, in the middle of whatever it did."""


SMALL = Limits(tail_entries=3, references=4, segment_entries=4, unnamed_writers=3)
"""A head that is full with a few entries."""


@dataclass(frozen=True)
class Rules:
    """Which code is on trial: by default the real one."""

    formats: Formats = field(default_factory=lambda: Formats(limits=SMALL))
    store: Callable[[ObjectStore], ObjectStore] = lambda store: store
    writer_of_checkpoint: Callable[[int], str] = "query-{}".format


@dataclass(eq=False)
class Host:
    """A process: its view of the store, its clock, and what it is in the middle of."""

    name: str
    store: ObjectStore
    clock: Callable[[], float]
    queue: BufferQueue
    names: Names
    epoch: int | None = None
    cursor: int | None = None
    group: str = DEFAULT_GROUP
    is_busy: bool = False


@dataclass
class Call:
    """One enqueue: what it was to append, and whether it is known to have happened."""

    payloads: tuple[str, ...]
    succeeded: bool = False
    places: dict[str, int] = field(default_factory=dict)


class Interrupted(ThinStore):
    """A host's way to the store: before and after each call the world goes on. `note` gets each call and answer."""

    def __init__(self, below: ObjectStore, between: Callable[[], None], note: Callable[[str], None]) -> None:
        super().__init__(below)
        self._between = between
        self._note = note

    def list_objects(self, prefix: str = "") -> Iterator[ObjectMeta]:
        return iter(self.around(StoreCall("list_objects", prefix), lambda: list(self.below.list_objects(prefix))))

    def around(self, call: StoreCall, pass_on: Callable[[], Answer]) -> Answer:
        self._between()
        self._note(f"{call.operation} {call.path} {call.data!r}")
        try:
            answer = pass_on()
        except Exception as error:
            self._note(type(error).__name__)
            raise
        self._note(type(answer).__name__)
        self._between()
        return answer


class Watched(MemoryStore):
    """The store itself: it shows the auditor each head that is really written, and each delete."""

    auditor: Auditor

    def put_if_absent(self, path: str, data: Data) -> str:
        return self._watched(path, super().put_if_absent(path, data))

    def put_if_match(self, path: str, data: Data, version: str) -> str:
        return self._watched(path, super().put_if_match(path, data, version))

    def delete(self, paths: Iterable[str]) -> list[DeleteResult]:
        gone = super().delete(paths)
        missing = self.auditor.missing()
        if missing:
            self.auditor.complaints.append(f"deleted, and named: {missing}")
        return gone

    def _watched(self, path: str, version: str) -> str:
        if path == MANIFEST:
            self.auditor.look()
        return version


class World:
    """One run."""

    def __init__(self, seed: int, rules: Rules) -> None:
        self._random = random.Random(seed)
        self._randomness = random.Random(seed).randbytes  # of its own: a name more does not change what happens
        self._rules = rules
        self._trace = hashlib.sha256()
        self.now = 1_700_000_000.0
        self.memory = Watched(f"native-world-{seed}", clock=lambda: self.now)
        self.auditor = self.memory.auditor = Auditor(self.memory)
        self.faulty = FaultyStore(
            self.memory,
            seed,
            rates={fault: self._random.choice(RATES) for fault in Fault},
            sleep=lambda _: None,
            clock=lambda: self.now,
        )
        self._hosts = itertools.count()
        self._numbers = itertools.count()
        self._depth = 0
        self._is_quiet = False
        self._deaths = self._random.choice((0.0, 0.0, 0.002, 0.01))
        self._busyness = self._random.choice((0.0, 0.02, 0.08))
        self._leaps = self._random.choice((0.0, 0.0, 0.1, 0.4))
        self._short_deadlines = self._random.choice((0.0, 0.0, 0.1))
        self.payloads: dict[str, str] = {}
        self.calls: list[tuple[str, Call]] = []
        self.blocks: list[Call] = []
        self._checkpoint = self._in_checkpoint = 0
        self.complaints: list[str] = []
        self.events: Counter[str] = Counter()
        self.producers = [self._host("producer") for _ in range(3)]
        self.writer = self._host("writer")
        self.consumers = [self._host("consumer", group) for group in GROUPS for _ in range(2)]
        self.administrator = self._host("administrator")
        self.collectors = [self._host("collector") for _ in range(2)]

    def run(self) -> Outcome:
        """Let everybody act, then let what is late arrive, read what is left, and look at the whole."""
        steps = (
            (8, lambda: self._with(self.producers, self._produce)),
            (3, lambda: self._with([self.writer], self._append)),
            (10, lambda: self._with(self.consumers, self._consume)),
            (2, lambda: self._with([self.administrator], self._administer)),
            (3, lambda: self._with(self.collectors, self._collect)),
        )
        self._weights = [weight for weight, _ in steps]
        self._choices: list[Callable[[], None]] = [step for _, step in steps]
        for _ in range(STEPS):
            self._step()
        self._is_quiet = True
        with self.faulty.quiet():
            for group in list(self.auditor.head.groups) if self.auditor.head else ():
                host = self._host("consumer", group)
                self._consume(host)
                self._consume(host, everything=True)
        self.complaints += self.auditor.complaints
        self.complaints += self._wrong_with_the_whole()
        self.events += self.faulty_events()
        return Outcome(self.complaints, self.events, self._trace.hexdigest())

    def faulty_events(self) -> Counter[str]:
        return Counter({f"fault {fault.name}": times for fault, times in self.faulty.met.items()})

    # Time, and who acts when.

    def _host(self, kind: str, group: str = DEFAULT_GROUP) -> Host:
        name, skew = f"{kind}-{next(self._hosts)}", self._random.choice(SKEWS)

        def clock() -> float:
            if self._is_quiet or self._random.random() >= self._leaps:
                return self.now + skew
            self.events["a clock was wrong for one call"] += 1
            return self.now + self._random.choice(LEAPS)

        store = Interrupted(self.faulty, self._between, lambda what: self._note(f"{name} {what}"))
        names = Names(clock, self._randomness)
        queue = BufferQueue(
            self._rules.store(store),
            MANIFEST,
            kind,
            "native",
            names=names,
            group=group,
            owner=name,
            formats=self._rules.formats,
            clock=clock,
            uptime=lambda: self.now,
            sleep=self._pause,
            jitter=self._random.random,
            sealing_threads=1,
        )
        return Host(name, store, clock, queue, names, group=group)

    def _note(self, what: str) -> None:
        self._trace.update(f"{self.now!r} {what}\n".encode())

    def _between(self) -> None:
        self.now += self._random.random()
        if self._is_quiet:
            return
        dice = self._random.random()
        if dice < 0.02:
            self.now += self._random.choice((GRACE, 3 * GRACE, DAY))
            self.events["a long pause"] += 1
        if dice < self._busyness:
            self._others_act()
        if self._random.random() < self._deaths:
            raise Died

    def _pause(self, _: float) -> None:
        if not self._is_quiet and self._random.random() < self._busyness * 2:
            self._others_act()

    def _others_act(self) -> None:
        if self._depth < DEEPEST:
            for _ in range(self._random.choice((1, 1, 2))):
                self._step()

    def _step(self) -> None:
        (step,) = self._random.choices(self._choices, self._weights)
        step()

    def _with(self, hosts: list[Host], work: Callable[[Host], None]) -> None:
        """Let one of the hosts work that is in no call. One that dies is another when it comes back."""
        free = [place for place, host in enumerate(hosts) if not host.is_busy]
        if not free:
            return
        place = self._random.choice(free)
        host = hosts[place]
        host.is_busy = True
        self._depth += 1
        try:
            work(host)
        except Died:
            self.events["a death"] += 1
            hosts[place] = self._host(host.name.split("-")[0], host.group)
            if host is self.writer:
                self.writer = hosts[place]
        finally:
            self._depth -= 1
            host.is_busy = False

    # Producers.

    def _put(self, host: Host, payload: str, floor: int) -> str:
        location = host.names.location("ingest", floor)
        self.payloads[location] = payload
        for remaining in reversed(range(5)):
            try:
                host.store.put(location, payload.encode())
            except StorageError:
                if not remaining:
                    raise
            else:
                break
        return location

    def _enqueue(self, host: Host, call: Call, by: Transaction | None) -> None:
        def rewrite(entry: NewEntry, floor: int) -> NewEntry:
            self.events["an object was written again"] += 1
            return replace(entry, location=self._put(host, self.payloads[entry.location], floor))

        try:
            shipment = Shipment([self._entry(host, payload, by) for payload in call.payloads], rewrite)
            done = shipment.enqueue(host.queue, by)
        except StorageError as error:
            self.events[f"an enqueue met {type(error).__name__}"] += 1
            return
        call.places.update(done.sequences)
        call.succeeded = call.succeeded or done.was_there or (done.appended and not shipment.late)
        self.events["a block was there already"] += done.was_there
        self.events["an entry was too late"] += len(shipment.late)

    def _entry(self, host: Host, payload: str, by: Transaction | None) -> NewEntry:
        location = self._put(host, payload, host.queue.floor)
        is_short = by is None and self._random.random() < self._short_deadlines
        deadline = self.now + self._random.uniform(0.0, 6.0) if is_short else math.inf
        return NewEntry(location, (Metadata(0, 0),), deadline, len(payload), 1)

    def _produce(self, host: Host) -> None:
        count = self._random.choice((1, 1, 1, 2, 5))
        call = Call(tuple(f"{host.name}/{next(self._numbers)}" for _ in range(count)))
        self.calls.append((host.name, call))
        self._enqueue(host, call, None)

    def _append(self, host: Host) -> None:
        """The next block of a query, or the last one again: as it does where it does not know.

        Now and then its checkpoint is deleted: the next one is at the same place, and counts from 0.
        """
        if self._in_checkpoint and self._random.random() < 0.1:
            self._checkpoint, self._in_checkpoint = self._checkpoint + 1, 0
            self.events["a checkpoint was deleted"] += 1
        if not self._in_checkpoint or (self.blocks[-1].succeeded and self._random.random() < 0.7):
            number, count = len(self.blocks), self._random.choice((1, 2, 4))
            self.blocks.append(Call(tuple(f"block-{number}/{place}" for place in range(count))))
            self._in_checkpoint += 1
        writer = self._rules.writer_of_checkpoint(self._checkpoint)
        self._enqueue(host, self.blocks[-1], Transaction(writer, self._in_checkpoint - 1))

    # Consumers.

    def _consume(self, host: Host, everything: bool = False) -> None:
        try:
            if host.epoch is None:
                self._claim(host)
            else:
                self._read(host, 1_000 if everything else self._random.randint(0, 6))
        except Fenced:
            self.events["a consumer was fenced"] += 1
            host.epoch = None
        except InvalidInput:
            self.events["a group could not begin there"] += 1
        except StorageError as error:
            self.events[f"a consumer met {type(error).__name__}"] += 1

    def _claim(self, host: Host) -> None:
        start = self._random.choice(("earliest", "earliest", "latest", self._random.randint(0, 20)))
        view = host.queue.claim("earliest" if self._is_quiet else start, None, allow_gap=False)
        host.epoch, host.cursor = view.epoch, view.first_sequence - 1

    def _read(self, host: Host, most: int) -> None:
        assert host.epoch is not None
        assert host.cursor is not None
        view = host.queue.read(host.epoch)
        for entry in view.entries(host.cursor + 1, host.cursor + 1 + most):
            if entry.sequence != host.cursor + 1:
                self.complaints.append(f"{host.name} was handed {entry.sequence} where {host.cursor + 1} was due")
            try:
                data = host.store.get(entry.location).data
            except NotFound:
                if host.queue.read(host.epoch, fresh=True).first_sequence <= entry.sequence:
                    self.complaints.append(f"lost: {entry.location} is not there for {host.name}")
                return
            if data.decode() != self.payloads[entry.location]:
                self.complaints.append(f"{entry.location} holds {data!r}")
            host.cursor = entry.sequence
            self.events[f"delivered to {host.group}"] += 1
        if self._random.random() < 0.7 and host.cursor >= view.first_sequence:
            host.queue.dequeue(host.epoch, self._random.randint(view.first_sequence, host.cursor))

    # Everybody else.

    def _administer(self, host: Host) -> None:
        group = self._random.choice(GROUPS)
        begin = self._random.choice(("earliest", "latest", self._random.randint(0, 30)))
        if self.auditor.head is None:
            return
        queue = host.queue
        changes: list[Callable[[], object]] = [
            lambda: queue.create_group(group, begin),
            lambda: queue.drop_group(group, force=self._random.random() < 0.3),
            lambda: queue.reset_group(group, begin),
        ]
        try:
            self._random.choice(changes)()
            self.events["a group was changed"] += 1
        except (StorageError, InvalidInput) as error:
            self.events[f"an administrator met {type(error).__name__}"] += 1

    def _collect(self, host: Host) -> None:
        config = ConsumerConfig(gc=False, gc_grace_period=GRACE)
        collector = GarbageCollector(host.store, config, clock=host.clock, queue=host.queue)
        try:
            report = collector.collect_once()
        except StorageError as error:
            self.events[f"a collector met {type(error).__name__}"] += 1
        else:
            self.events["collected"] += report.deleted
            self.events["a range was closed"] += bool(self.auditor.head and self.auditor.head.closed)

    # The whole.

    def _wrong_with_the_whole(self) -> Iterator[str]:
        there = [self.payloads[location] for location in self.auditor.locations]
        times = Counter(there)
        for call in [*(call for _, call in self.calls), *self.blocks]:
            for payload in call.payloads:
                if times[payload] > 1:
                    yield f"twice: {payload}"
                if call.succeeded and not times[payload]:
                    yield f"lost: {payload} was reported as enqueued"
            for location, sequence in call.places.items():
                if self.auditor.locations[sequence : sequence + 1] != [location]:
                    yield f"{location} was reported at {sequence}"
        for name in sorted({name for name, _ in self.calls}):
            numbers = [int(payload.rpartition("/")[2]) for payload in there if payload.startswith(f"{name}/")]
            if numbers != sorted(numbers):
                yield f"order: those of {name} came as {numbers}"
        yield from (f"at the end {path} is named and gone" for path in self.auditor.missing())


@dataclass(frozen=True)
class Outcome:
    """What was wrong in a run, if anything, what came up in it, and a hash of every call to the store and its time."""

    complaints: list[str]
    events: Counter[str]
    trace: str


def run(seed: int, rules: Rules = Rules()) -> Outcome:  # noqa: B008  frozen
    """Run a world, and leave nothing of it behind."""
    world = World(seed, rules)
    try:
        return world.run()
    finally:
        MemoryStore.delete(world.memory, [meta.path for meta in world.memory.list_objects()])
