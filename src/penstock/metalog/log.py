"""The contract of a metadata log, and the values that go through it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

from penstock.core import check_whole
from penstock.errors import InvalidInput, PartitionOutOfRange
from penstock.storage import as_data

if TYPE_CHECKING:
    from penstock.metalog.subscription import Subscription

MAX_PARTITIONS = 10_000
"""The most partitions of a log. Each costs its readers and writers memory and requests, whatever is in it."""


@dataclass(frozen=True, slots=True)
class PartitionStart:
    """A partition, and the first offset of it that is wanted; a negative one means 0."""

    partition: int
    start_offset: int = 0

    def __post_init__(self) -> None:
        for name in ("partition", "start_offset"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise InvalidInput(f"{name} must be an integer, not {value!r}")


@dataclass(frozen=True, slots=True)
class MetadataRecord:
    """A payload, and where it is in the log."""

    partition: int
    offset: int
    payload: bytes = field(repr=False)


@runtime_checkable
class MetadataLog(Protocol):
    """A partitioned, ordered, replayable log. Any number of threads may use one, and any number of processes.

    Offsets of a partition are 0, 1, 2, … without gaps, and every subscriber sees the same payload at the same one.
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

    def high_water_marks(self) -> list[int]:
        """One past the last offset of each partition; 0 for an empty one."""
        ...

    def subscribe(self, starts: Iterable[PartitionStart]) -> Subscription:
        """Deliver what is there from each start on, and then what comes; each record once, in order by partition.

        A start beyond the end waits for it. Partitions out of range are ignored; of one named twice the first start
        counts.
        """
        ...

    def close(self) -> None:
        """End it, and its subscriptions. What was published stays."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


def check_partition_count(count: object) -> None:
    """Refuse what is no number of partitions, or more than a log may have."""
    check_whole("partition_count", count, most=MAX_PARTITIONS)


def check_partition(partition: object, count: int) -> None:
    """Refuse a partition that the log does not have."""
    if isinstance(partition, bool) or not isinstance(partition, int):
        raise InvalidInput(f"partition must be an integer, not {partition!r}")
    if not 0 <= partition < count:
        raise PartitionOutOfRange(partition, count)


def as_payload(payload: object) -> bytes:
    """Accept what can be published, as bytes that nobody changes any more."""
    return bytes(as_data(payload))
