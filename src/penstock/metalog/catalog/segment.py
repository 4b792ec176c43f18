"""Log segments of a topic's partition, and the three events that describe them.

```text
SegmentMetadata   a log segment whose copy begins, or as it is after all updates
SegmentUpdate     the new state of a log segment
PartitionDelete   how far the deletion of a whole partition is
```

All are immutable values, checked on construction. The limits of the numbers are those of the wire format.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Self, TypeAlias
from uuid import UUID

from penstock.core import check_whole
from penstock.errors import InvalidInput, InvalidTransition

MAX_TOPIC_NAME_BYTES = (1 << 15) - 1
"""How long a topic's name may be in UTF-8: Kafka neither writes nor reads a longer one."""
MAX_CUSTOM_METADATA_BYTES = (1 << 31) - 2
"""How long custom metadata may be: its length plus one is a positive 32-bit number."""

_I32 = (1 << 31) - 1
_I64 = (1 << 63) - 1
_MIN_I32, _MIN_I64 = -_I32 - 1, -_I64 - 1


class _State(IntEnum):
    """A state, of those that follow each other in `_STEPS`. The numbers are those of the wire format."""

    def can_become(self, following: Self) -> bool:
        """Whether another state may follow this one; False for the same state.

        >>> SegmentState.COPY_SEGMENT_FINISHED.can_become(SegmentState.DELETE_SEGMENT_STARTED)
        True
        """
        return (self, following) in _STEPS[type(self)][1]

    def follows(self, previous: Self | None) -> bool:
        """Whether this changes what is in the state `previous` (None: there is nothing yet).

        False for the same state again, which is allowed and changes nothing. Raises `InvalidTransition` for a state
        that may not follow.
        """
        what, steps = _STEPS[type(self)]
        if previous is self:
            return False
        if (previous, self) in steps:
            return True
        before = "has no state yet" if previous is None else f"is {previous.name}"
        raise InvalidTransition(f"{what} that {before} cannot become {self.name}")


class SegmentState(_State):
    """The state of a log segment."""

    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3


class PartitionDeleteState(_State):
    """How far the deletion of a partition is."""

    MARKED = 0
    STARTED = 1
    FINISHED = 2


# What is in a state, and from which state to which it goes; from None, where there was nothing.
_STEPS: dict[type[_State], tuple[str, Collection[tuple[_State | None, _State]]]] = {
    SegmentState: (
        "a segment",
        {
            (None, SegmentState.COPY_SEGMENT_STARTED),
            (SegmentState.COPY_SEGMENT_STARTED, SegmentState.COPY_SEGMENT_FINISHED),
            (SegmentState.COPY_SEGMENT_STARTED, SegmentState.DELETE_SEGMENT_STARTED),
            (SegmentState.COPY_SEGMENT_FINISHED, SegmentState.DELETE_SEGMENT_STARTED),
            (SegmentState.DELETE_SEGMENT_STARTED, SegmentState.DELETE_SEGMENT_FINISHED),
        },
    ),
    PartitionDeleteState: (
        "the deletion of a partition",
        {
            (None, PartitionDeleteState.MARKED),
            (PartitionDeleteState.MARKED, PartitionDeleteState.STARTED),
            (PartitionDeleteState.STARTED, PartitionDeleteState.FINISHED),
        },
    ),
}


@dataclass(frozen=True, slots=True)
class TopicIdPartition:
    """A partition of a topic. Its identity is the topic's id and the partition; the name is for people.

    >>> TopicIdPartition(UUID(int=7), "old", 0) == TopicIdPartition(UUID(int=7), "new", 0)
    True
    """

    topic_id: UUID
    topic: str = field(compare=False)
    partition: int

    def __post_init__(self) -> None:
        check_kind("topic_id", self.topic_id, UUID)
        _check_name(self.topic)
        _check_i32("partition", self.partition)


@dataclass(frozen=True, slots=True)
class SegmentId:
    """The identity of a log segment: a partition, and an id that is used once."""

    topic_id_partition: TopicIdPartition
    id: UUID

    def __post_init__(self) -> None:
        check_kind("topic_id_partition", self.topic_id_partition, TopicIdPartition)
        check_kind("id", self.id, UUID)


