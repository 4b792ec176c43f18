"""The inbound side of a run or a query: whether the next block is admitted, and how large it may be.

Only receiving is ever held: to hold what frees the memory would deadlock.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from enum import Enum
from typing import Protocol

import pyarrow as pa

from penstock import metrics
from penstock.core import get_logger, open_in_child
from penstock.engine.regulation.budget import Governor
from penstock.engine.regulation.pressure import Holds

_MAX_HOLD_SECONDS = 30.0  # then one block is admitted in spite of the pressure
_RELEASE_MEMORY_EVERY_SECONDS = 1.0
_MAX_RECORDS = 1 << 62

_log = get_logger(__name__)


class Actuator(Protocol):
    """What hears of the begin and the end of a hold, such as a receiver that fetches ahead."""

    def pause(self) -> None:
        """A hold begins."""
        ...

    def resume(self) -> None:
        """The hold is over."""
        ...


class Admit(Enum):
    """Whether the gate admits the next block."""

    YES = "yes"
    HOLD = "hold"


class InboundGate:
    """Admits or holds the next block by the pressure, and calls the actuator once when that changes.

    An error of the actuator is raised, and the change does not count: the next evaluation calls it again.
    """

    def __init__(self, pressure: Holds, actuator: Actuator | None = None) -> None:
        self._pressure = pressure
        self._actuator = actuator
        self._lock = open_in_child(threading.RLock())  # an actuator may ask the gate
        self._is_holding = False

    @property
    def is_holding(self) -> bool:
        """Whether the last evaluation was to hold."""
        return self._is_holding

    def evaluate(self) -> Admit:
        """Read the pressure, and return whether the next block is admitted."""
        with self._lock:
            hold = self._pressure.should_hold()
            if hold != self._is_holding:
                self._turn(hold)
            return Admit.HOLD if hold else Admit.YES

    def release(self) -> None:
        """Open it, whatever the pressure is; for the end of a run."""
        with self._lock:
            if self._is_holding:
                self._turn(False)

    def _turn(self, hold: bool) -> None:
        if self._actuator is not None:
            (self._actuator.pause if hold else self._actuator.resume)()
        self._is_holding = hold
        if hold:
            metrics.inbound_pauses.inc()
            metrics.inbound_paused.inc()
        else:
            metrics.inbound_paused.dec()


class Inbound:
    """Admits blocks, holds them while memory is short, and feeds the budget with the time that each took.

    `actuator` hears of the begin and the end of a hold. Without a governor every block is admitted, of any size.
    """

    def __init__(self, governor: Governor | None, clock: Callable[[], float], actuator: Actuator | None = None) -> None:
        self._governor = governor
        self._clock = clock
        self._actuator = actuator
        self._gate = None if governor is None else InboundGate(governor.pressure, self)
        self._held_since: float | None = None  # or since the last block that was admitted in spite of it
        self._held_at = 0.0
        self._memory_released_at = 0.0
        self._last_block_at = clock()
        self.byte_budget: int | None = None
        self.record_cap = _MAX_RECORDS

    def is_admitted(self, *, is_in_memory: bool = False) -> bool:
        """Whether to receive now. `byte_budget` and `record_cap` are the limits of the next block then.

        What a receiver has in memory already is never held: to hand it out is what frees the memory. After
        30 seconds without relief one block of the smallest size is admitted, and a warning logged.
        """
        if self._gate is None or self._governor is None:
            return True
        admit = self._gate.evaluate()
        budget = self._governor.budget
        self.byte_budget, self.record_cap = self._governor.byte_budget, budget.record_cap
        now = self._clock()
        if admit is Admit.YES:
            self._held_since = None
            return True
        if self._held_since is None:
            self._held_since = self._memory_released_at = now
        if now - self._memory_released_at >= _RELEASE_MEMORY_EVERY_SECONDS:
            self._memory_released_at = now
            release_unused_memory()
        if is_in_memory:
            return True
        if now - self._held_since < _MAX_HOLD_SECONDS:
            return False
        _log.warning(
            "no relief for %.0f s at a pressure of %.2f: one block of the smallest size is admitted",
            now - self._held_since,
            self._governor.pressure.last_level,
        )
        self._held_since = now
        self.byte_budget = budget.floor_bytes
        return True

    def note_block(self, size: int, seconds: float) -> None:
        """Note a block of so many bytes that is done, and how long it took."""
        now = self._clock()
        if self._governor is not None:
            self._governor.budget.observe(max(size, 1), seconds, now - self._last_block_at)
        self._last_block_at = now

    def note_idle(self) -> None:
        """Note that there was nothing to receive: the budget grows."""
        if self._governor is not None:
            self._governor.budget.observe(0, 0.0, 0.0)

    def release(self) -> None:
        """End a hold, if there is one: the run or the wait is over."""
        self._held_since = None
        if self._gate is not None:
            self._gate.release()

    def pause(self) -> None:
        """Begin a hold: called by the gate."""
        if self._actuator is not None:
            self._actuator.pause()
        if self._governor is not None:
            self._governor.budget.hold()
            self._governor.note_hold(self, self._clock())
            self._held_at = self._clock()
            _log.info("receiving is held: %s", self._governor.pressure.described())
        release_unused_memory()

    def resume(self) -> None:
        """End a hold: called by the gate."""
        if self._actuator is not None:
            self._actuator.resume()
        if self._governor is not None:
            self._governor.note_hold(self, None)
            seconds = self._clock() - self._held_at
            _log.info("receiving goes on after %.1f s: %s", seconds, self._governor.pressure.described())


def release_unused_memory() -> None:
    """Have the allocators return the memory that they keep unused: the kernel counts it as used, so it is pressure."""
    pa.default_memory_pool().release_unused()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return  # only glibc has it
