"""`ChangeSignal`: wakes the threads and coroutines that wait for something to change."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.core import LoopLatch


class ChangeSignal:
    """Counts changes. A waiting thread notices every change since it last asked for the count, and need not register.

    A coroutine has a latch, which every change opens while the coroutine watches.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.RLock())
        self._latches: set[LoopLatch] = set()
        self.changes = 0
        """How many there were. Ask before looking at what changes, and then `wait` for more than that."""

    def notify(self) -> None:
        """Count a change, and wake everything that waits."""
        with self._changed:
            self.changes += 1
            self._changed.notify_all()
            for latch in tuple(self._latches):
                latch.open()

    def wait(self, changes: int, timeout: float) -> None:
        """Return when there were more changes than that, or after `timeout` seconds."""
        with self._changed:
            if self.changes == changes:
                self._changed.wait(timeout)

    @contextmanager
    def opening(self, latch: LoopLatch) -> Iterator[None]:
        """Open a latch at every change, in this block. The lock is never held for long: a loop need not fear it."""
        with self._changed:
            self._latches.add(latch)
        try:
            yield
        finally:
            with self._changed:
                self._latches.discard(latch)
