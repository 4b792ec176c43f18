"""The seam between the buffer and its manifests: what a producer, a consumer and a collector ask of a queue.

Every version of the manifest is one implementation of `QueueManifest`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, TypeAlias

from penstock.buffer.descriptors import BatchDescriptor, NewEntry

InTime: TypeAlias = Callable[[Sequence[NewEntry]], Sequence[NewEntry]]
"""Returns those of the entries whose deadline has not passed. Whoever gave it takes care of the others."""

Rewrite: TypeAlias = Callable[[NewEntry, int], NewEntry]
"""Writes an entry's data again, under a name whose time is above a collector's floor."""

Start: TypeAlias = str | int
"""Where a new group begins: `earliest`, `latest`, or a sequence that is there."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """Who appends, and which of its writes it is: one that comes again has the name and the number it had before.

    A writer that `is_named` is remembered until it is dropped; of the others the head remembers the latest.
    """

    writer: str
    number: int
    is_named: bool = True


@dataclass(frozen=True, slots=True)
class Enqueued:
    """What became of an enqueue.

    Not appended: it was there already, or no entry was in time. `first_sequence` is None where it is not known.
    """

    appended: bool
    first_sequence: int | None = None
    sequences: Mapping[str, int] = field(default_factory=dict)
    """Of each location that was appended."""
    was_there: bool = False
    """Whether it had happened already."""


class QueueView(Protocol):
    """A queue as it was at one moment."""

    @property
    def epoch(self) -> int:
        """Whose turn it is to consume."""
        ...

    @property
    def first_sequence(self) -> int:
        """The sequence of the oldest entry; the next one to be given where there is none."""
        ...

    @property
    def next_sequence(self) -> int:
        """The sequence that the next entry will get."""
        ...

    @property
    def version(self) -> str | None:
        """The version of the manifest's object; None where there is no manifest."""
        ...

    @property
    def last_modified(self) -> datetime | None:
        """When the manifest was written, in the store's time; None where there is no manifest."""
        ...

    def entries(self, start: int, stop: int) -> list[BatchDescriptor]:
        """The entries with sequences from `start` up to `stop`, as far as they are there."""
        ...


class QueueManifest(Protocol):
    """The queue of one buffer, on its store."""

    @property
    def conflict_rate(self) -> float:
        """Percent of the writes that lost a compare-and-set."""
        ...

    @property
    def is_native(self) -> bool:
        """Whether the manifest is version 2, as of the last read or write."""
        ...

    @property
    def floor(self) -> int:
        """Nothing new may be named below this time, in milliseconds; as of the last read or write."""
        ...

    def own_prefix(self, prefix: str, *, claim: bool) -> bool:
        """Say whether a prefix belongs to this buffer; with `claim`, claim it. Raises `InvalidInput` if not."""
        ...

    def enqueue(
        self, entries: Sequence[NewEntry], in_time: InTime, rewrite: Rewrite, by: Transaction | None = None
    ) -> Enqueued:
        """Append entries in one write, unless the transaction that they are has happened already.

        `in_time` is asked after each read and before each write, and what it leaves out is not enqueued any more.
        Raises what went wrong: then none of the entries is known to be enqueued.
        """
        ...

    def claim(self, start: Start, last_acked: int | None, *, allow_gap: bool) -> QueueView:
        """Take a new epoch, fencing whoever had one, and dequeue what is acked; both in one write.

        `start` is for a group that had no consumer yet.
        """
        ...

    def read(self, epoch: int, *, fresh: bool = False) -> QueueView:
        """Read the queue under an epoch. Raises `Fenced` if it is not the queue's any more."""
        ...

    def dequeue(self, epoch: int, through: int) -> QueueView:
        """Remove the entries up to a sequence in one write. Raises `Fenced` as `read` does."""
        ...

    def look(self) -> QueueView:
        """Read the queue without an epoch."""
        ...
