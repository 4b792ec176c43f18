"""Appending to a queue in a test: as a producer does, or where nothing is late and no floor was raised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from penstock.buffer.descriptors import NewEntry
from penstock.buffer.manifest.enqueuing import Attempts
from penstock.buffer.manifest.queue import BufferQueue
from penstock.buffer.manifest.state import Enqueued, Transaction


def enqueue(queue: BufferQueue, entries: Sequence[NewEntry], by: Transaction | None = None) -> Enqueued:
    """Append entries; that some are late, or below a floor, fails the test."""
    done = queue.enqueue(entries, by)
    assert isinstance(done, Enqueued), done
    return done


@dataclass
class Shipment:
    """Entries that are enqueued as a producer does it: without those that are late, and those below a floor rewritten.

    `rewrite` gets an entry and the floor, and returns the entry under another location.
    """

    entries: list[NewEntry]
    rewrite: Callable[[NewEntry, int], NewEntry] | None = None
    late: list[NewEntry] = field(default_factory=list)

    def enqueue(self, queue: BufferQueue, by: Transaction | None = None) -> Enqueued:
        """Append what is in time."""
        attempts: Attempts | None = None
        while True:
            done = queue.enqueue(self.entries, by, attempts=attempts)
            if isinstance(done, Enqueued):
                return done
            attempts = done.attempts
            self.late += done.late
            kept = [entry for entry in self.entries if entry not in done.late]
            self.entries = [self._again(entry, done.floor) if entry in done.closed else entry for entry in kept]

    def _again(self, entry: NewEntry, floor: int) -> NewEntry:
        assert self.rewrite is not None, f"{entry.location} is below {floor}"
        return self.rewrite(entry, floor)
