"""`MetadataLog`: the contract of a metadata log."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from penstock.metalog.records import PartitionStart
from penstock.metalog.subscription import Subscription


@runtime_checkable
class MetadataLog(Protocol):
    """A partitioned, ordered, replayable log. Any number of threads may use one, and any number of processes.

    Offsets of a partition are 0, 1, 2, … without gaps, and every subscriber sees the same payload at each of them.
    """

    @property
    def partition_count(self) -> int:
        """How many partitions there are; that never changes."""
        ...

    def publish(self, partition: int, payload: bytes) -> int:
        """Append a payload, and return its offset when it is durable.

        Raises `PartitionOutOfRange`, `Closed`, and `StorageError`: `OutcomeUnknown` where it may have happened.
        """
        ...

    async def publish_async(self, partition: int, payload: bytes) -> int:
        """Do what `publish` does, without blocking the loop.

        Cancelled, it may have published the payload, or publish it still, as after `OutcomeUnknown`. To find out, read
        the partition from the high-water mark that it had before.
        """
        ...

    def high_water_marks(self) -> list[int]:
        """One past the last offset of each partition; 0 for an empty one."""
        ...

    async def high_water_marks_async(self) -> list[int]:
        """Do what `high_water_marks` does, without blocking the loop."""
        ...

    def subscribe(self, starts: Iterable[PartitionStart]) -> Subscription:
        """Deliver the records from each start on, then new ones as they are published: each once, in partition order.

        A start beyond the end waits until the partition is that long. Partitions that the log does not have are
        ignored; where one is named twice, the first start counts.
        """
        ...

    def close(self) -> None:
        """Close the log and its subscriptions. What was published stays."""
        ...

    async def close_async(self) -> None:
        """Do what `close` does, without blocking the loop. Cancelled, it is closed all the same."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
