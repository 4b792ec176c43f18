"""The bytes of a manifest, version 1: OpenData's, which its Rust crate reads and writes too.

```text
entry    u32 LE length of the rest of this entry
         u64 LE sequence   u16 LE location length   location (UTF-8)
         u32 LE metadata count
         metadata*: u32 LE start index   i64 LE ingestion time, ms   u32 LE payload length   payload
footer   u32 LE entry count   u64 LE next sequence   u64 LE epoch   u16 LE version = 1
```

The entries are those of `next_sequence - count` to `next_sequence - 1`: both ends are in the footer. So appending looks
at nothing but the footer, and dequeuing looks at what it removes and copies the rest.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cached_property
from typing import Self

from penstock.buffer.descriptors import BatchDescriptor, Metadata
from penstock.buffer.format.trailer import unsupported
from penstock.errors import CorruptData, InvalidInput

VERSION = 1
UNUSED_EPOCH = (1 << 64) - 1  # OpenData's mark for "none yet": never granted

_FOOTER = struct.Struct("<IQQH")
_LENGTH = struct.Struct("<I")
_ENTRY = struct.Struct("<QH")
_COUNT = struct.Struct("<I")
_METADATA = struct.Struct("<IqI")
_VERSION = struct.Struct("<H")
_U16, _U32, _U64, _I64 = (1 << 16) - 1, (1 << 32) - 1, (1 << 64) - 1, (1 << 63) - 1


class OpenDataManifest:
    """A manifest as bytes. It never changes: what changes it returns another."""

    def __init__(self, data: bytes) -> None:
        """Look at the footer alone. Raises `CorruptData` naming what is wrong with it."""
        if len(data) < _VERSION.size:
            raise CorruptData(f"a manifest of {len(data)} bytes is too small for its footer of {_FOOTER.size}")
        (version,) = _VERSION.unpack_from(data, len(data) - _VERSION.size)
        if version != VERSION:
            raise unsupported(version, "a manifest")
        if len(data) < _FOOTER.size:
            raise CorruptData(f"a manifest of {len(data)} bytes is too small for its footer of {_FOOTER.size}")
        self.data = data
        footer: tuple[int, int, int, int] = _FOOTER.unpack_from(data, len(data) - _FOOTER.size)
        self.count, self.next_sequence, self.epoch, _ = footer
        self._end = len(data) - _FOOTER.size
        if self.count > self.next_sequence:
            raise CorruptData(
                f"entry count: a manifest cannot hold {self.count} entries when {self.next_sequence} were ever given"
            )
        if not self.count and self._end:
            raise CorruptData(f"entry count: it is 0, and {self._end} bytes of entries are there")

    @classmethod
    def empty(cls) -> Self:
        """The manifest of a buffer that has none yet: an empty queue at epoch 0."""
        return cls(_FOOTER.pack(0, 0, 0, VERSION))

    @property
    def first_sequence(self) -> int:
        """The sequence of the oldest entry; the next one to be given where there is none."""
        return self.next_sequence - self.count

    def append(self, entries: Sequence[tuple[str, Sequence[Metadata]]]) -> Self:
        """Add entries (location and metadata) at the end, with the next sequences. What is there is not decoded.

        Raises `InvalidInput` for what the format cannot hold.
        """
        count, next_sequence = self.count + len(entries), self.next_sequence + len(entries)
        if count > _U32 or next_sequence > _U64:
            raise InvalidInput(f"{len(entries)} more entries do not fit: the manifest is at sequence {next_sequence}")
        encoded = [
            _encode_entry(sequence, location, metadata)
            for sequence, (location, metadata) in enumerate(entries, self.next_sequence)
        ]
        footer = _FOOTER.pack(count, next_sequence, self.epoch, VERSION)
        return type(self)(b"".join([memoryview(self.data)[: self._end], *encoded, footer]))

    def remove_through(self, sequence: int) -> Self:
        """Take away the entries up to and including a sequence. What remains is copied as bytes."""
        removed = min(max(sequence + 1 - self.first_sequence, 0), self.count)
        at = 0
        for number in range(removed):
            at = self._skip(at, number)
        footer = _FOOTER.pack(self.count - removed, self.next_sequence, self.epoch, VERSION)
        return type(self)(b"".join([memoryview(self.data)[at : self._end], footer]))

    def with_epoch(self, epoch: int) -> Self:
        """The same entries under another epoch."""
        footer = _FOOTER.pack(self.count, self.next_sequence, epoch, VERSION)
        return type(self)(b"".join([memoryview(self.data)[: self._end], footer]))

    def entries(self, start: int, stop: int) -> list[BatchDescriptor]:
        """Decode the entries with sequences from `start` up to `stop`, as far as they are there.

        Raises `CorruptData` naming the field; the order and the lengths of all entries are checked first.
        """
        starts = self.starts
        first = self.first_sequence
        low, high = max(start - first, 0), min(stop - first, self.count)
        return [_decode_entry(self.data, starts[place], starts[place + 1]) for place in range(low, high)]

    def is_other_than(self, before: OpenDataManifest) -> bool:
        """Whether this is no later state of the same queue: sequences went back, or an entry of both is another."""
        if self.next_sequence < before.next_sequence:
            return True
        sequence = max(self.first_sequence, before.first_sequence)
        if sequence >= before.next_sequence:
            return False
        return self._location(sequence) != before._location(sequence)

    def _location(self, sequence: int) -> bytes:
        """Where the data of an entry is, as it is written. Looks at no entry behind it."""
        at = 0
        for number in range(sequence - self.first_sequence):
            at = self._skip(at, number)
        at += _LENGTH.size + _ENTRY.size
        if at > self._end:
            return b""  # to read the entry says that it is truncated
        _, length = _ENTRY.unpack_from(self.data, at - _ENTRY.size)
        return self.data[at : at + length]

    @cached_property
    def starts(self) -> list[int]:
        """Where each entry starts, and where the last one ends. Once for a manifest, however often it is asked."""
        starts = [0]
        for number in range(self.count):
            starts.append(self._skip(starts[-1], number))
        if starts[-1] != self._end:
            raise CorruptData(
                f"entry count: {self._end - starts[-1]} bytes are left over after {self.count} entries of a manifest"
            )
        return starts

    def _skip(self, at: int, number: int) -> int:
        """Where the entry that starts at a byte ends. Checks its length, and that its sequence is the one due."""
        if at + _LENGTH.size > self._end:
            raise CorruptData(f"entry length: entry {number} of {self.count} is truncated")
        length: int = _LENGTH.unpack_from(self.data, at)[0]
        end = at + _LENGTH.size + length
        if end > self._end or length < _ENTRY.size + _COUNT.size:
            raise CorruptData(f"entry length: entry {number} of {self.count} says {length}, which cannot be")
        sequence, _ = _ENTRY.unpack_from(self.data, at + _LENGTH.size)
        if sequence != self.first_sequence + number:
            raise CorruptData(
                f"sequence: entry {number} of {self.count} has {sequence}, and {self.first_sequence + number} is due"
            )
        return end


def next_epoch(epoch: int) -> int:
    """The epoch after this one; all but the one that OpenData uses as a mark.

    >>> next_epoch(0), next_epoch(UNUSED_EPOCH - 1), next_epoch(UNUSED_EPOCH)
    (1, 0, 0)
    """
    following = (epoch + 1) & _U64
    return 0 if following == UNUSED_EPOCH else following


def _encode_entry(sequence: int, location: str, metadata: Sequence[Metadata]) -> bytes:
    try:
        place = location.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"the location {location!r} cannot be written as UTF-8") from error
    if not 0 < len(place) <= _U16:
        raise InvalidInput(f"a location must have 1 to {_U16} bytes, not {len(place)}")
    for item in metadata:
        if not 0 <= item.start_index <= _U32:
            raise InvalidInput(f"a metadata item's start_index must be from 0 to {_U32}, not {item.start_index}")
        if not -_I64 - 1 <= item.ingestion_time_ms <= _I64:
            raise InvalidInput(f"a metadata item's ingestion_time_ms must fit in 64 bits, not {item.ingestion_time_ms}")
        if len(item.payload) > _U32:
            raise InvalidInput(f"a metadata payload cannot have more than {_U32} bytes, and has {len(item.payload)}")
    parts = [_ENTRY.pack(sequence, len(place)), place, _COUNT.pack(len(metadata))]
    parts += [
        _METADATA.pack(item.start_index, item.ingestion_time_ms, len(item.payload)) + item.payload for item in metadata
    ]
    length = sum(map(len, parts))
    if length > _U32:
        raise InvalidInput(f"the metadata of {location} have {length} bytes, and an entry cannot have more than {_U32}")
    return b"".join([_LENGTH.pack(length), *parts])


def _decode_entry(data: bytes, start: int, end: int) -> BatchDescriptor:
    at = start + _LENGTH.size
    sequence, length = _ENTRY.unpack_from(data, at)
    at += _ENTRY.size
    if at + length + _COUNT.size > end:
        raise CorruptData(f"location length: {length} does not fit into the entry of sequence {sequence}")
    try:
        location = data[at : at + length].decode()
    except UnicodeDecodeError as error:
        raise CorruptData(f"location: that of sequence {sequence} is not UTF-8") from error
    at += length
    (count,) = _COUNT.unpack_from(data, at)
    at += _COUNT.size
    metadata = []
    for number in range(count):
        if at + _METADATA.size > end:
            raise CorruptData(f"metadata count: sequence {sequence} says {count}, and has {number} items")
        start_index, ingestion_time_ms, size = _METADATA.unpack_from(data, at)
        at += _METADATA.size
        if at + size > end:
            raise CorruptData(f"payload length: {size}, in item {number} of sequence {sequence}, does not fit")
        metadata.append(Metadata(start_index, ingestion_time_ms, data[at : at + size]))
        at += size
    if at != end:
        raise CorruptData(f"entry length: {end - at} bytes are left over in the entry of sequence {sequence}")
    return BatchDescriptor(sequence, location, tuple(metadata))
