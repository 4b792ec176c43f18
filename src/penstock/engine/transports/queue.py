"""`QueueReceiver`: a durable queue as a source of blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from penstock.core import Closing
from penstock.engine.transports.contract import (
    MAX_BLOCK_BYTES,
    Filter,
    Receiver,
    check_limits,
    checked_filters,
    filtered,
)
from penstock.engine.work_batch import WorkBatch
from penstock.errors import Closed, InvalidInput, UnknownEvent
from penstock.queue import DurableEvent, DurableEventQueue
from penstock.records import VALUES_SCHEMA


class QueueReceiver(Closing, Receiver):
    """Receives the events of a durable queue that is open in this process. A token is an event's id, a commit its ack.

    A record's value is the event as it lies on disk, whatever the queue's codec. Keys on disk that are no ids are
    skipped, and counted by the queue. `close` returns what was not committed to the queue, which stays open.

    Raises `InvalidInput` for what is no durable queue.
    """

    _instead_in_child = "its queue is open in that process alone"

    def __init__(self, queue: DurableEventQueue[Any], *, filters: Iterable[Filter] = ()) -> None:
        if not isinstance(queue, DurableEventQueue):
            raise InvalidInput(f"a QueueReceiver takes an open DurableEventQueue, not {type(queue).__name__}")
        super().__init__()
        self._queue = queue
        self._filters = checked_filters(filters)
        self._uncommitted: dict[int, None] = {}  # ids that were handed out, in order
        self._polled: list[DurableEvent[bytes]] = []  # by the receive under way, or by one that was interrupted

    @property
    def healthy(self) -> bool:
        """Whether it and its queue are open."""
        try:
            self._queue.approximate_len()
        except (Closed, InvalidInput):
            return False
        return not self._is_closed

    def __repr__(self) -> str:
        return f"QueueReceiver({self._queue!r})"

    def recv(self, max_records: int, max_bytes: int | None = None, timeout: float = 0.1) -> WorkBatch:
        """Receive events, and wait for the first of them. Raises what the queue's `poll` raises."""
        check_limits(max_records, max_bytes, timeout)
        self._check_process()
        self._check_open()
        most = MAX_BLOCK_BYTES if max_bytes is None else min(max_bytes, MAX_BLOCK_BYTES)
        try:
            self._polled = polled = list[DurableEvent[bytes]]()
            if not self._queue.poll_bytes(max_records, most, timeout, into=polled):
                return WorkBatch(())
            ids = [event.id for event in polled]
            values = pa.array([event.event for event in polled], pa.binary())
            batch = WorkBatch.of_checked(pa.RecordBatch.from_arrays([values], schema=VALUES_SCHEMA), ids)
            if self._filters:
                batch = filtered(batch, self._filters)
            self._uncommitted.update(dict.fromkeys(ids))
        except BaseException:
            self._return_polled()
            raise
        self._polled = []
        return batch

    def commit(self, tokens: Sequence[int]) -> None:
        """Ack events, in one write. Raises what the queue's `ack_many` raises: they are not acked then."""
        tokens = list(tokens)
        self._check_process()
        self._queue.ack_many(tokens)
        for token in tokens:
            self._uncommitted.pop(token, None)

    def rewind(self) -> None:
        """Return everything that was not committed to the queue: it comes again, in the order of its ids."""
        self._check_process()
        self._return_polled()
        self._return(self._uncommitted)
        self._uncommitted = {}

    def close(self) -> None:
        """Return everything that was not committed to the queue, which stays open. A second `close` does nothing."""
        self._check_process()
        self._is_closed = True
        with suppress(Closed):  # the next process that opens the queue gets everything that is not acked
            self.rewind()

    def _return_polled(self) -> None:
        self._return([event.id for event in self._polled])
        self._polled = []

    def _return(self, ids: Iterable[int]) -> None:
        for identifier in ids:
            with suppress(UnknownEvent):  # it was acked, past this receiver
                self._queue.nack(identifier)
