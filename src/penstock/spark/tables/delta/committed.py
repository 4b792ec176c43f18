"""What the commit of a block says of it, in the history of a Delta table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.spark.tables.contract import Position

OURS = "penstock."
"""With which the names begin that Penstock gives to what it keeps in a table."""


@dataclass(frozen=True, slots=True)
class CommittedBlock:
    """What a commit of Penstock's says in the log of the block that it is of."""

    query: str
    version: int
    attempt: str
    position: Position


def committed_block(commit: Mapping[str, Any]) -> CommittedBlock | None:
    """The block of a commit, as the history has it; None if it is not one of Penstock's."""
    query = commit.get(f"{OURS}query")
    if not isinstance(query, str):
        return None

    def number(name: str) -> int | None:
        value = commit.get(OURS + name)
        return value if isinstance(value, int) else None

    version = number("version")
    try:
        end = json.loads(commit.get(f"{OURS}end", ""))
        last = end.get("last")
    except (ValueError, TypeError, AttributeError):
        last = None
    position = Position((version or 0) + 1, number("first"), last if isinstance(last, str) else None, number("rows"))
    attempt = str(commit.get(f"{OURS}attempt", ""))
    return CommittedBlock(query, -1 if version is None else version, attempt, position)
