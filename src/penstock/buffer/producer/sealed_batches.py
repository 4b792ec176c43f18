"""The sealed batches of a producer that wait for a writer, and which of the writers gets them.

To wake a thread for a small batch takes longer than to write it to a quick store. So while one writer works, a second
one stands by instead of working beside it, and takes over when the first one is not back soon.
"""

from __future__ import annotations

import threading
import time
from collections import deque

from penstock.buffer.producer.pending_batch import PendingBatch

STANDBY_SECONDS = 0.005
"""How long a writer waits for the one before it: as long as a few small batches take."""
LONGEST_WAIT = 3600.0  # seconds: what every system can wait; then the condition is checked again


class SealedBatches:
    """Batches in the order they were sealed. Every method is called with the producer's lock held."""

    def __init__(self, lock: threading.Lock) -> None:
        self._batches: deque[PendingBatch] = deque()
        self._work = threading.Condition(lock)
        self._soon_back = 0  # writers that have a batch, and do not wait for a slow store
        self._standing_by = 0  # writers that wait for one of those to come back
        self._watching = 0  # writers that wait until a batch is due, which is never after the open one is
        self._put_seconds = STANDBY_SECONDS  # what the last put took

    def __bool__(self) -> bool:
        return bool(self._batches)

    @property
    def is_store_quick(self) -> bool:
        """Whether a writer is back soon from a put, as far as one can know."""
        return self._put_seconds < STANDBY_SECONDS

    def append(self, batch: PendingBatch) -> None:
        """Add a batch, unless it is the last one already."""
        if not self._batches or self._batches[-1] is not batch:
            self._batches.append(batch)

    def announce(self) -> None:
        """Wake a writer for what was appended, unless one comes by itself within `STANDBY_SECONDS`."""
        if not self._soon_back or not self._standing_by:
            self._work.notify()

    def watch(self) -> None:
        """Make sure that some writer watches the time of the open batch."""
        if not self._watching:
            self._work.notify()

    def wake_all(self) -> None:
        """Wake every writer, to check whether the producer stops."""
        self._work.notify_all()

    def next(self) -> PendingBatch | None:
        """The oldest batch, for a writer that calls `put_begins` and `put_ended`; None where there is none."""
        while self._batches:
            if not self._soon_back or self._has_stood_by_long():
                self._soon_back += 1
                batch = self._batches.popleft()
                if self._batches and not self._standing_by:
                    self._work.notify()  # that one stands by
                return batch
        return None

    def wait(self, due: float | None) -> None:
        """Wait for a batch, or until the open one is due."""
        if due is None:
            self._work.wait()
            return
        self._watching += 1
        self._work.wait(min(max(due - time.monotonic(), 0.0), LONGEST_WAIT))
        self._watching -= 1

    def put_begins(self) -> bool:
        """Note that a batch is encoded. Returns whether its writer is soon back; if not, another goes on at once."""
        if self.is_store_quick:
            return True
        self._soon_back -= 1
        if self._batches:
            self._work.notify()
        return False

    def put_ended(self, was_soon_back: bool, seconds: float | None) -> None:
        """Note that a writer is back: from a put that took so many seconds, or None if it did not come to that."""
        if was_soon_back:
            self._soon_back -= 1
        if seconds is not None:
            self._put_seconds = seconds

    def _has_stood_by_long(self) -> bool:
        oldest = self._batches[0]
        self._standing_by += 1
        self._work.wait(STANDBY_SECONDS)
        self._standing_by -= 1
        return bool(self._batches) and self._batches[0] is oldest
