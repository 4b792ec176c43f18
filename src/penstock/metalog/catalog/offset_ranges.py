"""`OffsetRanges`: ranges of offsets that may overlap, and the search for one that has an offset."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

_MAX_RANGES_PER_BLOCK = 512  # a block is moved, and searched, as a whole


class OffsetRange(NamedTuple):
    """The offsets from `start` to `end`, both inclusive, of a segment."""

    start: int
    end: int
    segment: int


_END = itemgetter(1)


class OffsetRanges:
    """Ranges in the order of their starts, then their ends, then their segments.

    They lie in blocks of at most `max_block`, each with the furthest end in it: an insertion moves at most one block,
    and a search skips a block that ends too early.

    >>> ranges = OffsetRanges()
    >>> ranges.add(OffsetRange(0, 99, 1)), ranges.add(OffsetRange(10, 19, 2))
    (None, None)
    >>> ranges.find(15), ranges.find(20), ranges.find(100)
    (2, 1, None)
    """

    def __init__(self, max_block: int = _MAX_RANGES_PER_BLOCK) -> None:
        self._max_block = max_block
        self._blocks: list[list[OffsetRange]] = []
        self._firsts: list[OffsetRange] = []
        self._furthest: list[int] = []

    def __iter__(self) -> Iterator[OffsetRange]:
        return chain.from_iterable(self._blocks)

    def add(self, one: OffsetRange) -> None:
        """Add a range; the same one is not there yet."""
        if not self._blocks:
            self._insert(0, [one])
            return
        at = self._block_of(one)
        block = self._blocks[at]
        insort(block, one)
        self._firsts[at] = block[0]
        self._furthest[at] = max(self._furthest[at], one.end)
        if len(block) > self._max_block:
            half = self._max_block // 2
            self._delete(at)
            self._insert(at, block[half:])
            self._insert(at, block[:half])

    def remove(self, one: OffsetRange) -> None:
        """Remove a range that is there."""
        at = self._block_of(one)
        block = self._blocks[at]
        del block[bisect_left(block, one)]
        self._delete(at)
        if block:
            self._insert(at, block)

    def find(self, offset: int) -> int | None:
        """The segment of the last range, in their order, that has an offset; None if none has."""
        behind = (offset + 1,)
        for at in range(bisect_left(self._firsts, behind) - 1, -1, -1):
            if self._furthest[at] < offset:
                continue
            block = self._blocks[at]
            for place in range(bisect_left(block, behind) - 1, -1, -1):
                if block[place].end >= offset:
                    return block[place].segment
        return None

    def furthest(self) -> int | None:
        """The highest end."""
        return max(self._furthest, default=None)

    def _block_of(self, one: OffsetRange) -> int:
        return max(bisect_right(self._firsts, one) - 1, 0)

    def _insert(self, at: int, block: list[OffsetRange]) -> None:
        self._blocks.insert(at, block)
        self._firsts.insert(at, block[0])
        self._furthest.insert(at, max(map(_END, block)))

    def _delete(self, at: int) -> None:
        del self._blocks[at], self._firsts[at], self._furthest[at]
