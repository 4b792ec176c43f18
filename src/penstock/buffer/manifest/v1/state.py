"""A manifest of version 1 as a state: the operations on it, and what it cannot do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NoReturn, Self
from uuid import UUID

from penstock.buffer.config import check_opendata_places
from penstock.buffer.descriptors import BatchDescriptor, NewEntry
from penstock.buffer.format.batch import BatchFormat
from penstock.buffer.locations import Names
from penstock.buffer.manifest.block_names import QueuedBlock
from penstock.buffer.manifest.start import beginning, check_resumable
from penstock.buffer.manifest.state import (
    DEFAULT_GROUP,
    Appended,
    Backlog,
    Claim,
    Collecting,
    CycleClock,
    Enqueued,
    Group,
    QueueState,
    Start,
    Transaction,
    Writer,
)
from penstock.buffer.manifest.time_ranges import TimeRanges
from penstock.buffer.manifest.v1.attempts import OpenDataAttempt
from penstock.buffer.manifest.v1.codec import VERSION, OpenDataManifest, next_epoch
from penstock.buffer.manifest.v1.collecting import OpenDataCollecting
from penstock.buffer.manifest.v2.segments import Segments
from penstock.errors import Fenced, InvalidInput


@dataclass(frozen=True)
class OpenDataState:
    """A manifest of version 1. It has one reader, the group `default`, and remembers no writers."""

    manifest: OpenDataManifest
    where: str = "a manifest"

    format_version: ClassVar[int] = VERSION
    evidence_lasts: ClassVar[bool] = False  # an append is recognised by its entries while they are queued
    guards_new_objects: ClassVar[bool] = False
    batch_format: ClassVar[BatchFormat] = BatchFormat.OPENDATA  # OpenData's consumers read no other
    buffer_id: ClassVar[UUID | None] = None
    floor: ClassVar[int] = 0
    closed: ClassVar[TimeRanges] = ()
    forgotten_through: ClassVar[int] = 0

    @property
    def epoch(self) -> int:
        """The epoch of the consumer."""
        return self.manifest.epoch

    @property
    def first_sequence(self) -> int:
        """The sequence of the oldest entry; the next one to be given where there is none."""
        return self.manifest.first_sequence

    @property
    def next_sequence(self) -> int:
        """The sequence that the next entry will get."""
        return self.manifest.next_sequence

    @property
    def groups(self) -> Mapping[str, Group]:
        """Its one reader, which the format does not name."""
        return {DEFAULT_GROUP: Group(self.epoch, self.first_sequence - 1)}

    @property
    def group_lags(self) -> Mapping[str, int]:
        """None: its reader has no name."""
        return {}

    def encode(self) -> bytes:
        """The bytes of the object."""
        return self.manifest.data

    def writers(self) -> Mapping[str, Writer]:
        """Raises `InvalidInput`."""
        self._refuse("which knows one reader and no writers")

    def entries(self, start: int, stop: int, segments: Segments) -> list[BatchDescriptor]:
        """The entries with sequences from `start` up to `stop`, as far as they are there."""
        return self.manifest.entries(start, stop)

    def backlog(self, most: int, segments: Segments) -> Backlog:
        """What waits. The format has neither sizes nor counts of records."""
        waiting = self.manifest.entries(self.first_sequence, self.next_sequence)
        return Backlog(
            batches=len(waiting),
            size=None,
            records=None if waiting else 0,
            records_at_least=0,
            times=[item.ingestion_time_ms for entry in waiting for item in entry.metadata],
            first=waiting,
        )

    # Who uses it.

    def check_paths(self, prefix: str | None, path: str) -> None:
        """Raises `InvalidInput` for paths that OpenData's crate would look for elsewhere."""
        check_opendata_places(prefix, path)

    def check_group(self, name: str) -> None:
        """Raises `InvalidInput` for a group but `default`."""
        if name != DEFAULT_GROUP:
            raise InvalidInput(
                f"group must be {DEFAULT_GROUP!r} on {self.where}, which is a manifest of version 1, not {name!r}; "
                "`penstock manifest upgrade` makes it version 2"
            )

    def check_reader(self, group: str, epoch: int, buffer_id: UUID | None) -> None:
        """Raises `Fenced` unless the epoch is the manifest's."""
        if self.epoch != epoch:
            raise Fenced(
                f"a newer consumer has taken over {self.where}: its epoch is {self.epoch}, and this one's {epoch} "
                "(or the manifest was deleted or replaced)"
            )

    def is_other_than(self, before: QueueState) -> bool:
        """Whether this is no later state of the same queue: sequences went back, or an entry of both is another."""
        return not isinstance(before, OpenDataState) or self.manifest.is_other_than(before.manifest)

    # Appending.

    def created(self) -> Self:
        """The empty manifest, which has no id in it."""
        return self

    def may_name(self, at: int | None) -> bool:
        """Whatever is in time: what is too old is known by its deadline."""
        return True

    def find(self, by: Transaction | None, locations: Sequence[str], segments: Segments) -> Enqueued | None:
        """A block that is still queued, by the name on its entries or by a location."""
        if by is None and not locations:
            return None
        block = QueuedBlock(by, locations)
        if not block.may_be_in(self.manifest.data):
            return None
        entries = self.manifest.entries(self.first_sequence, self.next_sequence)
        return Enqueued(appended=False, was_there=True) if block.is_among(entries) else None

    def append(
        self, entries: Sequence[NewEntry], by: Transaction, names: Names, now: int, base: str | None
    ) -> Appended:
        """Entries at the end. The writer is not remembered."""
        changed = self.manifest.append([(entry.location, entry.metadata) for entry in entries])
        attempt = OpenDataAttempt(base, self.next_sequence, tuple(entry.location for entry in entries))
        return Appended(replace(self, manifest=changed), attempt)

    # Consuming.

    def claim(self, claim: Claim, segments: Segments) -> Self:
        """The next epoch, with what is acked dequeued. The reader is new until the first epoch is taken."""
        self.check_group(claim.group)
        changed = self.manifest
        if not self.epoch:
            begin = beginning(claim.start, self.first_sequence, self.next_sequence, self.where)
            changed = changed.remove_through(begin - 1)
        if claim.last_acked is not None:
            check_resumable(
                changed.first_sequence,
                changed.next_sequence,
                claim.last_acked,
                self.where,
                allow_gap=claim.allow_gap,
            )
            changed = changed.remove_through(claim.last_acked)
        return replace(self, manifest=changed.with_epoch(next_epoch(self.epoch)))

    def ack(self, group: str, through: int, segments: Segments) -> Self | None:
        """Without the entries up to a sequence; None where none of them is there."""
        if through < self.first_sequence or self.first_sequence == self.next_sequence:
            return None
        return replace(self, manifest=self.manifest.remove_through(through))

    # What version 1 cannot do.

    def create_group(self, name: str, start: Start, owner: str, now: int, segments: Segments) -> QueueState:
        """Raises `InvalidInput`."""
        self._refuse("which knows one reader and no writers")

    def reset_group(self, name: str, start: Start, owner: str, now: int, segments: Segments) -> QueueState:
        """Raises `InvalidInput`."""
        self._refuse("which knows one reader and no writers")

    def drop_group(self, name: str, segments: Segments, *, force: bool) -> QueueState:
        """Raises `InvalidInput`."""
        self._refuse("which knows one reader and no writers")

    def drop_writer(self, name: str) -> QueueState:
        """Raises `InvalidInput`."""
        self._refuse("which knows one reader and no writers")

    def close_times(self, floor: int, ranges: TimeRanges, now: int) -> QueueState | None:
        """Raises `InvalidInput`."""
        self._refuse("which has no floor")

    def _refuse(self, why: str) -> NoReturn:
        raise InvalidInput(
            f"{self.where} is a manifest of version 1, {why}; `penstock manifest upgrade` makes it version 2"
        )

    # Collecting.

    def collecting(self, clock: CycleClock, segments: Segments) -> Collecting:
        """What no manifest names, and was written long before the manifest."""
        return OpenDataCollecting(self, clock, segments)
