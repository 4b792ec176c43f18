"""The same runs with a wrong rule in the queue: each is caught, for the reason for which it is wrong."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from penstock.buffer.manifest.state import QueueView, Start
from penstock.buffer.manifest.v1 import queue as opendata_queue
from penstock.buffer.manifest.v1.codec import next_epoch
from penstock.buffer.manifest.v1.queue import OpenDataQueue, OpenDataView, Try, _Verdict
from penstock.errors import AlreadyExists, Conflict, OutcomeUnknown
from penstock.storage import MemoryStore
from tests.buffer.manifest.faults.simulation import run

MANIFESTS = ["opendata"]
SEEDS = range(500)

Judge = Callable[[Try, QueueView], _Verdict]

right = Try.judge


@pytest.fixture(autouse=True)
def silence(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "penstock")


def kinds_caught(name: str, wanted: str, queue: type[OpenDataQueue] = OpenDataQueue) -> set[str]:
    """Run seeds until one is caught for the wanted reason; return all reasons so far."""
    below = MemoryStore(name)
    kinds: set[str] = set()
    for seed in SEEDS:
        kinds |= {complaint.split(":")[0] for complaint in run(seed, below, queue).complaints}
        if wanted in kinds:
            break
    return kinds


def by_number(attempt: Try, found: QueueView) -> _Verdict:
    """As many entries as one's own write would have made: so it must have been that."""
    if found.next_sequence >= attempt.first + len(attempt.locations):
        return _Verdict.HAPPENED
    return right(attempt, found)


def by_trying_again(attempt: Try, found: QueueView) -> _Verdict:
    """A failure is a failure."""
    return _Verdict.DID_NOT


def by_forgetting(attempt: Try, found: QueueView) -> _Verdict:
    """What is not there at the next look will never be."""
    verdict = right(attempt, found)
    return _Verdict.DID_NOT if verdict is _Verdict.MAY_YET else verdict


def by_silence(attempt: Try, found: QueueView) -> _Verdict:
    """Where there is no evidence it did not happen."""
    verdict = right(attempt, found)
    return _Verdict.DID_NOT if verdict is _Verdict.NO_EVIDENCE else verdict


def by_hope(attempt: Try, found: QueueView) -> _Verdict:
    """Where there is no evidence it happened."""
    verdict = right(attempt, found)
    return _Verdict.HAPPENED if verdict is _Verdict.NO_EVIDENCE else verdict


def by_first_location(attempt: Try, found: QueueView) -> _Verdict:
    """The first of the entries stands for all of them, dequeued or not."""
    return right(Try(attempt.base, attempt.first, attempt.locations[:1]), found)


def by_any_location(attempt: Try, found: QueueView) -> _Verdict:
    """One of the entries in its place: so all of them are, though a shorter try began with it too."""
    kept = found.entries(attempt.first, attempt.first + len(attempt.locations))
    if any(entry.location == attempt.locations[entry.sequence - attempt.first] for entry in kept):
        return _Verdict.HAPPENED
    return right(attempt, found)


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
def test_an_enqueue_with_a_wrong_rule_is_caught(
    judge: Judge, reason: str, fresh_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opendata_queue.Try, "judge", judge)

    assert reason in kinds_caught(fresh_name, reason)


class ClaimsByNumber(OpenDataQueue):
    """Concludes from the number that the epoch is its own."""

    def claim(self, last_acked: int | None, *, allow_gap: bool, start: Start = "earliest") -> OpenDataView:
        """Take an epoch, and take a number for a reply."""
        while True:
            found = self._read_patiently()
            wanted = next_epoch(found.epoch)
            try:
                return self._write(found, found.manifest.with_epoch(wanted))
            except (Conflict, AlreadyExists, OutcomeUnknown):
                found = self._read_patiently()
                if found.epoch == wanted:
                    return found


def test_a_claim_that_trusts_the_number_is_caught_sharing_an_epoch(fresh_name: str) -> None:
    wanted = "two consumers with one epoch"

    assert wanted in kinds_caught(fresh_name, wanted, ClaimsByNumber)


class NeverFenced(OpenDataQueue):
    """Goes on under whatever epoch there is."""

    def _check_epoch(self, found: OpenDataView, epoch: int) -> None:
        """Let everybody pass."""


def test_a_consumer_that_ignores_a_newer_epoch_is_caught(fresh_name: str) -> None:
    assert "fence" in kinds_caught(fresh_name, "fence", NeverFenced)


class RemovesWhatIsThere(OpenDataQueue):
    """Takes the entries of a manifest it has not read, and removes as many as it was told to."""

    def dequeue(self, epoch: int, through: int) -> OpenDataView:
        """Remove again after every failure, without looking whether that is done."""
        count = through + 1 - self.read(epoch).first_sequence
        while True:
            found = self.read(epoch)
            try:
                return self._write(found, found.manifest.remove_through(found.first_sequence + count - 1))
            except (Conflict, AlreadyExists, OutcomeUnknown):
                continue


def test_a_dequeue_that_trusts_the_count_is_caught_losing_entries(fresh_name: str) -> None:
    assert "delivery" in kinds_caught(fresh_name, "delivery", RemovesWhatIsThere)
