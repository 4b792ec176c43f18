"""On version 1: rules for a collector or a deadline that are almost right, and lose data in a simulation."""

from __future__ import annotations

import pytest

from tests.buffer.collector import mutants_of_version_1 as mutants
from tests.buffer.collector.conditions import (
    PAUSED_FOR_HOURS,
    PAUSED_FOR_MINUTES,
    PAUSED_FOR_MINUTES_ON_A_FAST_STORE,
    SUSPENDED,
    UNINTERRUPTED,
    WRONG_CLOCKS,
    Conditions,
)
from tests.buffer.collector.simulation import Rules, first_loss, runs

MANIFESTS = ["opendata"]

LOSING: dict[str, tuple[Conditions, Rules]] = {
    "ULIDs older than the grace period, with wrong clocks": (WRONG_CLOCKS, mutants.BY_ULID),
    "ULIDs older than the grace period, with a paused producer": (PAUSED_FOR_HOURS, mutants.BY_ULID),
    "the host's clock instead of the manifest's time, with wrong clocks": (WRONG_CLOCKS, mutants.BY_THE_HOSTS_CLOCK),
    "the host's clock instead of the manifest's time, with a paused producer": (
        PAUSED_FOR_HOURS,
        mutants.BY_THE_HOSTS_CLOCK,
    ),
    "a deadline checked before the read and not after it": (PAUSED_FOR_HOURS, mutants.DEADLINE_BEFORE_READING),
    "a deadline checked after the first read only": (PAUSED_FOR_HOURS, mutants.DEADLINE_ONCE),
    "a deadline counted from after the write": (PAUSED_FOR_HOURS, mutants.DEADLINE_FROM_AFTER_THE_WRITE),
    "a deadline on a clock that stops during suspend": (SUSPENDED, Rules()),
    "a grace period below the deadline": (PAUSED_FOR_MINUTES, mutants.with_grace(100)),
    "the manifest read before listing, on a store whose clock is set back": (UNINTERRUPTED, mutants.MANIFEST_FIRST),
}


@pytest.mark.parametrize("rule", LOSING)
def test_a_rule_that_is_almost_right_loses_data(rule: str) -> None:
    assert first_loss(*LOSING[rule])


def test_a_grace_period_of_barely_more_than_the_deadline_loses_data_on_a_store_whose_clock_runs_twice_as_fast() -> None:
    # About one seed in 400 shows it. The first that does is 934, with the calls that are made to the store today.
    assert first_loss(PAUSED_FOR_MINUTES_ON_A_FAST_STORE, mutants.with_grace(330), range(930, 4_000))


def test_listing_before_reading_the_manifest_spares_a_quick_producer_even_when_the_stores_clock_is_set_back() -> None:
    for run in runs(range(100), UNINTERRUPTED):
        assert run.lost is None, run.report()
