"""What the awaitable twins of a durable queue share.

The queue's lock is held while the disk is read, so the loop's thread never waits for it: one thread of the queue does,
for the calls of all coroutines. A coroutine that waits for an event holds no thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from penstock.core import Abandoned, HandOver, LoopLatch, Threads, Waiters, wait_for
from penstock.queue.event import DurableEvent
from penstock.queue.ledger import Ledger
from penstock.queue.writer import ACK_BYTES, Change, QueueWriter

Event = TypeVar("Event")
_Taken = TypeVar("_Taken")


class AwaitingQueue:
    """Awaits writes, events and calls of one queue. `lock`, `ready`, `ledger` and `writer` are the queue's."""

    def __init__(
        self,
        lock: threading.Lock,
        ready: Waiters,
        ledger: Ledger,
        writer: QueueWriter,
        check: Callable[[], None],
    ) -> None:
        self._lock = lock
        self._ready = ready
        self._ledger = ledger
        self._writer = writer
        self._check = check
        self._threads = Threads("queue")
        self._unheard = deque[int]()  # taken for tasks that were cancelled before they went on

    async def written(self, change: Change) -> None:
        """Wait until a push is written. Cancelled before its write begins, it is not written."""
        await wait_for(self._writer.commits.commit_later(change))

    async def acked(self, ids: Sequence[int]) -> None:
        """Ack events. Once a thread has begun it goes on to its end, also when the task is cancelled."""
        writing = await self._threads.run(self._begin_ack, ids)
        if writing is not None:
            await wait_for(writing, cancel=False)

    async def called(self, call: Callable[[], _Taken]) -> _Taken:
        """Make a call that needs the queue's lock for a moment."""
        return await self._threads.run(call)

    async def event(
        self, take: Callable[[], DurableEvent[Event] | None], timeout: float | None
    ) -> DurableEvent[Event] | None:
        """Wait for an event up to `timeout` seconds, and take it; `take` is called with the lock held."""
        latch = LoopLatch()

        def attempt(hand_over: HandOver[DurableEvent[Event] | None]) -> None:
            with self._lock:
                self._ready.leave(latch)
                found = take()
                if found is None:
                    self._ready.enter(latch)
                try:
                    hand_over(found)
                except Abandoned:
                    if found is None:
                        self._ready.leave(latch)
                    else:
                        self._ledger.give_back(found.id)
                        self._ready.wake()
                    raise

        def note_unheard(found: DurableEvent[Event] | None) -> None:
            self._note_unheard([] if found is None else [found.id])

        return await self._taken(attempt, note_unheard, latch, timeout)

    async def events(
        self, take: Callable[[], list[DurableEvent[bytes]]], timeout: float | None
    ) -> list[DurableEvent[bytes]]:
        """Wait for events up to `timeout` seconds; `take` takes what is there, and acquires the lock by itself."""
        latch = LoopLatch()

        def attempt(hand_over: HandOver[list[DurableEvent[bytes]]]) -> None:
            with self._lock:
                self._ready.leave(latch)
                self._ready.enter(latch)  # before the look: what comes after it opens the latch
            found = take()
            with self._lock:
                if found and not self._ready.leave(latch):
                    self._ready.wake()  # it was woken for what comes next, and that is another's
                try:
                    hand_over(found)
                except Abandoned:
                    for event in reversed(found):
                        self._ledger.give_back(event.id)
                    self._ready.wake(len(found))
                    raise

        def note_unheard(found: list[DurableEvent[bytes]]) -> None:
            self._note_unheard([event.id for event in found])

        return await self._taken(attempt, note_unheard, latch, timeout) or []

    async def _taken(
        self,
        attempt: Callable[[HandOver[_Taken]], object],
        note_unheard: Callable[[_Taken], None],
        latch: LoopLatch,
        timeout: float | None,
    ) -> _Taken | None:
        """Attempt to take something until that is not nothing; an attempt that takes nothing leaves the latch in line.

        None when the time is over.
        """
        until = None if timeout is None else time.monotonic() + timeout
        try:
            while True:
                if found := await self._threads.call(attempt, note_unheard):
                    return found
                seconds = None if until is None else until - time.monotonic()
                if seconds is not None and seconds <= 0:
                    break
                await latch.wait(seconds)
        except BaseException:
            self._threads.start(lambda: self._ready.give_up(latch))  # its wake, if it had one, is another's
            raise
        self._threads.start(lambda: self._ready.give_up(latch))
        return None

    def take_back(self) -> None:
        """Make events ready again that no task has heard of. The lock is held."""
        while self._unheard:
            self._ledger.give_back(self._unheard.popleft())

    def _note_unheard(self, ids: Sequence[int]) -> None:
        """In the loop's thread: the next take finds the note; a thread wakes those that wait already."""
        if ids:
            self._unheard.extend(ids)
            self._threads.start(partial(self._take_back_and_wake, len(ids)))

    def _take_back_and_wake(self, count: int) -> None:
        with self._lock:
            self.take_back()
            self._ready.wake(count)

    def _begin_ack(self, ids: Sequence[int]) -> Future[None] | None:
        leaving: list[int] = []
        change = Change((), leaving, ACK_BYTES * len(ids))

        def put_back(written: Future[None]) -> None:
            if written.cancelled() or written.exception() is not None:
                self._writer.put_back(change)

        try:
            with self._lock:
                self._check()
                self._ledger.leave(ids, leaving)
            if not leaving:
                return None
            writing = self._writer.commits.commit_later(change)
        except BaseException:
            self._writer.put_back(change)
            raise
        writing.add_done_callback(put_back)
        return writing
