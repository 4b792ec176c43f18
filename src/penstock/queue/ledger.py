"""The ledger of a durable queue: which of the events on disk are ready, and which are taken.

Every id below `next_id` that is on disk is in exactly one place:

- `in_flight`: taken, neither acked nor given back;
- `returned`: given back, so ready again;
- `leaving`: its ack is being written;
- `ahead`: ready, and its bytes were read already;
- at or above `scanned`: ready, and not looked at yet.

Ids at or above `next_id` are nobody's business: what is there was not synced yet.

Every method is called with the queue's lock held. The lines that move an id from one place to another are written so
that a Ctrl-C cannot come between them: there is no call in them.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from penstock.queue.database import Database


@dataclass(slots=True)
class _Leaving:
    was_taken: bool
    data: bytes | None
    acks: int = 1  # how many calls are at it


class Ledger:
    """Who has which event. `window` is how many bytes may be ahead; `keeps` says that what is taken stays in memory."""

    def __init__(self, database: Database, next_id: int, on_disk: int, *, window: float, keeps: bool) -> None:
        self.next_id = next_id
        self.on_disk = on_disk
        self.in_flight: dict[int, bytes | None] = {}
        self._database = database
        self._window = window
        self._keeps = keeps
        self._returned: dict[int, bytes | None] = {}
        self._returned_order: list[int] = []  # a heap; ids that are not in `_returned` any more are passed over
        self._leaving: dict[int, _Leaving] = {}
        self._ahead = OrderedDict[int, bytes]()
        self._ahead_bytes = 0
        self._scanned = 0

    @property
    def ready(self) -> int:
        """How many events are on disk, not taken, and not about to leave."""
        return self.on_disk - len(self.in_flight) - len(self._leaving)

    def first(self) -> tuple[int, bytes | None] | None:
        """The ready event with the smallest id, with its bytes if they are in memory."""
        returned = self._first_returned()
        if returned is None:  # whatever was returned comes before what was never looked at
            while not self._ahead and self._scanned < self.next_id:
                self._look_ahead()
        if self._ahead:
            ahead = next(iter(self._ahead))
            if returned is None or ahead < returned:
                return ahead, self._ahead[ahead]
        return None if returned is None else (returned, self._returned[returned])

    def take(self, identifier: int) -> None:
        """Mark a ready event, which `first` has named, as in flight."""
        if identifier in self._returned:
            self.in_flight[identifier] = self._returned[identifier]
            del self._returned[identifier]
            return
        data = self._ahead[identifier]
        size = len(data)
        self.in_flight[identifier] = data if self._keeps else None
        del self._ahead[identifier]
        self._ahead_bytes -= size

    def give_back(self, identifier: int) -> bool | None:
        """Make an event ready again. False: it was ready; None: it is not on disk, or about to leave."""
        if identifier in self.in_flight:
            heapq.heappush(self._returned_order, identifier)
            self._returned[identifier] = self.in_flight[identifier]
            del self.in_flight[identifier]
            return True
        return False if self._is_ready(identifier) else None

    def add(self, events: Sequence[bytes]) -> None:
        """Count events that are on disk now, under the ids from `next_id` on."""
        first, count = self.next_id, len(events)
        is_followed = self._scanned == first
        # From here on they are there for others; should this be interrupted, only the count is wrong, and is mended.
        self.next_id += count
        self.on_disk += count
        if is_followed:
            self._put_ahead(enumerate(events, first))

    def leave(self, identifiers: Iterable[int]) -> list[int]:
        """Put out of reach what is on disk of these, and return it: it is about to be acked."""
        leaving = []
        for identifier in dict.fromkeys(identifiers):
            if identifier in self._leaving:
                self._leaving[identifier].acks += 1
            elif identifier in self.in_flight:
                entry = _Leaving(True, self.in_flight[identifier])
                self._leaving[identifier] = entry
                del self.in_flight[identifier]
            elif identifier in self._returned:
                entry = _Leaving(False, self._returned[identifier])
                self._leaving[identifier] = entry
                del self._returned[identifier]
            elif identifier in self._ahead:
                data = self._ahead[identifier]
                size, entry = len(data), _Leaving(False, data if self._keeps else None)
                self._leaving[identifier] = entry
                del self._ahead[identifier]
                self._ahead_bytes -= size
            elif self._is_ready(identifier):
                self._leaving[identifier] = _Leaving(False, None)
            else:
                continue
            leaving.append(identifier)
        return leaving

    def forget(self, identifiers: Iterable[int]) -> None:
        """Count events that are not on disk any more."""
        for identifier in identifiers:
            if identifier in self._leaving:
                del self._leaving[identifier]
                self.on_disk -= 1

    def stay(self, identifiers: Iterable[int]) -> bool:
        """Put events back to where they were: they could not be acked. Say whether any of them is ready again."""
        any_ready = False
        for identifier in identifiers:
            entry = self._leaving.get(identifier)
            if entry is None:
                continue
            entry.acks -= 1
            if entry.acks:
                continue  # another call is still at it
            if entry.was_taken:
                self.in_flight[identifier] = entry.data
                del self._leaving[identifier]
                continue
            any_ready = True
            if identifier < self._scanned:
                heapq.heappush(self._returned_order, identifier)
                self._returned[identifier] = entry.data
            del self._leaving[identifier]
        return any_ready

    def oldest(self) -> int | None:
        """The smallest id on disk."""
        places: tuple[Collection[int], ...] = (self.in_flight, self._returned, self._leaving)
        ids = [min(place) for place in places if place]
        ids += islice(self._ahead, 1)
        if not self._ahead:
            beyond = self._database.first_id(self._scanned, self.next_id)
            ids += [] if beyond is None else [beyond]
        return min(ids, default=None)

    def mend(self, on_disk: int) -> None:
        """Put right what a write that failed has left: events whose ack was not finished are gone, or stay."""
        self.on_disk = on_disk
        for identifier in [one for one in self._leaving if not self._database.has(one)]:
            del self._leaving[identifier]

    def _is_ready(self, identifier: int) -> bool:
        if identifier in self._ahead or identifier in self._returned:
            return True
        beyond = self._scanned <= identifier < self.next_id and identifier not in self._leaving
        return beyond and self._database.has(identifier)

    def _first_returned(self) -> int | None:
        order = self._returned_order
        while order:
            if order[0] in self._returned:
                return order[0]
            heapq.heappop(order)
        return None

    def _look_ahead(self) -> None:
        events, scanned = self._database.scan(self._scanned, self.next_id, self._window)
        self._put_ahead(events)
        self._scanned = scanned

    def _put_ahead(self, events: Iterable[tuple[int, bytes]]) -> None:
        """Keep the bytes of events, from `scanned` on, up to the window's size."""
        if not self._ahead:
            self._ahead_bytes = 0
        for identifier, data in events:
            if self._ahead_bytes > self._window:
                return
            self._ahead_bytes += len(data)
            if identifier in self._leaving:
                continue
            self._scanned = identifier + 1
            self._ahead[identifier] = data
