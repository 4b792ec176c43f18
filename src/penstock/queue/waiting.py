"""Waiting for a condition, with a timeout."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


def wait_for(condition: threading.Condition, is_so: Callable[[], bool], timeout: float | None) -> bool:
    """Wait until it is so, or the time is over (None: never); say whether it is so. The condition's lock is held.

    Should `is_so` raise, or the wait be interrupted, another thread is woken: what this one was woken for is still
    there for it.
    """
    until = None if timeout is None else time.monotonic() + timeout
    try:
        while not is_so():
            left = threading.TIMEOUT_MAX if until is None else min(until - time.monotonic(), threading.TIMEOUT_MAX)
            if left <= 0:
                return False
            condition.wait(left)
    except BaseException:
        condition.notify()
        raise
    return True
