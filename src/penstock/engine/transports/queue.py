"""`QueueReceiver`: a durable queue as a source of blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

from penstock.core import current, refuse_in_child
from penstock.engine.transports.contract import MOST_BYTES, Filter, Filters, check_limits
from penstock.engine.work_batch import WorkBatch
from penstock.errors import Closed, InvalidInput, UnknownEvent
from penstock.queue import DurableEvent, DurableEventQueue
from penstock.records import values_to_arrow


class QueueReceiver:
    """Takes events from a durable queue that is open in this process. An event's token is its id, its commit an ack.

    A record's value is the event as it lies on disk, whatever the queue's codec. Keys on disk that are no ids are gone
    past, and counted by the queue. `close` gives back what was not committed; the queue stays open.

    Raises `InvalidInput` for what is no durable queue.
    """

    def __init__(self, queue: DurableEventQueue[Any], *, filters: Iterable[Filter] = ()) -> None:
        if not isinstance(queue, DurableEventQueue):
            raise InvalidInput(f"a QueueReceiver takes an open DurableEventQueue, not {type(queue).__name__}")
        self._queue = queue
        self._filters = Filters(filters)
        self._taken: dict[int, None] = {}  # handed out and not committed, in order
        self._taking: list[DurableEvent[bytes]] = []  # by the receive under way, or one that was interrupted
        self._is_closed = False
        self._home = current.number

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

    def __enter__(self) -> QueueReceiver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def recv(self, max_records: int, max_bytes: int | None = None, timeout: float = 0.1) -> WorkBatch:
        """Take events, and wait for the first of them. Raises what the queue's `poll` raises."""
        check_limits(max_records, max_bytes, timeout)
        self._check_process()
        if self._is_closed:
            raise Closed(f"{self!r} is closed")
        most = MOST_BYTES if max_bytes is None else min(max_bytes, MOST_BYTES)
        try:
            self._taking = taking = list[DurableEvent[bytes]]()
            if not self._queue.poll_bytes(max_records, most, timeout, into=taking):
                return WorkBatch(())
            ids = [event.id for event in taking]
            batch = self._filters.apply(WorkBatch(values_to_arrow([event.event for event in taking]), ids))
            self._taken.update(dict.fromkeys(ids))
        except BaseException:
            self._give_back_taking()
            raise
        self._taking = []
        return batch

    def commit(self, tokens: Sequence[int]) -> None:
        """Ack events, in one write. Raises what the queue's `ack_many` raises: they are not acked then."""
        tokens = list(tokens)
        self._check_process()
        self._queue.ack_many(tokens)
        for token in tokens:
            self._taken.pop(token, None)

    def rewind(self) -> None:
        """Give back everything that was not committed: it comes again, in the order of its ids."""
        self._check_process()
        self._give_back_taking()
        self._give_back(self._taken)
        self._taken = {}

    def close(self) -> None:
        """Give back everything that was not committed. The queue stays open. A second `close` does nothing."""
        self._check_process()
        self._is_closed = True
        with suppress(Closed):  # its next opening gives back everything
            self.rewind()

    def _check_process(self) -> None:
        refuse_in_child(self._home, self, "its queue is open in that process alone")

    def _give_back_taking(self) -> None:
        self._give_back([event.id for event in self._taking])
        self._taking = []

    def _give_back(self, ids: Iterable[int]) -> None:
        for identifier in ids:
            with suppress(UnknownEvent):  # somebody acked it
                self._queue.nack(identifier)
