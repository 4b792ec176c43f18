"""Waiting for other threads so that a Ctrl-C at any moment of it does no harm.

A `threading.Condition` or `Event` is Python code around a lock: an interrupt inside it can leave that lock held. Here a
thread waits in one call of a lock that no other thread waits for.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.core.awaiting import LoopLatch


class Latch:
    """Closed until it is opened, for one thread that waits."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wait(self, seconds: float = -1) -> None:
        """Return when it was opened since the last wait, or after so many seconds."""
        self._lock.acquire(True, seconds)

    def open(self) -> bool:
        """Let the thread go on: True, always. To open it twice does no harm."""
        try:  # noqa: SIM105  `suppress` takes as long as all the rest, on the way of every event
            self._lock.release()
        except RuntimeError:  # it is open
            pass
        return True


class Waiters:
    """The threads and coroutines that wait until something is so, which changes under a lock. Woken one by one."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        # In their order. Not a deque: a thousand tasks that are cancelled at once leave it from its middle.
        self._latches: OrderedDict[Latch | LoopLatch, None] = OrderedDict()

    def wake(self, count: int = 1) -> None:
        """Wake so many of them, not counting those whose loop is closed. The lock is held."""
        while count and self._latches:
            latch, _ = self._latches.popitem(last=False)
            count -= latch.open()

    def wake_all(self) -> None:
        """Wake all of them. The lock is held."""
        self.wake(len(self._latches))

    def end_waits(self) -> None:
        """Wake all of them. The lock is not held."""
        with self._lock:
            self.wake_all()

    def wait(self, is_so: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until it is so, for `timeout` seconds at most (None: for ever); return whether it is so.

        `is_so` is called with the lock held. If it raises, or the wait is interrupted, another thread is woken instead
        of this one: what this one was woken for is still there.
        """
        until = None if timeout is None else time.monotonic() + timeout
        latch: Latch | None = None
        try:
            while True:
                with self._lock:
                    if is_so():
                        return True
                    if (seconds := _until(until)) <= 0:
                        return False
                    latch = Latch()
                    self._latches[latch] = None
                latch.wait(seconds)
                self._remove(latch)
        except BaseException:
            self.give_up(latch)
            raise

    async def wait_async(self, is_so: Callable[[], bool], timeout: float | None) -> bool:
        """Do what `wait` does, for a coroutine. The lock must be one that no thread holds for long."""
        from penstock.core.awaiting import LoopLatch

        until = None if timeout is None else time.monotonic() + timeout
        latch: LoopLatch | None = None
        try:
            while True:
                with self._lock:
                    if is_so():
                        return True
                    if (seconds := _until(until)) <= 0:
                        return False
                    latch = LoopLatch()
                    self._latches[latch] = None
                await latch.wait(None if until is None else seconds)
                self._remove(latch)
        except GeneratorExit:
            call_outside(self._lock, partial(self.give_up, latch))
            raise
        except BaseException:
            self.give_up(latch)
            raise

    def enter(self, latch: LoopLatch) -> None:
        """Put a coroutine's latch in line. The lock is held: by a thread, where the loop's must not wait for it."""
        self._latches[latch] = None

    def leave(self, latch: Latch | LoopLatch) -> bool:
        """Take a latch out of the line; False if it is not there: it never was, or was woken. The lock is held."""
        if latch not in self._latches:
            return False
        del self._latches[latch]
        return True

    def give_up(self, latch: Latch | LoopLatch | None) -> None:
        """Leave the line. One that was woken already wakes another in its place."""
        if latch is not None and not self._remove(latch):
            with self._lock:
                self.wake()

    def _remove(self, latch: Latch | LoopLatch) -> bool:
        """Take it out of the line. False: it is not there any more, for it was woken."""
        with self._lock:
            return self.leave(latch)


def call_outside(lock: threading.Lock, call: Callable[[], object]) -> None:
    """Make a call that acquires this lock; where the lock is held, in a thread: it may be held by this one.

    For a coroutine that is closed instead of cancelled: the garbage collector closes one between any two lines.
    """
    if lock.acquire(blocking=False):
        lock.release()
        call()
    else:
        threading.Thread(target=call, name="penstock-give-up", daemon=True).start()


def _until(until: float | None) -> float:
    """Seconds until then, and at most as many as a lock can wait for."""
    seconds = threading.TIMEOUT_MAX if until is None else until - time.monotonic()
    return min(seconds, threading.TIMEOUT_MAX)
