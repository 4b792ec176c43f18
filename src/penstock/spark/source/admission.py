"""How large the next block may be, and whether it may come: self-regulation, fed by the planner's own timing."""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.engine import ByteBudgetConfig, Governor, Inbound, MemoryGuard, SelfRegulation

_MIB = 1 << 20
BUDGET = ByteBudgetConfig(
    start_bytes=256 * _MIB,
    max_bytes=2048 * _MIB,
    floor_bytes=16 * _MIB,
    ai_step=64 * _MIB,
    target_block_seconds=10.0,
    record_cap=(1 << 63) - 1,
)
_HOLD_POLL_SECONDS = 0.1
_ON_TIME = 0.5  # seconds after the time of a trigger that its call may come


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
        self._governor = Governor(SelfRegulation(budget=config), guard or MemoryGuard())
        self._inbound = Inbound(self._governor, clock)
        self._clock, self._wall_clock, self._sleep = clock, wall_clock, sleep
        self._block: tuple[int, float] | None = None  # its bytes, and when it was planned
        self._called: float | None = None  # by the clock on the wall
        self.held_seconds = 0.0
        """How long memory has held blocks, together."""

    @property
    def byte_budget(self) -> int:
        """How many bytes the next block may have."""
        return self._governor.budget.byte_budget

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
        if before is not None and has_waited(before, self._called):
            self._inbound.note_idle()
        else:
            self._inbound.note_block(size, self._clock() - since)

    def note_block(self, size: int, seconds: float) -> None:
        """Note a block that is done, by a caller that knows how long it took."""
        self._inbound.note_block(size, seconds)

    def note_idle(self) -> None:
        """Note that there was nothing to plan."""
        self._inbound.note_idle()

    def wait(self, is_stopped: Callable[[], bool]) -> int:
        """Return how many bytes may come now. While memory is short this waits, for 30 seconds at most."""
        began = self._clock()
        try:
            while not self._inbound.is_admitted() and not is_stopped():
                self._sleep(_HOLD_POLL_SECONDS)
            return self._inbound.byte_budget or self.byte_budget
        finally:
            self.held_seconds += self._clock() - began
            self._inbound.release()  # whatever ended the hold: a query that ends here must not count as holding


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
