"""Reading an object log: object by object, and looking again for the next one where the chain ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from penstock.core import Backoff, get_logger
from penstock.errors import PenstockError, StorageError
from penstock.metalog.change_signal import ChangeSignal
from penstock.metalog.object.chain import Chain, RollUp
from penstock.metalog.object.format import LogObject
from penstock.metalog.records import MetadataRecord
from penstock.metalog.subscription import Wanted

if TYPE_CHECKING:
    from penstock.core import LoopLatch, Threads

_T = TypeVar("_T")

_LONGEST_POLL_INTERVAL = 1.0  # seconds, unless the log's own is longer
_FAILURES_UNTIL_RAISED = 5

_log = get_logger(__name__)


@dataclass(slots=True)
class _Cursor:
    """How far one partition is read: the next offset that is wanted, and the object to read next for it."""

    chain: Chain
    generation: int
    offset: int
    backoff: Backoff
    look_for_roll_ups_after: int
    next_object: int | None = None
    due: float = 0.0
    objects_in_a_row: int = 0
    failures: int = 0
    roll_ups: list[RollUp] = field(default_factory=list)

    def is_due(self, now: float) -> bool:
        end = self.chain.known_end
        return now >= self.due or (end is not None and self.next_object is not None and end.offset > self.next_object)


class ObjectFeed:
    """The feed of one subscription."""

    def __init__(
        self,
        chains: Sequence[Chain],
        signal: ChangeSignal,
        check_open: Callable[[], object],
        readers: Callable[[], Executor],
        poll_interval: float,
        clock: Callable[[], float] = time.monotonic,
        threads: Callable[[], Threads] | None = None,
    ) -> None:
        self._chains = chains
        self._signal = signal
        self._check_open = check_open
        self._readers = readers
        self._poll_interval = poll_interval
        self._clock = clock
        self._threads = threads
        self._cursors: dict[int, _Cursor] = {}
        self._is_woken = False

    def fetch(self, wanted: Sequence[Wanted], timeout: float) -> Sequence[MetadataRecord]:
        """Records of these partitions: of each those of one object, or of one roll-up."""
        until = self._clock() + timeout
        self._follow(wanted)
        while True:
            changes = self._signal.changes
            self._check_open()
            now = self._clock()
            records = self._look([cursor for cursor in self._cursors.values() if cursor.is_due(now)])
            now = self._clock()
            if records or self._is_woken or now >= until:
                self._is_woken = False
                return records
            due = self._next_due()
            if due is None or due > now:
                self._signal.wait(changes, (until if due is None else min(due, until)) - now)

    async def look(self, call: Callable[[], _T]) -> _T:
        """Call what fetches, in a thread of the log, or in one of its own."""
        if self._threads is None:
            from penstock.core import in_new_thread

            return await in_new_thread("metalog-read", call)
        return await self._threads().run(call)

    def opening(self, latch: LoopLatch) -> AbstractContextManager[None]:
        """Open a latch whenever this process writes an object, and at `wake`."""
        return self._signal.opening(latch)

    def seconds_until_due(self) -> float | None:
        """How long until it is time to look for objects that other processes wrote."""
        due = self._next_due()
        return None if due is None else max(due - self._clock(), 0.0)

    def wake(self) -> None:
        """End the wait of the call under way, or of the next one."""
        self._is_woken = True
        self._signal.notify()

    def close(self) -> None:
        """Does nothing: a feed holds nothing of its own."""

    def _next_due(self) -> float | None:
        return min((cursor.due for cursor in self._cursors.values()), default=None)

    def _follow(self, wanted: Sequence[Wanted]) -> None:
        """Keep each partition's cursor; a new one where it was added again, or an answer was lost."""
        cursors = {}
        for one in wanted:
            cursor = self._cursors.get(one.partition)
            if cursor is None or (cursor.generation, cursor.offset) != (one.generation, one.offset):
                cursor = self._new_cursor(one)
            cursors[one.partition] = cursor
        self._cursors = cursors

    def _new_cursor(self, wanted: Wanted) -> _Cursor:
        chain = self._chains[wanted.partition]
        longest = max(self._poll_interval, _LONGEST_POLL_INTERVAL)
        backoff = Backoff(self._poll_interval, longest, jitter=lambda: 1.0)
        return _Cursor(chain, wanted.generation, wanted.offset, backoff, chain.settings.look_for_roll_ups_after)

    def _look(self, due: Sequence[_Cursor]) -> list[MetadataRecord]:
        """Read some partitions, in parallel.

        An error is raised if no partition has a record: one of the store only after several tries in a row.
        """
        if len(due) > 1:
            answers = [self._submit(cursor) for cursor in due]
            results = [answer.result() for answer in answers]
        else:
            results = [self._attempt(cursor) for cursor in due]
        records = [record for result in results if not isinstance(result, PenstockError) for record in result]
        for result in results:
            if isinstance(result, PenstockError):
                if not records:
                    raise result
                _log.warning("reading the metadata log: %s; trying again", result)
        return records

    def _submit(self, cursor: _Cursor) -> Future[list[MetadataRecord] | PenstockError]:
        readers = self._readers()
        try:
            return readers.submit(self._attempt, cursor)
        except RuntimeError:
            self._check_open()  # the log was closed in between, and its readers with it
            raise

    def _attempt(self, cursor: _Cursor) -> list[MetadataRecord] | PenstockError:
        try:
            return self._read(cursor)
        except StorageError as error:
            cursor.failures += 1
            self._look_later(cursor)
            if cursor.failures % _FAILURES_UNTIL_RAISED == 0:
                return error
            _log.warning("reading the metadata log: %s; trying again", error)
            return []
        except PenstockError as error:
            return error

    def _read(self, cursor: _Cursor) -> list[MetadataRecord]:
        found: Sequence[LogObject] = []
        if cursor.next_object is None:
            cursor.next_object, found = cursor.chain.locate(cursor.offset)
        found = found or self._objects(cursor, cursor.next_object)
        cursor.failures = 0
        if not found:
            cursor.objects_in_a_row = 0
            self._look_later(cursor)
            return []
        cursor.objects_in_a_row += 1
        cursor.due = 0.0
        cursor.backoff.reset()
        partition, start = cursor.chain.partition, cursor.offset
        records = [
            MetadataRecord(partition, offset, payload)
            for one in found
            if one.end > start
            for offset, payload in enumerate(one.payloads, one.first)
            if offset >= start
        ]
        cursor.next_object = found[-1].end
        cursor.offset = max(start, cursor.next_object)
        return records

    def _look_later(self, cursor: _Cursor) -> None:
        cursor.due = self._clock() + cursor.backoff.seconds()

    def _objects(self, cursor: _Cursor, first: int) -> Sequence[LogObject]:
        """The objects of a roll-up that has this offset, or the one object; none where the chain ends."""
        settings = cursor.chain.settings
        if cursor.objects_in_a_row >= cursor.look_for_roll_ups_after:
            cursor.objects_in_a_row = 0
            cursor.roll_ups = cursor.chain.roll_ups()
            longer = min(2 * cursor.look_for_roll_ups_after, settings.roll_up_every)
            cursor.look_for_roll_ups_after = settings.hint_every if cursor.roll_ups else longer
        while cursor.roll_ups and cursor.roll_ups[0].end <= first:
            cursor.roll_ups.pop(0)
        if cursor.roll_ups and cursor.roll_ups[0].first <= first:
            if copied := cursor.chain.try_roll_up(cursor.roll_ups[0]):
                return copied
            cursor.roll_ups.pop(0)
        found = cursor.chain.read(first)
        return [] if found is None else [found]
