"""The level of all sources, and the latch on it."""

from __future__ import annotations

import logging
import math
import pickle
from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.engine.regulation.pressure import Hysteresis, Pressure, UnifiedPressure
from penstock.errors import InvalidInput
from tests.support.memory_readings import reading
from tests.support.waiting import Background

ANYTHING = st.floats(allow_nan=True, allow_infinity=True) | st.integers() | st.sampled_from([10**400, -(10**400)])
READINGS = st.floats(0, 1)


@dataclass
class Source:
    """A source whose reading the test sets."""

    reading: float = 0.0
    hard: bool = False
    weight: float = 1.0
    name: str = "a test's source"
    error: Exception | None = None
    reads: int = 0

    def read(self) -> Pressure:
        self.reads += 1
        if self.error is not None:
            raise self.error
        return self.reading  # type: ignore[return-value]  # a plain float is what many will return


SOURCES = st.builds(Source, reading=ANYTHING, hard=st.booleans(), weight=ANYTHING)


def clamped(value: float) -> float:
    return 0.0 if value != value else max(0.0, min(1.0, value))


@settings(deadline=None)
@given(ANYTHING)
@example(math.nan)
@example(math.inf)
@example(-math.inf)
def test_a_pressure_is_clamped_to_0_and_1_and_nan_is_0(value: float) -> None:
    assert Pressure(value) == clamped(value)


def test_a_pressure_can_be_printed_and_pickled() -> None:
    assert repr(pickle.loads(pickle.dumps(Pressure(0.5)))) == "Pressure(0.5)"


@pytest.mark.parametrize("field", ["pause_above", "resume_below"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.01, 1.01, True, False, None, "0.7", 10**400])
def test_a_bound_that_is_no_number_from_0_to_1_is_refused(field: str, value: object) -> None:
    with pytest.raises(InvalidInput, match=field) as refused:
        Hysteresis(**{field: value})  # type: ignore[arg-type]  # that is the point
    assert repr(value) in str(refused.value)


@pytest.mark.parametrize(("pause", "resume"), [(0.5, 0.5), (0.5, 0.6), (0, 0), (0, 1)])
def test_bounds_without_a_distance_are_refused(pause: float, resume: float) -> None:
    with pytest.raises(InvalidInput, match="pause_above must be larger than resume_below"):
        Hysteresis(pause, resume)


def test_the_widest_bounds_are_accepted() -> None:
    assert Hysteresis(1, 0) == Hysteresis(1.0, 0.0)


def test_what_is_no_hysteresis_is_refused() -> None:
    with pytest.raises(InvalidInput, match="hysteresis"):
        UnifiedPressure([], 0.8)  # type: ignore[arg-type]


@settings(deadline=None)
@given(st.lists(SOURCES))
@example([Source(0.5, weight=math.nan)])
@example([Source(0.5, weight=-math.inf)])
@example([Source(0.5, weight=10**400)])
@example([Source(0.5, weight=2), Source(0.75, weight=-1)])
@example([Source(0.5, hard=True, weight=0), Source(1.0, weight=0.25)])
def test_the_level_is_the_largest_hard_reading_or_weighted_soft_one(sources: list[Source]) -> None:
    def weighted(source: Source) -> float:
        weight = clamped(source.weight) if -math.inf < source.weight < math.inf else 1.0
        return clamped(source.reading) * weight

    hard = [clamped(source.reading) for source in sources if source.hard]
    soft = [weighted(source) for source in sources if not source.hard]
    assert UnifiedPressure(sources).level == max(0.0, *hard, *soft, 0.0)


@settings(deadline=None)
@given(st.lists(READINGS), READINGS, READINGS)
def test_the_latch_is_that_of_the_model(levels: list[float], one: float, other: float) -> None:
    resume, pause = sorted((one, other))
    if resume == pause:
        return
    source = Source(hard=True)
    pressure = UnifiedPressure([source], Hysteresis(pause, resume))
    holds = False
    for level in [*levels, pause, (pause + resume) / 2, resume, (pause + resume) / 2]:
        source.reading = level
        holds = level >= pause or (holds and level > resume)
        assert pressure.should_hold() is holds


def test_the_level_alone_does_not_move_the_latch() -> None:
    source = Source(1.0, hard=True)
    pressure = UnifiedPressure([source])
    assert pressure.level == 1.0
    source.reading = 0.7
    assert not pressure.should_hold()


def test_without_sources_there_is_no_pressure() -> None:
    pressure = UnifiedPressure([])
    assert pressure.level == 0.0
    assert not pressure.should_hold()


def test_the_last_level_is_kept_without_reading_again() -> None:
    source = Source(0.5, hard=True)
    pressure = UnifiedPressure(iter([source]))
    assert (pressure.last_level, source.reads) == (0.0, 0)
    assert (pressure.level, pressure.last_level, source.reads) == (0.5, 0.5, 1)


def test_the_level_is_a_metric() -> None:
    assert UnifiedPressure([Source(0.375)]).level == 0.375
    assert reading("penstock_pressure_ratio") == 0.375


@pytest.mark.parametrize(("hard", "level"), [(True, 1), (False, 0.25)])
def test_a_source_that_fails_is_full_if_hard_and_nothing_if_soft(hard: bool, level: float) -> None:
    failing = Source(0.5, hard=hard, error=OSError("gone"))
    assert UnifiedPressure([failing, Source(0.25)]).level == level


def test_a_source_that_reads_no_number_fails() -> None:
    assert UnifiedPressure([Source("full", hard=True)]).level == 1.0  # type: ignore[arg-type]


def test_a_source_that_fails_is_logged_once_until_it_reads_again(caplog: pytest.LogCaptureFixture) -> None:
    failing, other = Source(name="disk", error=OSError("gone")), Source(name="net", hard=True, error=OSError("down"))
    pressure = UnifiedPressure([failing, other])
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            pressure.should_hold()
        assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
        assert "disk" in caplog.text
        assert "net" in caplog.text
        caplog.clear()
        failing.error = None
        pressure.should_hold()
        assert not caplog.records
        failing.error = OSError("gone again")
        pressure.should_hold()
    assert [record.getMessage().count("gone again") for record in caplog.records] == [1]


def test_an_interrupt_in_a_source_is_not_swallowed() -> None:
    class Interrupted(Source):
        def read(self) -> Pressure:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _ = UnifiedPressure([Interrupted()]).level


def test_threads_can_read_at_the_same_time() -> None:
    pressure = UnifiedPressure([Source(0.9, hard=True), Source(error=OSError("gone"))])
    answers = [Background(lambda: [pressure.should_hold() for _ in range(300)]) for _ in range(4)]
    assert all(all(answer.result()) for answer in answers)
