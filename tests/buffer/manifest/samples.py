"""Heads, entries and queues for tests of version 2, and a store that counts what is asked of it."""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st

from penstock.buffer.descriptors import Metadata, NewEntry
from penstock.buffer.manifest.formats import Formats
from penstock.buffer.manifest.queue import BufferQueue
from penstock.buffer.manifest.state import DEFAULT_GROUP, Limits, Writer
from penstock.buffer.manifest.v2.head import Entry, Head, Item, decode_head
from penstock.storage import MemoryStore, Object, ObjectStore
from penstock.storage.object_store import Data

MANIFEST = "ingest/manifest"
FOLDER = f"{MANIFEST}.d"

U64 = st.integers(0, (1 << 64) - 1)
ITEMS = st.builds(Item, st.integers(0, 99), st.integers(-(1 << 63), (1 << 63) - 1), st.binary(max_size=9))
LETTERS = st.characters(exclude_categories=["Cs"])


def new(count: int, start: int = 0, payload: bytes = b"", *, records: int | None = 2) -> list[NewEntry]:
    """Entries on their way into a queue, whose locations are numbers."""
    items = (Metadata(0, 5, payload),)
    return [NewEntry(f"data/{number}", items, size=10, records=records) for number in range(start, start + count)]


class Counted(MemoryStore):
    """Counts calls by operation, and bytes that were written; of reads it says where."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls: Counter[str] = Counter()
        self.read: list[str] = []
        self.written = 0
        self.largest_head = 0

    def clear(self) -> None:
        self.calls.clear()
        self.read.clear()
        self.written = 0

    def get(self, path: str) -> Object:
        self.calls["get"] += 1
        self.read.append(path)
        return super().get(path)

    def put(self, path: str, data: Data) -> str:
        self.calls["put"] += 1
        self.written += len(data)
        return super().put(path, data)

    def put_if_absent(self, path: str, data: Data) -> str:
        self._note(path, data)
        return super().put_if_absent(path, data)

    def put_if_match(self, path: str, data: Data, version: str) -> str:
        self._note(path, data)
        return super().put_if_match(path, data, version)

    def _note(self, path: str, data: Data) -> None:
        self.calls["compare and set"] += 1
        self.written += len(data)
        if path == MANIFEST:
            self.largest_head = max(self.largest_head, len(data))


def queue_on(store: ObjectStore, group: str = DEFAULT_GROUP, limits: Limits | None = None) -> BufferQueue:
    """A queue that does not wait between its tries."""
    formats = Formats(limits=limits or Limits())
    return BufferQueue(
        store, MANIFEST, "producer", group=group, formats=formats, sleep=lambda _: None, jitter=lambda: 0.0
    )


def claim(queue: BufferQueue) -> int:
    """Take an epoch, and return it."""
    return queue.claim("earliest", None, allow_gap=False).epoch


def head_of(store: ObjectStore) -> Head:
    return decode_head(store.get(MANIFEST).data)


def locations(store: ObjectStore) -> list[str]:
    """What lies in the queue."""
    view = queue_on(store).look()
    return [entry.location for entry in view.entries(0, view.next_sequence)]


def entry(sequence: int, location: str = "", *, records: int | None = 2, size: int | None = 10) -> Entry:
    return Entry(sequence, location or f"data/{sequence}", records, size, ())


def writer(revision: int, *, is_named: bool = False) -> Writer:
    return Writer(0, 0, revision, 0, is_named)
