"""`MemoryTransport`: a receiver and a sender in this process, for tests and for small pipelines."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

from penstock.core import Closing, Waiters
from penstock.engine.transports.contract import Filter, Receiver, check_limits, checked_filters, filtered
from penstock.engine.work_batch import WorkBatch
from penstock.errors import InvalidInput
from penstock.records import Record


class MemoryTransport(Closing, Receiver):
    """Hands out what was injected or sent, in order. A record's token is its sequence, from 0.

    A commit is a watermark: the highest sequence that was committed. What lies above it is kept, and comes again after
    `rewind`. Safe to share between threads, but not with a forked child: its records are copies.

    >>> transport = MemoryTransport()
    >>> transport.inject(b"hello")
    0
    >>> batch = transport.recv(10)
    >>> batch.records[0].value, batch.commit_tokens
    (b'hello', (0,))
    >>> transport.commit(batch.commit_tokens)
    >>> transport.committed_sequence
    0
    """

    _instead_in_child = "make a MemoryTransport here"

    def __init__(self, *, filters: Iterable[Filter] = ()) -> None:
        super().__init__()
        self._filters = checked_filters(filters)
        self._lock = threading.Lock()
        self._ready = Waiters(self._lock)
        self._records = list[Record]()  # from the sequence `_base` on
        self._base = 0
        self._first = 0  # the first sequence above the watermark
        self._next = 0  # the sequence that recv hands out next
        self._end_handed_out = 0

    @property
    def committed_sequence(self) -> int | None:
        """The highest sequence that was committed; None before the first."""
        return self._first - 1 if self._first else None

    @property
    def healthy(self) -> bool:
        """Whether it is open, and of this process."""
        return not self._is_closed and not self._is_in_child

    def __repr__(self) -> str:
        return f"MemoryTransport({self._base + len(self._records) - self._first} not committed)"

    def inject(self, payload: bytes, key: bytes | None = None) -> int:
        """Add a record, and return its sequence. Raises `Closed` after `close`."""
        return self._add([Record(payload, key)])

    def send(self, records: WorkBatch | Iterable[Record]) -> None:
        """Add records, or those of a batch. Raises `Closed` after `close`."""
        batch = records if isinstance(records, WorkBatch) else WorkBatch(records)
        self._add(batch.records)

    def recv(self, max_records: int, max_bytes: int | None = None, timeout: float = 0.1) -> WorkBatch:
        """Receive the next records, and wait for the first of them. Raises `Closed` after `close`."""
        check_limits(max_records, max_bytes, timeout)
        self._check_process()
        received = WorkBatch(())

        def has_some() -> bool:
            nonlocal received
            self._check_open()
            start, size = self._next - self._base, 0
            end = start
            while end < len(self._records) and end - start < max_records:
                size += len(self._records[end].value)
                if end > start and max_bytes is not None and size > max_bytes:
                    break
                end += 1
            records = self._records[start:end]
            received = WorkBatch(records, range(self._next, self._next + len(records)))
            self._next += len(records)
            self._end_handed_out = max(self._end_handed_out, self._next)
            return bool(records)

        self._ready.wait(has_some, timeout)
        try:
            return filtered(received, self._filters) if self._filters else received
        except BaseException:
            self._go_back_to(min(received.commit_tokens, default=self._next))
            raise

    def commit(self, tokens: Sequence[Any]) -> None:
        """Move the watermark up to the highest of these; it never moves down.

        Raises `InvalidInput` for a sequence that was not handed out.
        """
        tokens = tuple(tokens)
        self._check_process()
        with self._lock:
            self._check_open()
            for token in tokens:
                if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < self._end_handed_out:
                    raise InvalidInput(f"commit of {token!r}: {self._end_handed_out} records were handed out")
            self._first = max(self._first, max(tokens, default=-1) + 1)
            self._next = max(self._next, self._first)
            # Not at each commit: deleting from the front moves all records behind it.
            if (committed := self._first - self._base) * 2 >= len(self._records):
                del self._records[:committed]
                self._base = self._first

    def rewind(self) -> None:
        """Let everything that was not committed come again."""
        self._go_back_to(self._first)

    def close(self) -> None:
        """Refuse everything from now on; a waiting `recv` raises `Closed`. In a forked child it does nothing."""
        if self._is_in_child:
            return
        with self._lock:
            self._is_closed = True
            self._ready.wake_all()

    def _add(self, records: list[Record]) -> int:
        self._check_process()
        with self._lock:
            self._check_open()
            first = self._base + len(self._records)
            self._records.extend(records)
            self._ready.wake_all()
            return first

    def _go_back_to(self, sequence: int) -> None:
        self._check_process()
        with self._lock:
            self._next = max(min(self._next, sequence), self._first)
            self._ready.wake_all()
