"""The directory of a durable queue: to open the queue, and to read and write its database while it is closed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import rocksdict

from penstock import DurableEventQueue
from penstock.queue.database import Database
from penstock.queue.totals import Totals

KIB = 1 << 10
LAST = (1 << 64) - 1


def key(identifier: int) -> bytes:
    return identifier.to_bytes(8, "big")


def begin_at(path: Path, next_id: int) -> None:
    """Create a queue whose next event gets this id."""
    database = Database(str(path))
    database.settle(Totals(next_id))
    database.close()


def ids_of(queue: DurableEventQueue[Any]) -> list[int]:
    """The ids of all events on disk, in any state."""
    return [event.id for event in queue.iterate()]


def pop_ids(queue: DurableEventQueue[Any]) -> list[int]:
    """Take all ready events, and return their ids in the order in which they come."""
    return [event.id for event in iter(queue.pop, None)]


class Place:
    """A directory, and the mode in which the queue in it is opened."""

    def __init__(self, path: Path, *, lazy: bool) -> None:
        self.path = path
        self.lazy = lazy
        self._opened: list[DurableEventQueue[Any]] = []

    def open(self, **more: Any) -> DurableEventQueue[Any]:
        queue: DurableEventQueue[Any] = DurableEventQueue(self.path, **{"lazy": self.lazy, **more})
        self._opened.append(queue)
        return queue

    def close(self) -> None:
        """Close every queue that is still open."""
        for queue in self._opened:
            queue.close()

    def holding(self, *events: bytes) -> Place:
        """Push these, and close the queue."""
        with self.open() as queue:
            queue.push_many(events)
        return self

    def plant(self, key: bytes, value: bytes, family: str = "default") -> None:
        """Write into the database of a queue that is closed."""
        with self.raw(family) as family_of_it:
            family_of_it[key] = value

    def flush(self) -> None:
        """Let RocksDB write what is in its log to a table, in a queue that is closed."""
        with self.raw() as database:
            database.flush()

    def keys(self, family: str = "default") -> list[bytes]:
        """The keys in the database of a queue that is closed."""
        with self.raw(family) as family_of_it:
            return [one for one in family_of_it.keys() if isinstance(one, bytes)]  # noqa: SIM118  it is no dict

    def ids(self) -> list[int]:
        """The ids of the events in the database of a queue that is closed."""
        return [int.from_bytes(one, "big") for one in self.keys()]

    @contextmanager
    def raw(self, family: str = "default") -> Iterator[rocksdict.Rdict]:
        """The database of a queue that is closed, as RocksDB has it."""
        database = rocksdict.Rdict(str(self.path), rocksdict.Options(raw_mode=True))
        try:
            if family == "default":
                yield database
                return
            inside = database.get_column_family(family)
            try:
                yield inside
            finally:
                inside.close()
        finally:
            database.close()
