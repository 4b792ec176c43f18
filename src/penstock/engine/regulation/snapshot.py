"""What the regulation of an engine does at the moment, to look at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.engine.regulation.budget import Governor
from penstock.engine.regulation.pressure import Pressure, PressurePart


@dataclass(frozen=True, slots=True)
class RegulationSnapshot:
    """The regulation at one moment.

    `byte_budget` and `record_cap`: what the next block may have; None without regulation. `pressure`: the level, and
    in `parts` what each source read. `held`: whether a receiver is held, and `held_seconds` for how long.
    """

    byte_budget: int | None = None
    record_cap: int | None = None
    pressure: Pressure = Pressure(0)  # noqa: RUF009 -- it is a number
    parts: tuple[PressurePart, ...] = ()
    held: bool = False
    held_seconds: float = 0.0


class Regulation:
    """The regulation of an engine, for reading. Safe to use from several threads."""

    def __init__(self, governor: Governor | None, clock: Callable[[], float]) -> None:
        self._governor = governor
        self._clock = clock

    def __repr__(self) -> str:
        return f"Regulation({self.snapshot()!r})"

    @property
    def governor(self) -> Governor | None:
        """What it reads; None without regulation."""
        return self._governor

    @property
    def held_seconds(self) -> float:
        """For how long a receiver is held, at most; 0 if none is."""
        since = None if self._governor is None else self._governor.held_since
        return 0.0 if since is None else max(self._clock() - since, 0.0)

    def snapshot(self) -> RegulationSnapshot:
        """Read the sources of pressure, and return how things stand.

        >>> from penstock.engine import BatchEngine
        >>> BatchEngine(regulation=None).regulation.snapshot().byte_budget is None
        True
        """
        governor = self._governor
        if governor is None:
            return RegulationSnapshot()
        level = governor.pressure.level
        return RegulationSnapshot(
            byte_budget=governor.byte_budget,
            record_cap=governor.budget.record_cap,
            pressure=level,
            parts=governor.pressure.last_parts,
            held=governor.held_since is not None,
            held_seconds=self.held_seconds,
        )
