"""One enqueue: the steps that `VersionedObject.update` asks for, and what shows whether a lost one has happened."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

from penstock.buffer.descriptors import NewEntry
from penstock.buffer.locations import Names, location_time
from penstock.buffer.manifest.attempts import Attempt, Attempts, Verdict
from penstock.buffer.manifest.cas import Change, Versioned
from penstock.buffer.manifest.state import Enqueued, QueueState, Transaction, Unwritten
from penstock.buffer.manifest.v2.segments import Segments
from penstock.buffer.measures import Measures
from penstock.core import get_logger
from penstock.errors import OutcomeUnknown

_log = get_logger(__name__)


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
    _lost: Attempt | None = None

    def step(self, found: Versioned[QueueState]) -> Change[QueueState] | None:
        """What is to be written over a manifest; None where there is a result without a write."""
        self.check(found)
        if self._is_settled(found):
            return None
        state = found.state
        known = state.find(self.by, self.known_at, self.segments) or self._unwritable(state)
        if known is not None:
            self.result = known
            return None
        by = self.by or self.writer.transaction(self.entries, self.attempts)
        appended = state.append(self.entries, by, self.names, self.now(), found.version)
        self.result = _enqueued(appended.attempt)  # if it succeeds
        until = min((entry.deadline for entry in self.entries), default=math.inf)
        return Change(appended.state, appended.segments, until, appended.attempt)

    def happened(self, found: Versioned[QueueState], lost: Change[QueueState]) -> bool:
        """Whether one of the tries has happened, by a manifest that was read after a lost one."""
        self.check(found)
        attempt = cast("Attempt", lost.attempt)
        if attempt is not self._lost:  # where evidence fades, this is called twice after one lost reply
            self.attempts.open.append(attempt)
            self._lost = attempt
        return self._is_settled(found)

    def _is_settled(self, found: Versioned[QueueState]) -> bool:
        """Judge the tries so far: one that happened is the result, and one that cannot happen any more is dropped."""
        tries = self.attempts.open
        if not tries:
            return False
        judged = self.with_retries(lambda: [attempt.judge(found, self.segments) for attempt in tries])
        if Verdict.HAPPENED in judged:
            self.attempts.open = []
            self.result = _enqueued(tries[judged.index(Verdict.HAPPENED)])
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

    def _unwritable(self, state: QueueState) -> Unwritten | None:
        now = self.uptime()
        late = tuple(entry for entry in self.entries if now >= entry.deadline)
        if late:
            return Unwritten(self.attempts, late=late)
        closed = tuple(entry for entry in self.entries if not state.may_name(location_time(entry.location)))
        if not closed:
            return None
        _log.info("%d objects have to be written again for %s: a collector may delete them", len(closed), state.where)
        self.names.keep_out_of(state.closed)  # of this state: another thread may have read an older one since
        return Unwritten(self.attempts, closed=closed, floor=state.floor)


def _enqueued(attempt: Attempt) -> Enqueued:
    first = attempt.first_sequence
    return Enqueued(True, first, {location: first + place for place, location in enumerate(attempt.locations)})
