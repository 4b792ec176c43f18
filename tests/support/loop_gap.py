"""How long an event loop did not run, at most, while something went on beside it."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Self

from penstock.storage import ObjectStore
from tests.support.minimal_stores import Answer, StoreCall, ThinStore

LONGEST_GAP_SECONDS = 0.05
SLOW_SECONDS = 2.0

_EVERY_SECONDS = 0.001
_TASKS_PER_ITERATION = 100  # to create thousands of tasks takes time too


class LoopGap:
    """Measures the longest gap of the running loop in an `async with` block: the time in which it ran no callback.

    The time for which the loop's thread was ready and the kernel ran other processes instead is subtracted, where the
    kernel tells it: on a loaded machine that is no stall of ours.

        async with LoopGap() as gap:
            await something()
        assert gap.longest < 0.05
    """

    def __init__(self) -> None:
        self.longest = 0.0
        self._task: asyncio.Task[None] | None = None
        self._stat: int | None = None

    async def __aenter__(self) -> Self:
        with suppress(OSError):
            self._stat = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        self._task = asyncio.ensure_future(self._measure())
        await asyncio.sleep(0)  # it has begun
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        await asyncio.sleep(2 * _EVERY_SECONDS)  # a gap that lasts until here counts
        self._task.cancel()
        await asyncio.wait([self._task])
        if self._stat is not None:
            os.close(self._stat)

    async def _measure(self) -> None:
        before, waited_before = time.monotonic(), self._waited()
        while True:
            await asyncio.sleep(_EVERY_SECONDS)
            now, waited = time.monotonic(), self._waited()
            self.longest = max(self.longest, now - before - _EVERY_SECONDS - (waited - waited_before))
            before, waited_before = now, waited

    def _waited(self) -> float:
        """Seconds for which the kernel has kept this thread waiting for a processor."""
        return 0.0 if self._stat is None else int(os.pread(self._stat, 100, 0).split()[1]) / 1e9


class SlowOnce(ThinStore):
    """A store that takes long for one request, after `skip` others."""

    def __init__(self, store: ObjectStore, *, skip: int) -> None:
        super().__init__(store)
        self._left = skip

    @property
    def was_slow(self) -> bool:
        return self._left < 0

    def around(self, call: StoreCall, pass_on: Callable[[], Answer]) -> Answer:
        self._left -= 1
        if self._left == -1:
            threading.Event().wait(SLOW_SECONDS)
        return pass_on()


async def all_of(call: Callable[[int], Awaitable[object]], count: int) -> None:
    """Make so many calls, each as a task, and wait for all of them."""

    async def made(number: int) -> None:
        await call(number)

    tasks = list[asyncio.Task[None]]()
    for number in range(count):
        tasks.append(asyncio.ensure_future(made(number)))
        if not number % _TASKS_PER_ITERATION:
            await asyncio.sleep(0)
    for task in tasks:
        await task
