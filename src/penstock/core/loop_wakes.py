"""`LoopWakes`: wakes the coroutines of one event loop, some in each of its iterations.

Thousands may be woken at once: by a write that they shared, or by a close. If all went on in one iteration, the loop
would get to nothing else for as long as that takes.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

_WAKES_PER_ITERATION = 256

_wakes_of: weakref.WeakKeyDictionary[AbstractEventLoop, LoopWakes] = weakref.WeakKeyDictionary()


class Sleeper(Protocol):
    """What lets a coroutine go on."""

    def wake(self) -> None:
        """Let it go on. Called in the loop's thread."""
        ...


class LoopWakes:
    """The sleepers of one loop that are to be woken, in their order. Used with that loop alone."""

    def __init__(self) -> None:
        # By weak reference: a loop may be closed before they are woken, and this must not keep it in memory.
        self._due: deque[weakref.ref[Sleeper]] = deque()
        self._is_scheduled = False
        self._lock = threading.RLock()  # re-entrant: the garbage collector may close a coroutine that wakes another

    @classmethod
    def of(cls, loop: AbstractEventLoop) -> LoopWakes:
        """Those of a loop. To be called in its thread."""
        wakes = _wakes_of.get(loop)
        if wakes is None:
            wakes = _wakes_of[loop] = cls()
        return wakes

    def add(self, loop: AbstractEventLoop, sleeper: Sleeper) -> bool:
        """Wake one soon; from any thread. False: the loop is closed."""
        if loop.is_closed():
            return False
        self._due.append(weakref.ref(sleeper))
        try:
            self._schedule(loop, loop.call_soon_threadsafe)
        except RuntimeError:  # it was closed meanwhile
            return False
        return True

    def _schedule(self, loop: AbstractEventLoop, call_soon: Callable[..., object]) -> None:
        with self._lock:
            if not self._is_scheduled:
                call_soon(self._wake_some, loop)
                self._is_scheduled = True

    def _wake_some(self, loop: AbstractEventLoop) -> None:
        with self._lock:
            self._is_scheduled = False  # what is added from here on is seen below, or schedules
        try:
            for _ in range(min(len(self._due), _WAKES_PER_ITERATION)):
                sleeper = self._due.popleft()()
                if sleeper is not None:
                    sleeper.wake()
        finally:
            if self._due:
                self._schedule(loop, loop.call_soon)
