"""Cancels a coroutine at its first suspension, at its second, and so on, until it ends without being cancelled."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

Answer = TypeVar("Answer")


class Moment(Enum):
    """When, of a suspension, the task is cancelled."""

    BEGIN = "as it suspends: what it awaits is cancelled"
    END = "when what it awaits has ended, before the coroutine goes on: its result is there, and is not seen"


@dataclass(frozen=True)
class Outcome(Generic[Answer]):
    """How a call ended. `was_cancelled` is False for the last ones, which ended before the suspension came."""

    number: int
    moment: Moment
    was_cancelled: bool
    answer: Answer | None
    error: BaseException | None

    def __str__(self) -> str:
        how = f"cancelled at suspension {self.number} ({self.moment.name})" if self.was_cancelled else "not cancelled"
        return f"{how}, ended with {self.error!r}" if self.error is not None else how


class _Cancelling(Generic[Answer]):
    """Awaits something, and cancels the task that does so at the chosen suspension."""

    def __init__(self, awaited: Awaitable[Answer], number: int, moment: Moment) -> None:
        self._awaited = awaited
        self._remaining = number
        self._moment = moment
        self.has_cancelled = False

    def __await__(self) -> Generator[Any, Any, Answer]:
        inner: Any = self._awaited.__await__()
        step, argument = inner.send, None
        while True:
            try:
                pending = step(argument)
            except StopIteration as end:
                answer: Answer = end.value
                return answer
            self._remaining -= 1
            if not self._remaining:
                self._cancel(pending)
            try:
                argument = yield pending
                step = inner.send
            except BaseException as error:
                step, argument = inner.throw, error

    def _cancel(self, pending: Any) -> None:
        task = asyncio.current_task()
        assert task is not None

        def cancel(*_: object) -> None:
            self.has_cancelled = True
            task.cancel()

        if self._moment is Moment.BEGIN or pending is None:  # None: it is called again at once
            cancel()
        else:
            pending.add_done_callback(cancel)  # before that of the task, which goes on after it


async def cancel_at_each_suspension(
    make: Callable[[], Awaitable[Answer]], check: Callable[[Outcome[Answer]], object], *, at_most: int = 1000
) -> int:
    """Await what `make` makes, again and again, cancelled one suspension later each time; return how often.

    After each, `check(outcome)`, plain or async, asserts what must be so. Asserted here: a call that was cancelled
    raises `CancelledError` (or a subclass), any other does not, and no task is left behind. What a call raises besides
    is in `outcome.error`, and for `check` to judge.
    """
    calls = 0
    for moment in Moment:
        for number in itertools.count(1):
            assert number <= at_most, f"it does not end within {at_most} suspensions"
            before = asyncio.all_tasks()
            cancelling = _Cancelling(make(), number, moment)
            task = asyncio.ensure_future(_awaiting(cancelling))
            await asyncio.wait([task])
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            if task.cancelled():
                try:
                    task.result()
                except asyncio.CancelledError as cancelled:
                    error = cancelled
            answer = task.result() if error is None else None
            outcome = Outcome(number, moment, cancelling.has_cancelled, answer, error)
            if outcome.was_cancelled:
                assert isinstance(error, asyncio.CancelledError), f"the cancellation was swallowed: {outcome}"
            else:
                assert not isinstance(error, asyncio.CancelledError), outcome
            behind = asyncio.all_tasks() - before
            assert not behind, f"{outcome}, and these tasks are left behind: {behind}"
            checked = check(outcome)
            if inspect.isawaitable(checked):
                await checked
            calls += 1
            if not outcome.was_cancelled:
                break
    return calls


async def _awaiting(awaited: Awaitable[Answer]) -> Answer:
    return await awaited
