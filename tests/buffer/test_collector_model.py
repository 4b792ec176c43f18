"""The collector never deletes what is referenced or can still be enqueued, and in the end it deletes all the rest.

Real producers, consumers and collectors in random interleavings, step by step: each of them is paused for hours at any
of its steps, and their clocks are hours apart. The same model finds the loss with every rule that is almost right.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import pytest

from tests.buffer.collector import wrong_rules
from tests.buffer.collector.model import Rules, Run, runs
from tests.buffer.collector.weather import LONG_PAUSES, SET_BACK, SHORT_PAUSES, STEPS, Weather

FEW = range(300)
MANY = [
    pytest.param(range(start, start + 5_000), marks=[pytest.mark.chaos, pytest.mark.timeout(1800)])
    for start in range(1_000, 51_000, 5_000)
]
ENOUGH = range(600)  # in which a wrong rule has to show
MORE = range(300, 3_000)  # in which what is rare has to come

STRAIGHT = Weather(crooked_clocks=False, faults=False, store_times=("steady",))
CROOKED = replace(STRAIGHT, crooked_clocks=True, pauses=())
PAUSED = replace(STRAIGHT, pauses=(LONG_PAUSES,))
SLOW = replace(STRAIGHT, pauses=(SHORT_PAUSES,))
SLOW_ON_A_FAST_STORE = replace(SLOW, store_times=("twice as fast",))
SUSPENDED = replace(STRAIGHT, suspend_stops_uptime=True)
UNINTERRUPTED = Weather(faults=False, store_times=(SET_BACK,), interrupts_producers=False)
WEATHERS = {
    "crooked clocks": CROOKED,
    "long pauses": PAUSED,
    "short pauses": SLOW,
    "a fast store": SLOW_ON_A_FAST_STORE,
}


@pytest.fixture(scope="module")
def few() -> list[Run]:
    """A small fixed part of all runs, for `make test`."""
    return list(runs(FEW))


def first_loss(weather: Weather, rules: Rules) -> Run | None:
    return next((run for run in runs(ENOUGH, weather, rules) if run.lost), None)


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


@pytest.mark.parametrize("role", ["producer", "collector"])
def test_everybody_is_paused_for_hours_at_every_step(few: list[Run], role: str) -> None:
    missing = set(STEPS[role])
    for run in itertools.chain(few, runs(MORE)):
        missing -= {what for who, what in run.paused if who == role}
        if not missing:
            break
    assert not missing


def test_a_seed_is_the_same_run_each_time() -> None:
    seeds = range(5)
    first, second = ([[(step.at, step.who, step.what) for step in run.trace] for run in runs(seeds)] for _ in range(2))
    assert first == second


def test_ulids_older_than_the_grace_period_lose_data_with_a_crooked_clock() -> None:
    assert first_loss(CROOKED, wrong_rules.BY_ULID)


def test_ulids_older_than_the_grace_period_lose_data_with_a_paused_producer() -> None:
    assert first_loss(PAUSED, wrong_rules.BY_ULID)


def test_the_hosts_clock_in_the_place_of_the_manifests_time_loses_data_when_it_is_crooked() -> None:
    assert first_loss(CROOKED, wrong_rules.BY_THE_HOSTS_CLOCK)


def test_the_hosts_clock_in_the_place_of_the_manifests_time_loses_data_with_a_paused_producer() -> None:
    assert first_loss(PAUSED, wrong_rules.BY_THE_HOSTS_CLOCK)


def test_a_deadline_that_is_checked_before_the_read_and_not_after_it_loses_data() -> None:
    assert first_loss(PAUSED, wrong_rules.DEADLINE_BEFORE_READING)


def test_a_deadline_that_is_checked_after_the_first_read_only_loses_data() -> None:
    assert first_loss(PAUSED, wrong_rules.DEADLINE_ONCE)


def test_a_deadline_that_counts_from_after_the_write_loses_data() -> None:
    assert first_loss(PAUSED, wrong_rules.DEADLINE_FROM_AFTER_THE_WRITE)


def test_a_deadline_on_a_clock_that_stops_during_suspend_loses_data() -> None:
    assert first_loss(SUSPENDED, Rules())


def test_a_grace_period_below_the_deadline_loses_data() -> None:
    assert first_loss(SLOW, wrong_rules.with_grace(100))


def test_a_grace_period_of_barely_more_than_the_deadline_loses_data_on_a_store_whose_clock_runs_twice_as_fast() -> None:
    assert first_loss(SLOW_ON_A_FAST_STORE, wrong_rules.with_grace(330))


def test_reading_the_manifest_before_listing_loses_data_when_the_stores_clock_is_set_back() -> None:
    assert first_loss(UNINTERRUPTED, wrong_rules.MANIFEST_FIRST)


@pytest.mark.parametrize("weather", WEATHERS.values(), ids=WEATHERS)
def test_the_real_rules_lose_nothing_in_the_same_weather(weather: Weather) -> None:
    for run in runs(range(150), weather):
        assert run.lost is None, run.story()


def test_listing_before_reading_the_manifest_spares_a_quick_producer_even_when_the_stores_clock_is_set_back() -> None:
    for run in runs(range(100), UNINTERRUPTED):
        assert run.lost is None, run.story()
