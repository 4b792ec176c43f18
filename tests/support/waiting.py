"""How tests wait for threads: for a signal of the other thread, never for time to pass. Every wait has a deadline."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar, cast

from penstock.core import Latch
from tests.support.processes import PATIENCE

Answer = TypeVar("Answer")
Arguments = ParamSpec("Arguments")

NEVER = 3600.0
"""A flush interval that is longer than any test: a batch is written when it is full, flushed or closed."""

A_WHILE = 0.1
"""Seconds to watch that something does not happen. A test that watches for too short a time passes."""


class Gate:
    """Holds up every thread that calls it, until it is opened."""

    def __init__(self) -> None:
        self._arrived = threading.Semaphore(0)
        self._is_open = threading.Event()

    def __call__(self) -> None:
        self._arrived.release()
        assert self._is_open.wait(PATIENCE), "the gate was not opened"

    def wait_for_arrival(self) -> None:
        """Return when a thread has reached the gate; each call waits for one more thread."""
        assert self._arrived.acquire(timeout=PATIENCE), "no thread reached the gate"

    def open(self) -> None:
        self._is_open.set()


class Bell:
    """Counts its rings; each `wait` uses up as many as it waits for."""

    def __init__(self) -> None:
        self._rung = threading.Semaphore(0)

    def __call__(self) -> None:
        self._rung.release()

    def wait(self, times: int = 1) -> None:
        for _ in range(times):
            assert self._rung.acquire(timeout=PATIENCE), "the bell was not rung"


class Background(Generic[Answer]):
    """A call in a thread of its own, which can hang without hanging the test."""

    def __init__(self, work: Callable[Arguments, Answer], *args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        self._answer: Answer | None = None
        self._error: BaseException | None = None

        def run() -> None:
            try:
                self._answer = work(*args, **kwargs)
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def has_ended_within(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def result(self) -> Answer:
        """The answer of the call. Raises the error of the call."""
        error = self.error()
        if error is not None:
            raise error
        return cast("Answer", self._answer)

    def error(self) -> BaseException | None:
        """The error that the call raised."""
        assert self.has_ended_within(PATIENCE), "the call does not return"
        return self._error


def together(*calls: Callable[[], Answer]) -> list[Answer]:
    """Make calls at the same moment, each in a thread of its own, and return their answers."""
    start = threading.Barrier(len(calls))

    def run(call: Callable[[], Answer]) -> Answer:
        start.wait(PATIENCE)
        return call()

    return [running.result() for running in [Background(run, call) for call in calls]]


def waiting_threads() -> int:
    """How many threads of this process wait at a latch of Penstock: in line for a write, or for an event."""
    return sum(frame.f_code is Latch.wait.__code__ for frame in sys._current_frames().values())


def wait_for_waiting_threads(count: int = 1) -> None:
    """Return when so many threads wait at a latch."""
    wait_until(lambda: waiting_threads() >= count)


def wait_until(condition: Callable[[], bool]) -> None:
    """Return when the condition is true, where there is no signal to wait for."""
    until(lambda: condition() or None, "the condition", look_again=0.001)


def until(
    ask: Callable[[], Answer | None], what: str, seconds: float = PATIENCE, *, look_again: float = 0.05
) -> Answer:
    """What `ask` answers, as soon as that is something: of the kernel, or of a process that cannot ring a bell here."""
    deadline = time.monotonic() + seconds
    while (answer := ask()) is None:
        assert time.monotonic() < deadline, f"{what} does not happen"
        time.sleep(look_again)
    return answer
