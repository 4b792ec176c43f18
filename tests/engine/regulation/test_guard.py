"""The memory guard: what it counts, on every way out."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.regulation import guard as memory_guard
from penstock.engine.regulation.guard import MemoryGuard
from penstock.engine.regulation.pressure import PressureSource, UnifiedPressure
from penstock.errors import InvalidInput
from tests.support.interrupts import Interrupts
from tests.support.processes import PATIENCE
from tests.support.waiting import Background

SIZES = st.integers(0, 10**6)
STEPS = st.recursive(
    st.tuples(st.sampled_from(["add", "release", "fail"]), SIZES),
    lambda steps: st.tuples(st.just("lease"), SIZES, st.lists(steps, max_size=4)),
    max_leaves=20,
)


class Failure(Exception):
    """What goes wrong in the middle of a block."""


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@given(st.lists(st.tuples(st.booleans(), SIZES)))
def test_what_is_added_and_released_is_counted_and_never_below_0(steps: list[tuple[bool, int]]) -> None:
    guard = MemoryGuard(10**6)
    leased = 0
    for is_add, count in steps:
        (guard.add if is_add else guard.release)(count)
        leased = max(0, leased + (count if is_add else -count))
        assert guard.current_bytes == leased
        assert guard.read() == min(1.0, leased / 10**6)


@settings(deadline=None)  # other tests run on the same cores
@given(st.lists(STEPS))
def test_leases_leave_nothing_on_any_way_out(steps: list[Any]) -> None:
    guard = MemoryGuard(10**9)

    def run(steps: list[Any], held: int) -> None:
        for step in steps:
            if step[0] == "fail":
                raise Failure
            if step[0] == "lease":
                with guard.lease(step[1]):
                    assert guard.current_bytes == held + step[1]
                    run(step[2], held + step[1])
            else:
                guard.add(step[1])
                guard.release(step[1])
            assert guard.current_bytes == held

    with contextlib.suppress(Failure):
        run(steps, 0)
    assert guard.current_bytes == 0


def test_releasing_a_lease_twice_is_releasing_it_once() -> None:
    guard = MemoryGuard(100)
    guard.add(10)
    with guard.lease(5) as lease:
        assert guard.current_bytes == 15
        lease.release()
        lease.release()
        assert guard.current_bytes == 10
    assert guard.current_bytes == 10


def test_a_lease_that_is_referred_to_ends_with_its_block() -> None:
    guard = MemoryGuard(100)
    lease = guard.lease(5)
    with pytest.raises(Failure), lease:
        raise Failure
    assert guard.current_bytes == 0


def test_entering_a_lease_twice_is_entering_it_once() -> None:
    guard = MemoryGuard(100)
    with guard.lease(5) as lease, lease:
        assert guard.current_bytes == 5
    assert guard.current_bytes == 0


def test_a_lease_counts_from_the_with_on() -> None:
    guard = MemoryGuard(100)
    lease = guard.lease(5)
    assert guard.current_bytes == 0
    with lease:
        assert guard.current_bytes == 5


def test_a_lease_that_is_not_released_ends_with_its_object() -> None:
    guard = MemoryGuard(100)
    lease = guard.lease(5)
    lease.__enter__()
    assert guard.current_bytes == 5
    del lease
    assert guard.current_bytes == 0


def test_an_interrupt_at_the_entry_of_any_function_leaves_nothing() -> None:
    guard = MemoryGuard(100)

    def work() -> None:
        with guard.lease(7):
            pass

    for number in itertools.count():
        interrupts = Interrupts(number, memory_guard.__file__.__eq__, lambda _, event: event == "call")
        interrupts.during(work)
        assert guard.current_bytes == 0, f"after interrupt {number}"
        if not interrupts.came:
            break
    assert number > 4


def test_a_signal_at_any_moment_leaves_nothing() -> None:
    guard = MemoryGuard(100)
    armed, hits = False, 0

    def strike(number: int, frame: FrameType | None) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise KeyboardInterrupt

    # Not the timer of pytest-timeout; this one counts the time that this process computes.
    before = signal.signal(signal.SIGVTALRM, strike)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.0005, 0.0005)
    try:
        until = time.monotonic() + PATIENCE
        while hits < 50 and time.monotonic() < until and guard.current_bytes == 0:
            armed = True
            try:
                with guard.lease(7):
                    pass
            except KeyboardInterrupt:
                hits += 1
            armed = False
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    assert guard.current_bytes == 0
    assert hits == 50


@pytest.mark.usefixtures("hasty_threads")
def test_threads_leak_nothing() -> None:
    guard = MemoryGuard(10**9)

    def work(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(1500):
            count = chance.randrange(1000)
            guard.add(count)
            try:
                with guard.lease(count):
                    assert guard.current_bytes >= 2 * count
                    if chance.random() < 0.3:
                        raise Failure
            except Failure:
                pass
            guard.release(count)

    workers = [Background(lambda seed=seed: work(seed)) for seed in range(6)]  # type: ignore[misc]  # a lambda's default
    for worker in workers:
        worker.result()
    assert guard.current_bytes == 0


def test_releasing_more_than_was_added_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    guard = MemoryGuard(100)
    guard.add(5)
    with caplog.at_level(logging.WARNING):
        guard.release(5)
        assert not caplog.records
        guard.release(3)
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "3 bytes" in caplog.text
        with guard.lease(10):
            guard.release(4)
            assert guard.current_bytes == 10
    assert "4 bytes" in caplog.text
    assert guard.current_bytes == 0


@pytest.mark.parametrize("call", ["add", "release", "lease"])
@pytest.mark.parametrize("count", [-1, 1.0, True, None, "1", math.nan])
def test_what_is_no_count_is_refused(call: str, count: object) -> None:
    guard = MemoryGuard(100)
    guard.add(50)
    with pytest.raises(InvalidInput, match="count"):
        getattr(guard, call)(count)
    assert guard.current_bytes == 50


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "1"])
def test_what_is_no_limit_is_refused(limit: Any) -> None:
    with pytest.raises(InvalidInput, match="limit_bytes"):
        MemoryGuard(limit)


def test_what_is_no_heap_source_is_refused() -> None:
    with pytest.raises(InvalidInput, match="heap_source"):
        MemoryGuard(100, 50)  # type: ignore[arg-type]


def test_with_a_limit_leases_alone_count() -> None:
    guard = MemoryGuard(1)
    assert (guard.limit_bytes, guard.read()) == (1, 0.0)
    guard = MemoryGuard(1000)
    guard.add(250)
    assert guard.read() == 0.25
    guard.add(10**30)
    assert guard.read() == 1.0


@given(st.integers(0, 200), st.integers(0, 200))
def test_with_a_heap_source_the_larger_counts(leased: int, heap: int) -> None:
    guard = MemoryGuard(100, lambda: heap)
    guard.add(leased)
    assert guard.read() == min(1.0, max(leased, heap) / 100)


def test_a_heap_source_that_fails_is_full_for_the_engine() -> None:
    def fail() -> int:
        raise OSError("gone")

    assert UnifiedPressure([MemoryGuard(100, fail)]).level == 1.0


def test_a_guard_is_a_hard_source() -> None:
    guard: PressureSource = MemoryGuard(100)
    assert (guard.name, guard.weight, guard.hard) == ("memory", 1.0, True)


def machine(root: Path, *, used: int) -> Path:
    """A machine of 1000 KiB, and a group of at most 100,000 bytes."""
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 900 kB\n")
    (root / "proc/self/cgroup").write_text("0::/\n")
    (root / "proc/self/mountinfo").write_text("1 0 0:1 / /groups rw - cgroup2 cgroup2 rw\n")
    (root / "groups").mkdir(exist_ok=True)
    (root / "groups/memory.max").write_text("100000\n")
    (root / "groups/memory.current").write_text(f"{used}\n")
    return root


def test_without_a_limit_the_group_is_asked_each_time(tmp_path: Path) -> None:
    guard = MemoryGuard(root=machine(tmp_path, used=25_000))
    assert (guard.limit_bytes, guard.read()) == (100_000, 0.25)
    machine(tmp_path, used=50_000)
    assert guard.read() == 0.5
    guard.add(75_000)
    assert guard.read() == 0.75


def test_without_its_group_the_leases_count(tmp_path: Path) -> None:
    guard = MemoryGuard(root=machine(tmp_path, used=25_000))
    (tmp_path / "groups/memory.current").unlink()
    guard.add(10_000)
    assert guard.read() == 0.1


def test_a_heap_source_stands_in_for_the_groups_usage(tmp_path: Path) -> None:
    guard = MemoryGuard(heap_source=lambda: 10_000, root=machine(tmp_path, used=90_000))
    assert (guard.limit_bytes, guard.read()) == (100_000, 0.1)


def test_the_host_is_asked_where_no_group_has_a_limit(tmp_path: Path) -> None:
    machine(tmp_path, used=25_000)
    (tmp_path / "groups/memory.max").write_text("max\n")
    guard = MemoryGuard(root=str(tmp_path))
    assert (guard.limit_bytes, guard.read()) == (1000 * 1024, 0.1)


def test_this_machine_has_a_limit_and_something_in_use() -> None:
    guard = MemoryGuard()
    assert 1 << 20 < guard.limit_bytes <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < guard.read() < 1
