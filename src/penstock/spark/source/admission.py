"""How large the next block may be, and whether it may come: self-regulation, fed by the planner's own timing."""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.core import get_logger
from penstock.engine import (
    LONGEST_HOLD,
    Admit,
    ByteBudget,
    ByteBudgetConfig,
    Hysteresis,
    InboundGate,
    MemoryGuard,
    UnifiedPressure,
    give_memory_back,
)

_MIB = 1 << 20
BUDGET = ByteBudgetConfig(
    start_bytes=256 * _MIB,
    max_bytes=2048 * _MIB,
    floor_bytes=16 * _MIB,
    ai_step=64 * _MIB,
    target_block_seconds=10.0,
    record_cap=(1 << 63) - 1,
)
_LOOK_AGAIN = 0.1
_ON_TIME = 0.5  # seconds after the time of a trigger that its call may come

_log = get_logger(__name__)


class Admission:
    """The budget and the gate of one query."""

    def __init__(
        self,
        *,
        config: ByteBudgetConfig = BUDGET,
        guard: MemoryGuard | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        pressure = UnifiedPressure((guard or MemoryGuard(),), Hysteresis())
        self._pressure = pressure
        self._budget = ByteBudget(config, pressure)
        self._gate = InboundGate(pressure, self)
        self._clock, self._wall_clock, self._sleep = clock, wall_clock, sleep
        self._block: tuple[int, float] | None = None  # its bytes, and when it was planned
        self._called: float | None = None  # by the clock on the wall
        self._idle_since = clock()

    @property
    def byte_budget(self) -> int:
        """How many bytes the next block may have."""
        return self._budget.byte_budget

    def note_planned(self, size: int) -> None:
        """Note a block that is on its way."""
        self._block = size, self._clock()

    def note_call(self) -> None:
        """Note a call for the next block: the one before is done."""
        before, self._called = self._called, self._wall_clock()
        if self._block is None:
            return
        size, since = self._block
        self._block = None
        self._idle_since = now = self._clock()
        if before is not None and has_waited(before, self._called):
            self._budget.observe(0, 0.0, now - since)
        else:
            self._budget.observe(max(size, 1), now - since, now - since)

    def note_idle(self) -> None:
        """Note that there was nothing to plan."""
        before, self._idle_since = self._idle_since, self._clock()
        self._budget.observe(0, 0.0, max(self._idle_since - before, 1e-3))

    def wait(self, is_stopped: Callable[[], bool]) -> int:
        """Return how many bytes may come now. While memory is short this waits, for 30 seconds at most."""
        try:
            return self._wait(is_stopped)
        finally:
            self._gate.release()  # whatever ended the hold, it is over: a query that ends here is counted no longer

    def _wait(self, is_stopped: Callable[[], bool]) -> int:
        since = self._clock()
        while self._gate.evaluate() is Admit.HOLD and not is_stopped():
            if self._clock() - since >= LONGEST_HOLD:
                _log.warning(
                    "no relief for %.0f s at a pressure of %.2f: one block of the smallest size is admitted",
                    LONGEST_HOLD,
                    self._pressure.last_level,
                )
                return self._budget.floor_bytes
            self._sleep(_LOOK_AGAIN)
        return self._budget.byte_budget

    def pause(self) -> None:
        """Hold: called by the gate at the edge."""
        self._budget.hold()
        give_memory_back()

    def resume(self) -> None:
        """Go on: called by the gate at the edge."""


def has_waited(before: float, now: float) -> bool:
    """Whether a call came because a trigger's time had come, and not because the block was done.

    Spark starts blocks of a processing-time trigger at whole multiples of its interval since 1970. So where two calls
    in a row came at multiples of what lies between them, the time between says how long the interval is, and nothing
    about the block.

    >>> has_waited(60.01, 120.02), has_waited(60.01, 117.5), has_waited(67.0, 127.0)
    (True, False, False)
    """
    interval = round(now - before)
    return interval >= 1 and before % interval < _ON_TIME and now % interval < _ON_TIME
