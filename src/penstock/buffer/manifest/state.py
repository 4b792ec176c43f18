"""The seam between the versions of the manifest: what a decoded manifest says, and the operations that change it.

`v1/state.py` and `v2/state.py` implement `QueueState`. Every operation is pure: it returns another state, and whatever
must be written before that state is part of the result. `cas.py` does the writing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, auto
from typing import TYPE_CHECKING, Annotated, ClassVar, Protocol, TypeAlias
from uuid import UUID

import msgspec

from penstock.buffer.descriptors import BatchDescriptor, NewEntry
from penstock.buffer.format.batch import BatchFormat
from penstock.buffer.locations import TimeRanges
from penstock.core import get_logger
from penstock.errors import InvalidInput
from penstock.storage import ObjectMeta

if TYPE_CHECKING:
    from penstock.buffer.locations import Names
    from penstock.buffer.manifest.cas import Versioned
    from penstock.buffer.manifest.enqueuing import Attempt, Attempts
    from penstock.buffer.manifest.v2.segments import NewSegment, Segments

DEFAULT_GROUP = "default"

Start: TypeAlias = str | int
"""Where a new group begins: `earliest`, `latest`, or a sequence that is there."""

Natural = Annotated[int, msgspec.Meta(ge=0)]

_log = get_logger(__name__)


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A reader: the epoch of its consumer, and how far it has acked (-1: nothing)."""

    epoch: int
    acked_through: int
    owner: str = ""
    taken_at: int = 0


class Writer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a writer did last: its transaction, the first sequence of it, the revision of the head, and when."""

    transaction: Natural
    first_sequence: Natural
    revision: Natural
    at: Natural
    is_named: bool


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a manifest of version 2 holds in its head, and in one segment, before it seals, folds or forgets."""

    tail_entries: int = 256
    tail_bytes: int = 32 << 10
    references: int = 256
    segment_entries: int = 1024
    segment_bytes: int = 1 << 20
    """Of one segment, except that an entry that is larger has a segment of its own."""
    unnamed_writers: int = 1000
    """How many writers with a random name the head remembers."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """Who appends, and which of its writes it is: one that is repeated has the name and the number it had before.

    A writer that `is_named` is remembered until it is dropped; of the others the head remembers the latest. `end` is
    where the input of a block ends, if its writer knows: it tells two blocks under one name apart.
    """

    writer: str
    number: int
    is_named: bool = True
    end: str | None = None
    follows: int | None = None
    """The last transaction that the writer knows of its name, 0 for none: with another in between it is refused."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A consumer that takes an epoch for a group. `start` counts for a group that had no consumer yet."""

    group: str
    owner: str
    now: int
    start: Start = "earliest"
    last_acked: int | None = None
    allow_gap: bool = False

    def acked_through(self, known: int | None, first: int, following: int, where: str) -> int:
        """How far the group has acked then. It had acked through `known` before; None for a group without a consumer.

        `first` is the first sequence that is kept, `following` the next one to be given to an entry. Raises
        `InvalidInput` if going on behind `last_acked` would skip entries, unless a gap is allowed.
        """
        acked = beginning(self.start, first, following, where) - 1 if known is None else known
        if self.last_acked is None:
            return acked
        problem = None
        if not following:
            problem = (
                f"{where} has never had an entry, so {self.last_acked} is of another buffer, or of this one before it "
                "was deleted; leave last_acked_sequence out to begin with the first entry that comes"
            )
        elif self.last_acked >= following:
            problem = f"it was never enqueued: the next sequence of {where} is {following}"
        elif acked > self.last_acked:
            problem = f"the first entry that {where} can still give is {acked + 1}"
        if problem is not None and not self.allow_gap:
            raise InvalidInput(
                f"last_acked_sequence {self.last_acked} would skip entries silently: {problem}; "
                "give allow_gap=True to go on all the same"
            )
        if problem is not None:
            _log.warning("going on from last_acked_sequence %d: %s", self.last_acked, problem)
        return max(acked, min(self.last_acked, following - 1))


