"""Several processes on one log, whose stores go wrong; one thread, no waiting, all from a seed.

While one of them is in the middle of a call another one takes a whole step of its own: where the faults let a third
party in, and where a writer pauses. A process may die before or after any call of its store; what it had sent may
arrive long after.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.core.at_exit import forget
from penstock.errors import OutcomeUnknown, StorageError
from penstock.metalog import MetadataRecord, ObjectLogSettings, ObjectMetadataLog, PartitionStart, Subscription
from penstock.metalog.object.chain import Chain
from penstock.metalog.object.format import decode
from penstock.metalog.object.recent_objects import RecentObjects
from penstock.metalog.object.roll_ups import RollUps
from penstock.metalog.object.writer import PartitionWriter
from penstock.storage import MemoryStore
from penstock.testing import Fault, FaultyStore
from tests.metalog.object.stores import Clock, WatchedStore, objects_of, read_all

PROCESSES, STEPS, DEEPEST = 3, 14, 3
RATES = (0.0, 0.05, 0.1, 0.2, 0.4)


class Died(BaseException):
    """A process is no more."""


@dataclass(eq=False)
class Process:
    """A process with the log open, and a subscription that it reads now and then."""

    faulty: FaultyStore
    store: WatchedStore
    log: ObjectMetadataLog
    writer: PartitionWriter
    records: Subscription
    seen: list[MetadataRecord] = field(default_factory=list)
    calls_left: int | None = None


@dataclass
class Outcome:
    """What was wrong in a run, if anything, and what came up in it."""

    complaints: list[str]
    met: Counter[Fault]
    events: Counter[str]


# A hint and a look for roll-ups come every few objects. Roll-ups are written in a step, and by no thread of a log.
LOG_SETTINGS = ObjectLogSettings(hint_every=4, look_for_roll_ups_after=2, roll_up_every=10**6, long_chain=10**7)
ROLL_UP_SETTINGS = ObjectLogSettings(hint_every=4, roll_up_every=5)


class World:
    """One run."""

    def __init__(self, seed: int, name: str) -> None:
        self._random = random.Random(seed)
        self._below = MemoryStore(f"{name}-{seed}")
        self._rates = {fault: self._random.choice(RATES) for fault in Fault}
        self._clock = Clock()
        self._busy: list[Process] = []
        self._numbers = 0
        self._gone: list[Process] = []
        self.acknowledged: list[tuple[bytes, int]] = []
        self.unknown: Counter[bytes] = Counter()
        self.refused: Counter[bytes] = Counter()
        self.events: Counter[str] = Counter()
        ObjectMetadataLog(self._below, 1).close()
        self._processes = [self._new_process() for _ in range(PROCESSES)]

    def run(self) -> Outcome:
        for _ in range(STEPS):
            self._step()
        everybody = self._processes + self._gone
        for process in everybody:
            process.faulty.settle()
        met: Counter[Fault] = Counter()
        for process in everybody:
            met.update(process.faulty.met)
        there: list[bytes] = []
        complaints = list(self._wrong(there))
        if not complaints:  # at a gap a reader would wait for ever
            complaints += self._wrong_for_a_new_reader(there)
        return Outcome(complaints, met, self.events)

    def clear(self) -> None:
        self._below.delete([meta.path for meta in self._below.list_objects()])

    def _new_process(self) -> Process:
        faulty = FaultyStore(
            self._below,
            self._random.getrandbits(32),
            rates=self._rates,
            third_party=lambda store, path: self._another_process(),
            sleep=lambda seconds: None,
            max_late=self._random.choice((2, 5, 20)),
        )
        store = WatchedStore(faulty)
        with faulty.quiet():
            give_up_after = self._random.choice((0.0, 1.5, 4.0, 20.0))
            log = ObjectMetadataLog(
                store, give_up_after=give_up_after, settings=LOG_SETTINGS, clock=self._clock, sleep=self._pause
            )
            writer = PartitionWriter(
                self._chain(store, LOG_SETTINGS),
                store.url,
                lambda written: None,
                give_up_after=give_up_after,
                clock=self._clock,
                sleep=self._pause,
            )
            records = log.subscribe([PartitionStart(0, self._random.choice((0, 0, 3)))])
            process = Process(faulty, store, log, writer, records)
            forget(log)  # one that dies is not closed at the end
        store.before = store.after = lambda operation, path: self._may_die(process)
        if self._random.random() < 0.5:
            process.calls_left = self._random.randrange(60)
        return process

    def _chain(self, store: WatchedStore, settings: ObjectLogSettings) -> Chain:
        return Chain(store, 0, RecentObjects(), settings)

    def _may_die(self, process: Process) -> None:
        if process.calls_left is not None and process in self._busy:
            process.calls_left -= 1
            if process.calls_left < 0:
                raise Died

    def _pause(self, _seconds: float) -> None:
        self._clock.now += 1.0
        if self._random.random() < 0.3:
            self._another_process()

    def _another_process(self) -> None:
        if len(self._busy) < DEEPEST:
            self._step()

    def _step(self) -> None:
        free = [process for process in self._processes if process not in self._busy]
        if not free:
            return
        process = self._random.choice(free)
        self._clock.now += 1.0
        self._busy.append(process)
        try:
            dice = self._random.random()
            if dice < 0.65:
                self._publish(process)
            elif dice < 0.85:
                self._read(process)
            elif dice < 0.92:
                RollUps().roll_up(self._chain(process.store, ROLL_UP_SETTINGS))
            elif dice < 0.96:
                process.log.high_water_marks()
            else:
                process.log.close()
                self._replace(process, "a process closed its log")
        except StorageError:
            self.events["a step failed"] += 1
        except Died:
            self._replace(process, "a process died")
        finally:
            self._busy.remove(process)
        if self._gone and self._random.random() < 0.1:
            self._random.choice(self._gone).faulty.settle()

    def _replace(self, process: Process, event: str) -> None:
        self.events[event] += 1
        self._gone.append(process)
        self._processes[self._processes.index(process)] = self._new_process()

    def _payload(self) -> bytes:
        # Two may say the same: it proves nothing.
        if self._random.random() < 0.4:
            return b"the same"
        self._numbers += 1
        return b"%d" % self._numbers

    def _publish(self, process: Process) -> None:
        """Publish one payload, or several in one object, as calls that share it do."""
        payloads = [self._payload() for _ in range(self._random.choice((1, 1, 1, 2, 4)))]
        try:
            first = process.log.publish(0, payloads[0]) if len(payloads) == 1 else process.writer.append(payloads)
            self.acknowledged += [(payload, offset) for offset, payload in enumerate(payloads, first)]
        except OutcomeUnknown:
            self.events["a publish gave up"] += 1
            self.unknown.update(payloads)
        except StorageError:
            self.refused.update(payloads)
        except Died:
            self.unknown.update(payloads)
            raise

    def _read(self, process: Process) -> None:
        for _ in range(self._random.choice((1, 5, 20))):
            record = process.records.poll(0)
            if record is not None:
                process.seen.append(record)

    def _wrong(self, there: list[bytes]) -> Iterator[str]:
        at = 0
        names = objects_of(self._below)
        for number, name in enumerate(names):
            found = decode(self._below.get(f"0/{name}").data)
            if (int(name), found.first, found.number) != (at, at, number):
                yield f"chain: {name} is object {found.number} from {found.first}, where {number} from {at} was due"
            there += found.payloads
            at = found.end
        self.events["objects"] += len(names)
        offsets = [offset for _, offset in self.acknowledged]
        if len(offsets) != len(set(offsets)):
            yield f"two publishes got the same offset: {sorted(offsets)}"
        for payload, offset in self.acknowledged:
            if offset >= len(there) or there[offset] != payload:
                yield f"lost: {payload!r} was acknowledged at {offset}, and is not there"
        times, certain = Counter(there), Counter(payload for payload, _ in self.acknowledged)
        for payload in times.keys() | certain.keys():
            if not certain[payload] <= times[payload] <= certain[payload] + self.unknown[payload]:
                yield f"{payload!r} is there {times[payload]} times: {certain[payload]} were acknowledged"
        for process in self._processes + self._gone:
            if process.seen and process.seen[0].offset not in {0, 3}:
                yield f"a subscription began at {process.seen[0].offset}"
            for before, after in zip(process.seen, process.seen[1:], strict=False):
                if after.offset != before.offset + 1:
                    yield f"a subscription got {after.offset} after {before.offset}"
            for record in process.seen:
                if record.offset >= len(there) or record.payload != there[record.offset]:
                    yield f"a subscription got {record.payload!r} at {record.offset}"

    def _wrong_for_a_new_reader(self, there: list[bytes]) -> Iterator[str]:
        with ObjectMetadataLog(self._below) as log:
            if log.high_water_marks() != [len(there)]:
                yield f"end: {log.high_water_marks()}, and there are {len(there)}"
            elif read_all(log) != there:
                yield "a new subscriber sees another log"


def run(seed: int, name: str) -> Outcome:
    """Run a seed, and leave nothing in memory."""
    world = World(seed, name)
    outcome = world.run()
    world.clear()
    return outcome
