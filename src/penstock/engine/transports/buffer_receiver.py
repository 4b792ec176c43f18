"""`BufferReceiver`: a buffer as a source of blocks."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

import pyarrow as pa

from penstock.buffer import BatchDescriptor, Consumer
from penstock.core import check_whole, current, refuse_in_child
from penstock.engine.regulation.guard import Lease, MemoryGuard
from penstock.engine.transports.contract import MOST_BYTES, Filter, Filters, check_limits
from penstock.engine.transports.fetch_ahead import Fetch, FetchAhead
from penstock.engine.work_batch import WorkBatch
from penstock.errors import Closed, OutOfOrderAck
from penstock.records import bytes_of, join_records, rows_of_size, size_of
from penstock.storage import ObjectStore

_AHEAD_BYTES = 256 << 20  # where a receive has no limit
_AT_ONCE = 64  # entries asked for by one read of the manifest
_FIRST_POLL = 0.01
_LONGEST_POLL = 0.5


class BufferReceiver:
    """Receives the batches of a buffer, in order. A batch's token is its sequence, its commit `ack_through`.

    Batches are fetched ahead by `fetchers` threads, as far as the limit of a receive in bytes allows. One that is
    larger than a receive's limit is handed out in slices, and only the last carries its token. What is held is leased
    in `guard`, or in that of the engine that runs it. For one thread at a time.

    Given a place and not a `Consumer`, it opens one, and closes it. Raises what `Consumer` raises.
    """

    def __init__(
        self,
        source: Consumer | str | os.PathLike[str] | ObjectStore,
        *,
        filters: Iterable[Filter] = (),
        guard: MemoryGuard | None = None,
        fetchers: int = 4,
    ) -> None:
        check_whole("fetchers", fetchers)
        self._filters = Filters(filters)
        self._owns_consumer = not isinstance(source, Consumer)
        self._consumer = source if isinstance(source, Consumer) else Consumer(source)
        self._guard = guard
        self._has_own_guard = guard is not None
        self._consumer.rewind()  # whoever read with it before may have left something behind
        self._ahead = FetchAhead(self._consumer.fetch_descriptor, fetchers)
        self._known = deque[BatchDescriptor]()  # handed out to us, and not fetched yet
        self._current: tuple[Fetch, int] | None = None  # a batch in slices, and the row that comes next
        self._handed_out: list[Fetch] = []  # their last rows are with whoever received them
        self._joined: Lease | None = None  # what a joined block has beside its payloads
        self._pause = _FIRST_POLL
        self._is_paused = False
        self._has_failed = False
        self._closed = threading.Event()
        self._home = current.number
        self._using = threading.RLock()  # held by whoever receives, rewinds or closes; a commit may come at any time

    @property
    def healthy(self) -> bool:
        """Whether it is open and of this process, and the last receive or commit worked."""
        return self._home == current.number and not self._closed.is_set() and not self._has_failed

    @property
    def in_hand(self) -> bool:
        """Whether there is something in memory, or on its way there, that `recv` would hand out."""
        return self._current is not None or len(self._ahead) > 0

    def __repr__(self) -> str:
        return f"BufferReceiver({self._consumer!r})"

    def __enter__(self) -> BufferReceiver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def use_guard(self, guard: MemoryGuard) -> None:
        """Lease in this guard from now on, unless one was given when this was made."""
        if not self._has_own_guard:
            self._guard = guard

    def pause(self) -> None:
        """Fetch nothing ahead; what is there is still handed out. Memory that the fetchers do not use is given back."""
        self._check_process()
        self._is_paused = True
        self._ahead.tidy()

    def resume(self) -> None:
        """Fetch ahead again."""
        self._is_paused = False

    def recv(self, max_records: int, max_bytes: int | None = None, timeout: float = 0.1) -> WorkBatch:
        """Receive records of one batch or more. An entry that is known is waited for: nothing means nothing is left.

        Raises what `Consumer.fetch_descriptor` raises, `Fenced`, and `Closed`; the same entry is tried again then.
        """
        check_limits(max_records, max_bytes, timeout)
        self._check_process()
        with self._using:
            self._check_open()
            self.let_go()
            try:
                parts, tokens = self._gather(max_records, max_bytes, time.monotonic() + timeout)
                batch = self._filters.apply(WorkBatch(self._join(parts), tokens))
            except BaseException:
                self._has_failed = True
                self.rewind()
                raise
            self._has_failed = False
            return batch

    def commit(self, tokens: Sequence[Any]) -> None:
        """Ack through the highest of these sequences, durably; one that is acked already is no error.

        Raises what `Consumer.ack_through` raises.
        """
        for token in tokens:
            check_whole("a token", token, 0)
        self._check_process()
        if not tokens or self._is_acked(through := max(tokens)):
            return
        try:
            self._consumer.ack_through(through)
        except OutOfOrderAck:
            if not self._is_acked(through):  # by another thread, a moment ago
                raise
        except BaseException:
            self._has_failed = True
            raise

    def let_go(self) -> None:
        """Give back what is leased for rows that were handed out: they are worked off. `recv` does it too."""
        while self._handed_out:
            self._handed_out[-1].let_go()  # first: should an interrupt come between, it is still in the list
            self._handed_out.pop()
        self._joined = None

    def rewind(self) -> None:
        """Let everything that was not committed come again."""
        self._check_process()
        with self._using:
            self._let_go_of_everything()
            self._known.clear()
            if not self._closed.is_set():
                self._consumer.rewind()

    def close(self) -> None:
        """Stop the threads, let go of what is held, and close the consumer if it is ours. Again it does nothing."""
        self._check_process()
        is_first = not self._closed.is_set()
        self._closed.set()  # before the lock: whoever waits in `recv` notices
        with self._using:
            self._let_go_of_everything()
            self._ahead.close()
        if is_first and self._owns_consumer:
            self._consumer.close()
        elif is_first:
            with suppress(Closed):
                self._consumer.rewind()  # what was fetched ahead is nobody's now

    def _join(self, parts: list[pa.RecordBatch]) -> pa.RecordBatch | tuple[()]:
        if len(parts) < 2:
            return parts[0] if parts else ()
        joined = join_records(parts)
        self.let_go()  # of batches that were handed out whole: there is a copy now
        beside = joined.nbytes - bytes_of(joined.column("value"))
        self._joined = self._my_guard().lease(beside).__enter__()
        return joined

    def _gather(self, most_rows: int, max_bytes: int | None, until: float) -> tuple[list[pa.RecordBatch], list[int]]:
        most_bytes = MOST_BYTES if max_bytes is None else min(max_bytes, MOST_BYTES)
        ahead = min(_AHEAD_BYTES if max_bytes is None else max_bytes, _AHEAD_BYTES)
        parts, tokens = list[pa.RecordBatch](), list[int]()
        rows = size = 0
        while rows < most_rows:
            if not self._is_paused or not (parts or tokens):
                self._top_up(ahead)
            if not self._has_current(until, wait=not parts):
                if parts or tokens or not self._wait_for_entries(until):
                    break
                continue
            fetch, start = self._current  # type: ignore[misc]  # it is there, as was just said
            arrow = fetch.result().arrow
            count = min(rows_of_size(arrow, start, most_bytes - size), most_rows - rows)
            if not count and start < arrow.num_rows:
                if parts:
                    break
                count = 1
            part = arrow.slice(start, count)
            if count:
                parts.append(part)
            rows += count
            size += size_of(part)
            self._current = fetch, start + count
            if start + count == arrow.num_rows:
                tokens.append(fetch.descriptor.sequence)
                self._handed_out.append(fetch)
                self._current = None
        return parts, tokens

    def _top_up(self, most_bytes: int) -> None:
        """Start as many fetches as there is room for."""
        while not self.in_hand or self._has_room(most_bytes):
            if not self._known:
                self._known.extend(self._consumer.next_descriptors(_AT_ONCE))
                if not self._known:
                    return
            self._ahead.start(self._known.popleft(), self._my_guard())

    def _has_room(self, most_bytes: int) -> bool:
        held = 0 if self._current is None else self._current[0].size
        return not self._is_paused and self._ahead.has_room(most_bytes - held, self._my_guard())

    def _has_current(self, until: float, *, wait: bool) -> bool:
        """Make the next batch the current one, if there is one; wait for it, longer than `until` if `wait`."""
        if self._current is not None:
            return True
        fetch = self._ahead.first()
        if fetch is None:
            return False
        if not fetch.wait(None if wait else max(until - time.monotonic(), 0)):
            return False
        self._check_open()
        if fetch.has_failed and not wait:
            return False  # what was gathered before it is good; it fails the next receive
        fetch.result()
        self._current = fetch, 0
        self._ahead.take()
        self._pause = _FIRST_POLL
        return True

    def _wait_for_entries(self, until: float) -> bool:
        """Wait a little, if there is time left; say whether to look again."""
        left = until - time.monotonic()
        if left <= 0:
            return False
        self._closed.wait(min(self._pause, left))
        self._pause = min(2 * self._pause, _LONGEST_POLL)
        self._check_open()
        return until - time.monotonic() > 0

    def _let_go_of_everything(self) -> None:
        self.let_go()
        if self._current is not None:
            self._current[0].let_go()
            self._current = None
        self._ahead.drop()

    def _is_acked(self, sequence: int) -> bool:
        acked = self._consumer.last_acked_sequence
        return acked is not None and sequence <= acked

    def _my_guard(self) -> MemoryGuard:
        if self._guard is None:
            self._guard = MemoryGuard()
        return self._guard

    def _check_process(self) -> None:
        refuse_in_child(self._home, self, "make a BufferReceiver here, whose consumer takes over the group")

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise Closed(f"{self!r} is closed")
