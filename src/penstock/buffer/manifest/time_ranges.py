"""Ranges of ULID times that a collector has closed: nothing new is named in them, as nothing is below its floor.

Times are milliseconds since 1970. Ranges are pairs of their first and last time, in order, and none touches another.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from typing import TypeAlias

TimeRanges: TypeAlias = tuple[tuple[int, int], ...]

MOST_RANGES = 64
"""How many a head has at most. Each is of one clock that was wrong for a while; a floor that passes one removes it."""

_MAX_GAP_MS = 3_600_000  # between two times that become one range, if nothing is named between them


def is_in_ranges(ranges: TimeRanges, at: int) -> bool:
    """Say whether a time is in one of the ranges.

    >>> [is_in_ranges(((5, 7),), at) for at in (4, 5, 7, 8)]
    [False, True, True, False]
    """
    return any(first <= at <= last for first, last in ranges)


def after_ranges(ranges: TimeRanges, at: int) -> int:
    """The first time from `at` on that is in none of the ranges.

    >>> after_ranges(((5, 7), (8, 9)), 6), after_ranges(((5, 7),), 3)
    (10, 3)
    """
    for first, last in ranges:
        if first <= at <= last:
            at = last + 1
    return at


def joined_ranges(ranges: Iterable[tuple[int, int]]) -> TimeRanges:
    """Ranges in order; those that overlap or touch are one.

    >>> joined_ranges([(8, 9), (1, 3), (4, 5), (2, 3)])
    ((1, 5), (8, 9))
    """
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return tuple(found)


class RangesToClose:
    """Gathers times that are to be closed, as a few ranges, however many times there are.

    A time within an hour of another, or of a range that is closed already, joins it. `spare` takes out what is named.
    """

    def __init__(self, closed: TimeRanges) -> None:
        self._closed = closed
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self.is_full = False
        """Whether some times were left out, because the head has no place for one more range."""

    def add(self, at: int) -> None:
        """Add a time that is not closed yet."""
        place = bisect_right(self._firsts, at)
        joins_left = place > 0 and at - self._lasts[place - 1] <= _MAX_GAP_MS
        joins_right = place < len(self._firsts) and self._firsts[place] - at <= _MAX_GAP_MS
        if joins_left and joins_right and at > self._lasts[place - 1]:
            self._lasts[place - 1 : place + 1] = [self._lasts[place]]
            del self._firsts[place]
        elif joins_left:
            self._lasts[place - 1] = max(self._lasts[place - 1], at)
        elif joins_right:
            self._firsts[place] = at
        elif len(self._firsts) + len(self._closed) < MOST_RANGES or self._follows_closed(at):
            insort(self._firsts, at)
            self._lasts.insert(bisect_left(self._firsts, at), at)
        else:
            self.is_full = True

    def spare(self, at: int) -> None:
        """Take out a time that is named: of the range that has it nothing is left from there on."""
        place = bisect_right(self._firsts, at) - 1
        if place >= 0 and at <= self._lasts[place]:
            self._lasts[place] = at - 1
            if self._lasts[place] < self._firsts[place]:
                del self._firsts[place], self._lasts[place]

    def join_to_closed(self) -> None:
        """Let each range begin right after the closed one that is less than an hour before it: they become one."""
        for place, first in enumerate(self._firsts):
            before = max((last for _, last in self._closed if last < first), default=None)
            if before is not None and first - before <= _MAX_GAP_MS:
                self._firsts[place] = before + 1

    @property
    def ranges(self) -> TimeRanges:
        """What is left to be closed."""
        return tuple(zip(self._firsts, self._lasts, strict=True))

    def _follows_closed(self, at: int) -> bool:
        return any(0 < at - last <= _MAX_GAP_MS for _, last in self._closed)
