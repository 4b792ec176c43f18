"""How far a consumer has read and acked."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from penstock.buffer.descriptors import BatchDescriptor

NOTHING = -1
"""Before the first: a sequence is 0 or more."""

_MAX_UNHEARD_ACKS = 1000  # that are remembered: tasks that are cancelled and never try again must not make them grow


@dataclass(frozen=True, slots=True)
class ReadingState:
    """What a read changes, as it was before it."""

    position: int
    handed_out: int
    first_handed_out: int | None
    fetched: int


class Cursors:
    """The sequences of one consumer. It is changed with the consumer's locks held, but for the two `unheard` methods.

    Those are called in the thread of an event loop, for a task that was cancelled after its result was handed over:
    `docs/design/async.md`. Each is a single step of a set or of a number, and needs no lock.
    """

    def __init__(self, acked: int) -> None:
        self.acked = acked
        self.fetched = acked
        self._position = acked  # reading goes on after it; a rewind sets it to the last ack
        self._handed_out = acked
        self._first_handed_out: int | None = None
        self._given_back = set[int]()  # handed out, but no task has them: they come first in the next read
        self._taken_again = frozenset[int]()  # of those, what the read under way hands out
        self._unheard_acks = deque[int](maxlen=_MAX_UNHEARD_ACKS)

    @property
    def position(self) -> int:
        """The last sequence that a caller has been handed, with all before it."""
        return self._before_given_back(self._position)

    @property
    def handed_out(self) -> int:
        """The highest sequence that may be acked: no ack steps over an entry that was given back."""
        return self._before_given_back(self._handed_out)

    @property
    def next_to_ack(self) -> int | None:
        """The sequence after the last ack, or else the first that was handed out; None before there is one."""
        return None if self._first_handed_out is None else max(self.acked + 1, self._first_handed_out)

    def next_to_read(self, first_kept: int, most: int) -> tuple[int, int]:
        """From where to where the next read goes, of at most so many entries; those given back come first."""
        # What is below it is acked, and what is behind the position comes by itself: there was a rewind since.
        known = tuple(self._given_back)
        self._given_back.difference_update([one for one in known if not first_kept <= one <= self._position])
        if not self._given_back:
            start = max(self._position + 1, first_kept)
            return start, start + most
        start = stop = min(self._given_back)
        while stop in self._given_back and stop - start < most:
            stop += 1
        return start, stop

    def hand_out(self, entries: list[BatchDescriptor]) -> None:
        """Note that a caller gets these."""
        if not entries:
            return
        if self._first_handed_out is None:
            self._first_handed_out = entries[0].sequence
        self._position = max(self._position, entries[-1].sequence)
        self._handed_out = max(self._handed_out, self._position)
        # A note may have come since the read began, so what it takes is known only now.
        self._taken_again = frozenset(entry.sequence for entry in entries).intersection(self._given_back)
        self._given_back -= self._taken_again

    def rewind(self) -> None:
        """Hand out again, from now on, what is not acked."""
        self._position = self.acked
        self._given_back.clear()

    def state(self) -> ReadingState:
        """What a read may change, for `restore`. Called as it begins."""
        self._taken_again = frozenset()
        return ReadingState(self._position, self._handed_out, self._first_handed_out, self.fetched)

    def restore(self, state: ReadingState) -> None:
        """Undo a read. An interrupt may come after a cursor has moved and before its entry has reached the caller."""
        self._position, self._handed_out = state.position, state.handed_out
        self._first_handed_out, self.fetched = state.first_handed_out, state.fetched
        self._given_back |= self._taken_again

    def note_unheard_read(self, sequences: list[int]) -> None:
        """Let these come first in the next read."""
        self._given_back.update(sequences)

    def note_unheard_ack(self, sequence: int) -> None:
        """Let the next ack of this sequence succeed: it is acked."""
        self._unheard_acks.append(sequence)

    def was_unheard(self, sequence: int) -> bool:
        """Whether this is acked, by a task that was cancelled before it heard of it. True once."""
        try:
            self._unheard_acks.remove(sequence)
        except ValueError:
            return False
        return sequence <= self.acked

    def _before_given_back(self, sequence: int) -> int:
        return min((sequence, *(one - 1 for one in tuple(self._given_back))))
