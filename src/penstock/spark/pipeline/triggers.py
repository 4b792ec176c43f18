"""When a pipeline's blocks start."""

from __future__ import annotations

import re

AVAILABLE_NOW, ASAP = "available_now", "asap"
ALLOWED = f"{AVAILABLE_NOW}, {ASAP}, or a time such as '10 seconds'"

# As Spark reads intervals: only seconds have fractions.
_INTERVAL = re.compile(r"(\d+\s+(millisecond|second|minute|hour|day)s?|\d+\.\d+\s+seconds?)", re.IGNORECASE)


def is_trigger(word: str) -> bool:
    """Whether a pipeline can be run with this.

    >>> is_trigger("asap"), is_trigger("10 seconds"), is_trigger("10"), is_trigger("soon")
    (True, True, False, False)
    """
    return word in {AVAILABLE_NOW, ASAP} or is_interval(word)


def is_interval(word: str) -> bool:
    """Whether this is a time between two blocks."""
    found = _INTERVAL.fullmatch(word.strip())
    return found is not None and float(word.split()[0]) > 0
