"""Tries of an enqueue that got no success reply, and what a manifest that is read later shows of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, cast

from penstock.errors import NotFound

if TYPE_CHECKING:
    from penstock.buffer.manifest.cas import Versioned
    from penstock.buffer.manifest.state import QueueState, Transaction
    from penstock.buffer.manifest.v2.segments import Segments
    from penstock.buffer.manifest.v2.state import NativeState


class Verdict(Enum):
    """What a manifest shows of an attempt whose reply was not a success."""

    HAPPENED = auto()
    DID_NOT = auto()
    MAY_YET = auto()
    """It did not happen so far; while the manifest is the one it was based on, it still can."""
    NO_EVIDENCE = auto()
    """Version 1: its entries are dequeued already, if they were appended."""
    FORGOTTEN = auto()
    """Version 2: the manifest has forgotten the writer since, and cannot tell."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try to append to version 1: the version of the object that it was to replace, and what it would put where."""

    base: str | None
    first_sequence: int
    locations: tuple[str, ...]

    def judge(self, found: Versioned[QueueState], segments: Segments) -> Verdict:
        """What became of it, by a manifest that was read later. It put all of its entries into their places, or none.

        So it did not happen where one of its places is another's, or was never given. (All of them, and not any: a
        shorter try of the same entries, after some were too late, begins with the same locations.) An upgrade keeps
        sequences and locations, so the manifest may be of either version.
        """
        end = self.first_sequence + len(self.locations)
        if end > found.state.next_sequence:
            return self._not_so_far(found)
        kept = found.state.entries(self.first_sequence, end, segments)
        if not kept:
            return Verdict.NO_EVIDENCE
        is_mine = all(entry.location == self.locations[entry.sequence - self.first_sequence] for entry in kept)
        return Verdict.HAPPENED if is_mine else Verdict.DID_NOT

    def _not_so_far(self, found: Versioned[QueueState]) -> Verdict:
        return Verdict.MAY_YET if found.version == self.base else Verdict.DID_NOT


@dataclass(frozen=True, slots=True)
class NativeAttempt(Attempt):
    """One try to append to version 2: also which transaction it was, and the revision of the head it was based on."""

    by: Transaction
    revision: int

    def judge(self, found: Versioned[QueueState], segments: Segments) -> Verdict:
        """By the writer's record: its number and revision are those of one write alone."""
        head = cast(
            "NativeState", found.state
        ).head  # a buffer of version 2 stays so, and has been found to be the same
        writer = head.writers.get(self.by.writer)
        if writer is None:
            # Without a record nothing has happened, unless writers were forgotten that wrote after the base.
            return Verdict.FORGOTTEN if head.forgotten_through > self.revision else self._not_so_far(found)
        if (writer.transaction, writer.revision) != (self.by.number, self.revision + 1):
            return self._not_so_far(found)
        if not self.by.is_named:
            return Verdict.HAPPENED
        # Another process may use the name too, and the write may be its own: the first location shows whose it is.
        try:
            kept = found.state.entries(self.first_sequence, self.first_sequence + 1, segments)
        except NotFound:
            return Verdict.DID_NOT  # dequeued since, and collected
        return Verdict.HAPPENED if [entry.location for entry in kept] == [self.locations[0]] else Verdict.DID_NOT


class Attempts:
    """The tries of one enqueue that may have happened, and the number its own writer has given to its entries."""

    def __init__(self) -> None:
        self.open: list[Attempt] = []
        self.own: tuple[tuple[str, ...], Transaction] | None = None
