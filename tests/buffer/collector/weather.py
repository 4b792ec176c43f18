"""What surrounds the actors of the model: pauses, clocks, faults. And the names of their steps."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from penstock.testing import Fault
from tests.buffer.collector.baton import HOUR, TICK, Pace

DEADLINE = 300.0
GRACE = 600.0

HASTE = (0.0, TICK, 2 * TICK)
LULLS = (0.0, 0.0, 0.0, TICK, 1.0, 5.0)
SHORT_PAUSES = (30.0, 60.0, 90.0, 150.0, 210.0)
LONG_PAUSES = (DEADLINE - TICK, DEADLINE, GRACE - TICK, GRACE, GRACE + TICK, HOUR, 5 * HOUR, 24 * HOUR)
FAULTS = {
    Fault.READ_ERROR: 0.02,
    Fault.ERROR_BEFORE: 0.03,
    Fault.ERROR_AFTER: 0.03,
    Fault.APPLIED_THEN_CONFLICT: 0.03,
    Fault.EXISTS_WHILE_ABSENT: 0.03,
    Fault.THIRD_PARTY_BEFORE: 0.03,
    Fault.THIRD_PARTY_AFTER: 0.03,
    Fault.LATE: 0.06,
}

_CHANGES = ("get manifest", "create manifest", "replace manifest", "back off")
STEPS = {
    "producer": (
        "rest",
        "get .owner",
        "create .owner",
        "get manifest.id",
        "create manifest.id",
        "read the wall clock",
        "read the uptime",
        "put data",
        *_CHANGES,
    ),
    "consumer": ("get data", "rest", *_CHANGES),
    "collector": (
        "get .owner",
        "create .owner",
        "get manifest.id",
        "list ingest",
        "get manifest",
        "delete data",
        "rest",
    ),
}
_WITH_ID = {role: tuple(step for step in steps if not step.endswith(".id")) for role, steps in STEPS.items()}
NATIVE_STEPS = {  # on a manifest of version 2, which holds its id, there is more to pause at
    "producer": (*_WITH_ID["producer"], "put segment"),
    "consumer": (*STEPS["consumer"], "get segment", "read the wall clock"),
    "collector": (
        *_WITH_ID["collector"],
        "list manifest.d",
        "delete segment",
        "read the wall clock",
        "replace manifest",
    ),
}

StoreTime: TypeAlias = Callable[[float, random.Random], float]

STORE_TIMES: dict[str, StoreTime] = {
    "steady": lambda now, _: now,
    "whole seconds": lambda now, _: now // 1,
    "half as fast again": lambda now, _: 1.5 * now,
    "twice as fast": lambda now, _: 2 * now,  # the most that a local store's clock does
    "of several hosts": lambda now, seeded: now + seeded.choice((-30.0, 0.0, 30.0)),
}
SET_BACK = "set back again and again"  # no store that keeps its promises
BROKEN_TIMES: dict[str, StoreTime] = {SET_BACK: lambda now, seeded: now - seeded.randint(0, 5) * HOUR}


@dataclass(frozen=True)
class Weather:
    """What surrounds the code."""

    pauses: tuple[tuple[float, ...], ...] = (SHORT_PAUSES, LONG_PAUSES, SHORT_PAUSES + LONG_PAUSES)
    """For how long actors are paused; each seed takes one of these."""
    crooked_clocks: bool = True
    leaping_clocks: bool = True
    """Whether a clock may be ten years ahead for single calls."""
    faults: bool = True
    store_times: tuple[str, ...] = tuple(STORE_TIMES)
    suspend_stops_uptime: bool = False
    interrupts_producers: bool = True

    def pace(self, seeded: random.Random) -> Pace:
        """How time passes for one seed."""
        if not self.pauses:
            return Pace(HASTE)
        choose = seeded.choice
        return Pace(LULLS, choose(self.pauses), choose((0.0, 0.03, 0.1)), choose((0.0, 0.0, 0.02)))

    def store_time(self, seeded: random.Random) -> StoreTime:
        """How the store tells the time, for one seed."""
        return (STORE_TIMES | BROKEN_TIMES)[seeded.choice(self.store_times)]


STRAIGHT = Weather(crooked_clocks=False, leaping_clocks=False, faults=False, store_times=("steady",))
CROOKED = replace(STRAIGHT, crooked_clocks=True, pauses=())
LEAPING = replace(STRAIGHT, leaping_clocks=True, pauses=(SHORT_PAUSES + LONG_PAUSES,))
PAUSED = replace(STRAIGHT, pauses=(LONG_PAUSES,))
SLOW = replace(STRAIGHT, pauses=(SHORT_PAUSES,))
SLOW_ON_A_FAST_STORE = replace(SLOW, store_times=("twice as fast",))
SUSPENDED = replace(STRAIGHT, suspend_stops_uptime=True)
UNINTERRUPTED = Weather(leaping_clocks=False, faults=False, store_times=(SET_BACK,), interrupts_producers=False)
