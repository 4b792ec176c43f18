"""The budget: its steps, its bounds, and what it does while a backlog is drained."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.engine.regulation.budget import ByteBudget, ByteBudgetConfig
from penstock.errors import InvalidInput
from tests.engine.doubles import HoldSwitch
from tests.support.memory_readings import reading
from tests.support.waiting import Background

MIB = 1 << 20
SMALL = ByteBudgetConfig(
    start_bytes=400, max_bytes=1000, floor_bytes=10, ai_step=100, target_block_seconds=1.0, record_cap=7
)
ANY_TIME = st.floats(allow_nan=True, allow_infinity=True)
SAMPLES = st.tuples(st.integers(0, 10**12), ANY_TIME, ANY_TIME, st.booleans())


@st.composite
def configs(draw: st.DrawFn) -> ByteBudgetConfig:
    floor, start, most = sorted(draw(st.lists(st.integers(1, 2**63 - 1), min_size=3, max_size=3)))
    return ByteBudgetConfig(
        start_bytes=start,
        max_bytes=most,
        floor_bytes=floor,
        ai_step=draw(st.integers(1, 2**63 - 1)),
        md_factor=draw(st.floats(0, 1, exclude_min=True, exclude_max=True)),
        target_block_seconds=draw(st.floats(min_value=0, exclude_min=True, allow_infinity=False, allow_nan=False)),
        ema_alpha=draw(st.floats(0, 1, exclude_min=True)),
    )


@settings(deadline=None)
@given(configs(), st.lists(SAMPLES))
def test_the_budget_never_leaves_its_bounds(
    config: ByteBudgetConfig, samples: list[tuple[int, float, float, bool]]
) -> None:
    pressure = HoldSwitch()
    budget = ByteBudget(config, pressure)
    assert budget.byte_budget == config.start_bytes
    for block_bytes, process_time, interval, pressure.hold in samples:
        budget.observe(block_bytes, process_time, interval)
        assert config.floor_bytes <= budget.byte_budget <= config.max_bytes
        assert isinstance(budget.byte_budget, int)
        assert math.isfinite(budget.utilisation)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 3), st.booleans())))
@example([(1, 0.9, False), (0, 99.0, False), (1, 0.9, False)])  # idle is slack, and no part of the average
@example([(0, 0.0, False), (1, 1.01, False)])  # nor its first value
@example([(1, 0.001, True), (0, 0.0, True)])  # a hold multiplies down, whatever the times are
@example([(1, 0.8, True), (1, 0.0, False), (1, 1.4, False)])  # a block under a hold is part of the average
def test_the_steps_are_those_of_the_model(samples: list[tuple[int, float, bool]]) -> None:
    pressure = HoldSwitch()
    budget = ByteBudget(SMALL, pressure)
    size, average = 400, None
    for block_bytes, seconds, pressure.hold in samples:
        budget.observe(block_bytes, seconds, 1.0)
        if block_bytes:
            average = seconds if average is None else 0.3 * seconds + (1 - 0.3) * average
        if pressure.hold or (block_bytes and average is not None and average > 1):
            size = max(10, size // 2)
        elif not block_bytes or (average is not None and average < 0.7):
            size = min(1000, size + 100)
        assert budget.byte_budget == size


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0.69, 500), (0.7, 400), (1.0, 400), (1.01, 200), (0.0, 500), (50.0, 200)]
)
def test_the_first_block_seeds_the_average(seconds: float, expected: int) -> None:
    budget = ByteBudget(SMALL)
    budget.observe(1, seconds, 1.0)
    assert budget.byte_budget == expected


@pytest.mark.parametrize("bad", [math.nan, -1.0, -math.inf])
def test_a_negative_time_and_nan_count_as_0(bad: float) -> None:
    budget = ByteBudget(SMALL)
    budget.observe(1, bad, 1.0)
    assert budget.byte_budget == 500
    budget.observe(1, 4.0, 1.0)  # 1.2
    assert budget.byte_budget == 250


@pytest.mark.parametrize("bad", [math.inf, 1e300, 10**400])
def test_the_budget_recovers_from_an_endless_time(bad: float) -> None:
    budget = ByteBudget(SMALL)
    budget.observe(1, bad, 1.0)
    for _ in range(60):
        budget.observe(1, 0.1, 1.0)
    assert budget.byte_budget == 1000


@pytest.mark.parametrize(
    ("process_time", "interval", "expected"),
    [(0.5, 2.0, 0.25), (3.0, 2.0, 1.5), (1.0, 0.0, 0.0), (1.0, -1.0, 0.0), (1.0, math.nan, 0.0), (1.0, math.inf, 0.0)],
)
def test_the_utilisation_is_that_of_the_last_block(process_time: float, interval: float, expected: float) -> None:
    budget = ByteBudget(SMALL)
    assert budget.utilisation == 0
    budget.observe(1, process_time, interval)
    budget.observe(0, 0.0, 1.0)
    assert budget.utilisation == expected


def test_the_record_cap_is_that_of_the_config() -> None:
    assert ByteBudget(SMALL).record_cap == 7


def test_the_budget_is_a_metric() -> None:
    budget = ByteBudget(SMALL)
    assert reading("penstock_byte_budget") == 400
    budget.observe(1, 1e9, 1.0)
    assert reading("penstock_byte_budget") == 200


def test_the_defaults_are_those_of_the_throughput_profile() -> None:
    assert ByteBudgetConfig() == ByteBudgetConfig(16 * MIB, 128 * MIB, MIB, 4 * MIB, 0.5, 2.0, 0.3, 1_000_000)
    assert ByteBudget().byte_budget == 16 * MIB


NO_COUNT: list[Any] = [0, -1, 1.5, 2**63, True, None, "1"]
NO_SHARE: list[Any] = [0, -0.5, 1.5, math.nan, math.inf, True, None, "0.5", 10**400]
NO_TIME: list[Any] = [0, -1.0, math.nan, math.inf, True, None, "1", 10**400]
OUT_OF_RANGE: dict[str, list[Any]] = {
    "start_bytes": [*NO_COUNT, MIB - 1, 128 * MIB + 1],
    "max_bytes": [*NO_COUNT, 16 * MIB - 1],
    "floor_bytes": [*NO_COUNT, 16 * MIB + 1],
    "ai_step": NO_COUNT,
    "md_factor": [*NO_SHARE, 1, 1.0],
    "target_block_seconds": NO_TIME,
    "ema_alpha": NO_SHARE,
    "record_cap": NO_COUNT,
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field in OUT_OF_RANGE for value in OUT_OF_RANGE[field]]
)
def test_a_value_out_of_range_is_refused_by_name_and_value(field: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=field) as refused:
        ByteBudgetConfig(**{field: value})
    assert repr(value) in str(refused.value)


def test_every_field_is_checked() -> None:
    assert {field.name for field in fields(ByteBudgetConfig)} == set(OUT_OF_RANGE)


def test_the_widest_values_are_accepted() -> None:
    config = ByteBudgetConfig(1, 1, 1, 1, 0.999, 1e-9, 1, 1)
    assert ByteBudget(config).byte_budget == 1


def test_what_is_no_config_is_refused() -> None:
    with pytest.raises(InvalidInput, match="ByteBudgetConfig"):
        ByteBudget({})  # type: ignore[arg-type]


@pytest.mark.parametrize("mib_a_second", [6, 8, 12, 16, 20, 30, 45, 60])
def test_while_a_backlog_is_drained_the_budget_settles_near_its_target(mib_a_second: int) -> None:
    """A block takes as long as its bytes need, and the next one is there: utilisation is 1 all the time."""
    budget = ByteBudget()
    per_target = 2.0 * mib_a_second * MIB
    sizes, backlog = [], 20 * 1024 * MIB
    while backlog > 0:
        block = min(backlog, budget.byte_budget)
        seconds = block / (mib_a_second * MIB)
        budget.observe(block, seconds, seconds)
        assert budget.utilisation == pytest.approx(1)
        sizes.append(block)
        backlog -= block
    settled = sizes[len(sizes) // 4 : -1]
    assert min(settled) >= 0.45 * per_target
    assert max(settled) <= 1.15 * per_target
    assert sum(settled) / len(settled) >= 0.6 * per_target


def test_a_backlog_of_a_pipeline_with_a_cost_per_block_takes_hardly_longer_than_it_must() -> None:
    """200 MiB at 20 MiB a second and 0.2 s a block: on utilisation, the floor would make that 1 MiB blocks."""
    budget = ByteBudget()
    backlog, passed, blocks = 200 * MIB, 0.0, 0
    while backlog > 0:
        block = min(backlog, budget.byte_budget)
        seconds = 0.2 + block / (20 * MIB)
        budget.observe(block, seconds, seconds)
        backlog -= block
        passed += seconds
        blocks += 1
    assert blocks < 15
    assert passed < 10 + 15 * 0.2


def test_threads_can_read_and_observe_at_the_same_time() -> None:
    budget = ByteBudget(SMALL)

    def write() -> None:
        for _ in range(500):
            budget.observe(0, 0.0, 1.0)
            budget.observe(1, 1e9, 1.0)

    writers = [Background(write) for _ in range(2)]
    reader = Background(lambda: [budget.byte_budget for _ in range(2000)])
    assert all(10 <= size <= 1000 for size in reader.result())
    for writer in writers:
        writer.result()
