"""Threads that wait for something, and are woken one by one."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable


class Waiters:
    """Those who wait for something that happens under a lock.

    Like a condition variable, but a Ctrl-C in the middle of a wait does no harm: only a `with` ever holds the lock.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._bells = deque[threading.Lock]()

    def wake(self, count: int = 1) -> None:
        """Wake so many of them. The lock is held."""
        for _ in range(min(count, len(self._bells))):
            self._bells.popleft().release()

    def wake_all(self) -> None:
        """Wake all of them. The lock is held."""
        self.wake(len(self._bells))

    def wait(self, is_so: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until it is so, or the time is over (None: never); say whether it is so.

        `is_so` is called with the lock held. Should it raise, or the wait be interrupted, another one is woken: what
        this one was woken for is still there.
        """
        until = None if timeout is None else time.monotonic() + timeout
        bell: threading.Lock | None = None
        try:
            while True:
                with self._lock:
                    if is_so():
                        return True
                    left = (
                        threading.TIMEOUT_MAX if until is None else min(until - time.monotonic(), threading.TIMEOUT_MAX)
                    )
                    if left <= 0:
                        return False
                    bell = self._enlist()
                self._sleep(bell, left)
                self._forget(bell)
        except BaseException:
            if bell is not None and not self._forget(bell):
                with self._lock:
                    self.wake()
            raise

    def _enlist(self) -> threading.Lock:
        bell = threading.Lock()
        bell.acquire()
        self._bells.append(bell)
        return bell

    def _sleep(self, bell: threading.Lock, seconds: float) -> None:
        bell.acquire(timeout=seconds)

    def _forget(self, bell: threading.Lock) -> bool:
        """Say whether nobody has rung it."""
        with self._lock:
            if bell not in self._bells:
                return False
            self._bells.remove(bell)
            return True
