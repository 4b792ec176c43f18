"""When a pipeline's blocks start."""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.core import check_seconds
from penstock.errors import InvalidInput

AVAILABLE_NOW, ASAP = "available_now", "asap"

_INTERVAL = re.compile(r"(\d+\s+(millisecond|second|minute|hour|day)s?|\d+\.\d+\s+seconds?)", re.IGNORECASE)
_SECONDS = {"millisecond": 0.001, "second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0}


@dataclass(frozen=True, slots=True)
class Trigger:
    """Until when blocks run, and how many seconds lie between the starts of two at least."""

    available_now: bool = False
    interval: float = 0.0

    @classmethod
    def of(cls, word: object) -> Trigger:
        """What a word means. Raises `InvalidInput` for what is no trigger.

        >>> Trigger.of("available_now"), Trigger.of("10 seconds")
        (Trigger(available_now=True, interval=0.0), Trigger(available_now=False, interval=10.0))
        """
        if word == AVAILABLE_NOW:
            return cls(available_now=True)
        if word == ASAP:
            return cls()
        try:
            return cls(interval=interval_of("trigger", word if isinstance(word, str) else None))
        except InvalidInput:
            raise InvalidInput(
                f"trigger must be {AVAILABLE_NOW}, {ASAP}, or a time such as '10 seconds', not {word!r}"
            ) from None


def interval_of(name: str, time: object) -> float:
    """A time such as `10 seconds` or `1 hour`, or a number of seconds. Raises `InvalidInput` naming the option.

    >>> interval_of("within", "2 hours"), interval_of("within", 90)
    (7200.0, 90.0)
    """
    if isinstance(time, int | float):
        check_seconds(name, time)
        return float(time)
    if not isinstance(time, str) or not _INTERVAL.fullmatch(time.strip()) or not float(time.split()[0]) > 0:
        raise InvalidInput(f"{name} must be a time such as '10 seconds' or '1 hour', or seconds, not {time!r}")
    number, unit = time.split()
    return float(number) * _SECONDS[unit.lower().rstrip("s")]
