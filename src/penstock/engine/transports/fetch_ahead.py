"""Fetching in parallel, ahead of use, and handing out in order: the batches of a buffer, in an engine and in Spark."""

from __future__ import annotations

import itertools
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import pyarrow as pa

from penstock.engine.regulation.guard import Lease, MemoryGuard

Item = TypeVar("Item")
Result = TypeVar("Result")

_numbers = itertools.count(1)


class Fetch(Generic[Item, Result]):
    """One item that is being fetched. Its bytes are leased in `guard` from its arrival until `release`."""

    def __init__(
        self, item: Item, size_of: Callable[[Result], int], expected_size: int | None, guard: MemoryGuard | None
    ) -> None:
        self.item = item
        self.expected_size = expected_size
        self._size_of = size_of
        self._guard = guard
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._result: Result | None = None
        self._error: BaseException | None = None
        self.size = 0  # in memory: 0 before it has arrived and after `release`
        self._lease: Lease | None = None
        self._is_wanted = True

    @property
    def is_done(self) -> bool:
        """Whether it has arrived or failed."""
        return self._done.is_set()

    @property
    def has_failed(self) -> bool:
        """Whether it has failed."""
        return self._error is not None

    def run(self, fetch: Callable[[Item], Result]) -> None:
        """Fetch it, in the thread of the caller. `result` raises what goes wrong."""
        try:
            if self._is_wanted:
                result = fetch(self.item)
                with self._lock:
                    if self._is_wanted:
                        size = self._size_of(result)
                        self._lease = None if self._guard is None else self._guard.lease(size).__enter__()
                        self._result, self.size = result, size
        except BaseException as error:  # noqa: BLE001  `result` raises it
            self._error = error
        finally:
            self._done.set()

    def wait(self, timeout: float | None) -> bool:
        """Wait until it has arrived or failed, and return whether it has."""
        return self._done.wait(timeout)

    def result(self) -> Result:
        """What was fetched; waits for it. Raises what went wrong."""
        self._done.wait()
        if self._error is not None:
            raise self._error
        assert self._result is not None  # noqa: S101  done, no error, and not released
        return self._result

    def release(self) -> None:
        """Drop the result and end its lease. If it is still being fetched, it is dropped on arrival."""
        with self._lock:
            self._is_wanted = False
            self._lease = self._result = None  # a lease ends when nothing refers to it
            self.size = 0


class FetchAhead(Generic[Item, Result]):
    """A few threads that fetch, and their fetches in the order of `start`. For one thread at a time.

    `size_of` is how many bytes a result has in memory. Where that is not known before (an `expected_size` of None),
    the largest result so far stands for it.
    """

    def __init__(self, fetch: Callable[[Item], Result], threads: int, *, size_of: Callable[[Result], int]) -> None:
        self._fetch = fetch
        self._size_of = size_of
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._fetches = deque[Fetch[Item, Result]]()
        self._largest: int | None = None  # of the results so far
        number = next(_numbers)
        self._threads = [  # each fetch starts one more, until all of them run
            threading.Thread(target=self._run, name=f"penstock-fetch-{number}-{one}", daemon=True)
            for one in range(threads)
        ]

    def __len__(self) -> int:
        return len(self._fetches)

    def can_start(self, max_bytes: int, *, max_under_way: int, expected_size: int | None = None) -> bool:
        """Whether one more may be fetched, with at most so many bytes ahead and so many fetches under way.

        No, as long as nothing is known about sizes.
        """
        under_way = [one for one in self._fetches if not one.is_done]
        expected = self._expected(expected_size)
        if expected is None or len(self._fetches) >= 2 * len(self._threads) or len(under_way) >= max_under_way:
            return False
        arrived = sum(one.size for one in self._fetches)
        coming = sum(self._expected(one.expected_size) or 0 for one in under_way)
        return arrived + coming + expected <= max_bytes

    def start(self, item: Item, *, expected_size: int | None = None, guard: MemoryGuard | None = None) -> None:
        """Fetch one more, behind the others."""
        one = Fetch(item, self._size_of, expected_size, guard)
        self._fetches.append(one)
        self._work.put(lambda: one.run(self._fetch))
        idle = next((thread for thread in self._threads if thread.ident is None), None)
        if idle is not None:
            idle.start()

    def release_unused_memory(self) -> None:
        """Have each thread return the memory that its allocator keeps unused: only the thread itself can."""
        for _ in self._running():
            self._work.put(pa.default_memory_pool().release_unused)

    def first(self) -> Fetch[Item, Result] | None:
        """The one that was started first."""
        return self._fetches[0] if self._fetches else None

    def remove_first(self) -> None:
        """Remove the first one, which is done; the caller releases it."""
        self._largest = max(self._largest or 0, self._fetches[0].size)
        self._fetches.popleft()

    def items(self) -> list[Item]:
        """What is being fetched, or was, in order."""
        return [one.item for one in self._fetches]

    def clear(self) -> None:
        """Release all of them."""
        while self._fetches:
            self._fetches[-1].release()  # first: after an interrupt between the two lines it is still in the list
            self._fetches.pop()

    def close(self) -> None:
        """Release all of them, and end the threads."""
        self.clear()
        for _ in self._running():
            self._work.put(None)
        for thread in self._running():
            thread.join()

    def _running(self) -> list[threading.Thread]:
        return [thread for thread in self._threads if thread.ident is not None]

    def _expected(self, size: int | None) -> int | None:
        return self._largest if size is None else size

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
