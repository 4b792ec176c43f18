"""What is in a buffer, read without a consumer."""

from __future__ import annotations

from typing import cast

from penstock import BatchDescriptor, ObjectStore
from penstock.buffer import Manifest, decode_batch

MANIFEST = "ingest/manifest"


def queue(store: ObjectStore, path: str = MANIFEST) -> tuple[BatchDescriptor, ...]:
    """The entries of the manifest."""
    return Manifest.read(store, path).entries


def batches(store: ObjectStore, path: str = MANIFEST) -> list[list[bytes]]:
    """The payloads of each batch, in the queue's order."""
    return [payloads(store, entry.location) for entry in queue(store, path)]


def entries(store: ObjectStore, path: str = MANIFEST) -> list[bytes]:
    """All payloads, in the queue's order."""
    return [payload for batch in batches(store, path) for payload in batch]


def payloads(store: ObjectStore, location: str) -> list[bytes]:
    """The payloads of one data object."""
    return cast("list[bytes]", decode_batch(store.get(location).data).column("value").to_pylist())


def data_objects(store: ObjectStore, prefix: str = "ingest") -> set[str]:
    """The paths of all data objects, enqueued or not."""
    return {meta.path for meta in store.list_objects(prefix) if meta.path.endswith(".batch")}