def beginning(start: Start, first: int, following: int, where: str) -> int:
    """The first sequence that a group reads. Raises `InvalidInput` for one that is not there.

    >>> beginning("earliest", 3, 7, "here"), beginning("latest", 3, 7, "here"), beginning(5, 3, 7, "here")
    (3, 7, 5)
    """
    if start == "earliest":
        return first
    if start == "latest":
        return following
    if first <= int(start) < following:
        return int(start)
    there = f"there are {first} to {following - 1}" if first < following else "there is none at the moment"
    raise InvalidInput(
        f"a group begins at 'earliest', 'latest' or a sequence that is in {where} ({there}), not at {start!r}"
    )


@dataclass(frozen=True, slots=True)
class Enqueued:
    """What became of an enqueue. `first_sequence` is None where it is not known."""

    appended: bool
    first_sequence: int | None = None
    sequences: Mapping[str, int] = field(default_factory=dict)
    """Of each location that was appended."""
    was_there: bool = False
    """Whether it had happened already, and nothing was appended now."""


@dataclass(frozen=True, slots=True)
class Unwritten:
    """An enqueue that wrote nothing, because of some of its entries. The caller changes those, and enqueues again.

    `late`: their deadline has passed. `closed`: a collector may have deleted their objects, so the caller writes the
    objects again under names above `floor`. `attempts` go into the next call: one of them may have happened.
    """

    attempts: Attempts
    late: tuple[NewEntry, ...] = ()
    closed: tuple[NewEntry, ...] = ()
    floor: int = 0


@dataclass(frozen=True, slots=True)
class Appended:
    """A state with entries at its end, the segments that have to be there before it, and the try that it is."""

    state: QueueState
    attempt: Attempt
    segments: tuple[NewSegment, ...] = ()


@dataclass(frozen=True, slots=True)
class Backlog:
    """What waits in a queue, as far as the manifest says. Sizes are bytes; None is what it does not know.

    `first` are its first entries, and `times` the ingestion times among which the oldest is.
    """

    batches: int
    size: int | None
    records: int | None
    records_at_least: int
    times: Sequence[int]
    first: Sequence[BatchDescriptor]


@dataclass(frozen=True, slots=True)
class Waiting:
    """What lies behind a sequence: batches, and about how many records and bytes; None is what is not known."""

    batches: int
    records: int | None
    size: int | None


class Fate(Enum):
    """What a cycle of the collector does with an object."""

    KEEP = auto()
    DELETE = auto()
    """Unless a manifest that is read after the listing names it."""
    WAITS = auto()
    """Deletable, once the grace period after the floor is over."""
    LATER = auto()
    """Not named, and below the next floor."""
    AHEAD = auto()
    """Dated ahead of this clock."""


@dataclass(frozen=True, slots=True)
class CycleClock:
    """The times that one cycle goes by. `marked` is when its turn was marked, in the store's time, if it was."""

    clock: Callable[[], float]
    grace: float
    written: datetime | None
    marked: datetime | None


@dataclass(frozen=True, slots=True)
class CycleScope:
    """What one cycle covers, by the manifest that it began with. Times are milliseconds since 1970."""

    entries: int
    """How many the queue has."""
    floor: int = 0
    waits_until: int = 0
    """When the grace period after the floor is over."""
    ranges: Sequence[tuple[int, int]] | None = None
    """The ULID times in which something may have to be deleted; None: any."""


class Collecting(Protocol):
    """The rules of one cycle of the collector, by the manifest that was read first."""

    has_segments: ClassVar[bool]
    """Whether the objects beside the manifest are collected too."""

    @property
    def scope(self) -> CycleScope:
        """What the cycle covers."""

    @property
    def warning(self) -> str | None:
        """What the log should say of what was listed."""

    @property
    def can_close(self) -> bool:
        """Whether something was listed that `closed_in` could close."""

    def fate(self, meta: ObjectMeta) -> Fate:
        """What is done with a data object or a segment."""

    def kept(
        self, found: Versioned[QueueState], listed: Mapping[str, ObjectMeta], is_over: Callable[[], bool]
    ) -> set[str]:
        """Which of the objects to be deleted are kept, by a manifest that was read after they were listed."""

    def closed_in(self, state: QueueState, is_over: Callable[[], bool]) -> QueueState | None:
        """A later state, with what no later entry may name closed for the next cycle; None where that is nothing."""


