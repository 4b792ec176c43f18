"""The conditions of a simulation: pauses, clocks and faults; and the names of the steps that its actors take."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from penstock.testing import Fault
from tests.buffer.collector.interleaving import HOUR, TICK, Pace

DEADLINE = 300.0
GRACE = 600.0

SHORTEST_STEP_SECONDS = (0.0, TICK, 2 * TICK)
STEP_SECONDS = (0.0, 0.0, 0.0, TICK, 1.0, 5.0)
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
NATIVE_STEPS = {  # a manifest of version 2 holds its id, and has segments
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
    "exact": lambda now, _: now,
    "whole seconds": lambda now, _: now // 1,
    "half as fast again": lambda now, _: 1.5 * now,
    "twice as fast": lambda now, _: 2 * now,  # the fastest that the clock of a local store may run
    "of several hosts": lambda now, seeded: now + seeded.choice((-30.0, 0.0, 30.0)),
}
SET_BACK = "set back again and again"  # no store that keeps its contract does this
BROKEN_TIMES: dict[str, StoreTime] = {SET_BACK: lambda now, seeded: now - seeded.randint(0, 5) * HOUR}


@dataclass(frozen=True)
class Conditions:
    """Under which conditions the code runs."""

    pauses: tuple[tuple[float, ...], ...] = (SHORT_PAUSES, LONG_PAUSES, SHORT_PAUSES + LONG_PAUSES)
    """For how many seconds actors are paused; each seed uses one of these."""
    wrong_clocks: bool = True
    leaping_clocks: bool = True
    """Whether a clock may be ten years ahead for single calls."""
    faults: bool = True
    store_times: tuple[str, ...] = tuple(STORE_TIMES)
    suspend_stops_uptime: bool = False
    interrupts_producers: bool = True

    def pace(self, seeded: random.Random) -> Pace:
        """How time passes for one seed."""
        if not self.pauses:
            return Pace(SHORTEST_STEP_SECONDS)
        choose = seeded.choice
        return Pace(STEP_SECONDS, choose(self.pauses), choose((0.0, 0.03, 0.1)), choose((0.0, 0.0, 0.02)))

    def store_time(self, seeded: random.Random) -> StoreTime:
        """The store's clock, for one seed."""
        return (STORE_TIMES | BROKEN_TIMES)[seeded.choice(self.store_times)]


EXACT = Conditions(wrong_clocks=False, leaping_clocks=False, faults=False, store_times=("exact",))
WRONG_CLOCKS = replace(EXACT, wrong_clocks=True, pauses=())
LEAPING_CLOCKS = replace(EXACT, leaping_clocks=True, pauses=(SHORT_PAUSES + LONG_PAUSES,))
PAUSED_FOR_HOURS = replace(EXACT, pauses=(LONG_PAUSES,))
PAUSED_FOR_MINUTES = replace(EXACT, pauses=(SHORT_PAUSES,))
PAUSED_FOR_MINUTES_ON_A_FAST_STORE = replace(PAUSED_FOR_MINUTES, store_times=("twice as fast",))
SUSPENDED = replace(EXACT, suspend_stops_uptime=True)
UNINTERRUPTED = Conditions(leaping_clocks=False, faults=False, store_times=(SET_BACK,), interrupts_producers=False)
