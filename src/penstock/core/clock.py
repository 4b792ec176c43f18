"""The time since the host booted, which no change of its clock moves."""

from __future__ import annotations

import time


def uptime_ns() -> int:
    """Nanoseconds since boot, with the time of a suspend where the system counts it."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
