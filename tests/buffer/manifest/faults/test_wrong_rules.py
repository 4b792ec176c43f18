"""The same runs with a wrong rule in the queue: each is caught, for the reason for which it is wrong."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from penstock.buffer.descriptors import NewEntry
from penstock.buffer.locations import Names
from penstock.buffer.manifest.cas import Change, Versioned, VersionedObject
from penstock.buffer.manifest.enqueuing import Attempt, Verdict
from penstock.buffer.manifest.formats import Formats
from penstock.buffer.manifest.queue import BufferQueue, QueueView
from penstock.buffer.manifest.state import Appended, QueueState, Start, Transaction
from penstock.buffer.manifest.v1.codec import OpenDataManifest, next_epoch
from penstock.buffer.manifest.v1.state import OpenDataState
from penstock.buffer.manifest.v2.segments import Segments
from penstock.storage import MemoryStore, ObjectStore
from tests.buffer.manifest.faults.simulation import Rules, run

MANIFESTS = ["opendata"]
SEEDS = range(360, 860)  # each rule is caught within a few seeds here

Judge = Callable[[Attempt, Versioned[QueueState], Segments], Verdict]

right = Attempt.judge


@pytest.fixture(autouse=True)
def silence(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "penstock")


def kinds_caught(name: str, wanted: str, rules: Rules) -> set[str]:
    """Run seeds until one is caught for the wanted reason; return all reasons so far."""
    below = MemoryStore(name)
    kinds: set[str] = set()
    for seed in SEEDS:
        kinds |= {complaint.split(":")[0] for complaint in run(seed, below, rules).complaints}
        if wanted in kinds:
            break
    return kinds


def by_number(attempt: Attempt, found: Versioned[QueueState], segments: Segments) -> Verdict:
    """As many entries as one's own write would have made: so it must have been that."""
    if found.state.next_sequence >= attempt.first_sequence + len(attempt.locations):
        return Verdict.HAPPENED
    return right(attempt, found, segments)


def by_trying_again(attempt: Attempt, found: Versioned[QueueState], segments: Segments) -> Verdict:
    """A failure is a failure."""
    return Verdict.DID_NOT


def by_forgetting(attempt: Attempt, found: Versioned[QueueState], segments: Segments) -> Verdict:
    """What is not there at the next look will never be."""
    verdict = right(attempt, found, segments)
    return Verdict.DID_NOT if verdict is Verdict.MAY_YET else verdict


def by_silence(attempt: Attempt, found: Versioned[QueueState], segments: Segments) -> Verdict:
    """Where there is no evidence it did not happen."""
    verdict = right(attempt, found, segments)
    return Verdict.DID_NOT if verdict is Verdict.NO_EVIDENCE else verdict


def by_hope(attempt: Attempt, found: Versioned[QueueState], segments: Segments) -> Verdict:
    """Where there is no evidence it happened."""
    verdict = right(attempt, found, segments)
    return Verdict.HAPPENED if verdict is Verdict.NO_EVIDENCE else verdict


def by_first_location(attempt: Attempt, found: Versioned[QueueState], segments: Segments) -> Verdict:
    """The first of the entries stands for all of them, dequeued or not."""
    return right(replace(attempt, locations=attempt.locations[:1]), found, segments)


def by_any_location(attempt: Attempt, found: Versioned[QueueState], segments: Segments) -> Verdict:
    """One of the entries in its place: so all of them are, though a shorter try began with it too."""
    first = attempt.first_sequence
    kept = found.state.entries(first, first + len(attempt.locations), segments)
    if any(entry.location == attempt.locations[entry.sequence - first] for entry in kept):
        return Verdict.HAPPENED
    return right(attempt, found, segments)


@pytest.mark.parametrize(
    ("judge", "reason"),
    [
        (by_number, "lost"),
        (by_hope, "lost"),
        (by_any_location, "lost"),
        (by_trying_again, "twice"),
        (by_forgetting, "twice"),
        (by_silence, "twice"),
        (by_first_location, "evidence"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_an_enqueue_with_a_wrong_rule_is_caught(judge: Judge, reason: str, fresh_name: str) -> None:
    class Wrong(Attempt):
        def judge(self, found: Versioned[QueueState], segments: Segments) -> Verdict:
            return judge(self, found, segments)

    class State(OpenDataState):
        def append(
            self, entries: Sequence[NewEntry], by: Transaction, names: Names, now: int, base: str | None
        ) -> Appended:
            done = super().append(entries, by, names, now, base)
            return replace(done, attempt=Wrong(base, done.attempt.first_sequence, done.attempt.locations))

    assert reason in kinds_caught(fresh_name, reason, Rules(formats=Formats(opendata=State)))


class WithObject(BufferQueue):
    """A queue with the object of its manifest at hand, for changes of its own."""

    def __init__(self, store: ObjectStore, path: str, role: str, manifest_format: str, **more: Any) -> None:
        super().__init__(store, path, role, manifest_format, **more)
        self.object: VersionedObject[OpenDataState] = VersionedObject(
            store,
            path,
            "wrong",
            role,
            decode=lambda data: OpenDataState(OpenDataManifest(data)),
            absent=OpenDataState(OpenDataManifest.empty()),
            sleep=more["sleep"],
        )


class ClaimsByNumber(WithObject):
    """Concludes from the number that the epoch is its own."""

    def claim(self, start: Start, last_acked: int | None, *, allow_gap: bool) -> QueueView:
        """Take an epoch, and take a number for a reply."""
        epochs: list[int] = []

        def step(found: Versioned[OpenDataState]) -> Change[OpenDataState]:
            epochs.append(next_epoch(found.state.epoch))
            return Change(replace(found.state, manifest=found.state.manifest.with_epoch(epochs[-1])))

        self.object.update(step, lambda found: found.state.epoch == epochs[-1], doing="claiming")
        return self.look()


def test_a_claim_that_trusts_the_number_is_caught_sharing_an_epoch(fresh_name: str) -> None:
    wanted = "two consumers with one epoch"

    assert wanted in kinds_caught(fresh_name, wanted, Rules(queue=ClaimsByNumber))


class NeverFenced(OpenDataState):
    """Goes on under whatever epoch there is."""

    def check_reader(self, group: str, epoch: int, buffer_id: UUID | None) -> None:
        """Let everybody pass."""


def test_a_consumer_that_ignores_a_newer_epoch_is_caught(fresh_name: str) -> None:
    assert "fence" in kinds_caught(fresh_name, "fence", Rules(formats=Formats(opendata=NeverFenced)))


class RemovesWhatIsThere(WithObject):
    """Takes the entries of a manifest it has not read, and removes as many as it was asked to."""

    def dequeue(self, epoch: int, through: int) -> QueueView:
        """Remove again after every failure, without looking whether that is done."""
        count = through + 1 - self.read(epoch).first_sequence

        def step(found: Versioned[OpenDataState]) -> Change[OpenDataState]:
            last = found.state.first_sequence + count - 1
            return Change(replace(found.state, manifest=found.state.manifest.remove_through(last)))

        self.object.update(step, doing="dequeuing")
        return self.read(epoch)


def test_a_dequeue_that_trusts_the_count_is_caught_losing_entries(fresh_name: str) -> None:
    assert "delivery" in kinds_caught(fresh_name, "delivery", Rules(queue=RemovesWhatIsThere))
