"""Something to do every so often, between blocks."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import TypeAlias

from penstock.core import check_seconds, get_logger
from penstock.engine.delivery import close_if_coroutine, is_work_not_begun
from penstock.errors import InvalidInput

Ticks: TypeAlias = tuple[float, Callable[[], object]]

_log = get_logger(__name__)


class Ticker:
    """Calls a function at fixed times, the first after one interval; once for all the times that were missed."""

    def __init__(self, ticks: Ticks | None, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._interval, self._fn = (math.inf, lambda: None) if ticks is None else _checked(ticks)
        self._due = clock() + self._interval

    @property
    def seconds_until_due(self) -> float:
        """How long until the next call; 0 if it is late."""
        return max(self._due - self._clock(), 0.0)

    def tick(self, settle: Callable[[object], object] | None = None) -> None:
        """Call the function if it is due. What it raises is logged. `settle` awaits what an async one returns."""
        now = self._clock()
        if now < self._due:
            return
        missed = (now - self._due) // self._interval
        self._due = now + self._interval if math.isinf(missed) else self._due + self._interval * (missed + 1)
        try:
            returned = self._fn()
            _check_called(returned if settle is None else settle(returned))
        except Exception:  # noqa: BLE001  a report that fails must not stop the work
            _log.exception("the ticker failed; the loop goes on")


def _checked(ticks: object) -> Ticks:
    if not isinstance(ticks, tuple | list) or len(ticks) != 2 or not callable(ticks[1]):
        raise InvalidInput(f"ticker must be (seconds, function), not {ticks!r:.100}")
    check_seconds("ticker's seconds", ticks[0])
    return ticks[0], ticks[1]


def _check_called(returned: object) -> None:
    if is_work_not_begun(returned) and not isinstance(returned, asyncio.Future):
        close_if_coroutine(returned)
        what = type(returned).__name__
        raise InvalidInput(
            f"it returned a {what}, which has done nothing yet, and which nothing awaits or iterates over"
        )
