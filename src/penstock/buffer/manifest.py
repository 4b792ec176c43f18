"""`Manifest`: what lies in a queue, for whoever only wants to look."""

from __future__ import annotations

import os
from dataclasses import dataclass

from penstock.buffer.descriptors import BatchDescriptor
from penstock.buffer.opendata_manifest import VERSION, OpenDataManifest
from penstock.errors import NotFound
from penstock.storage import ObjectStore, open_store

MANIFEST_PATH = "ingest/manifest"


@dataclass(frozen=True, slots=True)
class Manifest:
    """A queue as it was when it was read. Looking takes no epoch, and so fences nobody.

    >>> Manifest.read("memory://doctest-manifest")
    Manifest(version=1, epoch=0, next_sequence=0, entries=())
    """

    version: int
    epoch: int
    next_sequence: int
    entries: tuple[BatchDescriptor, ...]

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Read the bytes of a manifest, all of them. Raises `CorruptData` naming the field that is wrong."""
        found = OpenDataManifest(bytes(data))
        entries = found.entries(found.first_sequence, found.next_sequence)
        return cls(VERSION, found.epoch, found.next_sequence, tuple(entries))

    @classmethod
    def read(cls, where: str | os.PathLike[str] | ObjectStore, path: str = MANIFEST_PATH) -> Manifest:
        """Read the manifest of a buffer. No manifest is an empty queue at epoch 0.

        Raises `StorageError` where the store fails, and `CorruptData` where the object is no manifest.
        """
        try:
            data = open_store(where).get(path).data
        except NotFound:
            data = OpenDataManifest.empty().data
        return cls.decode(data)
