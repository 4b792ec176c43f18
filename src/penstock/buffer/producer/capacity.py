"""How much a producer may hold, and the line of calls that wait until they fit.

The batch that takes entries is not counted here until it is sealed: the producer passes it along. While calls wait in
line there is such a batch only if all of them fit beside it: then they were woken, and their space is kept for them.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import OrderedDict
from operator import add, le, sub
from typing import TYPE_CHECKING

from penstock.buffer.config import ProducerConfig
from penstock.buffer.producer.pending_batch import Held, PendingBatch
from penstock.errors import BackpressureTimeout, Closed

if TYPE_CHECKING:
    from penstock.core import LoopLatch

LONGEST_WAIT = 3600.0  # seconds: what every system can wait; then the condition is checked again
_MANY_ENTRIES = 1 << 20  # entries without a single byte take memory too: four bytes each, in Arrow
_LEAST_MEMORY_BYTES = 8 << 20  # a smaller capacity is for payloads alone, and their objects are not counted


class Ticket:
    """A call's place in line; `latch` wakes a coroutine, and is None for a thread."""

    __slots__ = ("__weakref__", "call", "latch", "timeout", "until")

    def __init__(self, call: Held, timeout: float | None, latch: LoopLatch | None = None) -> None:
        self.call = call
        self.timeout = timeout
        self.until = None if timeout is None else time.monotonic() + timeout
        self.latch = latch


class Capacity:
    """Counts what is sealed and has no outcome yet. Every method is called with the producer's lock held."""

    def __init__(self, lock: threading.Lock, config: ProducerConfig) -> None:
        size = config.max_buffered_bytes
        self.most = Held(
            config.max_buffered_inputs, size, max(size // 4, _MANY_ENTRIES), max(size, _LEAST_MEMORY_BYTES)
        )
        self._freed = threading.Condition(lock)
        # By weak reference: should an interrupt keep a call from leaving the line, its ticket dies with it.
        # Not a deque: a thousand tasks that are cancelled at once leave it from its middle.
        self._line: OrderedDict[weakref.ref[Ticket], Held] = OrderedDict()
        # What the line waits for. After an interrupt it may be too much, until the line is empty: more is sealed then.
        self._awaited = Held()
        self._used = Held()
        self._is_closed = False

    @property
    def is_awaited(self) -> bool:
        """Whether calls wait in line."""
        return bool(self._line) and self._first_in_line() is not None

    def is_short(self, batch: PendingBatch) -> bool:
        """Whether calls wait in line, and do not all fit beside the open batch: it has to be sealed for them."""
        return self.is_awaited and not self._fits(self._and_line(batch.total))

    def fits(self, call: Held, batch: PendingBatch | None) -> bool:
        """Whether a call can be accepted at once, beside the open batch and all calls that wait in line."""
        if batch is None and not self.is_awaited:
            return self._fits_alone(call)
        return self._fits(self._and_line(call if batch is None else Held(*map(add, batch.total, call))))

    def remaining(self, batch: PendingBatch) -> Held:
        """How much the open batch may grow and stay within every limit, beside the calls that wait in line."""
        return Held(*map(sub, map(sub, self.most, self._used), self._and_line(batch.total)))

    def add(self, batch: PendingBatch) -> None:
        """Count a batch that is sealed."""
        held = batch.total
        used = Held(*map(add, self._used, held))
        batch.held, self._used = held, used  # in one line: an interrupt comes before it, or after it

    def release(self, batch: PendingBatch) -> None:
        """Count a batch no more: it has its outcome."""
        self._used = Held(*map(sub, self._used, batch.held))
        self._wake()

    def wait(self, call: Held, timeout: float | None) -> None:
        """Wait in line, so that a large call is not starved by small ones.

        Raises `BackpressureTimeout` past the timeout, and `Closed` when the producer closes.
        """
        ticket = Ticket(call, timeout)
        try:
            self.line_up(ticket)
            while (seconds := self.wait_of(ticket)) is not None:
                self._freed.wait(seconds)
        finally:
            self.leave(ticket)

    def line_up(self, ticket: Ticket) -> None:
        """Enter the line. Its call leaves it in a `finally`."""
        self._awaited = Held(*map(add, self._awaited, ticket.call))
        self._line[weakref.ref(ticket)] = ticket.call

    def wait_of(self, ticket: Ticket) -> float | None:
        """How long a call has to wait before it asks again, in seconds; None when it is its turn.

        Raises `BackpressureTimeout` past the timeout, and `Closed` when the producer closes.
        """
        if self._is_closed:
            raise Closed("the producer was closed while this call waited for space; nothing was taken")
        if self._first_in_line() is ticket and self._fits_alone(ticket.call):
            return None
        seconds = LONGEST_WAIT if ticket.until is None else ticket.until - time.monotonic()
        if seconds <= 0:
            raise BackpressureTimeout(
                f"no space for {ticket.call.bytes} bytes within {ticket.timeout} s: {self._used.calls} calls with "
                f"{self._used.bytes} bytes are on their way; nothing was taken",
                timeout=ticket.timeout,
            )
        return min(seconds, LONGEST_WAIT)

    def leave(self, ticket: Ticket) -> None:
        """Leave the line, wherever in it the call is."""
        self._remove(weakref.ref(ticket))
        self._wake()  # the call that is first now may fit

    def close(self) -> None:
        """End every wait, with `Closed`."""
        self._is_closed = True
        self._freed.notify_all()
        for ticket in [reference() for reference in self._line]:
            if ticket is not None and ticket.latch is not None:
                ticket.latch.open()

    def _wake(self) -> None:
        """Have the first in line ask again."""
        self._freed.notify_all()
        first = self._first_in_line()
        if first is not None and first.latch is not None and self._fits_alone(first.call):
            first.latch.open()

    def _first_in_line(self) -> Ticket | None:
        while self._line:
            reference = next(iter(self._line))
            ticket = reference()
            if ticket is not None and not (ticket.latch is not None and ticket.latch.is_lost):
                return ticket
            self._remove(reference)
        return None

    def _remove(self, reference: weakref.ref[Ticket]) -> None:
        call = self._line.pop(reference, None)
        if not self._line:
            self._awaited = Held()
        elif call is not None:
            self._awaited = Held(*map(sub, self._awaited, call))

    def _and_line(self, held: Held) -> Held:
        return Held(*map(add, self._awaited, held)) if self.is_awaited else held

    def _fits_alone(self, call: Held) -> bool:
        # A call that is larger than the capacity is accepted when nothing else is on its way.
        return not self._used.calls or self._fits(call)

    def _fits(self, more: Held) -> bool:
        return all(map(le, map(add, self._used, more), self.most))
