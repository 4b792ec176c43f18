"""Restores of a Delta table: an older version's rows count again, and the transactions stay where they were.

So a transaction says of a block that it was committed, and not that its rows are still there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.spark.tables.delta.committed import committed_block


@dataclass(frozen=True, slots=True)
class Survivors:
    """What the restores of a table have left of a query's blocks: all up to `end`. `gone_from` is what they took."""

    end: int
    gone_from: int


def survivors(history: Sequence[Mapping[str, Any]], query: str, *, is_all: bool) -> Survivors | None:
    """What is left of a query's blocks; None if the commits do not say.

    `history` is the newest commits, the newest first; all that the log has, or some. Commits that a restore has taken
    back are passed over, earlier restores among them. If no block is left of those that the log has, the end is 0.

    >>> block = {"version": 1, "operation": "WRITE", "penstock.query": "q", "penstock.first": 0, "penstock.version": 4}
    >>> later = {"version": 2, "operation": "WRITE", "penstock.query": "q", "penstock.first": 7, "penstock.version": 9}
    >>> restore = {"version": 3, "operation": "RESTORE", "operationParameters": {"version": "1"}}
    >>> survivors([later, block], "q", is_all=True), survivors([restore, later, block], "q", is_all=True)
    (Survivors(end=10, gone_from=10), Survivors(end=5, gone_from=7))
    """
    restored_to: int | None = None
    gone: list[int] = []
    for commit in history:
        block = committed_block(commit)
        is_of_query = block is not None and block.query == query
        if restored_to is not None and commit["version"] > restored_to:
            if block is not None and is_of_query and block.position.first not in (None, block.position.end):
                gone.append(block.position.first or 0)
        elif commit.get("operation") == "RESTORE":
            restored_to = _target(commit, history)
            if restored_to is None:
                break
        elif block is not None and is_of_query:
            end = block.position.end
            return Survivors(end, min((first for first in gone if first >= end), default=end))
    if not is_all or (restored_to is None and not gone and not _has_restore(history)):
        return None
    return Survivors(0, min(gone, default=0))


def _has_restore(history: Sequence[Mapping[str, Any]]) -> bool:
    return any(commit.get("operation") == "RESTORE" for commit in history)


def _target(restore: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> int | None:
    """The version that a restore went back to, which it names by its number or by a time; None if that is not known."""
    given: Mapping[str, Any] = restore.get("operationParameters") or {}
    version, time = str(given.get("version")), str(given.get("datetime"))
    if version.isdecimal():
        return int(version)
    if not time.isdecimal():
        return None
    for commit in history:
        at = commit.get("timestamp")
        if commit["version"] < restore["version"] and isinstance(at, int) and at <= int(time):
            return int(commit["version"])
    return None
