"""What a head shows of an append whose reply was lost: the last transaction of its writer."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.buffer.manifest.cas import Versioned
from penstock.buffer.manifest.state import QueueState, Transaction, Verdict
from penstock.buffer.manifest.v2.segments import Segments
from penstock.errors import NotFound


@dataclass(frozen=True, slots=True)
class NativeAttempt:
    """A write that did not succeed: which transaction it was, on which head it was based, and what it would append."""

    base: str | None
    by: Transaction
    revision: int
    """Of the head that it was based on."""
    first_sequence: int
    locations: tuple[str, ...]

    def judge(self, found: Versioned[QueueState], segments: Segments) -> Verdict:
        """Say what became of it: number and revision in the writer's record are those of one write alone."""
        writer = found.state.writers().get(self.by.writer)
        if writer is None:
            # Without a record nothing has happened, unless writers were forgotten that wrote after the base.
            return Verdict.FORGOTTEN if found.state.forgotten_through > self.revision else self._open(found)
        if (writer.transaction, writer.revision) != (self.by.number, self.revision + 1):
            return self._open(found)
        # A name can be another process's too, and so can the write: its locations tell, while they are there.
        return Verdict.HAPPENED if not self.by.is_named or self._is_in(found, segments) else Verdict.DID_NOT

    def _open(self, found: Versioned[QueueState]) -> Verdict:
        return Verdict.MAY_YET if found.version == self.base else Verdict.DID_NOT

    def _is_in(self, found: Versioned[QueueState], segments: Segments) -> bool:
        first = self.first_sequence
        try:
            return [entry.location for entry in found.state.entries(first, first + 1, segments)] == [self.locations[0]]
        except NotFound:
            return False  # dequeued since, and collected
