"""One enqueue: the steps that `VersionedObject.update` asks for, and the evidence that a lost one has happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, cast

from penstock.buffer.descriptors import NewEntry
from penstock.buffer.locations import Names, location_time
from penstock.buffer.manifest.cas import Change, Versioned
from penstock.buffer.manifest.state import Enqueued, QueueState, Transaction, Unwritten
from penstock.buffer.measures import Measures
from penstock.core import get_logger
from penstock.errors import NotFound, OutcomeUnknown

if TYPE_CHECKING:
    from penstock.buffer.manifest.v2.segments import Segments
    from penstock.buffer.manifest.v2.state import NativeState

_log = get_logger(__name__)


@dataclass(eq=False)
class Enqueuing:
    """Entries on their way into a queue. `result` is what became of them, after the update.

    `check` raises where the manifest that was found is not this buffer's. `now` is in milliseconds since 1970.
    """

    entries: Sequence[NewEntry]
    by: Transaction | None
    known_at: Sequence[str]
    attempts: Attempts
    writer: OwnWriter
    names: Names
    segments: Segments
    measures: Measures
    now: Callable[[], int]
    uptime: Callable[[], float]
    with_retries: Callable[[Callable[[], list[Verdict]]], list[Verdict]]
    check: Callable[[Versioned[QueueState]], object]
    result: Enqueued | Unwritten = field(init=False)
    _trying: Attempt | None = None

    def step(self, found: Versioned[QueueState]) -> Change[QueueState] | None:
        """What is to be written over a manifest; None where there is a result without a write."""
        self._trying = None  # a step that follows another step: what that returned was not written
        self.check(found)
        if self.attempts.open and self.happened(found):
            return None
        state = found.state
        known = state.find(self.by, self.known_at, self.segments) if self.by or self.known_at else None
        if known is not None:
            self.result = known
            return None
        now = self.uptime()
        late = tuple(entry for entry in self.entries if now >= entry.deadline)
        if late:
            self.result = Unwritten(self.attempts, late=late)
            return None
        closed = tuple(entry for entry in self.entries if not state.may_name(location_time(entry.location)))
        if closed:
            _log.info(
                "%d objects have to be written again for %s: a collector may delete them", len(closed), state.where
            )
            self.names.keep_out_of(state.closed)  # of this state: another thread may have read an older one since
            self.result = Unwritten(self.attempts, closed=closed, floor=state.floor)
            return None
        by = self.by or self.writer.transaction(self.entries, self.attempts)
        appended = state.append(self.entries, by, self.names, self.now(), found.version)
        self._trying = appended.attempt
        self.result = appended.attempt.enqueued  # if it succeeds
        return Change(appended.state, appended.segments, min(entry.deadline for entry in self.entries))

    def happened(self, found: Versioned[QueueState]) -> bool:
        """Whether one of the tries has happened, by a manifest that was read after a lost one.

        One that happened is the result; one that cannot happen any more is dropped.
        """
        self.check(found)
        tries = self.attempts.open
        if self._trying is not None:
            tries.append(self._trying)
            self._trying = None
        judged = self.with_retries(lambda: [attempt.judge(found, self.segments) for attempt in tries])
        if Verdict.HAPPENED in judged:
            self.attempts.open = []
            self.result = tries[judged.index(Verdict.HAPPENED)].enqueued
            return True
        where = found.state.where
        if Verdict.FORGOTTEN in judged:
            raise OutcomeUnknown(
                f"a write to {where} was not confirmed, and the manifest has forgotten its writer since "
                "(it remembers the latest ones): what it wrote is not known to be enqueued"
            )
        verdicts = list(zip(tries, judged, strict=True))
        self.attempts.open = [attempt for attempt, verdict in verdicts if verdict is Verdict.MAY_YET]
        in_doubt: Counter[str | None] = Counter()
        for attempt, verdict in verdicts:
            if verdict is Verdict.NO_EVIDENCE:  # of several tries based on one version at most one happened
                in_doubt[attempt.base] = max(in_doubt[attempt.base], len(attempt.locations))
        for entries in in_doubt.values():
            _log.warning(
                "enqueuing %d again in %s: what the try before would have written is dequeued already, if it was; "
                "a manifest of version 1 cannot tell",
                entries,
                where,
            )
            self.measures.enqueue_in_doubt.inc(entries)
        return False


class Verdict(Enum):
    """What a manifest shows of an attempt whose reply was not a success."""

    HAPPENED = auto()
    DID_NOT = auto()
    MAY_YET = auto()
    """It did not happen so far; while the manifest is the one it was based on, it still can."""
    NO_EVIDENCE = auto()
    """Version 1: its entries are dequeued already, if they were appended."""
    FORGOTTEN = auto()
    """Version 2: the manifest has forgotten the writer since, and cannot tell."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try to append to version 1: the version of the object that it was to replace, and what it would put where."""

    base: str | None
    first_sequence: int
    locations: tuple[str, ...]

    def judge(self, found: Versioned[QueueState], segments: Segments) -> Verdict:
        """What became of it, by a manifest that was read later. It put all of its entries into their places, or none.

        So it did not happen where one of its places is another's, or was never given. (All of them, and not any: a
        shorter try of the same entries, after some were too late, begins with the same locations.) An upgrade keeps
        sequences and locations, so the manifest may be of either version.
        """
        end = self.first_sequence + len(self.locations)
        if end > found.state.next_sequence:
            return self._not_so_far(found)
        kept = found.state.entries(self.first_sequence, end, segments)
        if not kept:
            return Verdict.NO_EVIDENCE
        is_mine = all(entry.location == self.locations[entry.sequence - self.first_sequence] for entry in kept)
        return Verdict.HAPPENED if is_mine else Verdict.DID_NOT

    @property
    def enqueued(self) -> Enqueued:
        """What became of its entries, where it happened."""
        first = self.first_sequence
        return Enqueued(True, first, {location: first + place for place, location in enumerate(self.locations)})

    def _not_so_far(self, found: Versioned[QueueState]) -> Verdict:
        return Verdict.MAY_YET if found.version == self.base else Verdict.DID_NOT


