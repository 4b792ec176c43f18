"""`upgrade`: from a manifest of version 1 to version 2, in one compare-and-set, while producers and consumers run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import cast
from uuid import UUID

import msgspec

from penstock.buffer.config import ManifestFormat, check_name
from penstock.buffer.descriptors import BatchDescriptor
from penstock.buffer.locations import MANIFEST_PATH, Names
from penstock.buffer.manifest.block_names import MAX_TRANSACTION, block_payload
from penstock.buffer.manifest.cas import MAX_MANIFEST_BYTES, Change, Versioned, VersionedObject
from penstock.buffer.manifest.formats import Formats
from penstock.buffer.manifest.ownership import owner_id, read_id, write_id
from penstock.buffer.manifest.state import DEFAULT_GROUP, Group, Limits, QueueState, Transaction, Writer
from penstock.buffer.manifest.v1.codec import VERSION as OPENDATA
from penstock.buffer.manifest.v1.codec import OpenDataManifest
from penstock.buffer.manifest.v1.state import OpenDataState
from penstock.buffer.manifest.v2.head import Head, Reference, entry_of, is_too_long, unborn_head, version_of
from penstock.buffer.manifest.v2.segments import NewSegment, Segments, folded, sealed
from penstock.buffer.manifest.v2.state import NativeState
from penstock.buffer.measures import label_of
from penstock.buffer.places import check_places
from penstock.core import check_whole
from penstock.errors import InvalidInput, NotFound
from penstock.storage import ObjectStore, get_at_most, is_path, open_store, url_of

_MAX_PREFIXES = 10  # where the owner of the data is looked for


@dataclass(frozen=True, slots=True)
class Upgrade:
    """What an upgrade did: how many entries it took over. Nothing where the manifest was version 2 already."""

    is_new: bool
    entries: int


class _Named(msgspec.Struct, forbid_unknown_fields=True):
    """What an entry of a block carries in version 1, so that it is recognised when it is repeated."""

    writer: str
    transaction: int
    end: str | None = None


def upgrade(where: str | os.PathLike[str] | ObjectStore, path: str = MANIFEST_PATH) -> Upgrade:
    """Make a manifest of version 1 version 2. Our producers and consumers go on with it; OpenData's must be stopped.

    The buffer keeps its id. The epoch and what is acked become the group `default`. Writers that are named by entries
    still queued are remembered, so that a block that is repeated after it is recognised too. The store is asked for
    sizes.

    Raises `InvalidInput` if there is no manifest, or its path is too long for its segments, `CorruptData` and
    `StorageError`; then nothing is changed.
    """
    store = open_store(where)
    check_places(store, None, path)
    names, formats, sizes, counts = Names(), Formats(), dict[str, int](), list[int]()
    url = f"{url_of(store)}/{path}"
    manifest: VersionedObject[QueueState] = VersionedObject(
        store,
        path,
        label_of(store, path),
        "consumer",
        decode=partial(formats.decode, where=url),
        absent=formats.new(ManifestFormat.OPENDATA, names.buffer_id(), url),
        write_before=lambda new: segments.write(cast("Sequence[NewSegment]", new)),
    )
    segments = Segments(store, path, with_retries=manifest.with_retries)

    def step(found: Versioned[QueueState]) -> Change[QueueState] | None:
        if found.version is None:
            raise InvalidInput(f"there is no manifest {path!r} in {url_of(store)}: a new buffer is version 2 by itself")
        if not isinstance(found.state, OpenDataState):
            return None
        before = found.state.manifest
        entries = before.entries(before.first_sequence, before.next_sequence)
        _measure(store, entries, sizes)
        buffer_id = manifest.with_retries(partial(_identify, store, path, entries))
        head, new = _head_of(before, buffer_id, entries, sizes, names, formats.limits)
        counts.append(len(entries))
        return Change(NativeState(head, url, formats.limits), new)

    manifest.update(step, doing="upgrading")
    return Upgrade(is_new=bool(counts), entries=counts[-1] if counts else 0)


def needs_upgrade(store: ObjectStore, path: str = MANIFEST_PATH) -> bool:
    """Whether there is a manifest of version 1. Raises `StorageError`."""
    try:
        return version_of(get_at_most(store, path, MAX_MANIFEST_BYTES).data) == OPENDATA
    except NotFound:
        return False


def _identify(store: ObjectStore, path: str, entries: Sequence[BatchDescriptor]) -> UUID:
    """The buffer's id. Where the one beside the manifest was lost, the owner of the data still has it."""
    found = read_id(store, path)
    if found is not None:
        return found
    prefixes = {entry.location.rpartition("/")[0] for entry in entries} | {path.rpartition("/")[0]}
    known = [prefix for prefix in sorted(prefixes) if is_path(prefix)][:_MAX_PREFIXES]
    owners = (owner_id(store, prefix, path) for prefix in known)
    return write_id(store, path, next((one for one in owners if one is not None), None))


def _head_of(
    before: OpenDataManifest,
    buffer_id: UUID,
    entries: Iterable[BatchDescriptor],
    sizes: dict[str, int],
    names: Names,
    limits: Limits,
) -> tuple[Head, list[NewSegment]]:
    """The head that takes the place of a manifest, and the segments that have to be there before it."""
    kept = tuple(
        entry_of(entry.sequence, entry.location, entry.metadata, sizes.get(entry.location), None) for entry in entries
    )
    references: tuple[Reference, ...] = ()
    new: list[NewSegment] = []
    if is_too_long(kept, limits):
        new = sealed(kept, names, 0, limits)
        references, indexes = folded([one.reference for one in new], names, 0, limits)
        kept, new = (), new + indexes
    head = unborn_head(buffer_id).changed(
        next_sequence=before.next_sequence,
        epoch=before.epoch,
        tail=kept,
        segments=references,
        groups={DEFAULT_GROUP: Group(before.epoch, before.first_sequence - 1)},
        writers=_writers(entries),
    )
    return head, new


def _writers(entries: Iterable[BatchDescriptor]) -> dict[str, Writer]:
    writers: dict[str, Writer] = {}
    for entry in entries:
        for item in entry.metadata:
            by = _transaction_of(item.payload)
            if by is None:
                continue
            known = writers.get(by.writer)
            if known is None or known.transaction < by.number:
                at = max(item.ingestion_time_ms, 0)
                writers[by.writer] = Writer(by.number, entry.sequence, 1, at, is_named=True)
    return writers


def _transaction_of(payload: bytes) -> Transaction | None:
    """The block that an entry is of; None for a user's own metadata, which may look much the same."""
    try:
        named = msgspec.json.decode(payload, type=_Named)
        check_name("writer", named.writer)
        check_whole("transaction", named.transaction, 0, MAX_TRANSACTION)
    except (msgspec.DecodeError, ValueError, RecursionError, InvalidInput):
        return None
    by = Transaction(named.writer, named.transaction, end=named.end)
    return by if block_payload(by) == payload else None


def _measure(store: ObjectStore, entries: Iterable[BatchDescriptor], sizes: dict[str, int]) -> None:
    """Learn the sizes of data objects, folder by folder; one that is not there has none."""
    folders = {entry.location.rpartition("/")[0] for entry in entries if entry.location not in sizes}
    for folder in folders:
        with suppress(InvalidInput):  # a location that is no path: no object either
            sizes.update((meta.path, meta.size) for meta in store.list_objects(folder))
