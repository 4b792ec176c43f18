"""How these tests wait for threads: for something that was said, never for time to pass."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar, cast

from penstock.core import Latch
from tests.support.processes import PATIENCE

Answer = TypeVar("Answer")

NEVER = 3600.0
"""A flush interval that no test sees the end of: what is taken stays until its size, a flush or a close."""

A_WHILE = 0.1
"""How long to look that something does not happen. It is long for what would, and nobody's failure if it is short."""


class Gate:
    """Holds up whoever comes, until it is opened."""

    def __init__(self) -> None:
        self._arrived = threading.Semaphore(0)
        self._is_open = threading.Event()

    def __call__(self) -> None:
        self._arrived.release()
        assert self._is_open.wait(PATIENCE), "nobody opens the gate"

    def wait_for_somebody(self) -> None:
        """Return when somebody stands before it; called again, when somebody else does."""
        assert self._arrived.acquire(timeout=PATIENCE), "nobody comes to the gate"

    def open(self) -> None:
        self._is_open.set()


class Bell:
    """Can be waited for: once for each time it was rung."""

    def __init__(self) -> None:
        self._rung = threading.Semaphore(0)

    def __call__(self) -> None:
        self._rung.release()

    def wait(self, times: int = 1) -> None:
        for _ in range(times):
            assert self._rung.acquire(timeout=PATIENCE), "nobody rings"


class Background(Generic[Answer]):
    """Work in a thread of its own."""

    def __init__(self, work: Callable[[], Answer]) -> None:
        self._work = work
        self._answer: Answer | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def has_ended_within(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def result(self) -> Answer:
        """What it returned, or raise what it raised."""
        assert self.has_ended_within(PATIENCE), "it is stuck"
        if self._error is not None:
            raise self._error
        return cast("Answer", self._answer)

    def _run(self) -> None:
        try:
            self._answer = self._work()
        except BaseException as error:
            self._error = error


def waiting_threads() -> int:
    """How many threads of this process wait at a latch of Penstock: in line for a write, or for an event."""
    return sum(frame.f_code is Latch.wait.__code__ for frame in sys._current_frames().values())


def wait_for_waiting_threads(count: int = 1) -> None:
    """Return when so many threads wait at a latch."""
    wait_until(lambda: waiting_threads() >= count)


def wait_until(is_so: Callable[[], bool]) -> None:
    """Return when it is so, where there is no event to wait for."""
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, "it does not come to be so"
        time.sleep(0.001)
