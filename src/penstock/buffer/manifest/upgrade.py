"""`upgrade`: from a manifest of version 1 to version 2, in one compare-and-set, while producers and consumers run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from uuid import UUID

import msgspec

from penstock.buffer.descriptors import BatchDescriptor
from penstock.buffer.locations import MANIFEST_PATH, Names
from penstock.buffer.manifest.cas import LOST, ManifestObject, Patience
from penstock.buffer.manifest.ownership import owner_id
from penstock.buffer.manifest.v1.buffer_id import read_id, write_id
from penstock.buffer.manifest.v1.codec import OpenDataManifest
from penstock.buffer.manifest.v2.head import (
    DEFAULT_GROUP,
    VERSION,
    Group,
    Head,
    Writer,
    decode_head,
    encode_head,
    entry_of,
    is_too_long,
    unborn_head,
    version_of,
)
from penstock.buffer.manifest.v2.segments import Segments
from penstock.buffer.measures import label_of
from penstock.buffer.places import check_manifest_place
from penstock.buffer.producer.block_appender import BlockName
from penstock.core import get_logger
from penstock.errors import InvalidInput
from penstock.storage import ObjectStore, is_path, open_store, url_of

_MAX_PREFIXES = 10  # where the owner of the data is looked for

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Upgrade:
    """What an upgrade did: how many entries it took over. Nothing where the manifest was version 2 already."""

    is_new: bool
    entries: int


class _Named(msgspec.Struct, forbid_unknown_fields=True):
    """What an entry of a block carries in version 1, to be told when it comes again."""

    writer: str
    transaction: int
    end: str | None = None


def upgrade(where: str | os.PathLike[str] | ObjectStore, path: str = MANIFEST_PATH) -> Upgrade:
    """Make a manifest of version 1 version 2. Our producers and consumers go on with it; OpenData's must be stopped.

    The buffer keeps its id. The epoch and what is acked become the group `default`. Writers that are named by entries
    still queued are remembered, so that a block that comes again is recognised after it too. The store is asked for
    sizes.

    Raises `InvalidInput` if there is no manifest, or its path leaves no room for segments, `CorruptData` and
    `StorageError`; then nothing is changed.
    """
    store = open_store(where)
    check_manifest_place(store, path)
    manifest = ManifestObject(store, path, label_of(store, path), "consumer")
    segments = Segments(store, path, Names(), manifest.patiently)
    sizes: dict[str, int] = {}
    pauses, patience = manifest.pauses(), Patience()
    tried: int | None = None
    while True:
        found = manifest.patiently(manifest.get)
        if found is None:
            raise InvalidInput(f"there is no manifest {path!r} in {url_of(store)}: a new buffer is version 2 by itself")
        if version_of(found.data) == VERSION:
            manifest.decoded(decode_head, found.data)
            return Upgrade(is_new=tried is not None, entries=tried or 0)
        before = manifest.decoded(OpenDataManifest, found.data)
        entries = before.entries(before.first_sequence, before.next_sequence)
        _measure(store, entries, sizes)
        buffer_id = manifest.patiently(partial(_identify, store, path, entries))
        head = _head_of(before, buffer_id, entries, sizes, segments)
        try:
            manifest.replace(found.version, encode_head(head))
        except LOST as error:
            patience.lost(error)
            tried = len(entries)
            _log.info("upgrading %s: %s; reading again", manifest.where, error)
            next(pauses)
        else:
            return Upgrade(is_new=True, entries=len(entries))


def _identify(store: ObjectStore, path: str, entries: Sequence[BatchDescriptor]) -> UUID:
    """The buffer's id. Where the one beside the manifest was lost, the owner of the data still has it."""
    found = read_id(store, path)
    return found if found is not None else write_id(store, path, _id_of_owner(store, path, entries))


def _id_of_owner(store: ObjectStore, path: str, entries: Sequence[BatchDescriptor]) -> UUID | None:
    prefixes = {entry.location.rpartition("/")[0] for entry in entries} | {path.rpartition("/")[0]}
    known = [prefix for prefix in sorted(prefixes) if is_path(prefix)][:_MAX_PREFIXES]
    found = (owner_id(store, prefix, path) for prefix in known)
    return next((one for one in found if one is not None), None)


def _head_of(
    before: OpenDataManifest,
    buffer_id: UUID,
    entries: Iterable[BatchDescriptor],
    sizes: dict[str, int],
    segments: Segments,
) -> Head:
    kept = tuple(
        entry_of(entry.sequence, entry.location, entry.metadata, sizes.get(entry.location), None) for entry in entries
    )
    is_long = is_too_long(kept)
    references = segments.fold(segments.seal(kept, 0), 0) if is_long else ()
    return unborn_head(buffer_id).changed(
        next_sequence=before.next_sequence,
        epoch=before.epoch,
        tail=() if is_long else kept,
        segments=references,
        groups={DEFAULT_GROUP: Group(before.epoch, before.first_sequence - 1)},
        writers=_writers(entries),
    )


def _writers(entries: Iterable[BatchDescriptor]) -> dict[str, Writer]:
    writers: dict[str, Writer] = {}
    for entry in entries:
        for item in entry.metadata:
            named = _block_name(item.payload)
            if named is None:
                continue
            known = writers.get(named.writer)
            if known is None or known.transaction < named.transaction:
                at = max(item.ingestion_time_ms, 0)
                writers[named.writer] = Writer(named.transaction, entry.sequence, 1, at, is_named=True)
    return writers


def _block_name(payload: bytes) -> BlockName | None:
    """The block that an entry is of; None for a user's own metadata, which may look much the same."""
    try:
        said = msgspec.json.decode(payload, type=_Named)
        name = BlockName(said.writer, said.transaction, said.end)
    except (msgspec.DecodeError, ValueError, RecursionError, InvalidInput):
        return None
    return name if name.payload == payload else None


def _measure(store: ObjectStore, entries: Iterable[BatchDescriptor], sizes: dict[str, int]) -> None:
    """Learn the sizes of data objects, folder by folder; one that is not there has none."""
    folders = {entry.location.rpartition("/")[0] for entry in entries if entry.location not in sizes}
    for folder in folders:
        with suppress(InvalidInput):  # a location that is no path: no object either
            sizes.update((meta.path, meta.size) for meta in store.list_objects(folder))
