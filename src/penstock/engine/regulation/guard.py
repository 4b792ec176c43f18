"""The memory guard: bytes in use over the limit, as a hard source of pressure."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from pathlib import Path

from penstock.core import begin_anew_in_child, check_whole, get_logger
from penstock.engine.regulation.cgroup import SystemMemory
from penstock.engine.regulation.pressure import Pressure
from penstock.errors import InvalidInput

_log = get_logger(__name__)


class Lease:
    """Bytes that count from `__enter__` until `__exit__` or `release()`; releasing again does nothing.

    The guard has a weak reference to it, which the interpreter removes with the object. So a lease ends even if an
    interrupt comes before the first line of `__exit__`.
    """

    def __init__(self, leases: set[weakref.ref[Lease]], count: int) -> None:
        self.count = count
        self._leases = leases

    def __enter__(self) -> Lease:
        self._leases.add(weakref.ref(self, self._leases.discard))
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """End the lease."""
        self._leases.discard(weakref.ref(self))


class MemoryGuard:
    """Counts the bytes that are leased; its pressure is their share of the limit. Safe to use from several threads.

    With a limit, leases alone count, unless `heap_source` returns how many bytes are used in all; then the larger of
    the two counts. Without a limit, limit and usage are those of the cgroup, or of the host where no group has a limit
    (see `cgroup`), read below the file system's `root`. A forked child begins with nothing leased.

    Raises `InvalidInput` for a limit below 1, and for a heap source that cannot be called.
    """

    name = "memory"
    weight = 1.0
    hard = True

    def __init__(
        self,
        limit_bytes: int | None = None,
        heap_source: Callable[[], int] | None = None,
        *,
        root: Path | str = "/",
    ) -> None:
        if limit_bytes is not None:
            check_whole("limit_bytes", limit_bytes)
        if heap_source is not None and not callable(heap_source):
            raise InvalidInput(f"heap_source must be a function that returns bytes, not {heap_source!r}")
        self._heap_source = heap_source
        self._system: SystemMemory | None = None
        if limit_bytes is None:
            system = SystemMemory(root)
            self._system = system if heap_source is None else None
            limit_bytes = system.limit_bytes
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._added = 0
        self._leases = set[weakref.ref[Lease]]()
        begin_anew_in_child(self)

    @property
    def limit_bytes(self) -> int:
        """The limit. It does not change: a group's limit is read once."""
        return self._limit_bytes

    @property
    def counts_leases_only(self) -> bool:
        """Whether the memory that is really used is not known."""
        return self._system is None and self._heap_source is None

    @property
    def current_bytes(self) -> int:
        """How many bytes are leased, by `add` and by `lease`."""
        # Copied by one step of the interpreter: other threads add leases meanwhile.
        return self._added + sum([lease.count for place in tuple(self._leases) if (lease := place()) is not None])

    def add(self, count: int) -> None:
        """Lease bytes until they are released. Raises `InvalidInput` for what is no whole number from 0 on."""
        check_whole("count", count, 0)
        with self._lock:
            self._added += count

    def release(self, count: int) -> None:
        """Release bytes that were added; more than that is logged, and 0 remain. A `lease` is not changed.

        Raises `InvalidInput` for what is no whole number from 0 on.
        """
        check_whole("count", count, 0)
        with self._lock:
            remaining = self._added - count
            self._added = max(0, remaining)
        if remaining < 0:
            _log.warning("%d bytes more were released in the memory guard than were added", -remaining)

    def lease(self, count: int) -> Lease:
        """Lease bytes for a `with` block, however that ends.

        Raises `InvalidInput` for what is no whole number from 0 on.

        >>> guard = MemoryGuard(100)
        >>> with guard.lease(25):
        ...     guard.read()
        Pressure(0.25)
        >>> guard.read()
        Pressure(0.0)
        """
        check_whole("count", count, 0)
        return Lease(self._leases, count)

    def read(self) -> Pressure:
        """How full the memory is. Raises what the heap source raises; reading the system's files raises nothing."""
        leased = self.current_bytes
        if self._system is not None:
            return Pressure(max(leased / self._limit_bytes, self._system.share()))
        heap = 0 if self._heap_source is None else self._heap_source()
        return Pressure(max(leased, heap) / self._limit_bytes)

    def begin_anew(self) -> None:
        """Forget all leases: the threads that would release them are not in a forked child."""
        self._lock = threading.Lock()
        self._added = 0
        self._leases.clear()
