"""How a queue is named in messages, and how its damage is described."""

from __future__ import annotations

import shlex

from penstock.core import printable
from penstock.errors import CorruptData

_LONGEST_PATH = 1000  # characters


def named(path: str) -> str:
    r"""A queue in a message: one line, whatever its path is.

    >>> named("data/out\nbox")
    'the queue in data/out\\nbox'
    """
    return f"the queue in {shown(path)}"


def shown(path: str) -> str:
    """A path in a message."""
    return printable(path, _LONGEST_PATH)


_ADVICE = ". Nothing was changed. "  # between the reason and what to do


def reason_of(error: CorruptData) -> str:
    """What is damaged, of an error that `damaged` returned, without the advice to repair it."""
    return str(error).partition(_ADVICE)[0]


def damaged(path: str, reason: str) -> CorruptData:
    """What to raise for a damaged queue: the reason, and what to do."""
    command = f"penstock queue repair {shown(shlex.quote(path))}"
    return CorruptData(
        f"{named(path)} is damaged: {reason}{_ADVICE}Restore it from a backup, or run `{command}`: it "
        "keeps every event that can be read, says what is missing, and moves the damaged files aside. "
        "DurableEventQueue(..., skip_corrupt=True) does the same"
    )


def some_events(count: int) -> str:
    """A number of events in words.

    >>> some_events(1), some_events(2000)
    ('1 event', '2,000 events')
    """
    return f"{count:,} event{'' if count == 1 else 's'}"
