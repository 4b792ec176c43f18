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
from operator import add, sub

from penstock.buffer.config import ProducerConfig
from penstock.buffer.producer.pending_batch import Held, PendingBatch
from penstock.buffer.producer.sealed_batches import LONGEST_WAIT
from penstock.errors import BackpressureTimeout, Closed

_MANY_ENTRIES = 1 << 20  # entries without a single byte take room too: four bytes each, in Arrow
_LEAST_MEMORY_BYTES = 8 << 20  # a room smaller than this is for payloads alone, and their objects are not counted


class _Ticket:
    """A call's place in line."""

    __slots__ = ("__weakref__",)


class Room:
    """Counts what is sealed and has no outcome yet. Every method is called with the producer's lock held."""

    def __init__(self, lock: threading.Lock, config: ProducerConfig) -> None:
        self._most_calls = config.max_buffered_inputs
        self._most_bytes = config.max_buffered_bytes
        self.most_entries = max(config.max_buffered_bytes // 4, _MANY_ENTRIES)
        self.most_memory = max(config.max_buffered_bytes, _LEAST_MEMORY_BYTES)
        self._freed = threading.Condition(lock)
        # By weak reference: should an interrupt keep a call from leaving the line, its ticket dies with it.
        self._line: deque[weakref.ref[_Ticket]] = deque()
        self._used = Held()
        self._is_closed = False

    @property
    def is_awaited(self) -> bool:
        """Whether calls wait in line."""
        return bool(self._line) and self._first_in_line() is not None

    def fits(self, count: int, size: int, batch: PendingBatch | None, overhead: int = 0) -> bool:
        """Whether a call can be taken at once beside the open batch: there is room, and nobody stands before it."""
        if self.is_awaited:
            return False
        if batch is None:
            return self._has_room(count, size, overhead)
        return self._has_left(batch.calls, batch.count + count, batch.size + size, batch.memory + size + overhead)

    def left(self, batch: PendingBatch) -> tuple[int, int, int]:
        """How many calls, bytes and bytes of memory the open batch may take and stay within every limit."""
        return (
            self._most_calls - self._used.calls - batch.calls,
            self._most_bytes - self._used.bytes - batch.size,
            self.most_memory - self._used.memory - batch.memory,
        )

    def take(self, batch: PendingBatch) -> None:
        """Count a batch that is sealed."""
        held = Held(batch.calls, batch.size, batch.count, batch.memory)
        used = Held(*map(add, self._used, held))
        batch.held, self._used = held, used  # in one line: an interrupt comes before it, or after it

    def give_back(self, batch: PendingBatch) -> None:
        """Count a batch that has its outcome."""
        self._used = Held(*map(sub, self._used, batch.held))
        self._freed.notify_all()

    def wait(
        self, count: int, size: int, timeout: float | None, before_waiting: Callable[[], None], overhead: int = 0
    ) -> None:
        """Wait in line, so that a large call is not starved by small ones.

        Raises `BackpressureTimeout` past the timeout, and `Closed` when the producer closes.
        """
        until = None if timeout is None else time.monotonic() + timeout
        ticket = _Ticket()
        try:
            self._line.append(weakref.ref(ticket))
            before_waiting()
            while self._first_in_line() is not ticket or not self._has_room(count, size, overhead):
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise BackpressureTimeout(
                        f"no room for {size} bytes within {timeout} s: {self._used.calls} calls with "
                        f"{self._used.bytes} bytes are on their way; nothing was taken"
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

    def _has_room(self, count: int, size: int, overhead: int) -> bool:
        # A call that is larger than the room passes when nothing else is on its way.
        return not self._used.calls or self._has_left(0, count, size, size + overhead)

    def _has_left(self, calls_before: int, count: int, size: int, memory: int) -> bool:
        calls, used_bytes, entries, used_memory = self._used
        return (
            calls + calls_before < self._most_calls
            and used_bytes + size <= self._most_bytes
            and entries + count <= self.most_entries
            and used_memory + memory <= self.most_memory
        )
