"""Ranges of ULID times that a collector has closed: nothing new is named in them, as nothing is below its floor.

Times are milliseconds since 1970. Ranges are pairs of their first and last time, in order, and none touches another.
"""

from __future__ import annotations

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
        self.ranges: TimeRanges = ()
        self.is_full = False
        """Whether some times were not added, because the head has no place for one more range."""

    def add(self, at: int) -> None:
        """Add a time that is not closed yet."""
        near = [one for one in self.ranges if one[0] - _MAX_GAP_MS <= at <= one[1] + _MAX_GAP_MS]
        is_after_closed = any(0 < at - last <= _MAX_GAP_MS for _, last in self._closed)
        if near or is_after_closed or len(self.ranges) + len(self._closed) < MOST_RANGES:
            times = [at, *(time for one in near for time in one)]
            others = [one for one in self.ranges if one not in near]
            self.ranges = tuple(sorted([*others, (min(times), max(times))]))
        else:
            self.is_full = True

    def spare(self, at: int) -> None:
        """Take out a time that is named: of the range that has it nothing remains from there on."""
        cut = [(first, at - 1 if first <= at <= last else last) for first, last in self.ranges]
        self.ranges = tuple((first, last) for first, last in cut if first <= last)

    def join_to_closed(self) -> None:
        """Let each range begin right after the closed one that is less than an hour before it: they become one."""
        self.ranges = tuple((self._start_of(first), last) for first, last in self.ranges)

    def _start_of(self, first: int) -> int:
        before = max((last for _, last in self._closed if last < first), default=-1 - _MAX_GAP_MS)
        return before + 1 if first - before <= _MAX_GAP_MS else first
