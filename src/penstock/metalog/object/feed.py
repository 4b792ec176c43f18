"""Reading an object log: from name to name, and looking again for the next one where the chain ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field

from penstock.core import get_logger
from penstock.errors import PenstockError, StorageError
from penstock.metalog.log import MetadataRecord
from penstock.metalog.object.chain import HINT_EVERY, ROLL_UP_EVERY, Chain, RollUp
from penstock.metalog.object.format import LogObject
from penstock.metalog.patience import TRIES
from penstock.metalog.signal import Signal
from penstock.metalog.subscription import Wanted

_LONGEST_PAUSE = 1.0
_LOOK_FOR_ROLL_UPS_AFTER = 16  # objects in a row

_log = get_logger(__name__)


@dataclass(slots=True)
class _Cursor:
    """Where one partition's reading is: the next offset that is wanted, and the next object to read for it."""

    chain: Chain
    generation: int
    offset: int
    pause: float
    name: int | None = None
    due: float = 0.0
    in_a_row: int = 0
    failures: int = 0
    look_at: int = _LOOK_FOR_ROLL_UPS_AFTER
    roll_ups: list[RollUp] = field(default_factory=list)

    def is_due(self, now: float) -> bool:
        end = self.chain.known_end
        return now >= self.due or (end is not None and self.name is not None and end.offset > self.name)


class ObjectFeed:
    """The feed of one subscription."""

    def __init__(
        self,
        chains: Sequence[Chain],
        signal: Signal,
        check_open: Callable[[], object],
        readers: Callable[[], Executor],
        poll_interval: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._chains = chains
        self._signal = signal
        self._check_open = check_open
        self._readers = readers
        self._poll_interval = poll_interval
        self._clock = clock
        self._cursors: dict[int, _Cursor] = {}
        self._is_woken = False

    def fetch(self, wanted: Sequence[Wanted], timeout: float) -> Sequence[MetadataRecord]:
        """Records of these partitions; of each what one object has, or one roll-up."""
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
            due = min((cursor.due for cursor in self._cursors.values()), default=until)
            if due > now:
                self._signal.wait(changes, min(due, until) - now)

    def wake(self) -> None:
        """End the wait of a call under way, or of the next."""
        self._is_woken = True
        self._signal.give()

    def close(self) -> None:
        """There is nothing to give back."""

    def _follow(self, wanted: Sequence[Wanted]) -> None:
        """Go on where each partition is; begin anew where it was added again, or an answer did not arrive."""
        cursors = {}
        for one in wanted:
            cursor = self._cursors.get(one.partition)
            if cursor is None or (cursor.generation, cursor.offset) != (one.generation, one.offset):
                chain = self._chains[one.partition]
                cursor = _Cursor(chain, one.generation, one.offset, self._poll_interval)
            cursors[one.partition] = cursor
        self._cursors = cursors

    def _look(self, due: Sequence[_Cursor]) -> list[MetadataRecord]:
        """Read on in some partitions, beside each other.

        One that fails is tried again a few times, and told of then, if no other has anything.
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
            self._check_open()  # it was closed in between, and its readers with it
            raise

    def _attempt(self, cursor: _Cursor) -> list[MetadataRecord] | PenstockError:
        try:
            return self._read(cursor)
        except StorageError as error:
            cursor.failures += 1
            self._look_later(cursor)
            if cursor.failures % TRIES == 0:
                return error
            _log.warning("reading the metadata log: %s; trying again", error)
            return []
        except PenstockError as error:
            return error

    def _read(self, cursor: _Cursor) -> list[MetadataRecord]:
        found: Sequence[LogObject] = []
        if cursor.name is None:
            cursor.name, found = cursor.chain.locate(cursor.offset)
        found = found or self._objects(cursor, cursor.name)
        if not found:
            cursor.in_a_row = cursor.failures = 0
            self._look_later(cursor)
            return []
        cursor.in_a_row += 1
        cursor.failures = 0
        cursor.due = 0.0
        cursor.pause = self._poll_interval
        partition, start = cursor.chain.partition, cursor.offset
        records = [
            MetadataRecord(partition, offset, payload)
            for one in found
            if one.end > start
            for offset, payload in enumerate(one.payloads, one.first)
            if offset >= start
        ]
        cursor.name = found[-1].end
        cursor.offset = max(start, cursor.name)
        return records

    def _look_later(self, cursor: _Cursor) -> None:
        cursor.due = self._clock() + cursor.pause
        cursor.pause = max(self._poll_interval, min(cursor.pause * 2, _LONGEST_PAUSE))

    def _objects(self, cursor: _Cursor, name: int) -> Sequence[LogObject]:
        """The objects of a roll-up that has this name, or the one object; none where the chain ends."""
        if cursor.in_a_row >= cursor.look_at:
            cursor.in_a_row = 0
            cursor.roll_ups = cursor.chain.roll_ups()
            cursor.look_at = HINT_EVERY if cursor.roll_ups else min(2 * cursor.look_at, ROLL_UP_EVERY)
        while cursor.roll_ups and cursor.roll_ups[0].end <= name:
            cursor.roll_ups.pop(0)
        if cursor.roll_ups and cursor.roll_ups[0].first <= name:
            if copied := cursor.chain.try_roll_up(cursor.roll_ups[0]):
                return copied
            cursor.roll_ups.pop(0)
        found = cursor.chain.read(name)
        return [] if found is None else [found]
