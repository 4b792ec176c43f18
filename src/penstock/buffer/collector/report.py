"""What a cycle of the collector did, and why it kept what it kept."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GcDetails:
    """Why a cycle kept what it kept, and when that may change. Times are milliseconds since 1970.

    `waiting`: deletable, once the floor's grace period is over, at `waits_until`. `later`: not named, and below the
    next floor. `ahead`: named by a clock that was ahead. `named`: how many entries the queue has. A cycle that was not
    complete ran out of time, or was stopped.
    """

    deleted_bytes: int = 0
    named: int = 0
    waiting: int = 0
    waits_until: int = 0
    later: int = 0
    ahead: int = 0
    floor: int = 0
    is_complete: bool = True


@dataclass(frozen=True, slots=True)
class GcReport:
    """What a cycle did with the data objects and segments it found: how many it deleted, could not delete, and kept.

    After a dry run, `deleted` is what a cycle would have deleted.
    """

    deleted: int
    failed: int
    kept: int
    details: GcDetails = field(default_factory=GcDetails, compare=False, repr=False)
