"""Where a consumer or a group begins, and what would skip entries silently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from penstock.core import get_logger
from penstock.errors import InvalidInput

Start: TypeAlias = str | int
"""Where a new group begins: `earliest`, `latest`, or a sequence that is there."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Claim:
    """A consumer that takes an epoch for a group. `start` counts for a group that had no consumer yet."""

    group: str
    owner: str
    now: int
    start: Start = "earliest"
    last_acked: int | None = None
    allow_gap: bool = False

    def acked_through(self, known: int | None, first: int, following: int, where: str) -> int:
        """How far the group has acked then. It had acked through `known` before; None for a group without a consumer.

        `first` is the first sequence that is kept, `following` the next one to be given to an entry. Raises
        `InvalidInput` if going on behind `last_acked` would skip entries, unless a gap is allowed.
        """
        acked = beginning(self.start, first, following, where) - 1 if known is None else known
        if self.last_acked is None:
            return acked
        problem = None
        if self.last_acked >= following:
            problem = f"it was never enqueued: the next sequence of {where} is {following}"
        elif acked > self.last_acked:
            problem = f"the first entry that {where} can still give is {acked + 1}"
        if problem is not None and not self.allow_gap:
            raise InvalidInput(
                f"last_acked_sequence {self.last_acked} would skip entries silently: {problem}; "
                "give allow_gap=True to go on all the same"
            )
        if problem is not None:
            _log.warning("going on from last_acked_sequence %d: %s", self.last_acked, problem)
        return max(acked, min(self.last_acked, following - 1))


def beginning(start: Start, first: int, following: int, where: str) -> int:
    """The first sequence that a group reads. Raises `InvalidInput` for one that is not there.

    >>> beginning("earliest", 3, 7, "here"), beginning("latest", 3, 7, "here"), beginning(5, 3, 7, "here")
    (3, 7, 5)
    """
    if start == "earliest":
        return first
    if start == "latest":
        return following
    if first <= int(start) < following:
        return int(start)
    there = f"there are {first} to {following - 1}" if first < following else "there is none at the moment"
    raise InvalidInput(
        f"a group begins at 'earliest', 'latest' or a sequence that is in {where} ({there}), not at {start!r}"
    )
