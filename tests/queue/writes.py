"""The writes of a queue, in the hands of a test."""

from __future__ import annotations

from collections.abc import Callable

from penstock.queue.database import Changes, Database
from tests.support.waiting import Gate


class Writes:
    """Counts the writes, each of which is one sync, and holds them up or fails them."""

    def __init__(self, write: Callable[[Database, Changes], None]) -> None:
        self._write = write
        self.sizes: list[int] = []
        """How many events each of them had."""
        self.gate: Gate | None = None
        """Before they are written."""
        self.gate_after: Gate | None = None
        """When they are written, and nobody knows it yet."""
        self.error: Exception | None = None

    def __call__(self, database: Database, changes: Changes) -> None:
        self.sizes.append(len(changes.events))
        if self.gate is not None:
            self.gate()
        if self.error is not None:
            raise self.error
        self._write(database, changes)
        if self.gate_after is not None:
            self.gate_after()

    def let_go(self) -> None:
        """Hold up nothing any more."""
        for gate in (self.gate, self.gate_after):
            if gate is not None:
                gate.open()
