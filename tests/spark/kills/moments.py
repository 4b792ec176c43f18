"""Random moments at which drivers are killed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle

from tests.spark.kills.harness import Driver
from tests.spark.kills.marks import Deed, Mark

_STARTING = {Mark.STARTED: 6.0, Mark.SESSION: 1.0, Mark.CLAIMED: 2.0}  # a JVM starts; the group is claimed
_BETWEEN_MARKS = 0.6


@dataclass(frozen=True)
class Moment:
    """When a driver is killed: so many seconds after a mark, which it reaches with its first block or a later one."""

    mark: Mark
    times: int
    delay: float
    deed: Deed


def moments(seed: int, marks: Sequence[Mark] = tuple(Mark)) -> Iterator[Moment]:
    """Moments all over the life of a driver: each mark has its turn before one comes again."""
    chance, deeds = random.Random(seed), cycle([Deed.PYTHON, Deed.GROUP])
    while True:
        for mark in chance.sample(marks, k=len(marks)):
            longest = _STARTING.get(mark, _BETWEEN_MARKS)
            times = 1 if mark in _STARTING else chance.randint(1, 3)
            delay = longest * chance.random() ** 3  # most of them soon: what happens between two marks is short
            yield Moment(mark, times, delay, next(deeds))


def die(driver: Driver, moment: Moment) -> bool:
    """Kill a driver at a moment; False if it ended before, because another had not yet gone."""
    if driver.reaches(moment.mark, times=moment.times) and driver.lives_for(moment.delay):
        driver.kill(moment.deed)
        return True
    assert driver.was_overtaken, f"it ended by itself, after {driver.marks[-1:]}:\n{driver.output[-4000:]}"
    return False