@dataclass(frozen=True, slots=True)
class NativeAttempt(Attempt):
    """One try to append to version 2: also which transaction it was, and the revision of the head it was based on."""

    by: Transaction
    revision: int

    def judge(self, found: Versioned[QueueState], segments: Segments) -> Verdict:
        """By the writer's record: its number and revision are those of one write alone."""
        head = cast("NativeState", found.state).head  # the check found the same buffer, and version 2 stays version 2
        writer = head.writers.get(self.by.writer)
        if writer is None:
            # Without a record nothing has happened, unless writers were forgotten that wrote after the base.
            return Verdict.FORGOTTEN if head.forgotten_through > self.revision else self._not_so_far(found)
        if (writer.transaction, writer.revision) != (self.by.number, self.revision + 1):
            return self._not_so_far(found)
        if not self.by.is_named:
            return Verdict.HAPPENED
        # Another process may use the name too, and the write may be its own: the first location shows whose it is.
        try:
            kept = found.state.entries(self.first_sequence, self.first_sequence + 1, segments)
        except NotFound:
            return Verdict.DID_NOT  # dequeued since, and collected
        return Verdict.HAPPENED if [entry.location for entry in kept] == [self.locations[0]] else Verdict.DID_NOT


class Attempts:
    """The tries of one enqueue that may have happened, and the number its own writer has given to its entries."""

    def __init__(self) -> None:
        self.open: list[Attempt] = []
        self.own: tuple[tuple[str, ...], Transaction] | None = None


class OwnWriter:
    """The writer that a queue is by itself: it has a random name, and counts."""

    def __init__(self, names: Names) -> None:
        self._name = names.writer()
        self._count = 0

    def transaction(self, entries: Sequence[NewEntry], attempts: Attempts) -> Transaction:
        """The transaction that these entries are: each set that it tries is another."""
        locations = tuple(entry.location for entry in entries)
        if attempts.own is None or attempts.own[0] != locations:
            attempts.own = locations, Transaction(self._name, self._count, is_named=False)
            self._count += 1
        return attempts.own[1]
