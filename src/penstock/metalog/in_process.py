"""`InProcessMetadataLog`: a log in memory, for tests and for several users of a log in one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence

from penstock.core import Closing
from penstock.metalog.records import (
    MetadataRecord,
    PartitionStart,
    as_payload,
    check_partition,
    check_partition_count,
)
from penstock.metalog.subscription import Feed, Subscription, Wanted

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
        self._changed = threading.Condition(threading.RLock())

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
        with self._changed:
            self._check_open()
            payloads = self._partitions[partition]
            payloads.append(payload)
            self._changed.notify_all()
            return len(payloads) - 1

    def high_water_marks(self) -> list[int]:
        """One past the last offset of each partition. Raises `Closed`."""
        self._check_process()
        with self._changed:
            self._check_open()
            return [len(payloads) for payloads in self._partitions]

    def subscribe(self, starts: Iterable[PartitionStart]) -> Subscription:
        """Deliver the records from each start on, then new ones as they are published. Raises `Closed`."""
        return Subscription(self.open_feed(), self.partition_count, starts)

    def open_feed(self) -> Feed:
        """Where one subscription gets its records. Raises `Closed`."""
        self._check_process()
        self._check_open()
        return _InProcessFeed(self._partitions, self._changed, self._check_open)

    def close(self) -> None:
        """Close the log and its subscriptions. In a forked child it does nothing."""
        if self._is_in_child:
            return
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


class _InProcessFeed:
    """Reads the lists of payloads. The log does not know of it."""

    def __init__(
        self, partitions: Sequence[Sequence[bytes]], changed: threading.Condition, check_open: Callable[[], None]
    ) -> None:
        self._partitions = partitions
        self._changed = changed
        self._check_open = check_open
        self._is_woken = False

    def fetch(self, wanted: Sequence[Wanted], timeout: float) -> Sequence[MetadataRecord]:
        until = time.monotonic() + timeout
        with self._changed:
            while True:
                self._check_open()
                records = [record for one in wanted for record in self._records_from(one)]
                remaining = until - time.monotonic()
                if records or self._is_woken or remaining <= 0:
                    self._is_woken = False
                    return records
                self._changed.wait(remaining)

    def wake(self) -> None:
        with self._changed:
            self._is_woken = True
            self._changed.notify_all()

    def close(self) -> None:
        pass

    def _records_from(self, wanted: Wanted) -> Iterable[MetadataRecord]:
        payloads = self._partitions[wanted.partition][wanted.offset : wanted.offset + _MAX_RECORDS_PER_PARTITION]
        for place, payload in enumerate(payloads):
            yield MetadataRecord(wanted.partition, wanted.offset + place, payload)
