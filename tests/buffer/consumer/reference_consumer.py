"""A model of a consumer: the state of its queue, its three cursors, and the rules for each."""

from __future__ import annotations

from dataclasses import dataclass, field

ACKS_PER_WRITE = 100


@dataclass
class Model:
    """A queue and its consumer. An entry is its payload; its place in the list is its sequence."""

    payloads: list[bytes] = field(default_factory=list)
    first: int = 0  # the oldest entry that the manifest keeps
    length: int = 0  # of the queue, as the consumer has seen it last
    acked: int | None = None
    fetched: int | None = None
    handed_out: int | None = None
    first_handed_out: int | None = None
    unwritten: int = 0  # acks since the last dequeue
    is_fenced: bool = False
    missing: set[int] = field(default_factory=set)  # sequences whose data object is gone

    @property
    def next(self) -> int:
        """The sequence that the next entry will get."""
        return len(self.payloads)

    @property
    def kept(self) -> list[int]:
        """The sequences in the manifest."""
        return list(range(self.first, self.next))

    def after_cursor(self, most: int) -> list[int]:
        """The sequences that are read next."""
        start = self.first if self.handed_out is None else max(self.handed_out + 1, self.first)
        return list(range(start, min(start + most, self.next)))

    def hand_out(self, sequences: list[int]) -> None:
        """Hand out entries, by a read of the manifest."""
        self.seen()
        if sequences:
            if self.first_handed_out is None:
                self.first_handed_out = sequences[0]
            self.handed_out = sequences[-1]

    def fetch(self, sequence: int) -> None:
        """Fetch an entry."""
        self.fetched = sequence if self.fetched is None else max(self.fetched, sequence)

    @property
    def due(self) -> int | None:
        """The only sequence that may be acked next."""
        if self.first_handed_out is None or self.handed_out is None:
            return None
        due = self.first_handed_out if self.acked is None else max(self.acked + 1, self.first_handed_out)
        return due if due <= self.handed_out else None

    def may_ack_through(self, sequence: int) -> bool:
        """Whether everything up to a sequence can be acked."""
        return self.due is not None and self.handed_out is not None and self.due <= sequence <= self.handed_out

    def after_dequeue(self, through: int | None) -> int:
        """The oldest entry that is kept once everything up to a sequence is dequeued."""
        return self.first if through is None else max(self.first, min(through + 1, self.next))

    def dequeue(self, through: int | None) -> None:
        """Dequeue, by a write of the manifest."""
        self.first = self.after_dequeue(through)
        self.unwritten = 0
        self.seen()

    def seen(self) -> None:
        """The consumer has read or written the manifest."""
        self.length = self.next - self.first

    def skips_entries(self, last_acked: int | None) -> bool:
        """Whether a consumer that starts behind a sequence would skip entries."""
        return last_acked is not None and (last_acked >= self.next or self.first > last_acked + 1)

    def start_again(self, last_acked: int | None) -> None:
        """A new consumer starts."""
        self.acked = self.fetched = self.handed_out = last_acked
        self.first_handed_out = None
        self.is_fenced = False
        self.dequeue(last_acked)
