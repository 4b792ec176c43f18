"""`EventQueue`: events in memory, between the threads of one process."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

from penstock.core import check_seconds, check_whole, current
from penstock.errors import BackpressureTimeout, InvalidInput
from penstock.queue.waiting import Waiters

Event = TypeVar("Event")


class EventQueue(Generic[Event]):
    """A queue in memory for any number of threads; without bound unless `maxsize` is given.

    Its events are gone with the process: `DurableEventQueue` keeps them. An event may be anything but None, which
    says that there is none.

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
        self._for_events = Waiters(self._lock)
        self._for_room = Waiters(self._lock)

    def __len__(self) -> int:
        self._check()
        return len(self._events)

    def __repr__(self) -> str:
        bound = "" if self._maxsize is None else f" of at most {self._maxsize}"
        return f"EventQueue({len(self._events)} events{bound})"

    def push(self, event: Event, timeout: float | None = None) -> None:
        """Add an event at the end. Where there is a `maxsize` and no room, wait for it.

        Raises `BackpressureTimeout` when there was no room within `timeout` seconds: the event was not taken.
        """
        _check_event(event)
        self._check()
        if timeout is not None:
            check_seconds("timeout", timeout, zero=True)
        most = self._maxsize

        def has_pushed() -> bool:
            if most is not None and len(self._events) >= most:
                return False
            self._events.append(event)
            self._for_events.wake()
            return True

        if not self._for_room.wait(has_pushed, timeout):
            raise BackpressureTimeout(
                f"no room within {timeout} s: {len(self._events)} events of at most {most} are in the queue; "
                "this one was not taken"
            )

    def push_front(self, event: Event) -> None:
        """Put an event before all others, to be the next. It never waits.

        It is for an event that was taken and has to go back: whoever took it may be the only one who makes room.
        """
        _check_event(event)
        self._check()
        with self._lock:
            self._events.appendleft(event)
            self._for_events.wake()

    def pop(self) -> Event | None:
        """Take the first event, or return None at once."""
        self._check()
        with self._lock:
            return self._take()

    def poll(self, timeout: float | None = 0.1) -> Event | None:
        """Take the first event; wait for one up to `timeout` seconds (None: until there is one)."""
        self._check()
        if timeout is not None:
            check_seconds("timeout", timeout, zero=True)
        taken: Event | None = None

        def has_taken() -> bool:
            nonlocal taken
            taken = self._take()
            return taken is not None

        self._for_events.wait(has_taken, timeout)
        return taken

    def _check(self) -> None:
        """Refuse a forked child: another thread may have held the lock at the fork, and would never let go of it."""
        if self._home != current.number:
            raise InvalidInput(
                f"{self!r} is for the threads of the process {self._home}: this forked child ({current.number}) cannot "
                "use it. Its events are the parent's; make an EventQueue in the child"
            )

    def _take(self) -> Event | None:
        if not self._events:
            return None
        self._for_room.wake()
        return self._events.popleft()


def _check_event(event: object) -> None:
    if event is None:
        raise InvalidInput("an event cannot be None: that is how pop and poll say that there is none")
