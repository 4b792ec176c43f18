"""`EventQueue`: events in memory, between the threads of one process."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from penstock.core import Waiters, check_seconds, check_whole, current, refuse_in_child
from penstock.errors import BackpressureTimeout, InvalidInput

Event = TypeVar("Event")


class EventQueue(Generic[Event]):
    """A queue in memory for any number of threads; without bound unless `maxsize` is given.

    Its events are gone with the process: `DurableEventQueue` keeps them. An event may be anything but None, which
    means that there is no event.

    >>> queue = EventQueue[str]()
    >>> queue.push("first"), queue.push("second"), queue.push_front("before both")
    (None, None, None)
    >>> queue.pop(), len(queue)
    ('before both', 2)
    """

    def __init__(self, maxsize: int | None = None) -> None:
        if maxsize is not None:
            check_whole("maxsize", maxsize)
        self._maxsize = maxsize
        self._home = current.number
        self._events = deque[Event]()
        self._lock = threading.Lock()
        self._not_empty = Waiters(self._lock)
        self._not_full = Waiters(self._lock)

    def __len__(self) -> int:
        self._check_process()
        return len(self._events)

    @property
    def is_empty(self) -> bool:
        """Whether there is no event in it."""
        return len(self) == 0

    def __repr__(self) -> str:
        bound = "" if self._maxsize is None else f" of at most {self._maxsize}"
        return f"EventQueue({len(self._events)} events{bound})"

    def push(self, event: Event, timeout: float | None = None) -> None:
        """Add an event at the end. If the queue is full, wait until it is not.

        Raises `BackpressureTimeout` if it was full for `timeout` seconds: the event was not added.
        """
        if not self._not_full.wait(self._push_of(event, timeout), timeout):
            raise self._full(timeout)

    async def push_async(self, event: Event, timeout: float | None = None) -> None:
        """Do what `push` does, without blocking the loop. Cancelled, it has added nothing."""
        if not await self._not_full.wait_async(self._push_of(event, timeout), timeout):
            raise self._full(timeout)

    def push_front(self, event: Event) -> None:
        """Put an event before all others, to be the next. It never waits.

        It is for an event that was taken and has to go back: its thread may be the only one that takes events.
        """
        _check_event(event)
        self._check_process()
        with self._lock:
            self._events.appendleft(event)
            self._not_empty.wake()

    def pop(self) -> Event | None:
        """Take the first event, or return None at once."""
        self._check_process()
        with self._lock:
            return self._take()

    def poll(self, timeout: float | None = 0.1) -> Event | None:
        """Take the first event; wait for one up to `timeout` seconds (None: until there is one)."""
        into: list[Event] = []
        self._not_empty.wait(self._poll_of(into, timeout), timeout)
        return into[0] if into else None

    async def poll_async(self, timeout: float | None = 0.1) -> Event | None:
        """Do what `poll` does, without blocking the loop. Cancelled, it has taken nothing."""
        into: list[Event] = []
        await self._not_empty.wait_async(self._poll_of(into, timeout), timeout)
        return into[0] if into else None

    def _push_of(self, event: Event, timeout: float | None) -> Callable[[], bool]:
        """Check the arguments of a push, and return what does it if there is space, with the lock held."""
        _check_event(event)
        self._check_process()
        if timeout is not None:
            check_seconds("timeout", timeout, zero=True)

        def has_pushed() -> bool:
            if self._maxsize is not None and len(self._events) >= self._maxsize:
                return False
            self._events.append(event)
            self._not_empty.wake()
            return True

        return has_pushed

    def _poll_of(self, into: list[Event], timeout: float | None) -> Callable[[], bool]:
        """Check the arguments of a poll, and return what takes an event if there is one, with the lock held."""
        self._check_process()
        if timeout is not None:
            check_seconds("timeout", timeout, zero=True)

        def has_event() -> bool:
            event = self._take()
            if event is not None:
                into.append(event)
            return bool(into)

        return has_event

    def _full(self, timeout: float | None) -> BackpressureTimeout:
        return BackpressureTimeout(
            f"the queue was full for {timeout} s: {len(self._events)} events of at most {self._maxsize} are in it; "
            "this one was not added",
            timeout=timeout,
        )

    def _check_process(self) -> None:
        refuse_in_child(self._home, self, "its events are the parent's; make an EventQueue in the child")

    def _take(self) -> Event | None:
        if not self._events:
            return None
        self._not_full.wake()
        return self._events.popleft()


def _check_event(event: object) -> None:
    if event is None:
        raise InvalidInput("an event cannot be None: pop and poll return None when there is no event")
