"""How much a producer may hold, and the line of calls that wait for room.

The batch that takes entries is not counted here until it is sealed: it is there only while nobody waits, and the
producer adds it where it asks.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable

from penstock.buffer.config import ProducerConfig
from penstock.buffer.pending_batch import PendingBatch
from penstock.errors import BackpressureTimeout, Closed

LONGEST_WAIT = 3600.0  # what every system can wait; then one looks again
_MANY_ENTRIES = 1 << 20  # entries without a single byte take room too: four bytes each, in Arrow


class _Ticket:
    """A call's place in line."""

    __slots__ = ("__weakref__",)


class Room:
    """Counts what is sealed and has no outcome yet. Every method is called with the producer's lock held."""

    def __init__(self, lock: threading.Lock, config: ProducerConfig) -> None:
        self._most_calls = config.max_buffered_inputs
        self._most_bytes = config.max_buffered_bytes
        self.most_entries = max(config.max_buffered_bytes // 4, _MANY_ENTRIES)
        self._freed = threading.Condition(lock)
        # By weak reference: should an interrupt keep a call from leaving the line, its ticket dies with it.
        self._line: deque[weakref.ref[_Ticket]] = deque()
        self._calls = self._bytes = self._entries = 0
        self._is_closed = False

    @property
    def is_awaited(self) -> bool:
        """Whether calls wait in line."""
        return bool(self._line) and self._first_in_line() is not None

    def fits(self, count: int, size: int, batch: PendingBatch | None) -> bool:
        """Whether a call can be taken at once beside the open batch: there is room, and nobody stands before it."""
        if self.is_awaited:
            return False
        if batch is None:
            return self._has_room(count, size)
        return self._has_left(batch.calls, batch.count + count, batch.bytes + size)

    def left(self) -> tuple[int, int]:
        """How many calls and bytes an open batch may take before somebody has to look again."""
        return self._most_calls - self._calls, self._most_bytes - self._bytes

    def take(self, batch: PendingBatch) -> None:
        """Count a batch that is sealed."""
        self._calls += batch.calls
        self._bytes += batch.bytes
        self._entries += batch.count

    def give_back(self, batch: PendingBatch) -> None:
        """Count a batch that has its outcome."""
        self._calls -= batch.calls
        self._bytes -= batch.bytes
        self._entries -= batch.count
        self._freed.notify_all()

    def wait(self, count: int, size: int, timeout: float | None, before_waiting: Callable[[], None]) -> None:
        """Wait in line, so that a large call is not starved by small ones.

        Raises `BackpressureTimeout` past the timeout, and `Closed` when the producer closes.
        """
        until = None if timeout is None else time.monotonic() + timeout
        ticket = _Ticket()
        try:
            self._line.append(weakref.ref(ticket))
            before_waiting()
            while self._first_in_line() is not ticket or not self._has_room(count, size):
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise BackpressureTimeout(
                        f"no room for {size} bytes within {timeout} s: {self._calls} calls with {self._bytes} bytes "
                        "are on their way; nothing was taken"
                    )
                self._freed.wait(None if left is None else min(left, LONGEST_WAIT))
                if self._is_closed:
                    raise Closed("the producer was closed while this call waited for room; nothing was taken")
        finally:
            self._line = deque(other for other in self._line if other() is not ticket)
            self._freed.notify_all()  # whoever is first now may fit

    def close(self) -> None:
        """Send everybody in line away."""
        self._is_closed = True
        self._freed.notify_all()

    def _first_in_line(self) -> _Ticket | None:
        while self._line:
            ticket = self._line[0]()
            if ticket is not None:
                return ticket
            self._line.popleft()
        return None

    def _has_room(self, count: int, size: int) -> bool:
        return not self._calls or self._has_left(0, count, size)  # a call larger than the room passes alone

    def _has_left(self, calls_before: int, count: int, size: int) -> bool:
        return (
            self._calls + calls_before < self._most_calls
            and self._bytes + size <= self._most_bytes
            and self._entries + count <= self.most_entries
        )
