"""`to_queue`: a route that pushes dead letters into a durable queue, and the letters of such a queue."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from penstock.core import Closing
from penstock.engine.dead_letters import DeadLetter
from penstock.engine.letters.encoding import letter_of_line, line_of, stored
from penstock.engine.letters.kinds import LetterKind, check_own_place
from penstock.engine.letters.letter import StoredLetter
from penstock.engine.letters.places import each_once, open_notes
from penstock.errors import CorruptData, InvalidInput, StorageError
from penstock.queue import DurableEvent, DurableEventQueue, opening_of
from penstock.storage import ObjectStore, local_path


@dataclass(frozen=True, slots=True)
class LetterQueue:
    """The letters in a durable queue, which no process may have open while they are read."""

    path: str

    @property
    def buffer_id(self) -> str | None:
        """None: it is no buffer."""
        return None

    def notes(self) -> ObjectStore:
        """The store beside the queue."""
        return open_notes(self.path, {})

    def letters(self) -> Iterator[StoredLetter]:
        """All letters, in the order of their ids in the queue.

        Raises `InvalidInput` for an event that is no letter, `StorageError` where a process has the queue open, and
        `CorruptData` for a queue that is damaged.
        """
        return each_once(self._letters())

    def _letters(self) -> Iterator[StoredLetter]:
        with DurableEventQueue(self.path) as queue:
            for event in queue.iterate():
                yield _letter(event, self.path)


class QueueRoute(Closing):
    """What `to_queue` returns: a route for dead letters. Safe to share between threads; `close` closes the queue."""

    _instead_in_child = "one process at a time has a queue open, and this one is open in its parent"

    def __init__(self, path: str | os.PathLike[str], *, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._path = os.path.realpath(local_path(path))
        check_own_place(self._path, LetterKind.QUEUE)
        self._queue = DurableEventQueue(self._path, clock=clock)
        try:
            self._directory = os.stat(self._path)
            first = next(self._queue.iterate(), None)
            if first is not None:
                _letter(first, self._path)
        except BaseException:
            self._queue.close()
            raise

    def __repr__(self) -> str:
        return f"to_queue({self._path!r})"

    def __call__(self, letters: Sequence[DeadLetter]) -> None:
        """Store letters, all or none, and return when they are durable.

        Raises what the queue's `push_many` raises, and `StorageError` where the queue is not at its path any more.
        """
        self._check_process()
        self._check_open()
        self._check_place()
        self._queue.push_many([line_of(letter) for letter in stored(letters, self._clock)])

    def close(self) -> None:
        """Close the queue. A second `close` does nothing."""
        self._is_closed = True
        self._queue.close()

    def _check_place(self) -> None:
        # RocksDB goes on with the files that it has open: what it writes to removed ones is gone when they are closed.
        try:
            is_there = os.path.samestat(os.stat(self._path), self._directory) and opening_of(self._path) is not None
        except FileNotFoundError:
            is_there = False
        if not is_there:
            raise StorageError(
                f"the queue {self._path} was moved or removed while it was open, and takes no more letters: close this "
                "route, and call to_queue again"
            )


def to_queue(path: str | os.PathLike[str], *, clock: Callable[[], float] = time.time) -> QueueRoute:
    """A route that pushes dead letters into a durable queue of their own: for `DlqPolicy.route`.

    It returns when they are durable; a block is one write. One process at a time has the queue open: `penstock dlq`
    reads it when the engine is stopped. Whether it is closed or not, nothing is lost.

    Raises `InvalidInput` for a place where something else is, and what `DurableEventQueue` raises.

    >>> import tempfile
    >>> from penstock.engine import BatchEngine, DlqPolicy
    >>> with to_queue(tempfile.mkdtemp()) as letters:
    ...     engine = BatchEngine(dlq=DlqPolicy.route(letters))
    """
    return QueueRoute(path, clock=clock)


def _letter(event: DurableEvent[bytes], path: str) -> StoredLetter:
    try:
        return letter_of_line(event.event)
    except CorruptData as error:
        raise InvalidInput(
            f"the queue {path} is none of dead letters: its event {event.id}: {error}. Give letters a queue of their "
            "own"
        ) from error
