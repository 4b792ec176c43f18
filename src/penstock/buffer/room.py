"""How much a producer may hold, and the line of calls that wait for room."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from penstock.buffer.config import ProducerConfig
from penstock.errors import BackpressureTimeout, Closed

_MANY_ENTRIES = 1 << 20  # entries without a single byte take room too: four bytes each, in Arrow


class Room:
    """Counts what was taken and has no outcome yet. Every method is called with the producer's lock held."""

    def __init__(self, lock: threading.Lock, config: ProducerConfig) -> None:
        self._most_calls = config.max_buffered_inputs
        self._most_bytes = config.max_buffered_bytes
        self.most_entries = max(config.max_buffered_bytes // 4, _MANY_ENTRIES)
        self._freed = threading.Condition(lock)
        self._line: deque[object] = deque()
        self._calls = self._bytes = self._entries = 0
        self._is_closed = False

    @property
    def is_awaited(self) -> bool:
        """Whether calls wait in line."""
        return bool(self._line)

    def fits(self, count: int, size: int) -> bool:
        """Whether a call can be taken at once: there is room, and nobody stands before it."""
        return not self._line and self._has_room(count, size)

    def take(self, count: int, size: int) -> None:
        """Count a call that was taken."""
        self._calls += 1
        self._bytes += size
        self._entries += count

    def give_back(self, calls: int, count: int, size: int) -> None:
        """Count calls that have their outcome."""
        self._calls -= calls
        self._bytes -= size
        self._entries -= count
        self._freed.notify_all()

    def wait(self, count: int, size: int, timeout: float | None, before_waiting: Callable[[], None]) -> None:
        """Wait in line, so that a large call is not starved by small ones.

        Raises `BackpressureTimeout` past the timeout, and `Closed` when the producer closes.
        """
        until = None if timeout is None else time.monotonic() + timeout
        ticket = object()
        self._line.append(ticket)
        before_waiting()
        try:
            while self._line[0] is not ticket or not self._has_room(count, size):
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise BackpressureTimeout(
                        f"no room for {size} bytes within {timeout} s: {self._calls} calls with {self._bytes} bytes "
                        "are on their way; nothing was taken"
                    )
                self._freed.wait(left)
                if self._is_closed:
                    raise Closed("the producer was closed while this call waited for room; nothing was taken")
        finally:
            self._line.remove(ticket)
            self._freed.notify_all()  # whoever is first now may fit

    def close(self) -> None:
        """Send everybody in line away."""
        self._is_closed = True
        self._freed.notify_all()

    def _has_room(self, count: int, size: int) -> bool:
        if not self._calls:
            return True  # a call larger than the room passes alone
        return (
            self._calls < self._most_calls
            and self._bytes + size <= self._most_bytes
            and self._entries + count <= self.most_entries
        )
