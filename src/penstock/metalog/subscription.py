"""`Subscription`: the records of some partitions, from where each was asked for, then new ones as they are published.

Every backend has the same one. It *pulls*: it knows the next offset that it wants of each partition, and asks its feed
for what is there. Nothing is pushed to a subscriber: a slow one holds up no publisher, and the log need not know of it.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from penstock.core import Closing, check_seconds, current
from penstock.errors import Closed, InvalidInput
from penstock.metalog.records import MetadataRecord, PartitionStart

if TYPE_CHECKING:
    from penstock.core import LoopLatch  # callers that do not await need not load asyncio

_LONGEST_WAIT_SECONDS = 3600.0  # a wait without end is repeated waits of this length
_RECORDS_PER_TURN = 64  # after so many in a row, an `async for` lets other tasks of its loop run

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The next offset that is wanted of a partition. One that was removed and added again has another generation."""

    partition: int
    offset: int
    generation: int


class Feed(Protocol):
    """Where a subscription's records come from."""

    def fetch(self, wanted: Sequence[Wanted], timeout: float) -> Sequence[MetadataRecord]:
        """Records of these partitions, in order by partition, each from its offset on (any below it are dropped).

        Looks first, and if there is none waits up to `timeout` seconds for one; it may return none earlier. The answer
        depends on `wanted` alone, because the answer to an earlier call may have been lost. One call is under way at a
        time. Where nothing is wanted it waits to be woken. Raises `Closed` when the log is closed.
        """
        ...

    def wake(self) -> None:
        """End the wait of the call under way, or of the next one; from any thread."""
        ...

    def close(self) -> None:
        """Free what the feed holds; no call is under way."""
        ...


@runtime_checkable
class AwaitableFeed(Feed, Protocol):
    """A feed that a coroutine can wait for without a thread. For any other a thread waits in `fetch`."""

    async def look(self, call: Callable[[], _T]) -> _T:
        """Call what calls `fetch` with a timeout of 0: where that makes requests, in a thread of the log."""
        ...

    def opening(self, latch: LoopLatch) -> AbstractContextManager[None]:
        """Open a latch, in this block, whenever another look may find more than the last one, and at `wake`."""
        ...

    def seconds_until_due(self) -> float | None:
        """How long after a look the next one is due, though nothing opened the latch. None: never."""
        ...


@dataclass(slots=True)
class _Assignment:
    generation: int
    next_offset: int


