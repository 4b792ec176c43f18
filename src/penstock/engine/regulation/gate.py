"""The gate before the inbound side. Only receiving is ever held: to hold what frees the memory would deadlock."""

from __future__ import annotations

import threading
from enum import Enum
from typing import Protocol

from penstock import metrics
from penstock.core import open_in_child


class Holds(Protocol):
    """What decides whether to hold, such as a `UnifiedPressure`."""

    def should_hold(self) -> bool:
        """Whether to hold now."""
        ...


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
            self._turn(self._pressure.should_hold())
            return Admit.HOLD if self._is_holding else Admit.YES

    def release(self) -> None:
        """Open it, whatever the pressure is; for the end of a run."""
        with self._lock:
            self._turn(False)

    def _turn(self, hold: bool) -> None:
        if hold == self._is_holding:
            return
        if self._actuator is not None:
            (self._actuator.pause if hold else self._actuator.resume)()
        self._is_holding = hold
        if hold:
            metrics.inbound_pauses.inc()
            metrics.inbound_paused.inc()
        else:
            metrics.inbound_paused.dec()
