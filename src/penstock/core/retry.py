"""Trying again: `Backoff` has the waits between tries, `call_with_retries` calls something until it succeeds."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from penstock.errors import StorageError

_T = TypeVar("_T")


class Backoff:
    """Waits that double: up to `first` seconds, then up to twice as long each time, and never above `longest`.

    Each wait is a random part of that, so that processes that met once do not meet again. A `jitter` that returns 1.0
    makes it the whole. With `give_up_after`, `wait` says when so many seconds have passed since the start or `reset`.
    """

    def __init__(
        self,
        first: float,
        longest: float,
        *,
        give_up_after: float | None = None,
        sleep: Callable[[float], object] = time.sleep,
        jitter: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._first = first
        self._longest = longest
        self._give_up_after = give_up_after
        self._sleep = sleep
        self._jitter = jitter
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """Begin again with the first wait: the last try succeeded."""
        self._next = self._first
        self._until = None if self._give_up_after is None else self._clock() + self._give_up_after

    def seconds(self) -> float:
        """The length of the next wait, for a caller that does the waiting."""
        seconds = self._next * self._jitter()
        self._next = min(self._next * 2, self._longest)
        return seconds

    def wait(self) -> bool:
        """Wait before the next try. False, without a wait: it is time to give up."""
        if self._is_over():
            return False
        self._sleep(self.seconds())
        return True

    async def wait_async(self) -> bool:
        """Do what `wait` does, for a coroutine. It does not call the `sleep` of the constructor."""
        import asyncio  # callers that do not await need not load it

        if self._is_over():
            return False
        await asyncio.sleep(self.seconds())
        return True

    def _is_over(self) -> bool:
        return self._until is not None and self._clock() >= self._until


def call_with_retries(
    call: Callable[[], _T],
    backoff: Backoff,
    *,
    tries: int | None = None,
    on: type[Exception] | tuple[type[Exception], ...] = StorageError,
    unless: type[Exception] | tuple[type[Exception], ...] = (),
    warn: Callable[[Exception], object] = lambda _error: None,
) -> _T:
    """Call until it succeeds, and return the result.

    Raises the last error after so many `tries`, or when the backoff gives up; an error that is not one of `on`, or is
    one of `unless`, at once. `warn` gets each error after which it tries again.
    """
    failed = 0
    while True:
        try:
            return call()
        except on as error:
            failed += 1
            if isinstance(error, unless) or failed == tries:
                raise
            warn(error)
            if not backoff.wait():
                raise
