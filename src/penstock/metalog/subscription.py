"""`Subscription`: the records of some partitions, from where each was asked for, then new ones as they are published.

Every backend has the same one. It *pulls*: it knows the next offset that it wants of each partition, and asks its feed
for what is there. Nothing is pushed to a subscriber: a slow one holds up no publisher, and the log need not know of it.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from penstock.core import Closing, check_seconds, current
from penstock.errors import Closed, InvalidInput
from penstock.metalog.records import MetadataRecord, PartitionStart

_LONGEST_WAIT_SECONDS = 3600.0  # a wait without end is repeated waits of this length
_RECORDS_PER_TURN = 64  # after so many in a row, an `async for` lets other tasks of its loop run


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


@dataclass(slots=True)
class _Assignment:
    generation: int
    next_offset: int


class Subscription(Closing):
    """Records of some partitions of a log: iterate over it, `poll` it, or use `async for`.

    Any number of threads may take records from one, and each record goes to one of them. `close()` ends every
    iteration; one that is dropped without `close()` leaves no thread and no feed behind. A forked child makes its own.

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
        self._awaited = 0
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
        self._check_process()
        self._awaited += 1
        if self._awaited % _RECORDS_PER_TURN == 0:
            import asyncio  # here and below: callers that do not await need not load it

            await asyncio.sleep(0)
        try:
            # A record is taken after the last await: a cancelled call takes none.
            while True:
                with self._changed:
                    record = self._take()
                if record is not None:
                    return record
                await self._until_ready()
        except Closed:
            raise StopAsyncIteration from None

    def add(self, start: PartitionStart) -> None:
        """Deliver another partition too: the records from the start on, then new ones as they are published.

        One that is assigned already, or that the log does not have, changes nothing. Raises `Closed`.
        """
        self._check_process()
        with self._changed:
            self._check_open()
            if not self._assign(start):
                return
            self._changed.notify_all()
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
            self._changed.notify_all()
        self._feed.wake()
        with self._changed:
            if self._fetching_thread == threading.get_ident():
                return  # this is a signal handler: the call that it interrupted closes the feed
            while self._fetching_thread is not None:
                self._changed.wait()
            self._close_feed()

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
                remaining = _LONGEST_WAIT_SECONDS
                if until is not None:
                    remaining = min(until - time.monotonic(), _LONGEST_WAIT_SECONDS)
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
            if self._is_closed:
                self._close_feed()
            self._changed.notify_all()

    async def _until_ready(self) -> None:
        """Return when there may be a record. A thread waits for it, while a task awaits; the thread takes no record."""
        import asyncio

        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        stop = threading.Event()

        def end(error: BaseException | None) -> None:
            if not over.done():
                over.set_result(None) if error is None else over.set_exception(error)

        def wait() -> None:
            failure: BaseException | None = None
            try:
                while not (stop.is_set() or self._is_closed or self._ready):
                    self._wait(None, stop)
            except Exception as error:  # noqa: BLE001  the awaiting task raises it
                failure = error
            with suppress(RuntimeError):  # the loop is gone
                loop.call_soon_threadsafe(end, failure)

        threading.Thread(target=wait, name="penstock-metalog-await", daemon=True).start()
        try:
            await over
        finally:
            stop.set()
            with self._changed:
                self._changed.notify_all()
            if not over.done() or over.cancelled():
                self._feed.wake()


def _close_at_home(feed: Feed, home: int) -> None:
    """Close a feed, but not in a forked child: it would wait for threads, such as a client's, that the parent has."""
    if home == current.number:
        feed.close()