@dataclass(frozen=True, slots=True)
class SegmentMetadata:
    """A log segment: it holds the offsets from `start_offset` to `end_offset`, both inclusive.

    `segment_leader_epochs` has, for each leader epoch in the segment, its first offset: one epoch at least. It is
    copied, in ascending order, and cannot be changed. `custom_metadata` is for the program that stores the segment;
    empty is not the same as None. Raises `InvalidInput` for impossible values.
    """

    id: SegmentId
    start_offset: int
    end_offset: int
    max_timestamp_ms: int
    broker_id: int
    event_timestamp_ms: int
    segment_size_in_bytes: int
    state: SegmentState
    segment_leader_epochs: Mapping[int, int]
    custom_metadata: bytes | None = None
    txn_index_empty: bool = False

    def __post_init__(self) -> None:
        check_kind("id", self.id, SegmentId)
        _check_i64("start_offset", self.start_offset)
        check_whole("end_offset", self.end_offset, self.start_offset, _I64)
        _check_i64("max_timestamp_ms", self.max_timestamp_ms)
        _check_i32("broker_id", self.broker_id)
        _check_i64("event_timestamp_ms", self.event_timestamp_ms)
        check_whole("segment_size_in_bytes", self.segment_size_in_bytes, 0, _I32)
        check_kind("state", self.state, SegmentState)
        object.__setattr__(self, "segment_leader_epochs", _as_epochs(self.segment_leader_epochs))
        object.__setattr__(self, "custom_metadata", _as_custom(self.custom_metadata))
        check_kind("txn_index_empty", self.txn_index_empty, bool)

    def __hash__(self) -> int:
        return hash(self.id)

    def __reduce__(self) -> tuple[type[SegmentMetadata], tuple[object, ...]]:
        # A read-only view cannot be pickled: a plain dict is, and the copy has a view of its own.
        values = [getattr(self, one.name) for one in fields(self)]
        return SegmentMetadata, tuple(dict(one) if isinstance(one, Mapping) else one for one in values)

    def with_update(self, update: SegmentUpdate) -> SegmentMetadata:
        """The segment after an update, as with Kafka.

        The broker, the time of the event, the state and the custom metadata are the update's, the last also where
        it has none; everything else stays. Whether the state may follow is not checked: ask `SegmentState.follows`
        first. Raises `InvalidInput` for an update of another segment.
        """
        check_kind("update", update, SegmentUpdate)
        if update.id != self.id:
            raise InvalidInput(f"update must be of the segment {self.id.id}, not of {update.id}")
        return replace(
            self,
            broker_id=update.broker_id,
            event_timestamp_ms=update.event_timestamp_ms,
            state=update.state,
            custom_metadata=update.custom_metadata,
        )


@dataclass(frozen=True, slots=True)
class SegmentUpdate:
    """The new state of a log segment. Raises `InvalidInput` for impossible values."""

    id: SegmentId
    event_timestamp_ms: int
    state: SegmentState
    broker_id: int
    custom_metadata: bytes | None = None

    def __post_init__(self) -> None:
        check_kind("id", self.id, SegmentId)
        _check_i64("event_timestamp_ms", self.event_timestamp_ms)
        check_kind("state", self.state, SegmentState)
        _check_i32("broker_id", self.broker_id)
        object.__setattr__(self, "custom_metadata", _as_custom(self.custom_metadata))


@dataclass(frozen=True, slots=True)
class PartitionDelete:
    """How far the deletion of a partition with all its segments is. Raises `InvalidInput` for impossible values."""

    topic_id_partition: TopicIdPartition
    state: PartitionDeleteState
    event_timestamp_ms: int
    broker_id: int

    def __post_init__(self) -> None:
        check_kind("topic_id_partition", self.topic_id_partition, TopicIdPartition)
        check_kind("state", self.state, PartitionDeleteState)
        _check_i64("event_timestamp_ms", self.event_timestamp_ms)
        _check_i32("broker_id", self.broker_id)


SegmentEvent: TypeAlias = SegmentMetadata | SegmentUpdate | PartitionDelete
"""An event of the log."""


def check_kind(field: str, value: object, kind: type) -> None:
    """Refuse a value of another type."""
    if not isinstance(value, kind):
        raise InvalidInput(f"{field} must be a {kind.__name__}, not {value!r}")


def _check_i32(field: str, value: object) -> None:
    if type(value) is not int or not _MIN_I32 <= value <= _I32:  # the common case first: a replay constructs many
        check_whole(field, value, _MIN_I32, _I32)


def _check_i64(field: str, value: object) -> None:
    if type(value) is not int or not _MIN_I64 <= value <= _I64:
        check_whole(field, value, _MIN_I64, _I64)


def _check_name(topic: object) -> None:
    if not isinstance(topic, str):
        raise InvalidInput(f"topic must be a str, not {topic!r}")
    try:
        size = len(topic.encode())
    except UnicodeEncodeError as error:
        raise InvalidInput(f"topic must be text that can be written as UTF-8, not {topic!r}") from error
    if size > MAX_TOPIC_NAME_BYTES:
        raise InvalidInput(f"topic must have at most {MAX_TOPIC_NAME_BYTES} bytes in UTF-8, not {size}")


def _as_epochs(given: object) -> Mapping[int, int]:
    if not isinstance(given, Mapping) or not given:
        raise InvalidInput(f"segment_leader_epochs must be a mapping of one epoch or more to offsets, not {given!r}")
    for epoch, offset in given.items():
        _check_i32("an epoch in segment_leader_epochs", epoch)
        _check_i64("an offset in segment_leader_epochs", offset)
    return MappingProxyType(dict(sorted(given.items())))


def _as_custom(given: object) -> bytes | None:
    if given is None:
        return None
    if not isinstance(given, bytes | bytearray | memoryview):
        raise InvalidInput(f"custom_metadata must be bytes or None, not {given!r}")
    if len(custom := bytes(given)) > MAX_CUSTOM_METADATA_BYTES:
        raise InvalidInput(f"custom_metadata must have at most {MAX_CUSTOM_METADATA_BYTES} bytes, not {len(custom)}")
    return custom
