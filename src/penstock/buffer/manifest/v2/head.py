"""The head of a manifest, version 2: one small object under compare-and-set. Its bytes, and what is checked in them.

```text
head     a MessagePack map, then the trailer of `trailer.py` with version = 2 and magic PSTM
```

What each key means is in `docs/reference/formats.md`; what must hold between them in `docs/design/native-manifest.md`.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import msgspec

from penstock.buffer.descriptors import BatchDescriptor, Metadata
from penstock.buffer.format.trailer import HEAD_MAGIC, last_u16, magic_of, trailer, verified_body
from penstock.buffer.locations import is_in_ranges, segment_time
from penstock.buffer.manifest.state import DEFAULT_GROUP, Group, Limits, Natural, Writer
from penstock.errors import CorruptData, InvalidInput

VERSION = 2
MAX_LEVEL = 64
"""The highest level of a segment: each level holds two of the level below at least, and sequences have 64 bits."""

_OPENDATA = 1
_NO_ID = bytes(16)
_U64 = (1 << 64) - 1


class Item(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a caller attached to the entries of a batch from `start_index` on."""

    start_index: int
    ingestion_time_ms: int
    payload: bytes


class Entry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One data batch in the queue. What version 1 did not know is None after an upgrade."""

    sequence: Natural
    location: str
    records: Natural | None
    size: Natural | None
    metadata: tuple[Item, ...]

    def descriptor(self) -> BatchDescriptor:
        """As the buffer's users see it."""
        items = tuple(Metadata(item.start_index, item.ingestion_time_ms, item.payload) for item in self.metadata)
        return BatchDescriptor(self.sequence, self.location, items, self.size, self.records)


