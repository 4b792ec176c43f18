"""How large the next block of a query may be: a budget fed with the planner's own timing, and a gate on memory."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from penstock.engine import MemoryGuard
from penstock.spark.source.admission import BUDGET, Admission, has_waited
from tests.support.memory_readings import reading

ANY_SPARK = True

MIB = 1 << 20


@dataclass
class Clock:
    now: float = 1000.25

    def __call__(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


def admission(clock: Clock, guard: MemoryGuard | None = None) -> Admission:
    return Admission(guard=guard or MemoryGuard(1 << 40), clock=clock, wall_clock=clock, sleep=clock.pass_by)


@contextmanager
def no_hold_left() -> Iterator[None]:
    """See to it that what began to hold is counted as holding no longer."""
    pauses, paused = reading("penstock_inbound_pauses_total"), reading("penstock_inbound_paused")
    yield
    assert reading("penstock_inbound_pauses_total") == pauses + 1
    assert reading("penstock_inbound_paused") == paused


def blocks(query: Admission, clock: Clock, count: int, seconds: float) -> list[int]:
    """Run so many blocks of the budget's size, and return the budget after each."""
    budgets = []
    for _ in range(count):
        query.note_planned(query.wait(lambda: False))
        clock.pass_by(seconds)
        query.note_call()
        budgets.append(query.byte_budget)
    return budgets


def test_it_starts_with_256_mib_and_ends_at_2_gib_while_blocks_are_quick() -> None:
    clock = Clock()
    query = admission(clock)
    assert query.byte_budget == 256 * MIB
    budgets = blocks(query, clock, 60, 1.3)
    assert budgets == sorted(budgets)
    assert budgets[-1] == 2048 * MIB


def test_it_falls_to_16_mib_while_blocks_are_slow_and_recovers_when_they_are_quick_again() -> None:
    clock = Clock()
    query = admission(clock)
    slow = blocks(query, clock, 20, 33.3)
    assert slow == sorted(slow, reverse=True)
    assert slow[-1] == 16 * MIB
    assert blocks(query, clock, 30, 0.7)[-1] > 512 * MIB


def test_blocks_of_eight_seconds_leave_it_as_it_is() -> None:
    clock = Clock()
    query = admission(clock)
    assert set(blocks(query, clock, 20, 8.3)) == {256 * MIB}


def test_waiting_for_a_trigger_is_not_taken_for_a_slow_block() -> None:
    clock = Clock(now=60_000.02)
    query = admission(clock)
    query.note_call()
    assert min(blocks(query, clock, 20, 60.0)) >= 256 * MIB


def test_a_block_that_takes_longer_than_its_trigger_is_slow_all_the_same() -> None:
    clock = Clock(now=60_000.02)
    query = admission(clock)
    query.note_call()
    assert blocks(query, clock, 20, 77.7)[-1] == 16 * MIB


@pytest.mark.parametrize(
    ("before", "now", "waited"),
    [(120.0, 180.0, True), (120.3, 180.1, True), (119.0, 179.0, False), (120.0, 179.0, False), (5.0, 5.1, False)],
)
def test_a_trigger_is_told_by_calls_at_whole_multiples_of_what_lies_between(
    before: float, now: float, waited: bool
) -> None:
    assert has_waited(before, now) is waited


def test_idle_time_counts_as_slack() -> None:
    clock = Clock()
    query = admission(clock)
    for _ in range(10):
        clock.pass_by(0.5)
        query.note_idle()
    assert query.byte_budget > 256 * MIB


def test_under_memory_pressure_it_waits_until_there_is_relief_and_halves_the_budget() -> None:
    clock, guard = Clock(), MemoryGuard(100)
    guard.add(90)
    since = clock.now

    def sleep(seconds: float) -> None:
        clock.pass_by(seconds)
        if clock.now - since > 5 and guard.current_bytes:
            guard.release(90)

    query = Admission(guard=guard, clock=clock, wall_clock=clock, sleep=sleep)
    assert query.wait(lambda: False) == 128 * MIB
    assert 5 < clock.now - since < 6


def test_without_relief_one_block_of_the_smallest_size_is_admitted_after_30_s(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, guard = Clock(), MemoryGuard(100)
    guard.add(90)
    since = clock.now
    with caplog.at_level(logging.WARNING), no_hold_left():
        assert admission(clock, guard).wait(lambda: False) == BUDGET.floor_bytes
    assert 30 <= clock.now - since < 31
    assert "no relief for 30 s" in caplog.text


def test_a_hold_ends_at_once_when_the_pipeline_is_stopped() -> None:
    clock, guard = Clock(), MemoryGuard(100)
    guard.add(90)
    since = clock.now
    with no_hold_left():
        admission(clock, guard).wait(lambda: True)
    assert clock.now == since


def test_a_hold_that_an_error_ends_is_over() -> None:
    clock, guard = Clock(), MemoryGuard(100)
    guard.add(90)

    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    query = Admission(guard=guard, clock=clock, wall_clock=clock, sleep=interrupted)
    with no_hold_left(), pytest.raises(KeyboardInterrupt):
        query.wait(lambda: False)


def test_the_numbers_are_those_of_the_documentation() -> None:
    assert (BUDGET.start_bytes, BUDGET.max_bytes, BUDGET.floor_bytes) == (256 * MIB, 2048 * MIB, 16 * MIB)
    assert BUDGET.target_block_seconds == 10.0
