"""The harness that cancels at each suspension, and the meter of a loop's gap: that they find what they look for."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.support.cancelling import Moment, Outcome, cancel_at_each_suspension
from tests.support.loop_gap import LoopGap


def test_each_suspension_is_cancelled_at_its_begin_and_at_its_end() -> None:
    reached = list[int]()
    outcomes = list[tuple[Moment, int, bool]]()

    async def three() -> str:
        reached.append(0)
        for number in (1, 2, 3):
            await asyncio.get_running_loop().run_in_executor(None, int)
            reached.append(number)
        return "done"

    def check(outcome: Outcome[str]) -> None:
        outcomes.append((outcome.moment, reached[-1], outcome.was_cancelled))
        assert (outcome.answer is None) == outcome.was_cancelled

    assert asyncio.run(cancel_at_each_suspension(three, check)) == 8
    expected = [(0, True), (1, True), (2, True), (3, False)]
    assert outcomes == [(moment, *one) for moment in Moment for one in expected]


def test_a_call_that_swallows_its_cancellation_is_found() -> None:
    async def swallow() -> None:
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            return

    with pytest.raises(AssertionError, match="was swallowed"):
        asyncio.run(cancel_at_each_suspension(swallow, lambda outcome: None))


def test_a_call_that_leaves_a_task_behind_is_found() -> None:
    async def leave() -> None:
        await asyncio.shield(asyncio.ensure_future(asyncio.sleep(3600)))

    with pytest.raises(AssertionError, match="left behind"):
        asyncio.run(cancel_at_each_suspension(leave, lambda outcome: None))


def test_a_result_that_is_there_when_the_task_is_cancelled_is_not_seen() -> None:
    seen = list[object]()

    async def receive() -> None:
        seen.append(await asyncio.get_running_loop().run_in_executor(None, int))

    def check(outcome: Outcome[None]) -> None:
        assert bool(seen) != outcome.was_cancelled
        seen.clear()

    asyncio.run(cancel_at_each_suspension(receive, check))


def test_a_call_that_blocks_the_loop_shows_as_a_gap() -> None:
    async def block() -> float:
        async with LoopGap() as gap:
            time.sleep(0.2)
        return gap.longest

    assert 0.15 < asyncio.run(block()) < 60


def test_a_call_in_a_thread_shows_as_no_gap() -> None:
    async def wait() -> float:
        async with LoopGap() as gap:
            await asyncio.to_thread(time.sleep, 0.2)
        return gap.longest

    assert asyncio.run(wait()) < 0.15