class Reference(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A window on a segment: of what it holds, the sequences from `first` to `last`."""

    name: str
    """In the folder of the manifest's segments."""
    first: Natural
    last: Natural
    records: Natural
    size: Natural
    oldest: Natural
    """The smallest ULID time of what is in the window, and of the segment's own name, in milliseconds."""
    level: Natural
    """0 holds entries, and each level above it references of the one below."""


class Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The queue. It never changes: what changes it returns another, one revision later."""

    id: bytes
    """16 random bytes, written once: which buffer this is, wherever its objects are."""
    revision: int
    next_sequence: int
    epoch: int
    tail: tuple[Entry, ...]
    segments: tuple[Reference, ...]
    groups: dict[str, Group]
    writers: dict[str, Writer]
    forgotten_through: int
    floor: int
    floor_set_at: int
    closed: tuple[tuple[Natural, Natural], ...] = ()
    """Ranges of ULID times above the floor in which, too, nothing new is named: first and last of each."""

    def may_name(self, at: int | None) -> bool:
        """Whether what has this ULID time may be named: it is neither below the floor nor in a closed range."""
        return at is None or (at >= self.floor and not is_in_ranges(self.closed, at))

    @property
    def buffer_id(self) -> UUID:
        """The id as a UUID."""
        return UUID(bytes=self.id)

    @property
    def first_sequence(self) -> int:
        """The first sequence that is kept for some group; the next one to be given where there is none."""
        if self.segments:
            return self.segments[0].first
        return self.tail[0].sequence if self.tail else self.next_sequence

    @property
    def slowest(self) -> int:
        """The first sequence that some group has not acked; with no group the first that is kept."""
        return min((group.acked_through + 1 for group in self.groups.values()), default=self.first_sequence)

    def changed(self, **changes: Any) -> Head:
        """One revision later, with these changes."""
        return msgspec.structs.replace(self, revision=self.revision + 1, **changes)


NEW = Head(
    id=_NO_ID,
    revision=0,
    next_sequence=0,
    epoch=0,
    tail=(),
    segments=(),
    groups={DEFAULT_GROUP: Group(epoch=0, acked_through=-1)},  # born with it: what is dequeued before a group is lost
    writers={},
    forgotten_through=0,
    floor=0,
    floor_set_at=0,
)
"""The head of a buffer that has none yet. It is never written: what is written has an id, and is one revision later."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Head)


def unborn_head(buffer_id: UUID | None = None) -> Head:
    """What `NEW` is, with an id: a random one, unless it is given."""
    return msgspec.structs.replace(NEW, id=(buffer_id or uuid4()).bytes)


def version_of(data: bytes) -> int | None:
    """The version of a manifest: 2 where it ends in our magic, 1 where it is OpenData's; None where it is neither.

    >>> version_of(encode_head(NEW)), version_of(b"")
    (2, None)
    """
    if magic_of(data) == HEAD_MAGIC:
        return VERSION
    return _OPENDATA if last_u16(data) == _OPENDATA else None


def encode_head(head: Head) -> bytes:
    """The bytes of a head. Raises `InvalidInput` for a number of more than 64 bits, and for what is not UTF-8."""
    body = _encoded(head)
    return body + trailer(body, VERSION, HEAD_MAGIC)


def decode_head(data: bytes) -> Head:
    """Read the bytes of a head. Raises `CorruptData` naming what is wrong: a key it does not know as well.

    Nothing is missing between the first sequence and the next, and every group is in the queue.
    """
    body = verified_body(data, VERSION, HEAD_MAGIC)
    try:
        head = _decoder.decode(body)
    except msgspec.ValidationError as error:
        raise CorruptData(
            f"a manifest of version 2 cannot be read: {error} (what a newer Penstock has written must not be "
            "dropped by this one: is it the newest here?)"
        ) from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise CorruptData(f"a manifest of version 2 cannot be read: {error}") from error
    if len(head.id) != len(_NO_ID) or head.id == _NO_ID:
        raise CorruptData(f"id: {head.id.hex()!r:.100} is no id of a buffer, which has 16 bytes")
    for name in ("revision", "next_sequence", "epoch", "forgotten_through", "floor", "floor_set_at"):
        if not 0 <= getattr(head, name) <= _U64:
            raise CorruptData(f"{name}: {getattr(head, name)} cannot be in a manifest")
    bounds = [bound for first, last in head.closed for bound in (first, last + 1)]
    if bounds != sorted(set(bounds)):  # in order, and none touches another
        raise CorruptData(f"closed: {head.closed} are no ranges in order")
    due = head.first_sequence
    for reference in head.segments:
        check_reference(reference, due)
        due = reference.last + 1
    for entry in head.tail:
        if entry.sequence != due:
            raise CorruptData(f"tail: it has sequence {entry.sequence} where {due} is due")
        due += 1
    if due != head.next_sequence:
        raise CorruptData(f"next_sequence: it is {head.next_sequence}, and the entries end before {due}")
    for name, group in head.groups.items():
        is_in_queue = head.first_sequence - 1 <= group.acked_through < head.next_sequence
        if not is_in_queue or not 0 <= group.epoch <= head.epoch:
            raise CorruptData(
                f"groups: {name!r} is acked through {group.acked_through} at epoch {group.epoch}, in a queue of "
                f"{head.first_sequence} to {head.next_sequence - 1} whose epoch is {head.epoch}"
            )
    return head


def entry_of(
    sequence: int, location: str, metadata: tuple[Metadata, ...], size: int | None, records: int | None
) -> Entry:
    """An entry for the queue."""
    items = tuple(Item(item.start_index, item.ingestion_time_ms, bytes(item.payload)) for item in metadata)
    return Entry(sequence, location, records, size, items)


def is_too_long(entries: tuple[Entry, ...], limits: Limits) -> bool:
    """Whether entries are more than a tail may have. Raises as `encode_head` does."""
    return len(entries) > limits.tail_entries or len(_encoded(entries)) > limits.tail_bytes


def _encoded(value: Head | tuple[Entry, ...]) -> bytes:
    try:
        return _encoder.encode(value)
    except (OverflowError, UnicodeEncodeError) as error:
        raise InvalidInput(f"a manifest holds text in UTF-8 and numbers of at most 64 bits: {error}") from error


def check_reference(reference: Reference, due: int) -> None:
    """Raises `CorruptData` for a reference that does not begin where it is due, or to what is no segment."""
    if reference.first != due or reference.last < reference.first:
        raise CorruptData(
            f"segments: {reference.name} holds {reference.first} to {reference.last}, and {due} is due there"
        )
    if reference.level > MAX_LEVEL:
        raise CorruptData(f"segments: {reference.name!r} has level {reference.level}, and the highest is {MAX_LEVEL}")
    if segment_time(reference.name) is None:
        raise CorruptData(f"segments: {reference.name!r} is no segment's name")
