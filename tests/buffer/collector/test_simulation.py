"""The collector never deletes what is referenced or can still be enqueued, and in the end it deletes all the rest.

Real producers, consumers and collectors in random interleavings, step by step: each of them is paused for hours at any
of its steps, and their clocks are hours apart, or ten years ahead for single calls. The same simulation finds the loss
with every rule that is almost right: `test_mutants_of_version_1.py` and `test_mutants_of_version_2.py`.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter

import pytest

from tests.buffer.collector.conditions import (
    LEAPING_CLOCKS,
    NATIVE_STEPS,
    PAUSED_FOR_HOURS,
    PAUSED_FOR_MINUTES,
    PAUSED_FOR_MINUTES_ON_A_FAST_STORE,
    STEPS,
    WRONG_CLOCKS,
    Conditions,
)
from tests.buffer.collector.simulation import Run, runs

FEW = range(60)
MANY = [
    pytest.param(range(60, 300), marks=pytest.mark.slow),
    *[
        pytest.param(seeds, marks=[pytest.mark.chaos, pytest.mark.timeout(1800)])
        for seeds in [range(300, 1_000), *[range(start, start + 5_000) for start in range(1_000, 51_000, 5_000)]]
    ],
]
MORE = [161, 170, 236, 290, 583, *range(60, 3_000)]  # those first in which a rare pause was seen

CONDITIONS = {
    "wrong clocks": WRONG_CLOCKS,
    "clocks that leap for one call": LEAPING_CLOCKS,
    "long pauses": PAUSED_FOR_HOURS,
    "short pauses": PAUSED_FOR_MINUTES,
    "a fast store": PAUSED_FOR_MINUTES_ON_A_FAST_STORE,
}


@functools.cache
def few_of(manifest: str) -> list[Run]:
    """A small fixed part of all runs, for the manifest of the test that asks first."""
    return list(runs(FEW))


@pytest.fixture
def few(manifest: str) -> list[Run]:
    """Run once for each manifest."""
    return few_of(manifest)


def test_what_is_referenced_or_can_still_be_enqueued_is_never_deleted(few: list[Run]) -> None:
    for run in few:
        assert run.lost is None, run.report()


def test_in_the_end_all_that_cannot_be_referenced_any_more_is_deleted(few: list[Run]) -> None:
    for run in few:
        assert run.uncollected == [], run.report()


@pytest.mark.parametrize("seeds", MANY)
def test_no_run_loses_data_or_leaves_objects_behind(seeds: range) -> None:
    for run in runs(seeds):
        assert (run.lost, run.uncollected) == (None, []), run.report()


def test_the_runs_cover_what_they_should(few: list[Run], manifest: str) -> None:
    counts = sum((run.counts for run in few), Counter[str]())
    for what in ("enqueued", "given up", "acked", "collected", "wrong for one call"):
        assert counts[what] >= len(few) / 4, counts
    # Version 2 alone closes what a wrong clock named, and writes again what was below the floor.
    for what in ("closed", "written again"):
        assert (counts[what] >= len(few) / 20) == (manifest == "native"), counts


@pytest.mark.slow
@pytest.mark.parametrize("role", ["producer", "collector"])
def test_every_actor_is_paused_for_hours_at_every_step(few: list[Run], role: str, manifest: str) -> None:
    missing = set(NATIVE_STEPS[role] if manifest == "native" else STEPS[role])
    for run in itertools.chain(few, runs(MORE)):
        missing -= {what for actor, what in run.paused if actor == role}
        if not missing:
            break
    assert not missing


def test_a_seed_is_the_same_run_each_time() -> None:
    seeds = range(5)
    first, second = ([run.trace for run in runs(seeds)] for _ in range(2))
    assert [[step[:3] for step in trace] for trace in first] == [[step[:3] for step in trace] for trace in second]


@pytest.mark.parametrize(
    "seeds",
    [
        range(10),
        pytest.param(range(10, 40), marks=pytest.mark.slow),
        pytest.param(range(40, 150), marks=pytest.mark.chaos),
    ],
    ids=str,
)
@pytest.mark.parametrize("conditions", CONDITIONS.values(), ids=CONDITIONS)
def test_the_real_rules_lose_nothing_under_the_conditions_of_the_mutants(conditions: Conditions, seeds: range) -> None:
    for run in runs(seeds, conditions):
        assert run.lost is None, run.report()
