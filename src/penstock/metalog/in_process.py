"""`InProcessMetadataLog`: a log in memory, for tests and for several users of a log in one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TypeVar

from penstock.core import Closing
from penstock.metalog.change_signal import ChangeSignal
from penstock.metalog.records import (
    MetadataRecord,
    PartitionStart,
    as_payload,
    check_partition,
    check_partition_count,
)
from penstock.metalog.subscription import Feed, Subscription, Wanted

if TYPE_CHECKING:
    from penstock.core import LoopLatch

_T = TypeVar("_T")

_MAX_RECORDS_PER_PARTITION = 256  # in what one fetch returns


class InProcessMetadataLog(Closing):
    """A metadata log in this process' memory, gone with it. A forked child cannot use it: it would have a copy.

    >>> log = InProcessMetadataLog(2)
    >>> log.publish(1, b"hello"), log.high_water_marks()
    (0, [0, 1])
    """

    _instead_in_child = "use an ObjectMetadataLog to share a log between processes"

    def __init__(self, partition_count: int) -> None:
        super().__init__()
        check_partition_count(partition_count)
        self._partitions: list[list[bytes]] = [[] for _ in range(partition_count)]
        self._lock = threading.RLock()  # re-entrant: a signal handler may close the log that its own thread uses
        self._signal = ChangeSignal()

    def __repr__(self) -> str:
        return f"InProcessMetadataLog({self.partition_count} partitions)"

    @property
    def partition_count(self) -> int:
        """How many partitions there are."""
        return len(self._partitions)

    def publish(self, partition: int, payload: bytes) -> int:
        """Append a payload, and return its offset. Raises `PartitionOutOfRange` and `Closed`."""
        check_partition(partition, self.partition_count)
        payload = as_payload(payload)
        self._check_process()
        with self._lock:
            self._check_open()
            payloads = self._partitions[partition]
            payloads.append(payload)
            offset = len(payloads) - 1
        self._signal.notify()
        return offset

    async def publish_async(self, partition: int, payload: bytes) -> int:
        """Do what `publish` does: it never waits, so there is no moment at which it could be cancelled."""
        return self.publish(partition, payload)

    def high_water_marks(self) -> list[int]:
        """One past the last offset of each partition. Raises `Closed`."""
        self._check_process()
        with self._lock:
            self._check_open()
            return [len(payloads) for payloads in self._partitions]

    async def high_water_marks_async(self) -> list[int]:
        """Do what `high_water_marks` does, which never waits."""
        return self.high_water_marks()

    def subscribe(self, starts: Iterable[PartitionStart]) -> Subscription:
        """Deliver the records from each start on, then new ones as they are published. Raises `Closed`."""
        return Subscription(self.open_feed(), self.partition_count, starts)

    def open_feed(self) -> Feed:
        """Where one subscription gets its records. Raises `Closed`."""
        self._check_process()
        self._check_open()
        return _InProcessFeed(self._partitions, self._lock, self._signal, self._check_open)

    def close(self) -> None:
        """Close the log and its subscriptions. In a forked child it does nothing."""
        if self._is_in_child:
            return
        with self._lock:
            self._is_closed = True
        self._signal.notify()


class _InProcessFeed:
    """Reads the lists of payloads. The log does not know of it."""

    def __init__(
        self,
        partitions: Sequence[Sequence[bytes]],
        lock: AbstractContextManager[object],
        signal: ChangeSignal,
        check_open: Callable[[], None],
    ) -> None:
        self._partitions = partitions
        self._lock = lock
        self._signal = signal
        self._check_open = check_open
        self._is_woken = False

    def fetch(self, wanted: Sequence[Wanted], timeout: float) -> Sequence[MetadataRecord]:
        until = time.monotonic() + timeout
        while True:
            changes = self._signal.changes
            with self._lock:
                self._check_open()
                records = [record for one in wanted for record in self._records_from(one)]
            remaining = until - time.monotonic()
            if records or self._is_woken or remaining <= 0:
                self._is_woken = False
                return records
            self._signal.wait(changes, remaining)

    async def look(self, call: Callable[[], _T]) -> _T:
        return call()  # it makes no request

    def opening(self, latch: LoopLatch) -> AbstractContextManager[None]:
        return self._signal.opening(latch)

    def seconds_until_due(self) -> float | None:
        return None

    def wake(self) -> None:
        self._is_woken = True
        self._signal.notify()

    def close(self) -> None:
        pass

    def _records_from(self, wanted: Wanted) -> Iterable[MetadataRecord]:
        payloads = self._partitions[wanted.partition][wanted.offset : wanted.offset + _MAX_RECORDS_PER_PARTITION]
        for place, payload in enumerate(payloads):
            yield MetadataRecord(wanted.partition, wanted.offset + place, payload)
