"""The ledger of a durable queue: which of the events on disk are ready, and which are in flight.

Every id below `next_id` that is on disk is in exactly one place:

- `in_flight`: taken, neither acked nor given back;
- `_returned`: given back, so ready again; they are all before the cursor;
- `_leaving`: its ack is being written, wherever it was before;
- at or above the cursor: ready, and never taken.

So the smallest ready id is the smallest that was returned, or the first on disk from the cursor on. The bytes of what
comes next from there on are read some at a time, into `_ahead`.

Ids at or above `next_id` do not count: what is there was not synced yet.

Every method is called with the queue's lock held. The lines that move an id from one place to another are written so
that a Ctrl-C cannot come between them: there is no call in them.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence

from penstock.errors import CorruptEvent, PenstockError, StorageError
from penstock.queue.codecs import bad_key
from penstock.queue.damage import shown
from penstock.queue.database import Database, key_of, size_of
from penstock.queue.event import DurableEvent

_MAX_GONE_AHEAD = 1000
_Entry = tuple[bool, bytes | None]  # was it taken? And its bytes, if they are kept


class Ledger:
    """The state of each event. About `window` bytes are read ahead; with `keeps`, events in flight stay in memory.

    `on_skip` is called for each key that is no id when it is passed.
    """

    def __init__(
        self, database: Database, *, window: float, keeps: bool, on_skip: Callable[[CorruptEvent], object]
    ) -> None:
        self.next_id = database.whole.totals.next_id
        self.on_disk = database.whole.totals.on_disk
        self.in_flight: dict[int, bytes | None] = {}
        self._database = database
        self._window = window
        self._keeps = keeps
        self._on_skip = on_skip
        self._bad_keys = deque(database.whole.inventory.bad_keys)  # no ids, and not passed yet
        self._returned: dict[int, bytes | None] = {}
        self._returned_order: list[int] = []  # a heap; ids that are not in `_returned` any more are passed over
        self._leaving: dict[int, _Entry] = {}
        self._leaving_again: dict[int, int] = {}  # how many more calls ack the same id at the same time
        self._doubted = set[int]()  # their ack failed, and may have happened all the same
        self._cursor = 0
        self._ahead = deque[tuple[int, bytes]]()
        self._ahead_bytes = 0
        self._scanned = 0  # where to read on: what is ready between the cursor and here is ahead
        self._gone_ahead = set[int]()  # ahead, and acked since it was read

    @property
    def ready(self) -> int:
        """How many events are on disk, not taken, and not about to leave."""
        return self.on_disk - len(self.in_flight) - len(self._leaving)

    def take_many(self, events: list[DurableEvent[bytes]], max_events: int, max_bytes: float, size: int) -> int:
        """Fill `events`, which have `size` bytes, with ready ones; return how many bytes they have then.

        It stops before passing `max_bytes`, but not before the first event. One that cannot be read does not hold up
        those before it: the next call meets it again. An event is in the list before it is in flight: so a caller that
        is interrupted can give back what is in the list.
        """
        while len(events) < max_events:
            try:
                found = self.first()
                if self._bad_keys:
                    self.pass_bad_keys(found, skip=True)
            except PenstockError:
                if not events:
                    raise
                break
            if found is None or (events and size + len(found[1]) > max_bytes):
                break
            events.append(DurableEvent(*found))
            self.take(found[0])
            size += len(found[1])
        return size

    def first(self) -> tuple[int, bytes] | None:
        """The ready event with the smallest id, and its bytes. It is not taken."""
        order = self._returned_order
        while order:
            if order[0] in self._returned:
                data = self._returned[order[0]]
                return order[0], self._read(order[0]) if data is None else data
            heapq.heappop(order)
        while self._ahead or self._scanned < self.next_id:
            if not self._ahead:
                self._read_on()
                continue
            event = self._ahead[0]
            if event[0] >= self._cursor and event[0] not in self._leaving and event[0] not in self._gone_ahead:
                return event
            self._ahead_bytes -= size_of(event[1])
            self._gone_ahead.discard(event[0])
            self._ahead.popleft()
        return None

    def pass_bad_keys(self, found: tuple[int, bytes] | None, *, skip: bool) -> None:
        """Pass the keys that are no ids and come before an event, or all if it is None.

        Raises `CorruptEvent` for the first of them unless `skip`.
        """
        while self._bad_keys and (found is None or self._bad_keys[0] < key_of(found[0])):
            corrupt = bad_key(self._database.path, self._bad_keys[0])
            if not skip:
                raise corrupt
            self._bad_keys.popleft()
            self._on_skip(corrupt)

    def take(self, identifier: int) -> None:
        """Mark a ready event, which `first` has named, as in flight."""
        if identifier in self._returned:
            self.in_flight[identifier] = self._returned[identifier]
            del self._returned[identifier]
            heapq.heappop(self._returned_order)
            return
        data = self._ahead[0][1]
        self.in_flight[identifier] = data if self._keeps else None
        self._cursor = identifier + 1
        self._ahead_bytes -= size_of(data)
        self._ahead.popleft()

    def give_back(self, identifier: int) -> bool | None:
        """Make an event ready again. False: it was ready; None: it is not on disk, or about to leave."""
        if identifier in self.in_flight:
            heapq.heappush(self._returned_order, identifier)
            self._returned[identifier] = self.in_flight[identifier]
            del self.in_flight[identifier]
            return True
        return False if identifier in self._returned or self._is_to_come(identifier) else None

    def add(self, events: Sequence[bytes]) -> None:
        """Count events that are on disk now, under the ids from `next_id` on."""
        first = self.next_id
        # From here on they are there for others; should this be interrupted, only the count is wrong, and is mended.
        self.next_id = first + len(events)
        self.on_disk += len(events)
        if self._scanned != first:
            return
        for identifier, data in enumerate(events, first):
            if self._ahead_bytes > self._window:
                return
            self._ahead.append((identifier, data))
            self._scanned = identifier + 1
            self._ahead_bytes += size_of(data)

    def leave(self, identifiers: Iterable[int], leaving: list[int]) -> None:
        """Put out of reach what is on disk of these, and add it to `leaving`, first: it is about to be acked."""
        in_flight, entries = self.in_flight, self._leaving
        for identifier in identifiers:
            if identifier not in in_flight and not self._is_known(identifier):
                continue
            leaving.append(identifier)
            if identifier in in_flight:
                entries[identifier] = True, in_flight[identifier]
                del in_flight[identifier]
            elif identifier in self._returned:
                entries[identifier] = False, self._returned[identifier]
                del self._returned[identifier]
            elif identifier in entries:
                self._leaving_again[identifier] = self._leaving_again.get(identifier, 0) + 1
            else:
                entries[identifier] = False, None

    def still_leaving(self, identifiers: Iterable[int]) -> set[int]:
        """Those of these that are still on disk, each once: several calls may ack the same event at the same time."""
        return self._leaving.keys() & set(identifiers)

    def forget(self, identifiers: Iterable[int]) -> int:
        """Count events that are not on disk any more, and return how many there are."""
        before = self.on_disk
        for identifier in identifiers:
            if identifier not in self._leaving:
                continue  # another call has acked it too
            if self._cursor <= identifier < self._scanned:
                self._gone_ahead.add(identifier)
            del self._leaving[identifier]
            self.on_disk -= 1
            if self._leaving_again:
                self._leaving_again.pop(identifier, None)
        if self._gone_ahead:
            self._step_over_gone()
        return before - self.on_disk

    def stay(self, identifiers: Iterable[int]) -> bool:
        """Put events back to where they were: they could not be acked. Return whether any of them is ready again."""
        any_ready = False
        for identifier in identifiers:
            if identifier not in self._leaving:
                continue
            again = self._leaving_again.pop(identifier, 0)
            if again:
                if again > 1:
                    self._leaving_again[identifier] = again - 1
                continue  # another call still acks it
            self._doubted.add(identifier)
            was_taken, data = self._leaving[identifier]
            if was_taken:
                self.in_flight[identifier] = data
            elif identifier < self._cursor:
                heapq.heappush(self._returned_order, identifier)
                self._returned[identifier] = data
            else:
                self._read_again()
            del self._leaving[identifier]
            any_ready = any_ready or not was_taken
        return any_ready

    def oldest(self) -> int | None:
        """The smallest id on disk."""
        places: tuple[Collection[int], ...] = (self.in_flight, self._returned, self._leaving)
        ids = [min(place) for place in places if place]
        to_come = self._database.first_id(self._cursor, self.next_id)
        return min(ids + ([] if to_come is None else [to_come]), default=None)

    def mend(self, on_disk: int) -> None:
        """Put right what a write that failed has left: of events whose ack was begun, some are gone."""
        self.on_disk = on_disk
        self._read_again()
        for identifier in self._doubted.union(self._leaving):
            if not self._database.has(identifier):
                self.in_flight.pop(identifier, None)
                self._returned.pop(identifier, None)
                self._leaving.pop(identifier, None)
        self._doubted.clear()

    def _is_known(self, identifier: int) -> bool:
        return identifier in self._returned or identifier in self._leaving or self._is_to_come(identifier)

    def _is_to_come(self, identifier: int) -> bool:
        within = self._cursor <= identifier < self.next_id
        return within and identifier not in self._leaving and self._database.has(identifier)

    def _read(self, identifier: int) -> bytes:
        data = self._database.get(identifier)
        if data is None:
            path = shown(self._database.path)
            raise StorageError(f"event {identifier} is not on disk in {path}, though no call has acked it")
        return data

    def _step_over_gone(self) -> None:
        """Let the cursor go on over what was acked without having been taken: it is not needed any more."""
        while self._ahead and self._ahead[0][0] in self._gone_ahead:
            identifier, data = self._ahead[0]
            self._cursor = identifier + 1
            self._gone_ahead.discard(identifier)
            self._ahead_bytes -= size_of(data)
            self._ahead.popleft()
        if len(self._gone_ahead) > _MAX_GONE_AHEAD and 2 * len(self._gone_ahead) > len(self._ahead):
            self._read_again()  # the oldest is still there, and much behind it is not

    def _read_on(self) -> None:
        """Fill `_ahead`, which is empty: so nothing is ready between the cursor and `_scanned`."""
        self._cursor = max(self._cursor, self._scanned)
        self._ahead_bytes = 0
        self._gone_ahead.clear()
        events, scanned, size = self._database.scan(self._cursor, self.next_id, self._window)
        self._ahead = events
        self._scanned = scanned
        self._ahead_bytes = size

    def _read_again(self) -> None:
        """Forget what was read ahead: it is not all that is ready there."""
        self._scanned = self._cursor
        self._ahead.clear()
        self._gone_ahead.clear()
