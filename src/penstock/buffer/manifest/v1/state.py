"""A manifest of version 1 as a state: the operations on it, what it cannot do, and what a collector may delete."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import ClassVar, NoReturn, Self
from uuid import UUID

from penstock.buffer.config import check_opendata_places
from penstock.buffer.descriptors import BatchDescriptor, NewEntry
from penstock.buffer.format.batch import BatchFormat
from penstock.buffer.locations import Names, TimeRanges
from penstock.buffer.manifest.block_names import QueuedBlock
from penstock.buffer.manifest.cas import Versioned
from penstock.buffer.manifest.enqueuing import Attempt
from penstock.buffer.manifest.state import (
    DEFAULT_GROUP,
    Appended,
    Backlog,
    Claim,
    Collecting,
    CycleClock,
    CycleScope,
    Enqueued,
    Fate,
    Group,
    QueueState,
    Transaction,
    Waiting,
)
from penstock.buffer.manifest.v1.codec import VERSION, OpenDataManifest, next_epoch
from penstock.buffer.manifest.v2.segments import Segments
from penstock.errors import Fenced, InvalidInput
from penstock.storage import ObjectMeta


@dataclass(frozen=True)
class OpenDataState:
    """A manifest of version 1. It has one reader, which it does not name, and remembers no writers."""

    manifest: OpenDataManifest
    where: str = "a manifest"

    format_version: ClassVar[int] = VERSION
    evidence_lasts: ClassVar[bool] = False  # an append is recognised by its entries while they are queued
    guards_new_objects: ClassVar[bool] = False
    names_groups: ClassVar[bool] = False
    batch_format: ClassVar[BatchFormat] = BatchFormat.OPENDATA  # OpenData's consumers read no other
    buffer_id: ClassVar[UUID | None] = None
    floor: ClassVar[int] = 0
    closed: ClassVar[TimeRanges] = ()

    @property
    def epoch(self) -> int:
        return self.manifest.epoch

    @property
    def first_sequence(self) -> int:
        return self.manifest.first_sequence

    @property
    def next_sequence(self) -> int:
        return self.manifest.next_sequence

    @property
    def groups(self) -> Mapping[str, Group]:
        return {DEFAULT_GROUP: Group(self.epoch, self.first_sequence - 1)}

    def encode(self) -> bytes:
        return self.manifest.data

    def entries(self, start: int, stop: int, segments: Segments) -> list[BatchDescriptor]:
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

    def waiting_from(self, start: int) -> Waiting:
        """What waits. The format has neither sizes nor counts of records."""
        batches = max(self.next_sequence - start, 0)
        return Waiting(batches, None if batches else 0, None if batches else 0)

    # Who uses it.

    def check_paths(self, prefix: str | None, path: str) -> None:
        check_opendata_places(prefix, path)

    def check_group(self, name: str) -> None:
        if name != DEFAULT_GROUP:
            raise InvalidInput(
                f"group must be {DEFAULT_GROUP!r} on {self.where}, which is a manifest of version 1, not {name!r}; "
                "`penstock manifest upgrade` makes it version 2"
            )

    def check_reader(self, group: str, epoch: int, buffer_id: UUID | None) -> None:
        if self.epoch != epoch:
            raise Fenced(
                f"a newer consumer has taken over {self.where}: its epoch is {self.epoch}, and this one's {epoch} "
                "(or the manifest was deleted or replaced)",
                epoch=epoch,
                current_epoch=self.epoch,
                group=group,
            )

    def is_other_than(self, before: QueueState) -> bool:
        return not isinstance(before, OpenDataState) or self.manifest.is_other_than(before.manifest)

    # Appending.

    def created(self) -> Self:
        return self

    def may_name(self, at: int | None) -> bool:
        """Whatever is in time: what is too old is known by its deadline."""
        return True

    def find(self, by: Transaction | None, locations: Sequence[str], segments: Segments) -> Enqueued | None:
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
        attempt = Attempt(base, self.next_sequence, tuple(entry.location for entry in entries))
        return Appended(replace(self, manifest=changed), attempt)

    # Consuming.

    def claim(self, claim: Claim, segments: Segments) -> Self:
        """The next epoch, with what is acked dequeued. The reader is new until the first epoch is taken."""
        self.check_group(claim.group)
        known = self.first_sequence - 1 if self.epoch else None
        acked = claim.acked_through(known, self.first_sequence, self.next_sequence, self.where)
        return replace(self, manifest=self.manifest.remove_through(acked).with_epoch(next_epoch(self.epoch)))

    def ack(self, group: str, through: int, segments: Segments) -> Self | None:
        if through < self.first_sequence or self.first_sequence == self.next_sequence:
            return None
        return replace(self, manifest=self.manifest.remove_through(through))

    # What version 1 cannot do.

    def _refuse(self, *_given: object, **_options: object) -> NoReturn:
        raise InvalidInput(
            f"{self.where} is a manifest of version 1, which knows one reader and no writers; "
            "`penstock manifest upgrade` makes it version 2"
        )

    writers = create_group = reset_group = drop_group = drop_writer = _refuse

    # Collecting.

    def collecting(self, clock: CycleClock, segments: Segments) -> Collecting:
        return OpenDataCollecting(self, clock, segments)


class OpenDataCollecting:
    """The rules of one cycle on a manifest of version 1.

    A collector may delete what the manifest does not name, and is older than the manifest by a grace period. Both times
    are the store's. Why that is safe is in `docs/design/buffer.md`.
    """

    has_segments: ClassVar[bool] = False
    warning: ClassVar[None] = None
    can_close: ClassVar[bool] = False

    def __init__(self, state: QueueState, clock: CycleClock, segments: Segments) -> None:
        self._clock = clock
        self._segments = segments
        self._names = _names_in(state, segments)
        self.scope = CycleScope(len(self._names))

    def fate(self, meta: ObjectMeta) -> Fate:
        if _name(meta.path) in self._names or not self.is_old(meta, self._clock):
            return Fate.KEEP
        return Fate.DELETE

    def kept(
        self, found: Versioned[QueueState], listed: Mapping[str, ObjectMeta], is_over: Callable[[], bool]
    ) -> set[str]:
        """Which of the objects the manifest names, or is too young to judge; read after they were listed."""
        if found.version is None or found.state.guards_new_objects:
            return set(listed)  # deleted, or upgraded: the next cycle goes by what is there then
        names, clock = _names_in(found.state, self._segments), replace(self._clock, written=found.last_modified)
        return {path for path, meta in listed.items() if _name(path) in names or not self.is_old(meta, clock)}

    def is_old(self, meta: ObjectMeta, clock: CycleClock) -> bool:
        """Whether the manifest was written a grace period after an object: both are the store's times."""
        return clock.written is not None and meta.last_modified <= clock.written - timedelta(seconds=clock.grace)

    def closed_in(self, state: QueueState, is_over: Callable[[], bool]) -> QueueState | None:
        """Nothing: producers go by their deadline."""
        return None


def _names_in(state: QueueState, segments: Segments) -> set[str]:
    """The file names of what a manifest names. A ULID is unique, and the folders of a path depend on the store's root.

    So a live object is kept even where the manifest is opened from another root, and no owner says so.
    """
    entries = state.entries(state.first_sequence, state.next_sequence, segments)
    return {_name(entry.location) for entry in entries}


def _name(path: str) -> str:
    return path.rpartition("/")[2]
