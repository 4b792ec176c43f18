"""`peek`: read the next entries of a buffer without a consumer."""

from __future__ import annotations

import os

from penstock.buffer.config import check_group
from penstock.buffer.consumer.fetching import read_batch
from penstock.buffer.format.batch import MAX_BATCH_BYTES
from penstock.buffer.locations import MANIFEST_PATH
from penstock.buffer.manifest.queue import BufferQueue
from penstock.buffer.manifest.state import DEFAULT_GROUP
from penstock.core import check_whole
from penstock.errors import NotFound
from penstock.records import Record, records_from_arrow
from penstock.storage import ObjectStore, open_store

_ENTRIES_PER_READ = 16


def peek(
    where: str | os.PathLike[str] | ObjectStore,
    n: int = 10,
    *,
    manifest_path: str = MANIFEST_PATH,
    group: str = DEFAULT_GROUP,
) -> list[Record]:
    """Return the next `n` entries that a group has not acked. Claims no epoch, and so fences no consumer.

    Raises `InvalidInput` for a group that is not there, `NotFound` if the data of an entry that is still queued is
    gone, `CorruptData` and `StorageError`.

    >>> peek("memory://doctest-peek")
    []
    """
    check_whole("n", n, 0)
    store = open_store(where)
    queue = BufferQueue(store, manifest_path, "consumer", group=check_group(group))
    records: list[Record] = []
    at = 0
    while len(records) < n:
        view = queue.peek()
        at = max(at, view.first_sequence)
        entries = view.entries(at, at + _ENTRIES_PER_READ)
        if not entries:
            break
        for entry in entries:
            if len(records) >= n:
                break
            at = entry.sequence + 1
            try:
                batch, _ = read_batch(store, entry, MAX_BATCH_BYTES)
            except NotFound:
                # It may have been acked since the manifest was read, and then collected.
                if queue.peek().first_sequence <= entry.sequence:
                    raise
                break
            records += records_from_arrow(batch.slice(0, n - len(records)))
        if at >= view.next_sequence:
            break
    return records
