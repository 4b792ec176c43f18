"""`ObjectLogSettings`: how often a log writes what makes it quicker to read, and how large that is."""

from __future__ import annotations

from dataclasses import dataclass, fields

from penstock.core import check_whole


@dataclass(frozen=True, slots=True)
class ObjectLogSettings:
    """Counts are of objects of one partition. Processes with different settings may share a log."""

    hint_every: int = 64
    """A writer moves the hint after so many objects. A reader that walks the chain looks at the hint as often."""
    roll_up_every: int = 1000
    """So many objects are copied into a roll-up."""
    max_roll_up_bytes: int = 16 << 20
    """A roll-up of more bytes is several: a reader has a whole one in memory."""
    look_for_roll_ups_after: int = 16
    """A reader looks for roll-ups after so many objects in a row."""
    long_chain: int = 20_000
    """To list so many objects takes dozens of requests: a reader uses hint and roll-ups instead."""

    def __post_init__(self) -> None:
        for field in fields(self):
            check_whole(field.name, getattr(self, field.name))
