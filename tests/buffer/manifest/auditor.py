"""Looks at every head that is really written, below all faults, and says what must never be in one."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.buffer.locations import location_time, segment_time
from penstock.buffer.manifest.state import DEFAULT_GROUP
from penstock.buffer.manifest.v2.head import Head, decode_head
from penstock.buffer.manifest.v2.segments import Segments
from penstock.errors import NotFound
from penstock.storage import MemoryStore

MANIFEST = "ingest/manifest"
FOLDER = f"{MANIFEST}.d"


class Auditor:
    """The heads of one buffer, in the order they were written, and what was wrong with them."""

    def __init__(self, memory: MemoryStore) -> None:
        self._memory = memory
        self._segments = Segments(memory, MANIFEST)
        self.heads: list[Head] = []
        self.locations: list[str] = []
        """Of every sequence that was ever given, in order."""
        self.epochs: set[int] = set()
        self.complaints: list[str] = []

    @property
    def head(self) -> Head | None:
        """The latest."""
        return self.heads[-1] if self.heads else None

    def look(self) -> None:
        """Look whether there is a new head, and at it."""
        data = self._memory.get(MANIFEST).data
        head = decode_head(data)
        if self.head == head:
            return
        before, self.heads = self.head, [*self.heads[-1:], head]
        try:
            self.complaints += self._wrong_alone(head, len(data))
            self.complaints += self._wrong_at_birth(head) if before is None else self._wrong_after(before, head)
        except NotFound as error:
            self.complaints.append(f"revision {head.revision} names what is not there: {error}")

    def missing(self) -> list[str]:
        """What the latest head names and is not there: to be asked after each delete, too."""
        if self.head is None:
            return []
        there = {meta.path for meta in self._memory.list_objects("ingest")}
        try:
            return sorted(set(self.named(self.head)) - there)
        except NotFound as error:
            return [str(error)]

    def named(self, head: Head) -> Iterator[str]:
        """Every data object and segment that a head names, in its segments too."""
        segments = self._segments
        waiting = [(reference, reference.first) for reference in head.segments]
        while waiting:
            reference, first = waiting.pop()
            yield f"{FOLDER}/{reference.name}"
            if reference.level:
                children = segments.read(reference).references
                waiting += [(child, first) for child in children if child.last >= first]
        yield from (entry.location for entry in segments.entries(head.segments, 0, head.next_sequence))
        yield from (entry.location for entry in head.tail)

    def _wrong_alone(self, head: Head, size: int) -> Iterator[str]:
        if size > 128 << 10:
            yield f"the head has {size} bytes"
        missing = self.missing()
        if missing:
            yield f"revision {head.revision} names what is not there: {missing}"
            return
        for path in self.named(head):
            at = segment_time(path.removeprefix(f"{FOLDER}/")) if path.startswith(FOLDER) else location_time(path)
            if not head.may_name(at):
                yield f"revision {head.revision} names {path} of {at}, and its floor is {head.floor}; {head.closed}"
        yield from self._wrong_counts(head)

    def _wrong_counts(self, head: Head) -> Iterator[str]:
        segments = self._segments
        for reference in head.segments:
            held = list(segments.entries([reference], reference.first, reference.last + 1))
            counts = (len(held), sum(one.records or 0 for one in held), sum(one.size or 0 for one in held))
            expected = (reference.last + 1 - reference.first, reference.records, reference.size)
            if counts != expected:
                yield f"the reference {reference.name} says {expected}, and holds {counts}"

    def _wrong_at_birth(self, head: Head) -> Iterator[str]:
        group = head.groups.get(DEFAULT_GROUP)
        if head.revision != 1 or group is None:
            yield f"born with revision {head.revision} and the groups {list(head.groups)}"
        yield from self._note_entries(head, 0)
        self.epochs |= {group.epoch for group in head.groups.values() if group.epoch}

    def _wrong_after(self, before: Head, head: Head) -> Iterator[str]:
        if head.revision != before.revision + 1:
            yield f"revision {head.revision} came after {before.revision}"
        for name in ("next_sequence", "epoch", "floor", "forgotten_through"):
            if getattr(head, name) < getattr(before, name):
                yield f"{name} went back from {getattr(before, name)} to {getattr(head, name)}"
        for first, last in before.closed:
            if any(head.may_name(at) for at in (first, last)):
                yield f"the range from {first} to {last} was closed and is not any more"
        yield from self._note_entries(head, before.next_sequence)
        yield from self._wrong_groups(before, head)
        yield from self._wrong_leaving(before, head)
        for name, writer in head.writers.items():
            known = before.writers.get(name)
            if known is not None and writer.transaction < known.transaction:
                yield f"the writer {name} went back from {known.transaction} to {writer.transaction}"

    def _note_entries(self, head: Head, known: int) -> Iterator[str]:
        segments = self._segments
        there = [*segments.entries(head.segments, 0, head.next_sequence), *head.tail]
        for entry in there:
            if entry.sequence >= known:
                if entry.sequence != len(self.locations):
                    yield f"sequence {entry.sequence} came where {len(self.locations)} was due"
                self.locations.append(entry.location)
            elif self.locations[entry.sequence] != entry.location:
                yield f"sequence {entry.sequence} was {self.locations[entry.sequence]} and is {entry.location}"

    def _wrong_groups(self, before: Head, head: Head) -> Iterator[str]:
        for name, group in head.groups.items():
            known = before.groups.get(name)
            if known is not None and known.epoch == group.epoch:
                if group.acked_through < known.acked_through:
                    yield f"{name} went back from {known.acked_through} to {group.acked_through} under one epoch"
            elif group.epoch in self.epochs:
                yield f"epoch {group.epoch} was given twice, now to {name}"
            self.epochs.add(group.epoch)

    def _wrong_leaving(self, before: Head, head: Head) -> Iterator[str]:
        slowest = min((group.acked_through for group in head.groups.values()), default=before.first_sequence - 1)
        if head.first_sequence > max(slowest + 1, before.first_sequence):
            yield f"entries before {head.first_sequence} have left, and the slowest group has acked through {slowest}"
