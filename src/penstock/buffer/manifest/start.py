"""Where a consumer begins: what it may say about it, and what would skip entries silently."""

from __future__ import annotations

from penstock.core import get_logger
from penstock.errors import InvalidInput

_log = get_logger(__name__)


def check_resumable(first: int, following: int, last_acked: int, where: str, *, allow_gap: bool) -> None:
    """Raises `InvalidInput` if going on behind `last_acked` would skip entries, unless a gap is allowed.

    `first` is the first sequence that can still be given, `following` the next one to be given to an entry.
    """
    if last_acked >= following:
        problem = f"it was never enqueued: the next sequence of {where} is {following}"
    elif first > last_acked + 1:
        problem = f"the first entry that {where} can still give is {first}"
    else:
        return
    if not allow_gap:
        raise InvalidInput(
            f"last_acked_sequence {last_acked} would skip entries silently: {problem}; "
            "give allow_gap=True to go on all the same"
        )
    _log.warning("going on from last_acked_sequence %d: %s", last_acked, problem)


def beginning(start: str | int, first: int, following: int, where: str) -> int:
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
