"""Hundreds of seeds: whatever a store does, the chain has no gap, and what was acknowledged is in it once."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest

from penstock.testing import Fault
from tests.metalog.object.simulation import Outcome, run

SMALL = range(300)
LONG = [range(start, start + 2_000) for start in range(300, 12_300, 2_000)]


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    """The warnings of so many runs are of no use."""
    log = logging.getLogger("penstock")
    before = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(before)


def run_all(seeds: Iterable[int], name: str) -> tuple[dict[int, list[str]], Outcome]:
    complaints: dict[int, list[str]] = {}
    total = Outcome([], Counter(), Counter())
    for seed in seeds:
        outcome = run(seed, name)
        if outcome.complaints:
            complaints[seed] = outcome.complaints
        total.met.update(outcome.met)
        total.events.update(outcome.events)
    return complaints, total


def test_no_seed_forks_the_log_or_loses_what_was_acknowledged_or_has_it_twice(fresh_name: str) -> None:
    complaints, total = run_all(SMALL, fresh_name)

    assert not complaints
    assert set(total.met) == set(Fault), "every fault came"
    assert {"a process died", "a publish gave up", "a process closed its log", "a step failed"} <= set(total.events)


@pytest.mark.chaos
@pytest.mark.parametrize("seeds", LONG, ids=str)
def test_nor_do_thousands_of_them(seeds: range, fresh_name: str) -> None:
    complaints, total = run_all(seeds, fresh_name)

    print(f"{len(seeds)} seeds: {dict(total.events)}")
    assert not complaints


def test_a_seed_runs_the_same_way_each_time(fresh_name: str) -> None:
    first, again = (run_all([7], f"{fresh_name}-{number}") for number in range(2))

    assert first == again
