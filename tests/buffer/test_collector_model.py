"""The collector never deletes what is referenced or can still be enqueued, and in the end it deletes all the rest.

Real producers, consumers and collectors in random interleavings, step by step: each of them is paused for hours at any
of its steps, and their clocks are hours apart, or ten years ahead for single calls. The same model finds the loss with
every rule that is almost right: `collector/test_wrong_rules.py` for version 1, `collector/test_wrong_floors.py` for
version 2.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter

import pytest

from tests.buffer.collector.model import Run, runs
from tests.buffer.collector.weather import (
    CROOKED,
    LEAPING,
    NATIVE_STEPS,
    PAUSED,
    SLOW,
    SLOW_ON_A_FAST_STORE,
    STEPS,
    Weather,
)

FEW = range(120)
MANY = [
    pytest.param(seeds, marks=[pytest.mark.chaos, pytest.mark.timeout(1800)])
    for seeds in [range(120, 1_000), *[range(start, start + 5_000) for start in range(1_000, 51_000, 5_000)]]
]
MORE = [161, 170, 236, 290, 583, *range(120, 3_000)]  # in which what is rare has to come; where it did come first

WEATHERS = {
    "crooked clocks": CROOKED,
    "clocks that leap for one call": LEAPING,
    "long pauses": PAUSED,
    "short pauses": SLOW,
    "a fast store": SLOW_ON_A_FAST_STORE,
}


@functools.cache
def few_of(manifest: str) -> list[Run]:
    """A small fixed part of all runs, for `make test`; within a test, for its manifest."""
    return list(runs(FEW))


@pytest.fixture
def few(manifest: str) -> list[Run]:
    """Made once for each manifest."""
    return few_of(manifest)


def test_what_is_referenced_or_can_still_be_enqueued_is_never_deleted(few: list[Run]) -> None:
    for run in few:
        assert run.lost is None, run.story()


def test_in_the_end_all_that_nobody_can_refer_to_is_gone(few: list[Run]) -> None:
    for run in few:
        assert run.litter == [], run.story()


@pytest.mark.parametrize("seeds", MANY)
def test_no_run_loses_data_or_leaves_litter(seeds: range) -> None:
    for run in runs(seeds):
        assert (run.lost, run.litter) == (None, []), run.story()


def test_the_runs_enqueue_and_give_up_and_dequeue_and_collect(few: list[Run]) -> None:
    counts = sum((run.counts for run in few), Counter[str]())
    for what in ("enqueued", "given up", "acked", "collected"):
        assert counts[what] >= len(few) / 4, counts


def test_clocks_are_wrong_for_one_call_and_on_version_2_what_they_named_is_closed(
    few: list[Run], manifest: str
) -> None:
    counts = sum((run.counts for run in few), Counter[str]())
    assert counts["wrong for one call"] >= len(few) / 4, counts
    assert (counts["closed"] >= len(few) / 20) == (manifest == "native"), counts


def test_on_version_2_producers_write_again_what_was_below_the_floor_and_only_there(
    few: list[Run], manifest: str
) -> None:
    counts = sum((run.counts for run in few), Counter[str]())
    assert (counts["written again"] >= len(few) / 20) == (manifest == "native"), counts


@pytest.mark.parametrize("role", ["producer", "collector"])
def test_everybody_is_paused_for_hours_at_every_step(few: list[Run], role: str, manifest: str) -> None:
    missing = set(NATIVE_STEPS[role] if manifest == "native" else STEPS[role])
    for run in itertools.chain(few, runs(MORE)):
        missing -= {what for who, what in run.paused if who == role}
        if not missing:
            break
    assert not missing


def test_a_seed_is_the_same_run_each_time() -> None:
    seeds = range(5)
    first, second = ([[(step.at, step.who, step.what) for step in run.trace] for run in runs(seeds)] for _ in range(2))
    assert first == second


@pytest.mark.parametrize("seeds", [range(40), pytest.param(range(40, 150), marks=pytest.mark.chaos)], ids=str)
@pytest.mark.parametrize("weather", WEATHERS.values(), ids=WEATHERS)
def test_the_real_rules_lose_nothing_in_the_same_weather(weather: Weather, seeds: range) -> None:
    for run in runs(seeds, weather):
        assert run.lost is None, run.story()
