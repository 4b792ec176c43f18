"""The values that go through a metadata log, and the checks of what a caller gives."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.core import check_whole
from penstock.errors import InvalidInput, PartitionOutOfRange
from penstock.storage import as_data

MAX_PARTITIONS = 10_000
"""The most partitions of a log. Each costs its readers and writers memory and requests, even while it is empty."""


@dataclass(frozen=True, slots=True)
class PartitionStart:
    """A partition, and the first offset of it to deliver; a negative one means 0."""

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
    """The bytes to publish; a copy where the caller could change them later."""
    return bytes(as_data(payload))
