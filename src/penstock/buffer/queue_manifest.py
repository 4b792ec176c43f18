"""The seam between the buffer and its manifests: what a producer, a consumer and a collector ask of a queue.

Every version of the manifest is one implementation of `QueueManifest`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol, TypeAlias

from penstock.buffer.descriptors import BatchDescriptor, NewEntry

InTime: TypeAlias = Callable[[Sequence[NewEntry]], Sequence[NewEntry]]
"""Returns those of the entries whose deadline has not passed. Whoever gave it takes care of the others."""


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

    def enqueue(self, entries: Sequence[NewEntry], in_time: InTime) -> dict[str, int]:
        """Append entries in one write, and return the sequence of each location.

        `in_time` is asked after each read and before each write, and what it leaves out is not enqueued any more.
        Raises what went wrong: then none of the entries is known to be enqueued.
        """
        ...

    def claim(self, last_acked: int | None, *, allow_gap: bool) -> QueueView:
        """Take a new epoch, fencing whoever had one, and dequeue what is acked; both in one write."""
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
