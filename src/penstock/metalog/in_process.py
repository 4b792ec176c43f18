"""`InProcessMetadataLog`: a log in memory, for tests and for several managers in one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

from penstock.core import current, refuse_in_child
from penstock.errors import Closed
from penstock.metalog.log import MetadataRecord, PartitionStart, as_payload, check_partition, check_partition_count
from penstock.metalog.subscription import Subscription, Wanted

_AT_ONCE = 256  # records of one partition that one fetch returns


class InProcessMetadataLog:
    """A metadata log in this process' memory, gone with it. A forked child cannot use it: it would have a copy.

    >>> log = InProcessMetadataLog(2)
    >>> log.publish(1, b"hello"), log.high_water_marks()
    (0, [0, 1])
    """

    def __init__(self, partition_count: int) -> None:
        check_partition_count(partition_count)
        self._partitions: list[list[bytes]] = [[] for _ in range(partition_count)]
        self._grown = threading.Condition(threading.RLock())
        self._is_closed = False
        self._home = current.number

    def __repr__(self) -> str:
        return f"InProcessMetadataLog({self.partition_count} partitions)"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def partition_count(self) -> int:
        """How many partitions there are."""
        return len(self._partitions)

    def publish(self, partition: int, payload: bytes) -> int:
        """Append a payload, and return its offset. Raises `PartitionOutOfRange` and `Closed`."""
        check_partition(partition, self.partition_count)
        payload = as_payload(payload)
        self._check_process()
        with self._grown:
            self._check_open()
            payloads = self._partitions[partition]
            payloads.append(payload)
            self._grown.notify_all()
            return len(payloads) - 1

    def high_water_marks(self) -> list[int]:
        """One past the last offset of each partition. Raises `Closed`."""
        self._check_process()
        with self._grown:
            self._check_open()
            return [len(payloads) for payloads in self._partitions]

    def subscribe(self, starts: Iterable[PartitionStart]) -> Subscription:
        """Deliver what is there from each start on, and then what comes. Raises `Closed`."""
        self._check_process()
        self._check_open()
        return Subscription(_Feed(self), self.partition_count, starts)

    def close(self) -> None:
        """End it, and its subscriptions. In a forked child it does nothing."""
        if self._home != current.number:
            return
        with self._grown:
            self._is_closed = True
            self._grown.notify_all()

    def _check_process(self) -> None:
        refuse_in_child(self._home, self, "use an ObjectMetadataLog to share a log between processes")

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed(f"{self!r} is closed")

    def _fetch(self, feed: _Feed, wanted: Sequence[Wanted], timeout: float) -> list[MetadataRecord]:
        until = time.monotonic() + timeout
        with self._grown:
            while True:
                self._check_open()
                records = [record for one in wanted for record in self._from(one)]
                left = until - time.monotonic()
                if records or feed.is_woken or left <= 0:
                    feed.is_woken = False
                    return records
                self._grown.wait(left)

    def _from(self, wanted: Wanted) -> Iterable[MetadataRecord]:
        payloads = self._partitions[wanted.partition][wanted.offset : wanted.offset + _AT_ONCE]
        for place, payload in enumerate(payloads):
            yield MetadataRecord(wanted.partition, wanted.offset + place, payload)

    def _wake(self, feed: _Feed) -> None:
        with self._grown:
            feed.is_woken = True
            self._grown.notify_all()


class _Feed:
    """What a subscription has of the log: nothing that the log would know of."""

    def __init__(self, log: InProcessMetadataLog) -> None:
        self._log = log
        self.is_woken = False

    def fetch(self, wanted: Sequence[Wanted], timeout: float) -> Sequence[MetadataRecord]:
        return self._log._fetch(self, wanted, timeout)

    def wake(self) -> None:
        self._log._wake(self)

    def close(self) -> None:
        pass
