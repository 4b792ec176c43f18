"""Pressure: how full a resource is, from 0 to 1, and the latch that decides when to hold.

A hard source has a limit that must not be reached (memory). A soft one is an indication, and its reading is weighted.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from penstock import metrics
from penstock.core import get_logger, open_in_child
from penstock.errors import InvalidInput

_log = get_logger(__name__)


class Pressure(float):
    """A number from 0 (nothing) to 1 (full); what lies outside is clamped, and NaN is 0.

    >>> Pressure(1.5), Pressure(0.5), Pressure(float("nan"))
    (Pressure(1.0), Pressure(0.5), Pressure(0.0))
    """

    __slots__ = ()

    def __new__(cls, value: float = 0.0) -> Pressure:
        """Clamp first: a whole number may be too large for a float."""
        if value >= 1:
            return super().__new__(cls, 1.0)
        return super().__new__(cls, value if value > 0 else 0.0)  # NaN is not above 0

    def __repr__(self) -> str:
        return f"Pressure({float(self)!r})"


class PressureSource(Protocol):
    """A resource that can be full. `weight` applies to a soft source; a `hard` one counts as it reads."""

    @property
    def name(self) -> str:
        """Its name in the log."""
        ...

    @property
    def weight(self) -> float:
        """The factor of a soft reading, from 0 to 1."""
        ...

    @property
    def hard(self) -> bool:
        """Whether the reading counts as it is."""
        ...

    def read(self) -> Pressure:
        """How full it is now."""
        ...


@dataclass(frozen=True)
class Hysteresis:
    """The pressure at which a hold begins, and the lower one at which it ends, so that it does not flap.

    Raises `InvalidInput` for bounds that are not numbers from 0 to 1, or not `pause_above > resume_below`.
    """

    pause_above: float = 0.80
    resume_below: float = 0.65

    def __post_init__(self) -> None:
        for field in ("pause_above", "resume_below"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
                raise InvalidInput(f"{field} must be a number from 0 to 1, not {value!r}")
        if not self.pause_above > self.resume_below:
            raise InvalidInput(
                f"pause_above must be larger than resume_below, not {self.pause_above!r} with {self.resume_below!r}"
            )


@dataclass(frozen=True, slots=True)
class PressurePart:
    """What one source read. `reading` is as it read; `weight` counts for one that is not `hard`."""

    name: str
    reading: float
    hard: bool
    weight: float

    @property
    def level(self) -> Pressure:
        """What it adds to the level."""
        return Pressure(self.reading if self.hard else self.reading * self.weight)


class Holds(Protocol):
    """What decides whether to hold, such as a `UnifiedPressure`."""

    def should_hold(self) -> bool:
        """Whether to hold now."""
        ...


class UnifiedPressure:
    """All sources as one level, and a latch on it.

    The level is the largest of the hard readings and of the soft readings times their weights, so that a soft source
    can never hide a hard one. A source that fails is logged, once until it reads again: a hard one then counts as
    full, as it may be, and a soft one as empty. Safe to use from several threads.

    Raises `InvalidInput` for a `hysteresis` of another type.
    """

    def __init__(self, sources: Iterable[PressureSource], hysteresis: Hysteresis = Hysteresis()) -> None:  # noqa: B008 -- it is frozen
        if not isinstance(hysteresis, Hysteresis):
            raise InvalidInput(f"hysteresis must be a Hysteresis, not {hysteresis!r}")
        self._sources = tuple(sources)
        self._hysteresis = hysteresis
        self._lock = open_in_child(threading.Lock())
        self._failing = set[int]()  # indexes of `_sources`
        self._last = Pressure(0), tuple[PressurePart, ...]()
        self._holds = False

    @property
    def level(self) -> Pressure:
        """Read every source, and return the level."""
        # Sources are the user's code, and are read without the lock.
        parts = tuple(map(self._read, range(len(self._sources))))
        level = max((part.level for part in parts), default=Pressure(0))
        self._last = level, parts
        metrics.pressure_ratio.set(level)
        return level

    @property
    def last_level(self) -> Pressure:
        """The level of the last reading; 0 before the first."""
        return self._last[0]

    @property
    def last_parts(self) -> tuple[PressurePart, ...]:
        """What each source read then."""
        return self._last[1]

    def described(self) -> str:
        """The last reading, for the log: the level, the source that it comes from, and the bounds."""
        level, parts = self._last
        first = max(parts, key=lambda part: part.level, default=None)
        source = "nothing" if first is None else first.name
        bounds = self._hysteresis
        return (
            f"the pressure is {level:.2f}, of {source} (a hold begins at {bounds.pause_above:.2f} and ends at "
            f"{bounds.resume_below:.2f})"
        )

    def should_hold(self) -> bool:
        """Read the level, and return whether to hold: from `pause_above` on, until it is down at `resume_below`."""
        level = self.level
        with self._lock:
            bounds = self._hysteresis
            self._holds = level >= bounds.pause_above or (self._holds and level > bounds.resume_below)
            return self._holds

    def _read(self, index: int) -> PressurePart:
        source = self._sources[index]
        try:
            reading, weight = Pressure(source.read()), 1.0 if source.hard else _clamped(source.weight)
        except Exception as error:  # noqa: BLE001 -- a source is the user's code, and must not stop the engine
            self._note_failure(index, error)
            return PressurePart(source.name, 1.0 if source.hard else 0.0, source.hard, 1.0)
        with self._lock:
            self._failing.discard(index)
        return PressurePart(source.name, reading, source.hard, weight)

    def _note_failure(self, index: int, error: Exception) -> None:
        with self._lock:
            is_new = index not in self._failing
            self._failing.add(index)
        if is_new:
            source = self._sources[index]
            counts = "full" if source.hard else "nothing"
            _log.warning(
                "the pressure source %s cannot be read, and counts as %s until it can: %r", source.name, counts, error
            )


def _clamped(weight: float) -> Pressure:
    is_finite = abs(weight) < math.inf  # NaN is not; and a whole number may be too large for math.isfinite
    return Pressure(weight if is_finite else 1)
