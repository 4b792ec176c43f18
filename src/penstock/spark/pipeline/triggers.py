"""When a pipeline's blocks start."""

from __future__ import annotations

import re
from typing import Any

from penstock.errors import InvalidInput

AVAILABLE_NOW, ASAP = "available_now", "asap"
_NO_INTERVAL = "0 seconds"

# As Spark reads intervals: only seconds have fractions.
_INTERVAL = re.compile(r"(\d+\s+(millisecond|second|minute|hour|day)s?|\d+\.\d+\s+seconds?)", re.IGNORECASE)


def spark_trigger(word: object) -> dict[str, Any]:
    """What `writeStream.trigger` takes. Raises `InvalidInput` for what is no trigger.

    >>> spark_trigger("available_now"), spark_trigger("10 seconds")
    ({'availableNow': True}, {'processingTime': '10 seconds'})
    """
    if word == AVAILABLE_NOW:
        return {"availableNow": True}
    if word == ASAP:
        return {"processingTime": _NO_INTERVAL}
    if isinstance(word, str) and _INTERVAL.fullmatch(word.strip()) and float(word.split()[0]) > 0:
        return {"processingTime": word.strip()}
    raise InvalidInput(f"trigger must be {AVAILABLE_NOW}, {ASAP}, or a time such as '10 seconds', not {word!r}")


def has_interval(trigger: dict[str, Any]) -> bool:
    """Whether a query with this trigger of Spark's waits between its blocks."""
    return bool(trigger.get("processingTime", _NO_INTERVAL) != _NO_INTERVAL)
