"""Manifests that a test edits, in the version that it is about, or that is there already."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.buffer import Manifest, ManifestFormat
from penstock.buffer.manifest.state import DEFAULT_GROUP
from penstock.buffer.manifest.v1.codec import OpenDataManifest
from penstock.buffer.manifest.v2.head import Head, decode_head, encode_head, entry_of, unborn_head
from tests.support import manifests
from tests.support.manifest_trailers import HEAD, body_of, ended


def is_native() -> bool:
    """Whether new buffers of this test are of version 2."""
    return manifests.current() == ManifestFormat.NATIVE


def empty(like: bytes | None = None) -> bytes:
    """A manifest without entries, of a new buffer, or of the one whose manifest is given."""
    if not is_native():
        return OpenDataManifest.empty().data
    return encode_head(unborn_head(None if like is None else decode_head(like).buffer_id).changed())


def with_locations(*locations: str, like: bytes | None = None) -> bytes:
    """A manifest whose entries have these locations, and no metadata."""
    return appended(empty(like), *locations)


def appended(data: bytes, *locations: str) -> bytes:
    """A manifest with more entries, which have no metadata."""
    if Manifest.decode(data).head is None:
        return OpenDataManifest(data).append([(location, ()) for location in locations]).data
    head = decode_head(data)
    first = head.next_sequence
    new = tuple(entry_of(first + place, location, (), None, None) for place, location in enumerate(locations))
    return encode_head(head.changed(tail=head.tail + new, next_sequence=first + len(new)))


def dequeued(data: bytes, through: int) -> bytes:
    """A manifest without what is acked through a sequence, under the epoch it has."""
    if Manifest.decode(data).head is None:
        return OpenDataManifest(data).remove_through(through).data
    head = decode_head(data)
    group = msgspec.structs.replace(head.groups[DEFAULT_GROUP], acked_through=through)
    tail = tuple(entry for entry in head.tail if entry.sequence > through)
    return encode_head(head.changed(tail=tail, groups={**head.groups, DEFAULT_GROUP: group}))


def with_epoch(data: bytes, epoch: int) -> bytes:
    """A manifest under another epoch."""
    if Manifest.decode(data).head is None:
        return OpenDataManifest(data).with_epoch(epoch).data
    head = decode_head(data)
    group = msgspec.structs.replace(head.groups[DEFAULT_GROUP], epoch=epoch)
    return encode_head(head.changed(epoch=epoch, groups={**head.groups, DEFAULT_GROUP: group}))


def changed(data: bytes, **changes: Any) -> bytes:
    """A head of version 2 with some of its keys replaced."""
    raw = msgspec.msgpack.decode(body_of(data))
    return ended(msgspec.msgpack.encode({**raw, **changes}), HEAD)


def head_of(data: bytes) -> Head:
    """The decoded head of version 2."""
    return decode_head(data)
