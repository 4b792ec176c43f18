"""A manifest of version 2 as a state: the operations on its head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import ClassVar, Self
from uuid import UUID

import msgspec

from penstock.buffer.descriptors import BatchDescriptor, NewEntry
from penstock.buffer.format.batch import BatchFormat
from penstock.buffer.locations import Names, TimeRanges
from penstock.buffer.manifest.block_names import check_same_block, not_following, out_of_order
from penstock.buffer.manifest.enqueuing import NativeAttempt
from penstock.buffer.manifest.state import (
    Appended,
    Backlog,
    Claim,
    Collecting,
    CycleClock,
    Enqueued,
    Group,
    Limits,
    QueueState,
    Start,
    Transaction,
    Waiting,
    Writer,
    beginning,
)
from penstock.buffer.manifest.v2.collecting import NativeCollecting
from penstock.buffer.manifest.v2.head import VERSION, Entry, Head, Reference, encode_head, entry_of, is_too_long
from penstock.buffer.manifest.v2.segments import NewSegment, Segments, folded, narrowed, sealed
from penstock.core import get_logger
from penstock.errors import Fenced, InvalidInput, NotFound, PenstockError

_LAST_DATE = 253_402_300_799_000  # the end of the year 9999, in milliseconds

_log = get_logger(__name__)


@dataclass(frozen=True)
class NativeState:
    """A manifest of version 2: its head. What is in segments is read through `Segments`, and never changes."""

    head: Head
    where: str = "a manifest"
    limits: Limits = field(default_factory=Limits)

    format_version: ClassVar[int] = VERSION
    evidence_lasts: ClassVar[bool] = True  # the head knows the last transaction of its writers
    guards_new_objects: ClassVar[bool] = True
    names_groups: ClassVar[bool] = True
    batch_format: ClassVar[BatchFormat] = BatchFormat.ARROW

    @property
    def buffer_id(self) -> UUID:
        return self.head.buffer_id

    @property
    def epoch(self) -> int:
        return self.head.epoch

    @property
    def first_sequence(self) -> int:
        return self.head.first_sequence

    @property
    def next_sequence(self) -> int:
        return self.head.next_sequence

    @property
    def floor(self) -> int:
        return self.head.floor

    @property
    def closed(self) -> TimeRanges:
        return self.head.closed

    @property
    def groups(self) -> Mapping[str, Group]:
        return self.head.groups

    def encode(self) -> bytes:
        return encode_head(self.head)

    def writers(self) -> Mapping[str, Writer]:
        return self.head.writers

    def entries(self, start: int, stop: int, segments: Segments) -> list[BatchDescriptor]:
        """The entries with sequences from `start` up to `stop`, as far as they are there.

        Opens the segments that hold them, and no others. Raises `NotFound` for one that is gone, and `CorruptData`.
        """
        tail = self.head.tail
        first = tail[0].sequence if tail else self.next_sequence
        in_segments = segments.entries(self.head.segments, start, stop) if start < first else ()
        in_tail = tail[max(start - first, 0) : max(stop - first, 0)]
        return [entry.descriptor() for entry in (*in_segments, *in_tail)]

    def backlog(self, most: int, segments: Segments) -> Backlog:
        """What waits: all from the head and its references, but for the time of the oldest batch."""
        first = self.entries(self.first_sequence, self.first_sequence + max(most, 1), segments)
        held: list[Reference | Entry] = [*self.head.segments, *self.head.tail]
        records = sum(one.records or 0 for one in held)
        # What an upgrade took over is not counted, and comes before everything that was counted.
        is_counted = all(entry.records is not None for entry in first[:1])
        return Backlog(
            batches=self.next_sequence - self.first_sequence,
            size=sum(one.size or 0 for one in held),
            records=records if is_counted else None,
            records_at_least=records,
            times=[item.ingestion_time_ms for entry in first[:1] for item in entry.metadata],
            first=first,
        )

    def waiting_from(self, start: int) -> Waiting:
        """What waits: of a segment that is read in part, its share. An upgrade counted no events."""
        records = size = 0.0
        is_counted = True
        for held in self.head.segments:
            entries = held.last + 1 - held.first
            share = (held.last + 1 - max(start, held.first)) / entries
            if share > 0:
                records, size = records + held.records * share, size + held.size * share
                is_counted = is_counted and held.records >= entries  # a batch that was counted has one event at least
        tail = [entry for entry in self.head.tail if entry.sequence >= start]
        is_counted = is_counted and all(entry.records is not None for entry in tail)
        records += sum(entry.records or 0 for entry in tail)
        size += sum(entry.size or 0 for entry in tail)
        return Waiting(max(self.next_sequence - start, 0), round(records) if is_counted else None, round(size))

    # Who uses it.

    def check_paths(self, prefix: str | None, path: str) -> None:
        """Every path can be used."""

    def check_group(self, name: str) -> None:
        if name not in self.groups:
            raise InvalidInput(
                f"there is no group {name!r} in {self.where}; its groups: {', '.join(self.groups) or 'none'}"
            )

    def check_reader(self, group: str, epoch: int, buffer_id: UUID | None) -> None:
        if buffer_id is not None and self.buffer_id != buffer_id:
            raise Fenced(
                f"{self.where} is another buffer now, or none, and was {buffer_id}: its manifest was deleted since",
                epoch=epoch,
                group=group,
            )
        found = self.groups.get(group)
        if found is None:
            raise Fenced(f"the group {group!r} of {self.where} is gone: it was dropped", epoch=epoch, group=group)
        if found.epoch != epoch:
            if not found.epoch:
                raise Fenced(
                    f"the manifest {self.where} is gone, or another one: {group!r} is new in it",
                    epoch=epoch,
                    group=group,
                )
            raise Fenced(
                f"a newer consumer has taken over the group {group!r} of {self.where}: {_owner(found)}; "
                f"its epoch is {found.epoch}, and this one's {epoch}",
                epoch=epoch,
                current_epoch=found.epoch,
                group=group,
            )

    def is_other_than(self, before: QueueState) -> bool:
        """Whether this is another buffer. An upgrade has given the id that version 1 could not hold."""
        return before.buffer_id is not None and before.buffer_id != self.buffer_id

    # Appending.

    def created(self) -> Self:
        return self._with(self.head.changed())

    def may_name(self, at: int | None) -> bool:
        return self.head.may_name(at)

    def find(self, by: Transaction | None, locations: Sequence[str], segments: Segments) -> Enqueued | None:
        """The record of a transaction that is its writer's last; None where it comes after that, or is the first.

        Raises `InvalidInput` for one before the last. A writer repeats its last transaction after a crash and no other:
        whether this one ever happened the head does not say. Raises `CorruptData` where another block has its name.
        """
        writer = None if by is None else self.head.writers.get(by.writer)
        last = 0 if writer is None else writer.transaction
        if by is not None and by.follows is not None and last not in (by.follows, by.number):
            raise not_following(by, last, self.where)
        if by is None or writer is None or by.number > writer.transaction:
            return None
        if by.number < writer.transaction:
            raise out_of_order(by, writer.transaction, self.where)
        with suppress(NotFound):  # dequeued since, and its segment collected
            for entry in self.entries(writer.first_sequence, writer.first_sequence + 1, segments):
                for item in entry.metadata:
                    check_same_block(by, item.payload)
        return Enqueued(False, writer.first_sequence, was_there=True)

    def append(
        self, entries: Sequence[NewEntry], by: Transaction, names: Names, now: int, base: str | None
    ) -> Appended:
        """Entries at the end of the tail, which is sealed first where it would be too long; and the writer's record."""
        head = self.head
        new = tuple(
            entry_of(sequence, entry.location, entry.metadata, entry.size, entry.records)
            for sequence, entry in enumerate(entries, head.next_sequence)
        )
        tail, references, segments = head.tail + new, head.segments, list[NewSegment]()
        if is_too_long(tail, self.limits):
            tail, references, segments = self._sealed(new, names)
        revision = head.revision + 1
        writers, forgotten = dict(head.writers), head.forgotten_through
        writers.pop(by.writer, None)  # to the end: the first of them is the one that has not written for longest
        writers[by.writer] = Writer(by.number, head.next_sequence, revision, now, by.is_named)
        if len(writers) > self.limits.unnamed_writers:
            unnamed = [name for name, writer in writers.items() if not writer.is_named]
            for name in unnamed[: max(len(unnamed) - self.limits.unnamed_writers, 0)]:
                forgotten = max(forgotten, writers.pop(name).revision)
        changed = head.changed(
            next_sequence=head.next_sequence + len(new),
            tail=tail,
            segments=references,
            writers=writers,
            forgotten_through=forgotten,
        )
        locations = tuple(entry.location for entry in entries)
        attempt = NativeAttempt(base, head.next_sequence, locations, by, head.revision)
        return Appended(self._with(changed), attempt, tuple(segments))

    def _sealed(
        self, new: tuple[Entry, ...], names: Names
    ) -> tuple[tuple[Entry, ...], tuple[Reference, ...], list[NewSegment]]:
        """The tail, the references and the new segments, where the tail would be too long with the new entries."""
        head, limits = self.head, self.limits
        # What is too long for a tail is sealed with it: each write between the head that was read and the one that
        # is written is time for others to be first.
        is_long_alone = is_too_long(new, limits)
        segments = sealed(head.tail + new if is_long_alone else head.tail, names, head.floor, limits)
        references = (*head.segments, *(one.reference for one in segments))
        references, indexes = folded(references, names, head.floor, limits)
        return () if is_long_alone else new, references, segments + indexes

    # Groups.

    def claim(self, claim: Claim, segments: Segments) -> Self:
        """A new epoch for a group, which is created if it is not there."""
        group = self.groups.get(claim.group)
        known = group.acked_through if group is not None and group.epoch else None
        acked = claim.acked_through(known, self.first_sequence, self.next_sequence, self.where)
        return self.with_epoch(claim.group, acked, claim.owner, claim.now, segments)

    def ack(self, group: str, through: int, segments: Segments) -> Self | None:
        """Acked up to a sequence for a group; None where it is. What every group is past leaves."""
        known, acked = self.groups[group], min(through, self.next_sequence - 1)
        if acked <= known.acked_through:
            return None
        groups = {**self.groups, group: msgspec.structs.replace(known, acked_through=acked)}
        return self._with(self.without_acked(self.head.changed(groups=groups), segments))

    def create_group(self, name: str, start: Start, owner: str, now: int, segments: Segments) -> Self:
        if name in self.groups:
            raise InvalidInput(f"the group {name!r} is in {self.where} already")
        return self.with_epoch(name, self._begin(start) - 1, owner, now, segments)

    def reset_group(self, name: str, start: Start, owner: str, now: int, segments: Segments) -> Self:
        self.check_group(name)
        return self.with_epoch(name, self._begin(start) - 1, f"{owner}, by a reset", now, segments)

    def drop_group(self, name: str, segments: Segments, *, force: bool) -> Self:
        """One group less, and without what only it held back. Raises `InvalidInput` for the last, unless forced."""
        self.check_group(name)
        groups = {other: group for other, group in self.groups.items() if other != name}
        if not groups and not force:
            raise InvalidInput(
                f"{name!r} is the last group of {self.where}: without one nothing leaves the queue any more, and the "
                "next group begins at the first entry that is kept; `--force` drops it"
            )
        return self._with(self.without_acked(self.head.changed(groups=groups), segments))

    def drop_writer(self, name: str) -> Self:
        if name not in self.head.writers:
            raise InvalidInput(f"no writer {name!r} is known to {self.where}")
        writers = {other: writer for other, writer in self.head.writers.items() if other != name}
        forgotten = max(self.head.forgotten_through, self.head.writers[name].revision)
        return self._with(self.head.changed(writers=writers, forgotten_through=forgotten))

    def with_epoch(self, name: str, acked_through: int, owner: str, now: int, segments: Segments) -> Self:
        """A group under the next epoch of the head's one counter."""
        epoch = self.epoch + 1
        groups = {**self.groups, name: Group(epoch, acked_through, owner, now)}
        return self._with(self.without_acked(self.head.changed(epoch=epoch, groups=groups), segments))

    def without_acked(self, head: Head, segments: Segments) -> Head:
        """A head without what every group is past. With no group nothing leaves."""
        start = head.slowest
        if start <= head.first_sequence:
            return head
        references = [reference for reference in head.segments if reference.last >= start]
        if references and references[0].first < start:
            references[0] = self.narrowed(references[0], start, segments)
        tail = tuple(entry for entry in head.tail if entry.sequence >= start)
        return msgspec.structs.replace(head, tail=tail, segments=tuple(references))

    def narrowed(self, reference: Reference, start: int, segments: Segments) -> Reference:
        """A window that begins later, with the counts of what remains; as it was, where its segment cannot be read."""
        try:
            return narrowed(reference, start, segments.read)
        except PenstockError as error:
            # Its counts and its oldest time stay too large and too old, which holds back the collector, and no ack.
            _log.warning("acking into the segment %s of %s: %s", reference.name, self.where, error)
            return reference

    def _begin(self, start: Start) -> int:
        return beginning(start, self.first_sequence, self.next_sequence, self.where)

    # Collecting.

    def collecting(self, clock: CycleClock, segments: Segments) -> Collecting:
        return NativeCollecting(self, clock, segments)

    def _with(self, head: Head) -> Self:
        return replace(self, head=head)


def _owner(group: Group) -> str:
    if not group.taken_at:
        return "on version 1, before it was upgraded"
    since = datetime.fromtimestamp(min(max(group.taken_at, 0), _LAST_DATE) / 1000, UTC)
    return f"{group.owner}, at {since:%Y-%m-%d %H:%M:%S} UTC"
