"""What tests of the engine put around real parts: to write down what happens, to make it fail, and to say the time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from penstock import Record
from penstock.engine import DeadLetter, MemoryGuard, MemoryTransport, SelfRegulation, WorkBatch
from penstock.engine.regulation.budget import ByteBudgetConfig
from penstock.engine.transports.contract import Receives

Journal: TypeAlias = list[tuple[str, Any]]
"""What happened, in its order: ("recv", n records), ("route", payloads), ("sink", values), ("commit", tokens)."""


class Fault(Exception):
    """What a test makes go wrong."""


class Faults:
    """Raises at the nth call of a place, from 0, that was asked for; once each."""

    def __init__(self, *planned: tuple[str, int]) -> None:
        self._planned = set(planned)
        self._calls: dict[str, int] = {}

    def plan(self, place: str, call: int) -> None:
        self._planned.add((place, self._calls.get(place, 0) + call))

    def meet(self, place: str) -> None:
        call = self._calls.get(place, 0)
        self._calls[place] = call + 1
        if (place, call) in self._planned:
            self._planned.discard((place, call))
            raise Fault(f"planned at {place} {call}")


class Watched:
    """A receiver in front of another one: it counts, writes down, and fails on demand at `recv` and `commit`."""

    def __init__(self, receiver: Receives, faults: Faults | None = None, journal: Journal | None = None) -> None:
        self._receiver = receiver
        self.faults = Faults() if faults is None else faults
        self.journal: Journal = [] if journal is None else journal
        self.recvs = 0
        self.limits: list[tuple[int, int | None, float]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._receiver, name)

    @property
    def commits(self) -> list[tuple[Any, ...]]:
        """The tokens of every commit that worked."""
        return [what for name, what in self.journal if name == "commit"]

    def recv(self, max_records: int, max_bytes: int | None = None, timeout: float = 0.1) -> WorkBatch:
        self.recvs += 1
        self.limits.append((max_records, max_bytes, timeout))
        self.faults.meet("recv")
        batch = self._receiver.recv(max_records, max_bytes, timeout)
        self.journal.append(("recv", len(batch)))
        return batch

    def commit(self, tokens: Sequence[Any]) -> None:
        self.faults.meet("commit")
        self._receiver.commit(tokens)
        self.journal.append(("commit", tuple(tokens)))


class Scripted:
    """A receiver with `recv` and `commit` alone: it hands out these blocks, whatever the limits, and then nothing."""

    def __init__(self, *blocks: WorkBatch, when_done: Callable[[], object] = lambda: None) -> None:
        self.blocks = deque(blocks)
        self.limits: list[tuple[int, int | None, float]] = []
        self.commits: list[tuple[Any, ...]] = []
        self._when_done = when_done

    def recv(self, max_records: int, max_bytes: int | None = None, timeout: float = 0.1) -> WorkBatch:
        self.limits.append((max_records, max_bytes, timeout))
        if self.blocks:
            return self.blocks.popleft()
        self._when_done()
        return WorkBatch(())

    def commit(self, tokens: Sequence[Any]) -> None:
        self.commits.append(tuple(tokens))


class Sink:
    """Writes down what it gets, commits the tokens in the receiver it was given, if any, and fails on demand."""

    def __init__(
        self, journal: Journal | None = None, faults: Faults | None = None, commits_in: Receives | None = None
    ) -> None:
        self.journal: Journal = [] if journal is None else journal
        self.batches: list[WorkBatch] = []
        self._faults = Faults() if faults is None else faults
        self._commits_in = commits_in

    def __call__(self, batch: WorkBatch) -> None:
        self._faults.meet("sink")
        self.batches.append(batch)
        self.journal.append(("sink", [record.value for record in batch.records]))
        if self._commits_in is not None and batch.commit_tokens:
            self._commits_in.commit(batch.commit_tokens)

    @property
    def values(self) -> list[bytes]:
        return [record.value for batch in self.batches for record in batch.records]

    @property
    def tokens(self) -> list[tuple[Any, ...]]:
        return [batch.commit_tokens for batch in self.batches]


class Route:
    """A route for dead letters that writes down what it gets, and fails on demand."""

    def __init__(self, journal: Journal | None = None, faults: Faults | None = None) -> None:
        self.journal: Journal = [] if journal is None else journal
        self.letters: list[DeadLetter] = []
        self._faults = Faults() if faults is None else faults

    def __call__(self, letters: list[DeadLetter]) -> None:
        self._faults.meet("route")
        self.letters += letters
        self.journal.append(("route", [letter.payload for letter in letters]))

    @property
    def payloads(self) -> list[bytes]:
        return [letter.payload for letter in self.letters]


class Clock:
    """Time that passes when the test, or a wait on a `TimedShutdown`, advances it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class TimedShutdown(threading.Event):
    """A shutdown whose waits take no time but a clock's; at `ends_at` on it, it is set."""

    def __init__(self, clock: Clock, ends_at: float = 1e9) -> None:
        super().__init__()
        self._clock = clock
        self._ends_at = ends_at

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self._clock.now += timeout
        return self.is_set()

    def is_set(self) -> bool:
        return self._clock.now >= self._ends_at or super().is_set()


class HoldSwitch:
    """A pressure that holds as the test sets it."""

    def __init__(self, hold: bool = False) -> None:
        self.hold = hold

    def should_hold(self) -> bool:
        return self.hold


class Heap:
    """A heap of which the test says how full it is, from 0 to 1, and a guard that believes it."""

    def __init__(self, share: float = 0.0) -> None:
        self.share = share
        self.guard = MemoryGuard(1 << 30, heap_source=lambda: int(self.share * (1 << 30)))


def regulated(guard: MemoryGuard, **numbers: Any) -> SelfRegulation:
    """A regulation with a small budget: 100 bytes to begin with, 10 at least, 200 at most."""
    defaults = {"start_bytes": 100, "max_bytes": 200, "floor_bytes": 10, "ai_step": 50}
    return SelfRegulation(guard=guard, budget=ByteBudgetConfig(**{**defaults, **numbers}))


def holding(count: int, size: int = 1, **more: Any) -> MemoryTransport:
    """A transport with so many records, of so many bytes each."""
    transport = MemoryTransport(**more)
    transport.send(Record(b"%d" % (number % 10) * size) for number in range(count))
    return transport


def through(batch: WorkBatch) -> WorkBatch:
    """A process that changes nothing."""
    return batch


def looking(look: Callable[[Any], object]) -> Callable[[Any], Any]:
    """A process that changes nothing, and looks at what it gets."""

    def process(batch: Any) -> Any:
        look(batch)
        return batch

    return process


def values(records: Iterable[Any]) -> list[bytes]:
    return [record.value for record in records]
