"""An iterator over the events on disk, which takes none of them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from penstock.errors import CorruptEvent
from penstock.queue.codecs import Codec, bad_key, decoded
from penstock.queue.database import Database, key_of
from penstock.queue.event import DurableEvent

Event = TypeVar("Event")

_MAX_BYTES_PER_READ = 1 << 20


class Walk(Generic[Event]):
    """An iterator over the events before the id `end`. One that cannot be read is raised once, unless it may skip.

    It reads some at a time: one long look at the database would keep the disk space of what is acked meanwhile.
    """

    def __init__(
        self,
        database: Database,
        codec: Codec[Any],
        lock: threading.Lock,
        check: Callable[[], None],
        *,
        end: int,
        bad_keys: Iterable[bytes],
        acks: Callable[[], int],
        on_skip: Callable[[CorruptEvent], None] | None,
    ) -> None:
        self._database = database
        self._codec = codec
        self._lock = lock
        self._check = check
        self._end = end
        self._bad_keys = deque(bad_keys)
        self._acks = acks
        self._acks_then = 0
        self._on_skip = on_skip
        self._read = deque[tuple[int, bytes]]()
        self._position = 0

    def __iter__(self) -> Walk[Event]:
        return self

    def __next__(self) -> DurableEvent[Event]:
        self._check()
        with self._lock:
            self._check()
            while True:
                self._read_on()
                try:
                    return self._step()
                except CorruptEvent as corrupt:
                    if self._on_skip is not None:
                        self._on_skip(corrupt)
                    self._skip()
                    if self._on_skip is None:
                        raise

    def _read_on(self) -> None:
        """Make sure that the first event that was read is still there."""
        while True:
            if not self._read and self._position < self._end:
                self._acks_then = self._acks()
                self._read, self._position, _ = self._database.scan(self._position, self._end, _MAX_BYTES_PER_READ)
            if not self._read or self._acks() == self._acks_then or self._database.has(self._read[0][0]):
                return
            self._read.popleft()

    def _is_at_bad_key(self) -> bool:
        return bool(self._bad_keys) and (not self._read or self._bad_keys[0] < key_of(self._read[0][0]))

    def _step(self) -> DurableEvent[Event]:
        if self._is_at_bad_key():
            raise bad_key(self._database.path, self._bad_keys[0])
        if not self._read:
            raise StopIteration
        identifier, data = self._read[0]
        event = DurableEvent(identifier, decoded(self._codec, identifier, data))
        self._read.popleft()
        return event

    def _skip(self) -> None:
        if self._is_at_bad_key():
            self._bad_keys.popleft()
        else:
            self._read.popleft()
