"""What the awaitable twins of a durable queue share.

The queue's lock is held while the disk is read, so the loop's thread never waits for it: one thread of the queue does,
for the calls of all coroutines. A coroutine that waits for an event holds no thread.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from penstock.core import Abandoned, HandOver, LoopLatch, Threads, Waiters
from penstock.queue.event import DurableEvent
from penstock.queue.ledger import Ledger
from penstock.queue.writer import ACK_BYTES, Change, QueueWriter

Event = TypeVar("Event")


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
        await asyncio.wrap_future(self._writer.commits.commit_later(change))

    async def acked(self, ids: Sequence[int]) -> None:
        """Ack events. Once a thread has begun it goes on to its end, also when the task is cancelled."""
        writing = await self._threads.run(self._begin_ack, ids)
        if writing is not None:
            await asyncio.shield(asyncio.wrap_future(writing))

    async def called(self, call: Callable[[], None]) -> None:
        """Make a call that needs the queue's lock for a moment."""
        await self._threads.run(call)

    async def event(
        self, take: Callable[[], DurableEvent[Event] | None], timeout: float | None
    ) -> DurableEvent[Event] | None:
        """Wait for an event up to `timeout` seconds, and take it; `take` is called with the lock held."""
        until = None if timeout is None else time.monotonic() + timeout
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

        try:
            while True:
                taking: Awaitable[DurableEvent[Event] | None] = self._threads.call(attempt, self._note_unheard)
                if (found := await taking) is not None:
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

    def _note_unheard(self, found: DurableEvent[Any] | None) -> None:
        """In the loop's thread: the next take finds the note; a thread wakes one that waits already."""
        if found is not None:
            self._unheard.append(found.id)
            self._threads.start(self._take_back_and_wake)

    def _take_back_and_wake(self) -> None:
        with self._lock:
            self.take_back()
            self._ready.wake()

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
