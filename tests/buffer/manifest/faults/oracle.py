"""What each call on a queue had to do, by an observer that knows which writes took effect.

Every function yields complaints: sentences that start with what kind of wrong it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tests.buffer.manifest.faults.recording import Event, FailedRead, Ledger, Read, State, Tried

READ_TRIES = 5
UNKNOWN_TRIES = 30


@dataclass(frozen=True, slots=True)
class Enqueued:
    """One call of `enqueue`: what it was given, what was in time, what it saw, answered (None: raised) and counted."""

    given: tuple[str, ...]
    in_time: tuple[str, ...]
    events: Sequence[Event]
    answer: dict[str, int] | None
    counted: int


def added(ledger: Ledger, tried: Tried) -> tuple[str, ...]:
    """The locations that a try would have appended."""
    return tried.state.locations[len(ledger.state(tried.base).locations) :]


def placed(ledger: Ledger, tried: Tried) -> dict[str, int]:
    """The sequences that a try would have given."""
    return {location: ledger.state(tried.base).next + place for place, location in enumerate(added(ledger, tried))}


def holds_no_evidence(ledger: Ledger, tried: Tried, found: State) -> bool:
    """Whether a manifest looks the same to the writer if its try happened and if it did not.

    It was all or nothing, and sequences only grow: so all that it would have got must have been given
    to some writer, and be gone.
    """
    return found.first >= ledger.state(tried.base).next + len(added(ledger, tried))


def wrong_with_enqueue(call: Enqueued, ledger: Ledger) -> Iterator[str]:
    """Complain about an enqueue: what it wrote, what it answered, and what it counted as in doubt."""
    open_tries: list[Tried] = []
    due = 0
    for number, event in enumerate(call.events):
        is_last = number == len(call.events) - 1
        if isinstance(event, Tried):
            yield from _wrong_with_append(event, call, ledger)
            if event.is_success and (not is_last or call.answer != placed(ledger, event)):
                yield f"success: it got a success and answered {call.answer}"
            open_tries.append(event)
        if isinstance(event, Read):
            found = ledger.state(event.version)
            then = ledger.place(event.version)
            seen = [one for one in open_tries if (ledger.effect(one) or then + 1) <= then]
            shown = [one for one in seen if set(added(ledger, one)) & set(found.locations)]
            if shown and (not is_last or call.answer != placed(ledger, shown[0])):
                yield f"evidence: {shown[0]} happened and shows, and it answered {call.answer}"
            # Of several tries on one version at most one happened: where one shows, the others did not.
            lost = [len(added(ledger, one)) for one in open_tries if holds_no_evidence(ledger, one, found)]
            due += 0 if shown else max(lost, default=0)
            open_tries = [one for one in open_tries if one.base == event.version]
            if is_last and not shown and not (call.answer == {} and not call.in_time):
                yield f"evidence: nothing shows, and it answered {call.answer}"
    if call.counted != due:
        yield f"doubt: it counted {call.counted} and had to count {due}"
    if call.answer is None:
        yield from _wrong_with_giving_up(call.events)


def _wrong_with_append(tried: Tried, call: Enqueued, ledger: Ledger) -> Iterator[str]:
    base = ledger.state(tried.base)
    wanted = [location for location in call.given if location in added(ledger, tried)]
    if tried.state != replace(base, locations=(*base.locations, *wanted)) or not wanted:
        yield f"append: {wanted} to {base} became {tried.state}"


def _wrong_with_giving_up(events: Sequence[Event]) -> Iterator[str]:
    if list(events[-READ_TRIES:]) != [FailedRead()] * READ_TRIES:
        yield f"giving up: after {events[-READ_TRIES:]}"


@dataclass(frozen=True, slots=True)
class Claimed:
    """One call of `claim`: with which ack, what it saw, which epoch it answered, or what it raised."""

    last_acked: int | None
    events: Sequence[Event]
    epoch: int | None
    error: str | None


def wrong_with_claim(call: Claimed, ledger: Ledger) -> Iterator[str]:
    """Complain about a claim: only a success reply grants an epoch, and the ack goes with it."""
    for event in call.events:
        if isinstance(event, Tried):
            base = ledger.state(event.base)
            if event.state != replace(base.through(call.last_acked), epoch=base.epoch + 1):
                yield f"claim: {base} became {event.state}"
    last = call.events[-1]
    if call.epoch is not None and not (isinstance(last, Tried) and last.is_success and last.state.epoch == call.epoch):
        yield f"epoch: it took {call.epoch} without a success"
    if call.epoch is None and isinstance(last, Tried) and last.is_success:
        yield f"epoch: it got a success, and raised {call.error}"
    if call.error == "InvalidInput":
        found = ledger.state(last.version) if isinstance(last, Read) else None
        if found is None or call.last_acked is None or found.first <= call.last_acked + 1:
            yield f"resuming: it refused {call.last_acked} at {found}"
    elif call.epoch is None and not _heard_nothing(call.events):
        yield from _wrong_with_giving_up(call.events)


@dataclass(frozen=True, slots=True)
class Dequeued:
    """One call of `read` (`through` is None) or `dequeue`; it answered with a version, or raised an error."""

    epoch: int
    through: int | None
    events: Sequence[Event]
    version: str | None
    error: str | None


def wrong_with_dequeue(call: Dequeued, ledger: Ledger) -> Iterator[str]:
    """Complain about a dequeue or a read: under its own epoch alone, and just what it was to remove."""
    for event in call.events:
        if isinstance(event, Tried):
            base = ledger.state(event.base)
            if base.epoch != call.epoch or event.state != base.through(call.through) or base == event.state:
                yield f"dequeue: through {call.through} under {call.epoch}, {base} became {event.state}"
    reads = [event for event in call.events if isinstance(event, Read)]
    is_fenced = bool(reads) and ledger.state(reads[-1].version).epoch != call.epoch
    if is_fenced != (call.error == "Fenced"):
        yield f"fence: under {call.epoch} it read {ledger.state(reads[-1].version)}, and the error was {call.error}"
    if call.error is None:
        found = ledger.state(call.version)
        if found.epoch != call.epoch or (call.through is not None and found != found.through(call.through)):
            yield f"dequeue: through {call.through} under {call.epoch} it answered {found}"
    elif call.error != "Fenced" and not _heard_nothing(call.events) and call.events[-1] != FailedRead():
        yield f"giving up: {call.error} after {call.events[-3:]}"


def _heard_nothing(events: Sequence[Event]) -> bool:
    tries = [event for event in events if isinstance(event, Tried)]
    return len(tries) >= UNKNOWN_TRIES and not any(event.is_success for event in tries)


def wrong_with_history(ledger: Ledger) -> Iterator[str]:
    """Complain about a change that no honest call makes: entries vanish or change places, or a number goes back."""
    for before, after in zip(ledger.states, ledger.states[1:], strict=False):
        kept = before.through(after.first - 1).locations
        is_back = after.first < before.first or after.next < before.next or after.epoch < before.epoch
        if is_back or after.locations[: len(kept)] != kept:
            yield f"history: {before} became {after}"
