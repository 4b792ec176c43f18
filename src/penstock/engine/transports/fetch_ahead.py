"""Fetching some batches of a buffer side by side, and handing them out in order."""

from __future__ import annotations

import itertools
import queue
import threading
from collections import deque
from collections.abc import Callable

import pyarrow as pa

from penstock.buffer import BatchDescriptor, ConsumedBatch, ProducerConfig
from penstock.engine.regulation.guard import Lease, MemoryGuard

_ROOM_FOR_ONE = 8 * ProducerConfig().flush_size_bytes  # of memory in all: several copies, and that is not all there is

_numbers = itertools.count(1)


class Fetch:
    """One batch on its way. Its bytes are leased from the moment it is there until `let_go`."""

    def __init__(self, descriptor: BatchDescriptor, guard: MemoryGuard) -> None:
        self.descriptor = descriptor
        self._guard = guard
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._batch: ConsumedBatch | None = None
        self._error: BaseException | None = None
        self._lease: Lease | None = None
        self._is_wanted = True

    @property
    def is_done(self) -> bool:
        """Whether it is there, or has failed."""
        return self._done.is_set()

    @property
    def has_failed(self) -> bool:
        """Whether it has failed."""
        return self._error is not None

    @property
    def size(self) -> int:
        """How many bytes it has in memory; 0 while it is under way."""
        lease = self._lease
        return 0 if lease is None else lease.count

    def run(self, fetch: Callable[[BatchDescriptor], ConsumedBatch]) -> None:
        """Fetch it, in whatever thread this is."""
        try:
            if self._is_wanted:
                batch = fetch(self.descriptor)
                with self._lock:
                    if self._is_wanted:
                        self._lease = self._guard.lease(batch.arrow.nbytes).__enter__()
                        self._batch = batch
        except BaseException as error:  # noqa: BLE001  whoever waits for it gets it
            self._error = error
        finally:
            self._done.set()

    def wait(self, timeout: float | None) -> bool:
        """Wait until it is there or has failed; say whether it is so."""
        return self._done.wait(timeout)

    def result(self) -> ConsumedBatch:
        """The batch. Raises what went wrong."""
        if self._error is not None:
            raise self._error
        assert self._batch is not None  # noqa: S101  done, and no error
        return self._batch

    def let_go(self) -> None:
        """Forget the batch, and give back what was leased for it; also if it is still under way."""
        with self._lock:
            self._is_wanted = False
            self._lease = self._batch = None  # a lease that nobody has any more ends


class FetchAhead:
    """A few threads that fetch, and the fetches under way or done, in the order of their sequences."""

    def __init__(self, fetch: Callable[[BatchDescriptor], ConsumedBatch], threads: int) -> None:
        self._fetch = fetch
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._fetches = deque[Fetch]()
        self._largest: int | None = None  # of the batches that were there; None before the first
        number = next(_numbers)
        self._threads = [
            threading.Thread(target=self._run, name=f"penstock-receiver-{number}-fetcher-{one}", daemon=True)
            for one in range(threads)
        ]
        self._is_started = False

    def __len__(self) -> int:
        return len(self._fetches)

    def has_room(self, most_bytes: int, guard: MemoryGuard) -> bool:
        """Whether one more can be fetched, if so many bytes may be ahead. Not before it is known how large they are.

        A batch may be larger than all before it. So no more are under way at once than the memory has room for if each
        of them were as large as a producer makes them.
        """
        under_way = sum(not one.is_done for one in self._fetches)
        most_under_way = max(1, guard.limit_bytes // _ROOM_FOR_ONE)
        if self._largest is None or len(self._fetches) >= 2 * len(self._threads) or under_way >= most_under_way:
            return False
        ahead = sum(one.size for one in self._fetches) + under_way * self._largest
        return ahead + self._largest <= most_bytes

    def start(self, descriptor: BatchDescriptor, guard: MemoryGuard) -> None:
        """Fetch one more, behind the others."""
        if not self._is_started:
            self._is_started = True
            for thread in self._threads:
                thread.start()
        one = Fetch(descriptor, guard)
        self._fetches.append(one)
        self._work.put(lambda: one.run(self._fetch))

    def tidy(self) -> None:
        """Let the threads give back the memory that their allocators keep unused: nobody else can do it for them."""
        if self._is_started:
            for _ in self._threads:
                self._work.put(pa.default_memory_pool().release_unused)

    def first(self) -> Fetch | None:
        """The one that comes next."""
        return self._fetches[0] if self._fetches else None

    def take(self) -> None:
        """Take the first one, which is done, out of the line."""
        self._largest = max(self._largest or 0, self._fetches[0].size)
        self._fetches.popleft()

    def drop(self) -> None:
        """Let go of all of them."""
        while self._fetches:
            self._fetches[-1].let_go()
            self._fetches.pop()

    def close(self) -> None:
        """Drop everything, and stop the threads."""
        self.drop()
        if self._is_started:
            for _ in self._threads:
                self._work.put(None)
            for thread in self._threads:
                thread.join()
            self._is_started = False
            self._threads = []

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