class QueueState(Protocol):
    """A manifest, decoded. It never changes: an operation returns another state.

    What a version cannot do raises `InvalidInput`.
    """

    format_version: ClassVar[int]
    evidence_lasts: ClassVar[bool]
    """Whether an append can be recognised however late the manifest is read; if not, it is read at once."""
    guards_new_objects: ClassVar[bool]
    """Whether a floor protects objects that are not enqueued yet; if not, their age does."""
    names_groups: ClassVar[bool]
    """Whether its groups have names in it, and so a lag each."""
    batch_format: ClassVar[BatchFormat]
    """How data batches are written where the configuration does not say."""

    @property
    def where(self) -> str:
        """Where it lies, for messages."""

    @property
    def buffer_id(self) -> UUID | None:
        """The buffer's id; None for a version that keeps it in an object of its own."""

    @property
    def epoch(self) -> int:
        """The last epoch that was given."""

    @property
    def first_sequence(self) -> int:
        """The sequence of the oldest entry; the next one to be given where there is none."""

    @property
    def next_sequence(self) -> int:
        """The sequence that the next entry will get."""

    @property
    def floor(self) -> int:
        """Nothing new is named below this ULID time, in milliseconds."""

    @property
    def closed(self) -> TimeRanges:
        """Ranges of ULID times above the floor in which nothing new is named either."""

    @property
    def groups(self) -> Mapping[str, Group]:
        """The readers, in the order they were created."""

    def encode(self) -> bytes:
        """The bytes of the object."""

    def writers(self) -> Mapping[str, Writer]:
        """The writers that it remembers."""

    def entries(self, start: int, stop: int, segments: Segments) -> list[BatchDescriptor]:
        """The entries with sequences from `start` up to `stop`, as far as they are there."""

    def backlog(self, most: int, segments: Segments) -> Backlog:
        """What waits, with at least `most` of the first entries where there are so many."""

    def waiting_from(self, start: int) -> Waiting:
        """What waits from a sequence on, without a look at any segment."""

    def check_paths(self, prefix: str | None, path: str) -> None:
        """Raises `InvalidInput` for paths that other readers of this version would look for elsewhere."""

    def check_group(self, name: str) -> None:
        """Raises `InvalidInput` for a group that is not there."""

    def check_reader(self, group: str, epoch: int, buffer_id: UUID | None) -> None:
        """Raises `Fenced` unless an epoch is still that of the group, in the buffer that has this id if it is known."""

    def is_other_than(self, before: QueueState) -> bool:
        """Whether this is no later state of the same queue."""

    def created(self) -> QueueState:
        """What is written first, where there was no object."""

    def may_name(self, at: int | None) -> bool:
        """Whether what has this ULID time may be named: it is neither below the floor nor in a closed range."""

    def find(self, by: Transaction | None, locations: Sequence[str], segments: Segments) -> Enqueued | None:
        """An earlier append of this transaction, or of entries at one of these locations; None where it shows none.

        Raises `InvalidInput` for a transaction before the writer's last: only the last one is ever repeated.
        """

    def append(
        self, entries: Sequence[NewEntry], by: Transaction, names: Names, now: int, base: str | None
    ) -> Appended:
        """Entries at the end, with the next sequences. `base` is the version of the object that this state is of."""

    def claim(self, claim: Claim, segments: Segments) -> QueueState:
        """A new epoch for a group, with what is acked dequeued."""

    def ack(self, group: str, through: int, segments: Segments) -> QueueState | None:
        """Acked up to a sequence for a group; None where it is."""

    def create_group(self, name: str, start: Start, owner: str, now: int, segments: Segments) -> QueueState:
        """One group more. Raises `InvalidInput` if it is there, or the sequence where it is to begin is not."""

    def reset_group(self, name: str, start: Start, owner: str, now: int, segments: Segments) -> QueueState:
        """A group under a new epoch, which fences its consumer, that begins again somewhere."""

    def drop_group(self, name: str, segments: Segments, *, force: bool) -> QueueState:
        """One group less. The last one needs `force`."""

    def drop_writer(self, name: str) -> QueueState:
        """Without what a writer did."""

    def collecting(self, clock: CycleClock, segments: Segments) -> Collecting:
        """The rules of a cycle of the collector that begins with this state."""
