"""What a manifest of version 1 shows of an append whose reply was lost: which locations are at its sequences."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.buffer.manifest.cas import Versioned
from penstock.buffer.manifest.state import QueueState, Verdict
from penstock.buffer.manifest.v2.segments import Segments


@dataclass(frozen=True, slots=True)
class OpenDataAttempt:
    """A write that did not succeed: on which version it was based, and what it would have put where."""

    base: str | None
    first_sequence: int
    locations: tuple[str, ...]

    def judge(self, found: Versioned[QueueState], segments: Segments) -> Verdict:
        """Say what became of it. It put all of its entries into their places, or none.

        So it did not happen where one of its places is another's, or was never given. (All of them, and not any: a
        shorter try of the same entries, after some were too late, begins with the same locations.) An upgrade keeps
        sequences and locations, so the manifest may be of either version.
        """
        end = self.first_sequence + len(self.locations)
        if end > found.state.next_sequence:
            return Verdict.MAY_YET if found.version == self.base else Verdict.DID_NOT
        kept = found.state.entries(self.first_sequence, end, segments)
        if not kept:
            return Verdict.NO_EVIDENCE
        is_mine = all(entry.location == self.locations[entry.sequence - self.first_sequence] for entry in kept)
        return Verdict.HAPPENED if is_mine else Verdict.DID_NOT
