"""The gate before the inbound side. Only that side is ever held: gating the drain would deadlock."""

from __future__ import annotations

import threading
from enum import Enum
from typing import Protocol

from penstock import metrics
from penstock.core import begin_anew_in_child


class Holds(Protocol):
    """What says whether to hold; a `UnifiedPressure` does."""

    def should_hold(self) -> bool:
        """Whether to hold now."""
        ...


class Actuator(Protocol):
    """What is told when a hold begins and ends: a receiver that fetches ahead, say."""

    def pause(self) -> None:
        """Begin to hold."""
        ...

    def resume(self) -> None:
        """Go on."""
        ...


class Admit(Enum):
    """The gate's answer: whether the next block may come in."""

    YES = "yes"
    HOLD = "hold"


class InboundGate:
    """Asks the pressure whether a block may come in, and tells the actuator, once per edge.

    What the actuator raises is the caller's, and the edge counts as not fired: the next evaluation fires it again.
    """

    def __init__(self, pressure: Holds, actuator: Actuator | None = None) -> None:
        self._pressure = pressure
        self._actuator = actuator
        self._lock = threading.RLock()  # an actuator may ask the gate
        self._is_holding = False
        begin_anew_in_child(self)

    def begin_anew(self) -> None:
        """Have a lock of its own in a forked child."""
        self._lock = threading.RLock()

    @property
    def is_holding(self) -> bool:
        """Whether the last evaluation said to hold."""
        return self._is_holding

    def evaluate(self) -> Admit:
        """Read the pressure, and say whether the next block may come in."""
        with self._lock:
            self._turn(self._pressure.should_hold())
            return Admit.HOLD if self._is_holding else Admit.YES

    def release(self) -> None:
        """Be open, whatever the pressure says; for the end of a run."""
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
