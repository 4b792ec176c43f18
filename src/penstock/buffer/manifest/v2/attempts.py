"""The tries of one enqueue: after a reply that was lost, the writer's record in the head says which of them it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.buffer.descriptors import NewEntry
from penstock.buffer.manifest.state import Enqueued, Transaction
from penstock.buffer.manifest.v2.head import Head, Writer
from penstock.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try: which transaction it was, at which revision and sequence it would be, and what it was to append."""

    by: Transaction
    revision: int
    first_sequence: int
    locations: tuple[str, ...]


class Attempts:
    """The tries of one enqueue: each set of entries is a transaction."""

    def __init__(self) -> None:
        self.base: int | None = None
        self._tried: list[Attempt] = []

    @property
    def count(self) -> int:
        """How many there were."""
        return len(self._tried)

    def of(self, entries: Sequence[NewEntry]) -> Transaction | None:
        """The transaction that these entries were, if they were tried."""
        locations = tuple(entry.location for entry in entries)
        return next((tried.by for tried in self._tried if tried.locations == locations), None)

    def note(self, by: Transaction, head: Head, entries: Sequence[NewEntry]) -> None:
        """Note a try before it is made."""
        if self.base is None:
            self.base = head.revision
        locations = tuple(entry.location for entry in entries)
        if self._tried and self._tried[-1].locations == locations:
            locations = self._tried[-1].locations  # the same ones, kept once
        self._tried.append(Attempt(by, head.revision + 1, head.next_sequence, locations))

    def landed(self, writer: Writer) -> Enqueued | None:
        """The try that a writer's record is of, if it is one of these."""
        for tried in self._tried:
            if (tried.by.number, tried.revision) == (writer.transaction, writer.revision):
                first = tried.first_sequence
                places = {location: first + place for place, location in enumerate(tried.locations)}
                return Enqueued(True, first, places)
        return None


def out_of_order(writer: str, transaction: int, last: int, where: str) -> InvalidInput:
    """What is raised for a transaction that is lower than its writer's last."""
    return InvalidInput(
        f"the writer {writer!r} comes with transaction {transaction}, and {last} is its last one in {where}. It may "
        "never have been appended, and is not appended now: numbers only rise, and only the last one is repeated. Was "
        "a checkpoint restored from a copy, or does another process write under this name? Go on with a new checkpoint "
        "or name; `penstock writers drop` forgets what the writer has done"
    )
