"""`BufferReceiver`: a buffer as a source of blocks."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import pyarrow as pa

from penstock.buffer import FLUSH_SIZE_BYTES, BatchDescriptor, ConsumedBatch, Consumer
from penstock.core import Backoff, Closing, check_whole
from penstock.engine.regulation.guard import Lease, MemoryGuard
from penstock.engine.transports.contract import (
    MAX_BLOCK_BYTES,
    Filter,
    Receiver,
    check_limits,
    checked_filters,
    filtered,
)
from penstock.engine.transports.fetch_ahead import Fetch, FetchAhead
from penstock.engine.work_batch import WorkBatch
from penstock.errors import Closed, OutOfOrderAck
from penstock.records import bytes_of, join_records, rows_of_size, size_of
from penstock.storage import ObjectStore

_MAX_BYTES_AHEAD = 256 << 20  # where a receive has no limit
_MAX_ENTRIES_PER_READ = 64
_MAX_FETCHERS = 1000  # each is a thread
# Of the memory limit, for each batch that is being fetched: a batch may be larger than all before it, is in memory
# several times while it is decoded, and is not all that the process holds.
_MEMORY_BYTES_PER_FETCH = 8 * FLUSH_SIZE_BYTES
_FIRST_POLL_SECONDS = 0.01
_LONGEST_POLL_SECONDS = 0.5

_Fetch: TypeAlias = Fetch[BatchDescriptor, ConsumedBatch]


class BufferReceiver(Closing, Receiver):
    """Receives the batches of a buffer, in order. A batch's token is its sequence, its commit `ack_through`.

    Batches are fetched ahead by `fetchers` threads, as far as the limit of a receive in bytes allows. One that is
    larger than a receive's limit is handed out in slices, and only the last carries its token. What is held is leased
    in `guard`, or in that of the engine that runs it. For one thread at a time.

    Given a place and not a `Consumer`, it opens one, and closes it. Raises what `Consumer` raises.
    """

    _instead_in_child = "make a BufferReceiver here, whose consumer takes over the group"

    def __init__(
        self,
        source: Consumer | str | os.PathLike[str] | ObjectStore,
        *,
        filters: Iterable[Filter] = (),
        guard: MemoryGuard | None = None,
        fetchers: int = 4,
    ) -> None:
        super().__init__()
        check_whole("fetchers", fetchers, most=_MAX_FETCHERS)
        self._filters = checked_filters(filters)
        self._owns_consumer = not isinstance(source, Consumer)
        self._consumer = source if isinstance(source, Consumer) else Consumer(source)
        self._guard = guard
        self._has_own_guard = guard is not None
        self._consumer.rewind()  # an earlier reader of it may have received more than it acked
        self._ahead = FetchAhead(
            self._consumer.fetch_descriptor, fetchers, size_of=lambda batch: int(batch.arrow.nbytes)
        )
        self._known = deque[BatchDescriptor]()  # read from the manifest, and not fetched yet
        self._current: tuple[_Fetch, int] | None = None  # a batch in slices, and the row that comes next
        self._handed_out: list[_Fetch] = []  # all of their rows are handed out, and the block is not worked off
        self._joined: Lease | None = None  # what a joined block has beside its payloads
        self._poll = Backoff(_FIRST_POLL_SECONDS, _LONGEST_POLL_SECONDS, jitter=lambda: 1.0)
        self._is_paused = False
        self._has_failed = False
        self._closing = threading.Event()
        self._using = threading.RLock()  # during `recv`, `rewind` and `close`; a commit may come at any time

    @property
    def healthy(self) -> bool:
        """Whether it is open and of this process, and the last receive or commit worked."""
        return not self._is_in_child and not self._is_closed and not self._has_failed

    @property
    def in_hand(self) -> bool:
        """Whether there are records in memory, or on their way there, that `recv` would hand out."""
        return self._current is not None or len(self._ahead) > 0

    def __repr__(self) -> str:
        return f"BufferReceiver({self._consumer!r})"

    def use_guard(self, guard: MemoryGuard) -> None:
        """Lease in this guard from now on, unless one was given to the constructor."""
        if not self._has_own_guard:
            self._guard = guard

    def pause(self) -> None:
        """Fetch nothing ahead, and return unused memory; what was fetched before is still handed out."""
        self._check_process()
        self._is_paused = True
        self._ahead.release_unused_memory()

    def resume(self) -> None:
        """Fetch ahead again."""
        self._is_paused = False

    def recv(self, max_records: int, max_bytes: int | None = None, timeout: float = 0.1) -> WorkBatch:
        """Receive records of one batch or more. Nothing is received only where no entry is left.

        Raises what `Consumer.fetch_descriptor` raises, `Fenced`, and `Closed`; the same entry is tried again then.
        """
        check_limits(max_records, max_bytes, timeout)
        self._check_process()
        with self._using:
            self._check_open()
            self.release_block()
            try:
                parts, tokens = self._gather(max_records, max_bytes, time.monotonic() + timeout)
                batch = WorkBatch(self._join(parts), tokens)
                if self._filters:
                    batch = filtered(batch, self._filters)
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

    def release_block(self) -> None:
        """End the leases of what was handed out: the block is worked off. `recv` does it too."""
        while self._handed_out:
            self._handed_out[-1].release()  # first: after an interrupt between the two lines it is still in the list
            self._handed_out.pop()
        self._joined = None

    def end_run(self) -> None:
        """Release what was fetched ahead; it is fetched again when a next run receives it."""
        with self._using:
            self._known.extendleft(reversed(self._ahead.items()))
            self._ahead.clear()

    def rewind(self) -> None:
        """Let everything that was not committed come again."""
        self._check_process()
        with self._using:
            self._release_everything()
            self._known.clear()
            if not self._is_closed:
                self._consumer.rewind()

    def close(self) -> None:
        """End the threads, release what is held, and close the consumer if it is ours. Again it does nothing."""
        self._check_process()
        is_first = not self._is_closed
        self._is_closed = True
        self._closing.set()  # before the lock is taken: a `recv` that waits notices, and releases it
        with self._using:
            self._release_everything()
            self._ahead.close()
        if is_first and self._owns_consumer:
            self._consumer.close()
        elif is_first:
            with suppress(Closed):
                self._consumer.rewind()  # its next reader gets what was fetched ahead

    def _join(self, parts: list[pa.RecordBatch]) -> pa.RecordBatch | tuple[()]:
        if len(parts) < 2:
            return parts[0] if parts else ()
        joined = join_records(parts)
        self.release_block()  # of batches that were handed out whole: the rows were copied
        beside = joined.nbytes - bytes_of(joined.column("value"))
        self._joined = self._my_guard().lease(beside).__enter__()
        return joined

    def _gather(self, most_rows: int, max_bytes: int | None, until: float) -> tuple[list[pa.RecordBatch], list[int]]:
        most_bytes = MAX_BLOCK_BYTES if max_bytes is None else min(max_bytes, MAX_BLOCK_BYTES)
        max_ahead = min(_MAX_BYTES_AHEAD if max_bytes is None else max_bytes, _MAX_BYTES_AHEAD)
        parts, tokens = list[pa.RecordBatch](), list[int]()
        rows = size = 0
        while rows < most_rows:
            if not self._is_paused or not (parts or tokens):
                self._start_fetches(max_ahead)
            if not self._has_current(until, wait=not parts):
                if parts or tokens or not self._wait_for_entries(until):
                    break
                continue
            fetch, start = self._current  # type: ignore[misc]  # `_has_current` returned True
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
                tokens.append(fetch.item.sequence)
                self._handed_out.append(fetch)
                self._current = None
        return parts, tokens

    def _start_fetches(self, max_bytes: int) -> None:
        """Start as many fetches as may be under way and in memory, but at least one if nothing is in hand."""
        while not self.in_hand or self._can_start(max_bytes):
            if not self._known:
                self._known.extend(self._consumer.next_descriptors(_MAX_ENTRIES_PER_READ))
                if not self._known:
                    return
            self._ahead.start(self._known.popleft(), guard=self._my_guard())

    def _can_start(self, max_bytes: int) -> bool:
        held = 0 if self._current is None else self._current[0].size
        max_under_way = max(1, self._my_guard().limit_bytes // _MEMORY_BYTES_PER_FETCH)
        return not self._is_paused and self._ahead.can_start(max_bytes - held, max_under_way=max_under_way)

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
            return False  # what was gathered before it is handed out; the next receive raises its error
        fetch.result()
        self._current = fetch, 0
        self._ahead.remove_first()
        self._poll.reset()
        return True

    def _wait_for_entries(self, until: float) -> bool:
        """Wait for the next look at the manifest, or until `until`; return whether to look."""
        remaining = until - time.monotonic()
        if remaining <= 0:
            return False
        self._closing.wait(min(self._poll.seconds(), remaining))
        self._check_open()
        return until - time.monotonic() > 0

    def _release_everything(self) -> None:
        self.release_block()
        if self._current is not None:
            self._current[0].release()
            self._current = None
        self._ahead.clear()

    def _is_acked(self, sequence: int) -> bool:
        acked = self._consumer.last_acked_sequence
        return acked is not None and sequence <= acked

    def _my_guard(self) -> MemoryGuard:
        if self._guard is None:
            self._guard = MemoryGuard()
        return self._guard
