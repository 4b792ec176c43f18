"""The bytes of segment events: those that Kafka's `RemoteLogMetadataSerde` writes.

`docs/reference/formats.md` has the table.

An event that Kafka reads is read here too, in the same way, so that two catalogs of one log agree. Stricter is only
what no writer can have meant: a name that is not UTF-8, a negative size.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TypeVar
from uuid import UUID

from penstock.errors import CorruptData, InvalidInput
from penstock.metalog.catalog.flexible import NO_TAGS, compact, find_tag, read_compact, read_varint, skip_tags, varint
from penstock.metalog.catalog.segment import (
    PartitionDelete,
    PartitionDeleteState,
    SegmentEvent,
    SegmentId,
    SegmentMetadata,
    SegmentState,
    SegmentUpdate,
    TopicIdPartition,
)
from penstock.metalog.records import as_payload

_FRAME = 1
_VERSION = 0
_METADATA, _UPDATE, _DELETE = range(3)
_HEADS = [bytes([_FRAME, key, _VERSION]) for key in (_METADATA, _UPDATE, _DELETE)]

_UUID_AND_PARTITION = struct.Struct(">16si")
_UUID = struct.Struct(">16s")
_NUMBERS = struct.Struct(">qqiqq")
_BROKER_AND_TIME = struct.Struct(">iq")
_EPOCH = struct.Struct(">iq")
_SIZE = struct.Struct(">i")

_TXN_INDEX_EMPTY = 0
_TXN_INDEX_IS_EMPTY = bytes([1, _TXN_INDEX_EMPTY, 1, True])

_SEGMENT_STATES = tuple(SegmentState)
_DELETE_STATES = tuple(PartitionDeleteState)
_State = TypeVar("_State", bound=IntEnum)


def encode_event(event: SegmentEvent) -> bytes:
    """The bytes of an event. Raises `InvalidInput` for anything else."""
    if isinstance(event, SegmentMetadata):
        return _metadata(event)
    if isinstance(event, SegmentUpdate):
        return _update(event)
    if isinstance(event, PartitionDelete):
        return _delete(event)
    raise InvalidInput(f"event must be a SegmentMetadata, a SegmentUpdate or a PartitionDelete, not {event!r}")


def decode_event(data: bytes | bytearray | memoryview) -> SegmentEvent:
    """Read the bytes of an event. Raises `CorruptData` with the reason, and nothing else, whatever the bytes are.

    >>> decode_event(bytes(3))
    Traceback (most recent call last):
    penstock.errors.CorruptData: a segment event has the frame 0; this Penstock reads 1
    """
    data = as_payload(data)
    try:
        event, end = _read(data)
    except (IndexError, struct.error) as error:
        raise CorruptData(f"a segment event of {len(data)} bytes ends too early") from error
    except InvalidInput as error:
        raise CorruptData(f"a segment event has a value that cannot be: {error}") from error
    if end != len(data):  # Kafka refuses it too: an unknown field is in a tag, never after the record
        raise CorruptData(f"a segment event has {len(data) - end} bytes behind its end")
    return event


def _metadata(event: SegmentMetadata) -> bytes:
    epochs = event.segment_leader_epochs
    return b"".join(
        (
            _HEADS[_METADATA],
            _segment_id(event.id),
            _NUMBERS.pack(
                event.start_offset,
                event.end_offset,
                event.broker_id,
                event.max_timestamp_ms,
                event.event_timestamp_ms,
            ),
            varint(len(epochs) + 1),
            *(_EPOCH.pack(epoch, offset) + NO_TAGS for epoch, offset in epochs.items()),  # ascending, as Kafka's
            _SIZE.pack(event.segment_size_in_bytes),
            compact(event.custom_metadata),
            bytes([event.state]),
            _TXN_INDEX_IS_EMPTY if event.txn_index_empty else NO_TAGS,
        )
    )


def _update(event: SegmentUpdate) -> bytes:
    return b"".join(
        (
            _HEADS[_UPDATE],
            _segment_id(event.id),
            _BROKER_AND_TIME.pack(event.broker_id, event.event_timestamp_ms),
            compact(event.custom_metadata),
            bytes([event.state]),
            NO_TAGS,
        )
    )


def _delete(event: PartitionDelete) -> bytes:
    return b"".join(
        (
            _HEADS[_DELETE],
            _partition(event.topic_id_partition),
            _BROKER_AND_TIME.pack(event.broker_id, event.event_timestamp_ms),
            bytes([event.state]),
            NO_TAGS,
        )
    )


def _partition(tp: TopicIdPartition) -> bytes:
    return compact(tp.topic.encode()) + _UUID_AND_PARTITION.pack(tp.topic_id.bytes, tp.partition) + NO_TAGS


def _segment_id(segment: SegmentId) -> bytes:
    return _partition(segment.topic_id_partition) + segment.id.bytes + NO_TAGS


def _read(data: bytes) -> tuple[SegmentEvent, int]:
    frame, at = read_varint(data, 0)
    if frame != _FRAME:
        raise CorruptData(f"a segment event has the frame {frame}; this Penstock reads {_FRAME}")
    key, at = read_varint(data, at)
    if key > _DELETE:
        raise CorruptData(f"a segment event has the key {key}; this Penstock reads 0 to {_DELETE}")
    version, at = read_varint(data, at)
    if version != _VERSION:
        raise CorruptData(f"a segment event has the version {version}; this Penstock reads {_VERSION}")
    if key == _METADATA:
        return _read_metadata(data, at)
    return _read_update(data, at) if key == _UPDATE else _read_delete(data, at)


def _read_metadata(data: bytes, at: int) -> tuple[SegmentMetadata, int]:
    segment, at = _read_segment_id(data, at)
    start, end, broker, newest, time = _NUMBERS.unpack_from(data, at)
    epochs, at = _read_epochs(data, at + _NUMBERS.size)
    (size,) = _SIZE.unpack_from(data, at)
    custom, at = read_compact(data, at + _SIZE.size)
    state, at = _read_state(data, at, _SEGMENT_STATES)
    is_empty, at = _read_txn_index_empty(data, at)
    return SegmentMetadata(segment, start, end, newest, broker, time, size, state, epochs, custom, is_empty), at


def _read_update(data: bytes, at: int) -> tuple[SegmentUpdate, int]:
    segment, at = _read_segment_id(data, at)
    broker, time = _BROKER_AND_TIME.unpack_from(data, at)
    custom, at = read_compact(data, at + _BROKER_AND_TIME.size)
    state, at = _read_state(data, at, _SEGMENT_STATES)
    return SegmentUpdate(segment, time, state, broker, custom), skip_tags(data, at)


def _read_delete(data: bytes, at: int) -> tuple[PartitionDelete, int]:
    tp, at = _read_partition(data, at)
    broker, time = _BROKER_AND_TIME.unpack_from(data, at)
    state, at = _read_state(data, at + _BROKER_AND_TIME.size, _DELETE_STATES)
    return PartitionDelete(tp, state, time, broker), skip_tags(data, at)


def _read_partition(data: bytes, at: int) -> tuple[TopicIdPartition, int]:
    name, at = read_compact(data, at)
    if name is None:
        raise CorruptData("a segment event has no name of a topic")
    try:
        topic = name.decode()
    except UnicodeDecodeError as error:
        raise CorruptData(f"a segment event has a topic's name that is not UTF-8: {error}") from error
    topic_id, partition = _UUID_AND_PARTITION.unpack_from(data, at)
    return TopicIdPartition(UUID(bytes=topic_id), topic, partition), skip_tags(data, at + _UUID_AND_PARTITION.size)


def _read_segment_id(data: bytes, at: int) -> tuple[SegmentId, int]:
    tp, at = _read_partition(data, at)
    (segment,) = _UUID.unpack_from(data, at)
    return SegmentId(tp, UUID(bytes=segment)), skip_tags(data, at + _UUID.size)


def _read_epochs(data: bytes, at: int) -> tuple[dict[int, int], int]:
    """Of a repeated epoch the last one counts, as with Kafka."""
    length, at = read_varint(data, at)
    if not length:
        raise CorruptData("a segment event has null for its epochs")
    epochs = {}
    for _ in range(length - 1):  # nothing is allocated for too large a length: the bytes end first
        epoch, offset = _EPOCH.unpack_from(data, at)
        at = skip_tags(data, at + _EPOCH.size)
        epochs[epoch] = offset
    return epochs, at


def _read_state(data: bytes, at: int, states: tuple[_State, ...]) -> tuple[_State, int]:
    number = data[at]
    if number >= len(states):
        raise CorruptData(f"a segment event has the state {number}; this Penstock reads 0 to {len(states) - 1}")
    return states[number], at + 1


def _read_txn_index_empty(data: bytes, at: int) -> tuple[bool, int]:
    if data[at] == 0:
        return False, at + 1
    content, at = find_tag(data, at, _TXN_INDEX_EMPTY)
    if content is None:
        return False, at
    if len(content) != 1:
        raise CorruptData(f"a segment event has a bool of {len(content)} bytes")
    return content != b"\x00", at
