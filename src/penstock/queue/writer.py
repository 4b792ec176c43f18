"""Writing to a durable queue: pushes and acks of many calls in one write, and what follows from it in memory."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence

from penstock.core import GroupCommit, Waiters, Work, get_logger
from penstock.errors import IdOverflow, PenstockError, StorageError
from penstock.queue.database import Changes, Database, Stalled
from penstock.queue.ledger import Ledger
from penstock.queue.measures import Measures

LAST_ID = (1 << 64) - 1
"""It is never given: the id after it could not be stored."""

ACK_BYTES = 16
"""What an ack takes of a write."""

_MAX_BYTES_PER_WRITE = 16 << 20  # of a group; so no call waits for more than that of others
_EVENT_BYTES = 50  # on disk, about, beside those of the event itself
_MIN_ACKS_TO_TIDY = 1000
_SECONDS_BETWEEN_TIMES = 1.0
_MAX_OLD_TIMES_PER_WRITE = 100

_log = get_logger(__name__)


class Change(Work):
    """What one call wants to be written: events to push, or ids to ack."""

    __slots__ = ("acked", "events", "first_id")

    def __init__(self, events: Sequence[bytes], acked: Sequence[int], size_bytes: int) -> None:
        super().__init__(size_bytes)
        self.events = events
        self.acked = acked
        self.first_id = 0  # of the events, once they are written


class QueueWriter:
    """Writes to the database, by one thread at a time, and brings the ledger in line with it.

    A write that fails may have happened all the same. Then the queue is in doubt, until the database was opened anew
    and what was not reported as done is undone. `lock` and `ready` are the queue's.
    """

    def __init__(
        self,
        database: Database,
        ledger: Ledger,
        lock: threading.Lock,
        ready: Waiters,
        measures: Measures,
        clock: Callable[[], float],
        name: str,
    ) -> None:
        self._database = database
        self._ledger = ledger
        self._lock = lock
        self._ready = ready
        self._measures = measures
        self._clock = clock
        self._name = name
        self._totals = database.whole.totals
        self.acks = 0
        """How many there were: after one, an iterator looks again whether an event is there."""
        self._acks_when_tidied = 0
        self._last_time = -math.inf  # when a time was stored last
        self._is_in_doubt = False
        self.commits = GroupCommit(self._write, name, max_bytes=_MAX_BYTES_PER_WRITE, after_write=self._tidy_if_drained)

    def close(self) -> None:
        """Wait for the writes of all calls, and release the database."""
        self.commits.close()
        with self._lock:
            if not self._is_in_doubt:
                self._database.settle(self._totals)
            self._database.close()

    def put_back(self, change: Change) -> None:
        """Put events back that could not be acked; once, however often it is called."""
        with self._lock:
            acked, change.acked = change.acked, ()
            if self._ledger.stay(acked):
                self._ready.wake(len(acked))

    def _write(self, group: Sequence[Change]) -> None:
        """Write what some calls want, and bring the ledger in line. Only the leader of a group calls it."""
        has_begun, acked = False, 0
        try:
            if self._is_in_doubt:
                self._mend()
            changes = self._changes(group)
            if changes.events or changes.acked:
                self._is_in_doubt = has_begun = True
                try:
                    self._database.write(changes)
                except Stalled:  # there may be free space again that RocksDB has not noticed yet
                    self._mend()
                    self._is_in_doubt = True
                    self._database.write(changes)
            with self._lock:
                if changes.events:
                    self._ledger.add(changes.events)
                    self._ready.wake(len(changes.events))
                if changes.acked:
                    acked = self._ledger.forget(changes.acked)
                    self.acks += acked
            self._totals = changes.totals
            self._is_in_doubt = False
        except BaseException:
            for change in group:
                self.put_back(change)
            self._last_time = -math.inf
            if has_begun:
                self._try_to_mend()
            raise
        if changes.events:
            self._measures.pushes.inc(len(changes.events))
        if acked:
            self._measures.acks.inc(acked)

    def _changes(self, group: Sequence[Change]) -> Changes:
        """Bring together what some calls want, without those for which there are no ids, or no free space."""
        changes = Changes(self._totals)
        now = self._clock()
        acked: list[int] = []
        for change in group:
            count = len(change.events)
            if not count:
                acked += change.acked
            elif changes.next_id + count > LAST_ID:
                last = changes.next_id - 1
                change.error = IdOverflow(f"{self._name} has used its last id, {last}: nothing was pushed")
            elif not self._database.has_space_for(change.size_bytes + _EVENT_BYTES * count, now):
                change.error = StorageError(
                    f"the disk of {self._name} is full, but for what acks need: nothing was pushed. "
                    "Ack events, or free disk space"
                )
            else:
                change.first_id = changes.next_id
                changes.next_id += count
                changes.events += change.events
        if acked:
            with self._lock:
                changes.acked = self._ledger.still_leaving(acked)
        changes.totals = self._totals.after(len(changes.events), changes.acked)
        if changes.events and not 0 <= now - self._last_time < _SECONDS_BETWEEN_TIMES:
            self._add_time(changes, now)
        return changes

    def _add_time(self, changes: Changes, now: float) -> None:
        """Store when the first of these events was pushed, and delete times that no event needs any more."""
        self._last_time = now
        changes.time = changes.next_id - len(changes.events), unix_milliseconds(now)
        with self._lock:
            oldest = self._ledger.oldest()
            changes.oldest = changes.time[0] if oldest is None else oldest
            needed = None if oldest is None else self._database.time_of(oldest)
            until = changes.time[0] if needed is None else needed[0]
            changes.old_times = self._database.old_times(until, _MAX_OLD_TIMES_PER_WRITE)

    def _tidy_if_drained(self) -> None:
        if not self._ledger.on_disk and self.acks - self._acks_when_tidied >= _MIN_ACKS_TO_TIDY:
            self._acks_when_tidied = self.acks
            self._database.tidy()

    def _try_to_mend(self) -> None:
        try:
            self._mend()
        except PenstockError as error:
            _log.warning("%s stays in doubt about a write that failed: %s", self._name, error)

    def _mend(self) -> None:
        """Find out whether a write that failed has happened, and undo what was not reported as done."""
        with self._lock:
            ledger, database = self._ledger, self._database
            database.reopen()
            totals = database.whole.totals
            if totals.next_id != ledger.next_id:
                strays = database.ids(ledger.next_id)
                totals = totals.without(strays, ledger.next_id)
                database.set_mark_back(totals)  # else it may count them, and they would seem lost
                changes = Changes(totals)
                changes.acked = strays
                database.write(changes)
            ledger.mend(totals.on_disk)
            self._totals = totals
            self._is_in_doubt = False


def unix_milliseconds(now: float) -> int:
    """A time of a clock as it is stored."""
    return min(max(int(now * 1000), 0), LAST_ID)
