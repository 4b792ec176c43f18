"""Which partition of the metadata log has the events of a topic's partition, by Kafka's own rule."""

from __future__ import annotations

from penstock.core import check_whole
from penstock.errors import InvalidInput
from penstock.metalog.catalog.segment import TopicIdPartition

_U32 = (1 << 32) - 1
_U64 = (1 << 64) - 1
_SEED = 0x9747B28C
_MIX = 0x5BD1E995


def metadata_partition_for(tp: TopicIdPartition, count: int) -> int:
    """The metadata partition, of `count`, for everything about `tp`. The topic's name plays no part in it.

    Raises `InvalidInput` for a count below 1, and for what is no `TopicIdPartition`.

    >>> from uuid import UUID
    >>> metadata_partition_for(TopicIdPartition(UUID(int=1), "orders", 7), 50)
    46
    """
    if not isinstance(tp, TopicIdPartition):
        raise InvalidInput(f"tp must be a TopicIdPartition, not {tp!r}")
    check_whole("count", count)
    return (_murmur2(_java_hash(tp)) & 0x7FFF_FFFF) % count


def _java_hash(tp: TopicIdPartition) -> int:
    """What Java's `Objects.hash(low, high, partition)` gives, as an unsigned number."""
    bits = tp.topic_id.int
    return (31 * (31 * (31 + _folded(bits & _U64)) + _folded(bits >> 64)) + tp.partition) & _U32


def _folded(number: int) -> int:
    return (number ^ number >> 32) & _U32


def _murmur2(number: int) -> int:
    """Murmur2 of the four bytes of a number, big end first."""
    word = int.from_bytes(number.to_bytes(4, "big"), "little")  # murmur2 reads its words little end first
    word = word * _MIX & _U32
    word = (word ^ word >> 24) * _MIX & _U32
    mixed = (_SEED ^ 4) * _MIX & _U32 ^ word
    mixed = (mixed ^ mixed >> 13) * _MIX & _U32
    return mixed ^ mixed >> 15
