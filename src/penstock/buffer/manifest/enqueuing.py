"""One enqueue: the steps that `VersionedObject.update` asks for, and what shows whether a lost one has happened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from penstock.buffer.descriptors import NewEntry
from penstock.buffer.locations import Names, location_time
from penstock.buffer.manifest.cas import Change, Versioned
from penstock.buffer.manifest.state import (
    Attempt,
    Attempts,
    Enqueued,
    QueueState,
    Transaction,
    Unwritten,
    Verdict,
    deadline_of,
)
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


class Enqueuing:
    """Entries on their way into a queue. `result` says what became of them."""

    def __init__(
        self,
        entries: Sequence[NewEntry],
        by: Transaction | None,
        known_at: Sequence[str],
        attempts: Attempts,
        *,
        writer: OwnWriter,
        names: Names,
        segments: Segments,
        measures: Measures,
        now: Callable[[], int],
        uptime: Callable[[], float],
        with_retries: Callable[[Callable[[], list[Verdict]]], list[Verdict]],
        check_same_buffer: Callable[[Versioned[QueueState]], object],
        refuse_deleted: Callable[[Versioned[QueueState]], object],
    ) -> None:
        self._entries = entries
        self._by = by
        self._known_at = known_at
        self._attempts = attempts
        self._writer = writer
        self._names = names
        self._segments = segments
        self._measures = measures
        self._now = now
        self._uptime = uptime
        self._with_retries = with_retries
        self._check_same_buffer = check_same_buffer
        self._refuse_deleted = refuse_deleted
        self._outcome: Enqueued | Unwritten | None = None
        self._tried: Attempt | None = None
        self._lost: Attempt | None = None

    def step(self, found: Versioned[QueueState]) -> Change[QueueState] | None:
        """What is to be written over a manifest; None where there is an outcome without a write."""
        self._check_same_buffer(found)
        if not found.state.evidence_lasts:
            self._refuse_deleted(found)
        if self._is_settled(found):
            return None
        state = found.state
        self._outcome = state.find(self._by, self._known_at, self._segments) or self._unwritable(state)
        if self._outcome is not None:
            return None
        by = self._by or self._writer.transaction(self._entries, self._attempts)
        appended = state.append(self._entries, by, self._names, self._now(), found.version)
        self._tried = appended.attempt
        return Change(appended.state, appended.segments, deadline_of(self._entries), appended.attempt)

    def happened(self, found: Versioned[QueueState], lost: Change[QueueState]) -> bool:
        """Whether one of the tries has happened, by a manifest that was read after a lost one."""
        self._check_same_buffer(found)
        attempt = cast("Attempt", lost.attempt)
        if attempt is not self._lost:  # it is asked twice about one that was lost, where evidence fades
            self._attempts.open.append(attempt)
            self._lost = attempt
        return self._is_settled(found)

    def result(self) -> Enqueued | Unwritten:
        """What became of it, after the update: an outcome without a write, or else the last try, which succeeded."""
        if self._outcome is None:
            assert self._tried is not None  # noqa: S101  a step without an outcome has tried
            return _enqueued(self._tried)
        return self._outcome

    def _unwritable(self, state: QueueState) -> Unwritten | None:
        now = self._uptime()
        late = tuple(entry for entry in self._entries if now >= entry.deadline)
        if late:
            return Unwritten(self._attempts, late=late)
        closed = tuple(entry for entry in self._entries if not state.may_name(location_time(entry.location)))
        if not closed:
            return None
        _log.info("%d objects have to be written again for %s: a collector may delete them", len(closed), state.where)
        self._names.keep_out_of(state.closed)  # of this state: another thread may have read an older one since
        return Unwritten(self._attempts, closed=closed, floor=state.floor)

    def _is_settled(self, found: Versioned[QueueState]) -> bool:
        """Judge the tries so far: what happened is the outcome, and what cannot happen any more is left out."""
        tries = self._attempts.open
        if not tries:
            return False
        judged = self._with_retries(lambda: [attempt.judge(found, self._segments) for attempt in tries])
        verdicts = list(zip(tries, judged, strict=True))
        happened = next((attempt for attempt, verdict in verdicts if verdict is Verdict.HAPPENED), None)
        if happened is not None:
            self._attempts.open = []
            self._outcome = _enqueued(happened)
            return True
        if any(verdict is Verdict.FORGOTTEN for _, verdict in verdicts):
            raise OutcomeUnknown(
                f"a write to {found.state.where} was not confirmed, and the manifest has forgotten its writer since "
                "(it remembers the latest ones): what it wrote is not known to be enqueued"
            )
        self._count_doubts([attempt for attempt, verdict in verdicts if verdict is Verdict.NO_EVIDENCE], found.state)
        self._attempts.open = [attempt for attempt, verdict in verdicts if verdict is Verdict.MAY_YET]
        return False

    def _count_doubts(self, attempts: Sequence[Attempt], state: QueueState) -> None:
        lost: dict[str | None, int] = {}
        for attempt in attempts:  # of several tries based on one version at most one happened
            lost[attempt.base] = max(lost.get(attempt.base, 0), len(attempt.locations))
        for entries in lost.values():
            _log.warning(
                "enqueuing %d again in %s: what the try before would have written is dequeued already, if it was; "
                "a manifest of version 1 cannot tell",
                entries,
                state.where,
            )
            self._measures.enqueue_in_doubt.inc(entries)


def _enqueued(attempt: Attempt) -> Enqueued:
    first = attempt.first_sequence
    places = {location: first + place for place, location in enumerate(attempt.locations)}
    return Enqueued(True, first, places)
