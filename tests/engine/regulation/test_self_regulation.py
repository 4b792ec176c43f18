"""How regulation is configured, and the pressure and budget that come of it."""

from __future__ import annotations

import ctypes
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.regulation.budget import ByteBudgetConfig, Governor, SelfRegulation
from penstock.engine.regulation.guard import MemoryGuard
from penstock.engine.regulation.inbound import release_unused_memory
from penstock.engine.regulation.pressure import Hysteresis, Pressure
from penstock.errors import InvalidInput

KIB, MIB = 1 << 10, 1 << 20
LARGE = MemoryGuard(1 << 40)
PROFILES = {
    "throughput": ByteBudgetConfig(16 * MIB, 128 * MIB, MIB, 4 * MIB, 0.5, 2.0, 0.3, 1_000_000),
    "balanced": ByteBudgetConfig(8 * MIB, 64 * MIB, 512 * KIB, 2 * MIB, 0.5, 1.0, 0.3, 500_000),
    "low_latency": ByteBudgetConfig(MIB, 16 * MIB, 64 * KIB, 512 * KIB, 0.5, 0.2, 0.3, 100_000),
}


class Source:
    """A soft source at half weight."""

    name = "disk"
    weight = 0.5
    hard = False

    def read(self) -> Pressure:
        return Pressure(1)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_has_the_numbers_of_the_plan(profile: str) -> None:
    assert SelfRegulation(profile).config_for(LARGE) == PROFILES[profile]


def test_the_default_is_throughput() -> None:
    assert SelfRegulation() == SelfRegulation("throughput")


@pytest.mark.parametrize("profile", ["fast", "", "THROUGHPUT", None, 1, []])
def test_a_profile_that_there_is_not_is_refused_with_those_there_are(profile: Any) -> None:
    with pytest.raises(InvalidInput, match="profile must be one of throughput, balanced, low_latency"):
        SelfRegulation(profile)


@pytest.mark.parametrize(
    ("field", "value"),
    [("guard", 100), ("hysteresis", 0.8), ("hysteresis", None), ("budget", 100), ("budget", {"max_bytes": 1})],
)
def test_what_is_no_part_of_a_regulation_is_refused(field: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=field):
        SelfRegulation(**{field: value})


def test_a_regulation_cannot_be_changed() -> None:
    regulation = SelfRegulation(sources=[Source()])  # type: ignore[arg-type]  # a list does too
    assert isinstance(regulation.sources, tuple)
    with pytest.raises(FrozenInstanceError):
        regulation.profile = "balanced"  # type: ignore[misc]


@given(st.sampled_from(list(PROFILES)), st.integers(1, 1 << 34), st.booleans())
def test_a_block_is_a_small_part_of_the_memory_in_bytes_and_in_records(profile: str, limit: int, real: bool) -> None:
    guard = MemoryGuard(limit, (lambda: 0) if real else None)
    config = SelfRegulation(profile).config_for(guard)
    plan = PROFILES[profile]
    most = min(plan.max_bytes, max(1, limit // (32 if real else 8)))
    assert config.max_bytes == most
    assert config.start_bytes == min(plan.start_bytes, most)
    assert config.floor_bytes == min(plan.floor_bytes, max(1, most // 16))
    assert config.ai_step == plan.ai_step
    assert config.record_cap == (min(plan.record_cap, max(1, limit // 4096)) if real else plan.record_cap)


@pytest.mark.parametrize("sources", [None, 7, [object()], [Source, "memory"]])
def test_what_are_no_sources_is_refused(sources: Any) -> None:
    with pytest.raises(InvalidInput, match="source"):
        SelfRegulation(sources=sources)


def test_a_budget_that_is_given_is_used_as_it_is() -> None:
    budget = ByteBudgetConfig()
    assert SelfRegulation("balanced", budget=budget).config_for(MemoryGuard(100)) is budget


def test_a_governor_holds_at_the_pressure_of_its_guard() -> None:
    guard = MemoryGuard(1000)
    pressure = Governor(SelfRegulation(hysteresis=Hysteresis(0.5, 0.25)), guard).pressure
    assert not pressure.should_hold()
    with guard.lease(500):
        assert pressure.should_hold()
        assert pressure.last_level == 0.5
    assert not pressure.should_hold()


def test_a_governor_halves_the_budget_under_pressure() -> None:
    guard = MemoryGuard(8000)
    governor = Governor(SelfRegulation(budget=ByteBudgetConfig(1000, 1000, 10, 100)), guard)
    with guard.lease(8000):
        governor.budget.observe(1, 0.0, 1.0)
    assert governor.budget.byte_budget == 500


def test_a_governor_reads_the_other_sources_too() -> None:
    assert Governor(SelfRegulation(sources=(Source(),)), MemoryGuard(1000)).pressure.level == 0.5


def test_governors_of_one_regulation_share_no_state() -> None:
    regulation = SelfRegulation()
    guard = MemoryGuard(1 << 30)
    one, other = Governor(regulation, guard), Governor(regulation, MemoryGuard(1 << 30))
    one.budget.observe(1, 1e9, 1.0)
    assert one.budget.byte_budget < 16 * MIB
    with guard.lease(1 << 30):
        assert one.pressure.should_hold()
        assert not other.pressure.should_hold()
    assert other.budget.byte_budget == 16 * MIB


def test_unused_memory_can_be_released() -> None:
    release_unused_memory()


@pytest.mark.parametrize("error", [OSError("no such library"), AttributeError("malloc_trim")])
def test_a_system_without_glibc_is_no_error(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def missing(name: object) -> object:
        raise error

    monkeypatch.setattr(ctypes, "CDLL", missing)
    release_unused_memory()
