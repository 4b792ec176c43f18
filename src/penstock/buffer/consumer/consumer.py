"""`Consumer`: walks the queue in order under an epoch of its own, and acks."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from types import TracebackType
from uuid import UUID

from penstock.buffer.collector.collector import CollectorThread, GarbageCollector
from penstock.buffer.config import ConsumerConfig
from penstock.buffer.consumer.fetching import ConsumedBatch, FetchHandle
from penstock.buffer.descriptors import BatchDescriptor
from penstock.buffer.manifest.queue import BufferQueue, QueueView
from penstock.buffer.manifest.state import Waiting
from penstock.buffer.measures import Measures, label_of
from penstock.core import Closing, check_config, check_seconds, check_whole, get_logger
from penstock.errors import Closed, Fenced, NotFound, OutOfOrderAck
from penstock.storage import ObjectStore, open_store, url_of

_ACKS_PER_WRITE = 100
_FIRST_POLL_SECONDS = 0.01
_LONGEST_POLL_SECONDS = 0.5

_log = get_logger(__name__)


class Consumer(Closing):
    """Reads a buffer in order, for a group of readers. Making one fences the one before it, in that group.

    Its epoch belongs to the process that opened it: a forked child makes a consumer of its own, or uses
    `fetch_handle()`.

    With `last_acked_sequence=n` everything through n is dequeued, and reading starts at n+1. An n that was never
    enqueued, or a first kept entry beyond n+1, raises `InvalidInput`, and fences no consumer; `allow_gap=True` goes on.

    >>> from penstock.buffer import Producer
    >>> with Producer("memory://doctest-consumer") as producer:
    ...     _ = producer.produce(["hello", "world"])
    >>> with Consumer("memory://doctest-consumer") as consumer:
    ...     for batch in consumer:
    ...         print(batch.sequence, batch.entries)
    ...         batch.ack()
    0 [b'hello', b'world']
    """

    _instead_in_child = "make a Consumer here, which takes over the group"

    def __init__(
        self,
        where: str | os.PathLike[str] | ObjectStore,
        config: ConsumerConfig | None = None,
        last_acked_sequence: int | None = None,
        *,
        allow_gap: bool = False,
        clock: Callable[[], float] = time.time,
        uptime: Callable[[], float] = time.monotonic,
        queue: BufferQueue | None = None,
    ) -> None:
        super().__init__()
        config = ConsumerConfig() if config is None else config
        check_config(config, ConsumerConfig)
        if last_acked_sequence is not None:
            check_whole("last_acked_sequence", last_acked_sequence, 0)
        self._store = open_store(where)
        self._queue = queue or BufferQueue.of(self._store, config, "consumer", group=config.group, clock=clock)
        self._config = config
        self._clock = clock
        self._uptime = uptime
        label = label_of(self._store, config.manifest_path)
        self._measures = Measures(label)
        self._handle = FetchHandle(self._store, max_batch_bytes=config.max_batch_bytes, label=label)
        self._reading = threading.RLock()  # held while an entry is fetched and handed out
        self._lock = threading.RLock()  # held for the cursors and for writes; acquired inside the one above
        self._closed = threading.Event()  # set when it is closed: ends the waits of `follow`

        self._acked = -1 if last_acked_sequence is None else last_acked_sequence  # -1, here and below: nothing so far
        self._fetched = self._handed_out = self._acked
        self._cursor = self._acked  # reading goes on after it; a rewind sets it to the last ack
        self._first_handed_out: int | None = None
        self._acks_since_write = 0
        self._view: QueueView = self._queue.claim(config.start, last_acked_sequence, allow_gap=allow_gap)
        self._epoch = self._view.epoch
        self._collector: CollectorThread | None = None
        if config.gc:
            collector = GarbageCollector(self._store, config, clock=clock, queue=self._queue)
            self._collector = CollectorThread(collector, config.gc_interval)

    @cached_property
    def buffer_id(self) -> UUID:
        """The id of this buffer, wherever its objects are: a sequence of one buffer means nothing in another.

        Raises `StorageError`, and `InvalidInput` if the buffer was deleted since.
        """
        found = self._queue.identify(create=True)
        assert found is not None  # noqa: S101  it was created
        return found

    @property
    def last_acked_sequence(self) -> int | None:
        """The last sequence that was acked; None before the first."""
        return None if self._acked < 0 else self._acked

    @property
    def last_fetched_sequence(self) -> int | None:
        """The highest sequence that `next_batch` or `fetch_descriptor` fetched."""
        return None if self._fetched < 0 else self._fetched

    @property
    def last_handed_out_sequence(self) -> int | None:
        """The last sequence that was handed out, as a batch or a descriptor: reading goes on after it."""
        return None if self._cursor < 0 else self._cursor

    @property
    def first_sequence(self) -> int:
        """The first sequence that is not acked durably, as of the last manifest read or write."""
        return self._view.first_sequence

    @property
    def next_sequence(self) -> int:
        """The sequence that the next entry will get, as of the last manifest read or write."""
        return self._view.next_sequence

    def waiting_from(self, sequence: int) -> Waiting:
        """What lies from a sequence on, as of the last manifest read or write."""
        return self._view.waiting_from(sequence)

    @property
    def is_empty(self) -> bool:
        """Whether the queue was empty when its manifest was read or written last."""
        return len(self) == 0

    @property
    def conflict_rate(self) -> float:
        """Percent of this consumer's manifest writes that lost a compare-and-set."""
        return self._queue.conflict_rate

    def __len__(self) -> int:
        return self._view.next_sequence - self._view.first_sequence

    def __bool__(self) -> bool:
        return True  # also of an empty queue, whose `len` is 0

    def __repr__(self) -> str:
        return f"Consumer({url_of(self._store)}, epoch={self._epoch})"

    def next_batch(self) -> ConsumedBatch | None:
        """Fetch and decode the next entry; None where there is none yet. Reading ahead of acks is normal.

        The cursor moves only after the fetch succeeded: after an error or an interrupt the same entry is read again.
        Raises `Fenced`, `NotFound` where the entry's object is gone, `CorruptData`, or `StorageError`.
        """
        self._check_process()
        with self._reading:
            before = self._reading_cursors()
            try:
                return self._next_batch()
            except BaseException:
                self._set_reading_cursors(before)
                raise

    def next_descriptors(self, max: int) -> list[BatchDescriptor]:  # noqa: A002  the name is part of the contract
        """Hand out up to `max` entries, without their data, by one read of the manifest. None is handed out twice."""
        check_whole("max", max, 0)
        self._check_process()
        self._check_open()
        if not max:
            return []
        with self._reading:
            before = self._reading_cursors()
            try:
                entries = self._after_cursor(max)
                self._measures.descriptors_handed_out.inc(len(entries))
                self._hand_out(entries)
            except BaseException:
                self._set_reading_cursors(before)
                raise
            return entries

    def fetch_handle(self) -> FetchHandle:
        """A handle that fetches descriptors anywhere: stateless, picklable, safe to share between threads."""
        return self._handle

    def fetch_descriptor(self, descriptor: BatchDescriptor) -> ConsumedBatch:
        """Fetch a descriptor's batch, and note it for the lag metric and `last_fetched_sequence`.

        Raises what `FetchHandle.fetch` raises, and `Fenced` where the object is gone because of a newer consumer.
        """
        self._check_process()
        self._check_open()
        try:
            batch = self._handle.fetch_for(descriptor, self.ack_through)
        except NotFound as error:
            if self._is_referenced(descriptor):
                raise
            raise NotFound(f"{error}; it is not in the queue any more either: it was acked") from error
        with self._lock:
            self._note_fetched(batch)
        return batch

    def ack(self, sequence: int) -> None:
        """Ack the next entry: after n comes n+1, and the first is the first that was handed out.

        The manifest is written every 100 acks. If that write fails, the ack counts in memory, the error is raised, and
        the next `ack` or `flush` writes again. Raises `OutOfOrderAck` naming both sequences, and `Fenced`.
        """
        check_whole("sequence", sequence, 0)
        self._check_process()
        with self._lock:
            self._check_open()
            due = self._next_to_ack()
            if sequence != due or sequence > self._handed_out:
                raise self._out_of_order("ack of", sequence, due)
            self._acked = sequence
            self._acks_since_write += 1
            self._measures.acks.inc()
            if self._acks_since_write >= _ACKS_PER_WRITE:
                self._dequeue(sequence)

    def ack_through(self, sequence: int) -> None:
        """Ack everything up to a sequence, durably: it is dequeued before any cursor moves.

        Raises `OutOfOrderAck` for what is acked already or was not handed out. `Fenced` or a `StorageError` leaves
        every cursor as it was, and the same call can be tried again.
        """
        check_whole("sequence", sequence, 0)
        self._check_process()
        with self._lock:
            self._check_open()
            due = self._next_to_ack()
            if due is None or not due <= sequence <= self._handed_out:
                raise self._out_of_order("ack through", sequence, due)
            self._dequeue(sequence)
            self._measures.acks.inc(sequence - due + 1)
            self._acked = sequence

    def rewind(self) -> None:
        """Hand out again, from the next call on, everything that was handed out and not acked."""
        self._check_process()
        with self._reading, self._lock:
            self._check_open()
            self._cursor = self._acked

    def flush(self) -> None:
        """Dequeue through the last ack. It always reads the manifest, and so notices a fence. Raises `Fenced`."""
        self._check_process()
        with self._lock:
            self._check_open()
            self._flush()

    def close(self) -> None:
        """Stop the collector, then flush. A fence is logged, not raised; a second `close` does nothing.

        An error of the store is raised, unless that would hide an exception in flight: then it is logged. At the end a
        cycle of the collector is run if it is due, for at most `gc_at_close` seconds; its errors are logged.
        """
        self._close(sys.exc_info()[1])

    def collect_if_due(self) -> None:
        """Run a cycle of the collector if it is due, for at most `gc_at_close` seconds. Errors are logged.

        `close` does it too. This is for a process that ends without one.
        """
        if self._collector is not None:
            self._collector.collect_at_end(self._config.gc_at_close)

    def follow(self, timeout: float | None = None) -> Iterator[ConsumedBatch]:
        """Yield batches as they come. Ends when none came for `timeout` seconds (None: never), or after `close`."""
        if timeout is not None and timeout != float("inf"):
            check_seconds("timeout", timeout, zero=True)
        until = self._until(timeout)
        pause = _FIRST_POLL_SECONDS
        while not self._closed.is_set():
            try:
                batch = self.next_batch()
            except Closed:
                return
            if batch is not None:
                yield batch
                until, pause = self._until(timeout), _FIRST_POLL_SECONDS
                continue
            remaining = until - self._uptime()
            if remaining <= 0:
                return
            self._closed.wait(min(pause, remaining))
            pause = min(2 * pause, _LONGEST_POLL_SECONDS)

    def __iter__(self) -> Iterator[ConsumedBatch]:
        """Drain what is there."""
        while (batch := self.next_batch()) is not None:
            yield batch

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._close(error)

    def _close(self, in_flight: BaseException | None) -> None:
        if self._is_in_child and in_flight is not None:
            return  # there is nothing to close in this process, and the exception in flight must not be hidden
        self._check_process()
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._closed.set()
        if self._collector is not None:
            self._collector.stop()
        try:
            with self._lock:
                self._flush()
        except Fenced as error:
            _log.warning(
                "closing %r: %s; acks since its last write are lost, and their batches are delivered again", self, error
            )
        except Exception:
            if in_flight is None:
                raise
            _log.exception("closing %r failed too", self)
        else:
            if not isinstance(in_flight, KeyboardInterrupt):  # a user who interrupts does not want to wait
                self.collect_if_due()

    def _next_batch(self) -> ConsumedBatch | None:
        while entries := self._after_cursor(1):
            try:
                batch = self._handle.fetch_for(entries[0], self.ack_through)
            except NotFound:
                if self._is_referenced(entries[0]):
                    raise
                continue  # acked in the meantime
            with self._lock:
                self._note_fetched(batch)
                self._hand_out(entries)
                return batch
        return None

    def _reading_cursors(self) -> tuple[int, int, int | None, int]:
        return self._cursor, self._handed_out, self._first_handed_out, self._fetched

    def _set_reading_cursors(self, cursors: tuple[int, int, int | None, int]) -> None:
        # An interrupt may come after a cursor has moved and before its entry has reached the caller.
        self._cursor, self._handed_out, self._first_handed_out, self._fetched = cursors

    def _after_cursor(self, most: int) -> list[BatchDescriptor]:
        self._check_open()
        view = self._read()
        while True:
            start = max(self._cursor + 1, view.first_sequence)
            try:
                return view.entries(start, start + most)
            except NotFound:
                # A segment was acked and collected since the head was read, unless the head is still the same.
                before, view = view, self._read(fresh=True)
                if view.version == before.version:
                    raise

    def _hand_out(self, entries: list[BatchDescriptor]) -> None:
        if entries:
            if self._first_handed_out is None:
                self._first_handed_out = entries[0].sequence
            self._cursor = entries[-1].sequence
            self._handed_out = max(self._handed_out, self._cursor)

    def _note_fetched(self, batch: ConsumedBatch) -> None:
        if batch.metadata:
            lag = self._clock() - batch.metadata[-1].ingestion_time_ms / 1000
            self._measures.consumer_lag.set(max(lag, 0.0))
        self._fetched = max(self._fetched, batch.sequence)

    def _is_referenced(self, descriptor: BatchDescriptor) -> bool:
        """Whether the queue still has an entry, by a fresh read. Raises `Fenced`."""
        view = self._read(fresh=True)
        kept = view.entries(descriptor.sequence, descriptor.sequence + 1)
        return [entry.location for entry in kept] == [descriptor.location]

    def _next_to_ack(self) -> int | None:
        """The sequence after the last ack, or else the first that was handed out; None before there is one."""
        return None if self._first_handed_out is None else max(self._acked + 1, self._first_handed_out)

    def _out_of_order(self, what: str, sequence: int, due: int | None) -> OutOfOrderAck:
        if due is not None:
            return OutOfOrderAck(f"{what} {sequence}: {due} is due, and the last handed out is {self._handed_out}")
        acked = "" if self._acked < 0 else f", and {self._acked} was the last ack"
        return OutOfOrderAck(f"{what} {sequence}: nothing was handed out yet{acked}")

    def _read(self, *, fresh: bool = False) -> QueueView:
        self._view = view = self._queue.read(self._epoch, fresh=fresh)
        return view

    def _dequeue(self, through: int) -> None:
        self._view = self._queue.dequeue(self._epoch, through)
        self._acks_since_write = 0

    def _flush(self) -> None:
        if self._acked < 0:
            self._read()
        else:
            self._dequeue(self._acked)

    def _until(self, timeout: float | None) -> float:
        return float("inf") if timeout is None else self._uptime() + timeout
