"""Thousands of worlds: whatever a store, a clock and a neighbour do, nothing is lost, and nothing comes twice."""

from __future__ import annotations

from collections import Counter

import pytest

from penstock.errors import CorruptData, InvalidInput
from penstock.testing import Fault
from tests.buffer.manifest.world import run
from tests.buffer.manifest.wrong_rules import WRONG

pytestmark = pytest.mark.usefixtures("silence")
MANIFESTS = ["native"]
SMALL = range(80)
LONG = [range(80, 1_000), *[range(start, start + 1_000) for start in range(1_000, 21_000, 1_000)]]


@pytest.mark.parametrize(
    "seeds",
    [pytest.param(SMALL, id="small"), *[pytest.param(seeds, marks=pytest.mark.chaos, id=str(seeds)) for seeds in LONG]],
)
def test_no_seed_loses_anything_or_doubles_it(seeds: range) -> None:
    events: Counter[str] = Counter()
    complaints = {}
    for seed in seeds:
        outcome = run(seed)
        events += outcome.events
        if outcome.complaints:
            complaints[seed] = outcome.complaints
    assert not complaints
    # It would say nothing if nothing had happened.
    expected = {f"fault {fault.name}" for fault in Fault} | {
        "a block was there already",
        "a checkpoint was deleted",
        "a clock was wrong for one call",
        "a consumer was fenced",
        "a death",
        "a group was changed",
        "a long pause",
        "a range was closed",
        "an enqueue met OutcomeUnknown",
        "an object was written again",
        "collected",
        "delivered to default",
        "delivered to audit",
        "delivered to late",
    }
    assert expected <= events.keys()


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rule_is_caught(name: str) -> None:
    assert any(is_caught(seed, name) for seed in range(116, 716)), name  # each is caught within a few seeds here


def is_caught(seed: int, name: str) -> bool:
    try:
        return bool(run(seed, WRONG[name]).complaints)
    except (CorruptData, InvalidInput):
        return True  # a head that no reader accepts, or a block that the queue refuses
