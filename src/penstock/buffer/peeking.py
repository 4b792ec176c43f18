"""`peek`: look at the next entries of a buffer, and disturb nobody."""

from __future__ import annotations

import os

from penstock.buffer.batch import MAX_BATCH_BYTES
from penstock.buffer.fetching import read_batch
from penstock.buffer.manifest import MANIFEST_PATH, Manifest
from penstock.errors import NotFound
from penstock.records import Record, records_from_arrow
from penstock.storage import ObjectStore, open_store
from penstock.storage.checks import check_whole


def peek(
    where: str | os.PathLike[str] | ObjectStore, n: int = 10, *, manifest_path: str = MANIFEST_PATH
) -> list[Record]:
    """Return the next `n` entries that are not dequeued. Takes no epoch, and so fences nobody.

    Raises `NotFound` if the data of an entry that is still queued is gone, `CorruptData` and `StorageError`.

    >>> peek("memory://doctest-peek")
    []
    """
    check_whole("n", n, 0)
    store = open_store(where)
    records: list[Record] = []
    entries = Manifest.read(store, manifest_path).entries if n else ()
    for entry in entries:
        if len(records) >= n:
            break
        try:
            batch, _ = read_batch(store, entry, MAX_BATCH_BYTES)
        except NotFound:
            # A consumer may have acked it since the manifest was read, and a collector taken it.
            if entry in Manifest.read(store, manifest_path).entries:
                raise
            continue
        records += records_from_arrow(batch.slice(0, n - len(records)))
    return records
