"""`Manifest`: what lies in a queue, for those who only want to look."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import cast
from uuid import UUID

from penstock.buffer.descriptors import BatchDescriptor
from penstock.buffer.locations import MANIFEST_PATH as MANIFEST_PATH
from penstock.buffer.manifest.cas import MAX_MANIFEST_BYTES, decoded
from penstock.buffer.manifest.formats import Formats
from penstock.buffer.manifest.ownership import read_id
from penstock.buffer.manifest.state import Group, QueueState
from penstock.buffer.manifest.v1.state import OpenDataState
from penstock.buffer.manifest.v2.head import NEW, Head
from penstock.buffer.manifest.v2.segments import Segments
from penstock.buffer.manifest.v2.state import NativeState
from penstock.core import Backoff, call_with_retries
from penstock.errors import NotFound
from penstock.storage import ObjectStore, get_at_most, open_store, url_of

_FORMATS = Formats()
_TRIES = 5


@dataclass(frozen=True, slots=True)
class Manifest:
    """A queue as it was when it was read. Looking takes no epoch, and so fences no consumer.

    >>> Manifest.read("memory://doctest-manifest")
    Manifest(version=2, epoch=0, next_sequence=0, entries=())
    """

    version: int
    epoch: int
    next_sequence: int
    entries: tuple[BatchDescriptor, ...]
    groups: Mapping[str, Group] = field(default_factory=dict, repr=False, compare=False)
    """Each reader's epoch, and how far it has acked. Version 1 has one without a name; here it is `default`."""
    head: Head | None = field(default=None, repr=False, compare=False)
    """Everything that a manifest of version 2 says: its segments, writers and floor."""
    id: UUID | None = field(default=None, repr=False, compare=False)
    """Which buffer it is, wherever its objects are. None where there is no buffer yet.

    A manifest of version 1 has none in its bytes; `read` finds the one that lies beside it, once a Penstock wrote it.
    """

    @classmethod
    def empty(cls) -> Manifest:
        """What a buffer has that is not there yet: an empty queue at epoch 0, without an id."""
        return replace(cls._of(NativeState(NEW), ()), id=None)

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Read the bytes of a manifest, all of them. Raises `CorruptData` naming the field that is wrong.

        Of version 2 these are the bytes of its head: the entries in its segments are not among them. `read` has those.
        """
        state = _FORMATS.decode(bytes(data), "a manifest")
        if isinstance(state, NativeState):
            return cls._of(state, [entry.descriptor() for entry in state.head.tail])
        return cls._of(state, cast("OpenDataState", state).manifest.entries(0, state.next_sequence))

    @classmethod
    def read(cls, where: str | os.PathLike[str] | ObjectStore, path: str = MANIFEST_PATH) -> Manifest:
        """Read the manifest of a buffer, with all its entries. No manifest is an empty queue at epoch 0.

        Raises `StorageError` where the store fails, and `CorruptData` where an object is no manifest, or no segment.
        """
        store = open_store(where)

        def read() -> Manifest:
            try:
                data = get_at_most(store, path, MAX_MANIFEST_BYTES).data
            except NotFound:
                return cls.empty()
            found = decoded(cls.decode, data, f"{url_of(store)}/{path}")
            if found.head is None:
                return replace(found, id=read_id(store, path))
            sealed = Segments(store, path).entries(found.head.segments, 0, found.next_sequence)
            return replace(found, entries=(*(entry.descriptor() for entry in sealed), *found.entries))

        # What was acked since the head was read may be collected: then the head that is there now names less.
        return call_with_retries(read, Backoff(0.0, 0.0), tries=_TRIES, on=NotFound)

    @classmethod
    def _of(cls, state: QueueState, entries: Iterable[BatchDescriptor]) -> Manifest:
        head = state.head if isinstance(state, NativeState) else None
        facts = state.format_version, state.epoch, state.next_sequence
        return cls(*facts, tuple(entries), state.groups, head, state.buffer_id)
