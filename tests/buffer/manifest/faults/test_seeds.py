"""Thousands of seeds: whatever a store does to a queue, none is lost, and none comes twice without being counted."""

from __future__ import annotations

import functools
from collections import Counter

import pytest

from penstock.storage import MemoryStore
from penstock.testing import Fault
from tests.buffer.manifest.faults.simulation import Outcome, run

pytestmark = pytest.mark.usefixtures("silence")
MANIFESTS = ["opendata"]  # version 2 has worlds of its own: `tests/buffer/manifest`
SMALL, MORE = range(500), range(500, 800)
LONG = [range(800, 3_000), *[range(start, start + 4_000) for start in range(3_000, 59_000, 4_000)]]

# A consumer has an epoch, and so its manifest is there: its first write is never the first of all.
OCCASIONS = {(operation, fault) for operation in ("enqueue", "claim", "dequeue") for fault in Fault} - {
    ("dequeue", Fault.EXISTS_WHILE_ABSENT)
}


@functools.cache
def run_all(seeds: range) -> tuple[dict[int, list[str]], Outcome]:
    """Run every seed; return the complaints by seed, and what came up in all the runs together."""
    below = MemoryStore(f"seeds-{seeds}")
    complaints: dict[int, list[str]] = {}
    total = Outcome([], Counter(), Counter())
    for seed in seeds:
        outcome = run(seed, below)
        if outcome.complaints:
            complaints[seed] = outcome.complaints
        total.met.update(outcome.met)
        total.events.update(outcome.events)
    return complaints, total


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(SMALL, id="small"),
        pytest.param(MORE, marks=pytest.mark.slow, id="more"),
        *[pytest.param(seeds, marks=pytest.mark.chaos, id=str(seeds)) for seeds in LONG],
    ],
)
def test_no_seed_loses_an_entry_or_doubles_one_uncounted_or_shares_an_epoch(seeds: range) -> None:
    complaints, _ = run_all(seeds)

    assert not complaints


def test_the_seeds_meet_every_fault_in_every_operation() -> None:
    assert {met for met in run_all(SMALL)[1].met if met[0] != "read"} == OCCASIONS


def test_the_seeds_come_to_everything_that_the_rules_are_for() -> None:
    assert set(+run_all(SMALL)[1].events) == {
        "a claim met InvalidInput",
        "a claim met StorageError",
        "a dequeue met Fenced",
        "a dequeue met StorageError",
        "a read met Fenced",
        "a read met StorageError",
        "an enqueue failed",
        "an enqueue was in doubt",
        "an enqueue was seen to have happened",
        "an entry came again",
        "an entry was too late",
    }


def test_a_seed_runs_the_same_way_each_time(fresh_name: str) -> None:
    first, again = (run(7, MemoryStore(f"{fresh_name}-{number}")) for number in range(2))

    assert first == again