class Subscription(Closing):
    """Records of some partitions of a log: iterate over it, `poll` it, or use `async for` and `poll_async`.

    Any number of threads and coroutines may take records from one; each record goes to one of them. `close()` ends
    every iteration; one that is dropped without `close()` leaves no thread and no feed behind. A forked child makes its
    own.

    >>> from penstock.metalog import InProcessMetadataLog, PartitionStart
    >>> log = InProcessMetadataLog(1)
    >>> log.publish(0, b"first"), log.publish(0, b"second")
    (0, 1)
    >>> with log.subscribe([PartitionStart(0, 1)]) as records:
    ...     print(next(records).payload)
    b'second'
    """

    _instead_in_child = "subscribe here, from the offset after the last record"

    def __init__(self, feed: Feed, partition_count: int, starts: Iterable[PartitionStart]) -> None:
        super().__init__()
        self._feed = feed
        self._partition_count = partition_count
        self._assigned: dict[int, _Assignment] = {}
        self._ready = deque[MetadataRecord]()
        self._generation = 0
        # Re-entrant: a signal handler may close what its own thread is waiting for.
        self._changed = threading.Condition(threading.RLock())
        self._fetching_thread: int | None = None
        self._awaiting: dict[LoopLatch, bool] = {}
        """Of the coroutines that wait: those that wait until another fetch is over (True), or for their own feed."""
        self._awaited = 0
        self._shutting = threading.RLock()  # a second `close` returns when the feed is closed
        self._close_feed = weakref.finalize(self, _close_at_home, feed, self._home)
        self._close_feed.atexit = False
        for start in starts:
            self._assign(start)

    def __repr__(self) -> str:
        return "Subscription(closed)" if self._is_closed else f"Subscription(partitions {sorted(self._assigned)})"

    def poll(self, timeout: float | None = 0.1) -> MetadataRecord | None:
        """Take the next record; wait for one up to `timeout` seconds (None: until there is one).

        Raises `Closed`, also while it waits; and what the log's store raises: then no record is lost, and a later call
        goes on where this one stopped.
        """
        if timeout is not None:
            check_seconds("timeout", timeout, zero=True)
        self._check_process()
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._changed:
                record = self._take()
            if record is not None or not self._wait(until):
                return record

    def __iter__(self) -> Iterator[MetadataRecord]:
        return self

    def __next__(self) -> MetadataRecord:
        try:
            while (record := self.poll(None)) is None:
                pass
        except Closed:
            raise StopIteration from None
        return record

    def __aiter__(self) -> AsyncIterator[MetadataRecord]:
        return self

    async def __anext__(self) -> MetadataRecord:
        try:
            while (record := await self.poll_async(None)) is None:
                pass
        except Closed:
            raise StopAsyncIteration from None
        return record

    async def poll_async(self, timeout: float | None = 0.1) -> MetadataRecord | None:
        """Do what `poll` does, without blocking the loop. Cancelled, it takes no record: the next call returns it."""
        if timeout is not None:
            check_seconds("timeout", timeout, zero=True)
        self._check_process()
        until = None if timeout is None else time.monotonic() + timeout
        self._awaited += 1
        if self._awaited % _RECORDS_PER_TURN == 0:
            import asyncio  # here and below: callers that do not await need not load it

            await asyncio.sleep(0)
        while True:
            # A record is taken after the last await: a cancelled call takes none.
            with self._changed:
                record = self._take()
            if record is not None or not await self._wait_async(until):
                return record

    def add(self, start: PartitionStart) -> None:
        """Deliver another partition too: the records from the start on, then new ones as they are published.

        One that is assigned already, or that the log does not have, changes nothing. Raises `Closed`.
        """
        self._check_process()
        with self._changed:
            self._check_open()
            if not self._assign(start):
                return
            self._notify()
        self._feed.wake()

    def remove(self, partition: int) -> None:
        """Deliver nothing of a partition from now on, not even what is fetched already. Raises `Closed`."""
        self._check_process()
        with self._changed:
            self._check_open()
            if self._assigned.pop(partition, None) is not None:
                self._ready = deque(record for record in self._ready if record.partition != partition)

    def assigned(self) -> list[int]:
        """The partitions that are delivered, sorted."""
        self._check_process()
        with self._changed:
            return sorted(self._assigned)

    def close(self) -> None:
        """Close it; a waiting `poll` raises `Closed`. In a forked child it does nothing."""
        if self._is_in_child:
            return
        with self._changed:
            self._is_closed = True
            self._assigned.clear()
            self._ready.clear()
            self._notify()
        self._feed.wake()
        with self._changed:
            if self._fetching_thread == threading.get_ident():
                return  # this is a signal handler: the call that it interrupted closes the feed
            while self._fetching_thread is not None:
                self._changed.wait()
        self._shut()

    def _assign(self, start: PartitionStart) -> bool:
        if not isinstance(start, PartitionStart):
            raise InvalidInput(f"a start must be a PartitionStart, not {start!r}")
        if not 0 <= start.partition < self._partition_count or start.partition in self._assigned:
            return False
        self._generation += 1
        self._assigned[start.partition] = _Assignment(self._generation, max(start.start_offset, 0))
        return True

    def _take(self) -> MetadataRecord | None:
        self._check_open()
        return self._ready.popleft() if self._ready else None

    def _wait(self, until: float | None, stop: threading.Event | None = None) -> bool:
        """Fetch, or wait while another thread fetches. False: there is no record, and the time is over."""
        is_fetching = False
        try:
            with self._changed:
                remaining = _remaining(until)
                if self._ready or self._is_closed or (stop is not None and stop.is_set()):
                    return True
                if self._fetching_thread is not None:
                    if remaining <= 0:
                        return False
                    self._changed.wait(remaining)
                    return True
                is_fetching = True  # before the line below: after an interrupt in between, the next thread can fetch
                self._fetching_thread = threading.get_ident()
                wanted = [Wanted(at, one.next_offset, one.generation) for at, one in self._assigned.items()]
            records = self._feed.fetch(wanted, max(remaining, 0.0))
            with self._changed:
                self._accept(wanted, records)
        finally:
            if is_fetching:
                self._end_fetch()
        return bool(records) or remaining > 0

    def _accept(self, wanted: Sequence[Wanted], records: Sequence[MetadataRecord]) -> None:
        """Keep the records of partitions that were not removed, or added again, during the fetch."""
        generations = {one.partition: one.generation for one in wanted}
        for record in records:
            now = self._assigned.get(record.partition)
            if now is None or now.generation != generations.get(record.partition) or record.offset < now.next_offset:
                continue
            now.next_offset = record.offset + 1
            self._ready.append(record)

    def _end_fetch(self) -> None:
        with self._changed:
            self._fetching_thread = None
            self._notify()
        if self._is_closed:
            self._shut()

    def _notify(self) -> None:
        """Wake what waits for a record, for the end of a fetch, or for `close`. The lock is held."""
        self._changed.notify_all()
        for latch, waits_for_turn in tuple(self._awaiting.items()):
            # Others wait for their feed: a look that found nothing must not wake them to look as well.
            if waits_for_turn or self._ready or self._is_closed:
                latch.open()

    def _shut(self) -> None:
        """Close the feed. Not under the lock, which a loop's thread acquires too: that may take long."""
        with self._shutting:
            self._close_feed()

    async def _wait_async(self, until: float | None) -> bool:
        """Do what `_wait` does. No fetch depends on the loop: `close` may wait for it in the loop's thread."""
        from penstock.core import LoopLatch

        latch = LoopLatch()
        with self._changed:
            remaining = _remaining(until)
            if self._ready or self._is_closed:
                return True
            is_other_fetching = self._fetching_thread is not None
            if is_other_fetching and remaining <= 0:
                return False
            self._awaiting[latch] = is_other_fetching
        try:
            if is_other_fetching:
                await latch.wait(remaining)
                return True
            if isinstance(self._feed, AwaitableFeed):
                return await _look(self._feed, latch, remaining, lambda: self._wait(time.monotonic()))
            return await self._fetch_in_thread(until)
        finally:
            with self._changed:
                del self._awaiting[latch]

    async def _fetch_in_thread(self, until: float | None) -> bool:
        """Have a thread wait for the feed, which takes no record. Cancelled, it ends its wait."""
        from penstock.core import in_new_thread

        stop = threading.Event()
        try:
            return await in_new_thread("metalog-await", self._wait, until, stop)
        except Exception:
            raise
        except BaseException:  # cancelled, or the loop ends
            stop.set()
            with self._changed:
                self._notify()
            self._feed.wake()
            raise


def _remaining(until: float | None) -> float:
    """Seconds until then, at most as many as one wait takes."""
    return _LONGEST_WAIT_SECONDS if until is None else min(until - time.monotonic(), _LONGEST_WAIT_SECONDS)


def _close_at_home(feed: Feed, home: int) -> None:
    """Close a feed, but not in a forked child: it would wait for threads, such as a client's, that the parent has."""
    if home == current.number:
        feed.close()


async def _look(feed: AwaitableFeed, latch: LoopLatch, remaining: float, fetch: Callable[[], bool]) -> bool:
    """Fetch what is there; if it is nothing, wait until it is time to look again."""
    with feed.opening(latch):  # before the look: what comes after it opens the latch
        if await feed.look(fetch):
            return True
        if remaining <= 0:
            return False
        due = feed.seconds_until_due()
        await latch.wait(remaining if due is None else min(remaining, due))
        return True
