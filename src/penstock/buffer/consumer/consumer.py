"""`Consumer`: walks the queue in order under an epoch of its own, and acks."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import cached_property, partial
from types import TracebackType
from typing import TYPE_CHECKING
from uuid import UUID

from penstock.buffer.collector.collector import CollectorThread, GarbageCollector
from penstock.buffer.config import ConsumerConfig
from penstock.buffer.consumer.cursors import NOTHING, Cursors
from penstock.buffer.consumer.fetching import ConsumedBatch, FetchHandle
from penstock.buffer.consumer.polling import Polls
from penstock.buffer.descriptors import BatchDescriptor
from penstock.buffer.manifest.queue import BufferQueue, QueueView
from penstock.buffer.manifest.state import Waiting
from penstock.buffer.measures import Measures, label_of
from penstock.core import Abandoned, Closing, HandOver, Waiters, check_config, check_whole, get_logger, to_caller
from penstock.errors import Closed, Fenced, NotFound, OutOfOrderAck
from penstock.storage import ObjectStore, open_store, url_of

if TYPE_CHECKING:
    from penstock.core import Threads

_ACKS_PER_WRITE = 100

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
        self._following = Waiters(threading.Lock())  # the coroutines that wait in `follow_async`
        self._cursors = Cursors(NOTHING if last_acked_sequence is None else last_acked_sequence)
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
        return _known(self._cursors.acked)

    @property
    def last_fetched_sequence(self) -> int | None:
        """The highest sequence that `next_batch` or `fetch_descriptor` fetched."""
        return _known(self._cursors.fetched)

    @property
    def last_handed_out_sequence(self) -> int | None:
        """The last sequence that was handed out, as a batch or a descriptor: reading goes on after it."""
        return _known(self._cursors.position)

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
        return self._next_batch(to_caller)

    async def next_batch_async(self) -> ConsumedBatch | None:
        """Do what `next_batch` does, without blocking the loop. Cancelled, the same entry is read again."""
        self._check_process()
        return await self._reader.call(self._next_batch, lambda batch: self._give_back([batch] if batch else []))

    def next_descriptors(self, max: int) -> list[BatchDescriptor]:  # noqa: A002  the name is part of the contract
        """Hand out up to `max` entries, without their data, by one read of the manifest. None is handed out twice."""
        return self._next_descriptors(max, to_caller)

    async def next_descriptors_async(self, max: int) -> list[BatchDescriptor]:  # noqa: A002
        """Do what `next_descriptors` does, without blocking the loop. Cancelled, the same entries come again."""
        self._check_process()
        return await self._reader.call(partial(self._next_descriptors, max), self._give_back)

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
            batch = self._handle.fetch_for(descriptor, self)
        except NotFound as error:
            if self._is_referenced(descriptor):
                raise
            raise NotFound(
                f"{error}; it is not in the queue any more either: it was acked",
                location=descriptor.location,
                sequence=descriptor.sequence,
            ) from error
        with self._lock:
            self._note_fetched(batch)
        return batch

    async def fetch_async(self, descriptor: BatchDescriptor) -> ConsumedBatch:
        """Do what `fetch_descriptor` does, without blocking the loop; several at once are fetched in parallel."""
        return await self._handle.threads.run(self.fetch_descriptor, descriptor)

    fetch_descriptor_async = fetch_async

    def ack(self, sequence: int) -> None:
        """Ack the next entry: after n comes n+1, and the first is the first that was handed out.

        The manifest is written every 100 acks. If that write fails, the ack counts in memory, the error is raised, and
        the next `ack` or `flush` writes again. Raises `OutOfOrderAck` naming both sequences, and `Fenced`.
        """
        self._ack(sequence, to_caller)

    async def ack_async(self, sequence: int) -> None:
        """Do what `ack` does, without blocking the loop. Cancelled, it may be acked: the same call succeeds again."""
        self._check_process()
        await self._acker.call(partial(self._ack, sequence), lambda _: self._cursors.note_unheard_ack(sequence))

    def ack_through(self, sequence: int) -> None:
        """Ack everything up to a sequence, durably: it is dequeued before any cursor moves.

        Raises `OutOfOrderAck` for what is acked already or was not handed out. `Fenced` or a `StorageError` leaves
        every cursor as it was, and the same call can be tried again.
        """
        self._ack_through(sequence, to_caller)

    async def ack_through_async(self, sequence: int) -> None:
        """Do what `ack_through` does, without blocking the loop. Cancelled, the same call can be tried again."""
        self._check_process()
        await self._acker.call(partial(self._ack_through, sequence), lambda _: self._cursors.note_unheard_ack(sequence))

    def rewind(self) -> None:
        """Hand out again, from the next call on, everything that was handed out and not acked."""
        self._check_process()
        with self._reading, self._lock:
            self._check_open()
            self._cursors.rewind()

    async def rewind_async(self) -> None:
        """Do what `rewind` does; it waits for a read or a write under way, without blocking the loop."""
        self._check_process()
        await self._reader.run(self.rewind)

    def flush(self) -> None:
        """Dequeue through the last ack. It always reads the manifest, and so notices a fence. Raises `Fenced`."""
        self._check_process()
        with self._lock:
            self._check_open()
            self._flush()

    async def flush_async(self) -> None:
        """Do what `flush` does, without blocking the loop."""
        self._check_process()
        await self._acker.run(self.flush)

    def close(self) -> None:
        """Stop the collector, then flush. A second `close` does nothing.

        Raises `Fenced` where a newer consumer has taken over the group, and errors of the store; unless that would hide
        an exception in flight: then it is logged. It is closed in any case. At the end a cycle of the collector is run
        if it is due, for at most `gc_at_close` seconds; its errors are logged.
        """
        self._close(sys.exc_info()[1])

    async def close_async(self) -> None:
        """Do what `close` does, without blocking the loop. Cancelled, it is closed all the same, in its thread."""
        from penstock.core import in_new_thread

        self._check_process()
        await in_new_thread("close", self._close, sys.exc_info()[1])

    def collect_if_due(self) -> None:
        """Run a cycle of the collector if it is due, for at most `gc_at_close` seconds. Errors are logged.

        `close` does it too. This is for a process that ends without one.
        """
        if self._collector is not None:
            self._collector.collect_at_end(self._config.gc_at_close)

    def follow(self, timeout: float | None = None) -> Iterator[ConsumedBatch]:
        """Yield batches as they come. Ends when none came for `timeout` seconds (None: never), or after `close`."""
        polls = Polls(self._uptime, timeout)
        while not self._closed.is_set():
            try:
                batch = self.next_batch()
            except Closed:
                return
            if batch is not None:
                yield batch
                polls.note_batch()
            elif (seconds := polls.seconds()) is None:
                return
            else:
                self._closed.wait(seconds)

    async def follow_async(self, timeout: float | None = None) -> AsyncIterator[ConsumedBatch]:
        """Do what `follow` does, without blocking the loop."""
        polls = Polls(self._uptime, timeout)
        while not self._closed.is_set():
            try:
                batch = await self.next_batch_async()
            except Closed:
                return
            if batch is not None:
                yield batch
                polls.note_batch()
            elif (seconds := polls.seconds()) is None:
                return
            else:
                await self._following.wait_async(self._closed.is_set, seconds)

    def __iter__(self) -> Iterator[ConsumedBatch]:
        """Drain what is there."""
        while (batch := self.next_batch()) is not None:
            yield batch

    async def __aiter__(self) -> AsyncIterator[ConsumedBatch]:
        """Drain what is there, without blocking the loop."""
        while (batch := await self.next_batch_async()) is not None:
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
        self._following.end_waits()
        if self._collector is not None:
            self._collector.stop()
        try:
            with self._lock:
                self._flush()
        except Fenced as error:
            if in_flight is None:
                raise
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

    @cached_property
    def _reader(self) -> Threads:
        """The thread of coroutines that read: each waits for the one before it."""
        from penstock.core import Threads  # here and below: those who do not wait this way do not load asyncio

        return Threads("consumer-read")

    @cached_property
    def _acker(self) -> Threads:
        """The thread of coroutines that ack, for the same reason."""
        from penstock.core import Threads

        return Threads("consumer-ack")

    def _next_batch(self, hand_over: HandOver[ConsumedBatch | None]) -> ConsumedBatch | None:
        self._check_process()
        with self._reading:
            before = self._cursors.state()
            try:
                batch = self._fetch_next()
                hand_over(batch)
            except BaseException:
                self._cursors.restore(before)
                raise
            return batch

    def _fetch_next(self) -> ConsumedBatch | None:
        while entries := self._after_cursor(1):
            try:
                batch = self._handle.fetch_for(entries[0], self)
            except NotFound:
                if self._is_referenced(entries[0]):
                    raise
                continue  # acked in the meantime
            with self._lock:
                self._note_fetched(batch)
                self._cursors.hand_out(entries)
                return batch
        return None

    def _next_descriptors(self, most: int, hand_over: HandOver[list[BatchDescriptor]]) -> list[BatchDescriptor]:
        check_whole("max", most, 0)
        self._check_process()
        self._check_open()
        with self._reading:
            before = self._cursors.state()
            try:
                entries = self._after_cursor(most) if most else []
                self._measures.descriptors_handed_out.inc(len(entries))
                self._cursors.hand_out(entries)
                hand_over(entries)
            except BaseException:
                self._cursors.restore(before)
                raise
            return entries

    def _ack(self, sequence: int, hand_over: HandOver[None]) -> None:
        check_whole("sequence", sequence, 0)
        self._check_process()
        with self._lock:
            self._check_open()
            due, before = self._cursors.next_to_ack, self._cursors.acked
            if not self._cursors.was_unheard(sequence):
                if sequence != due or sequence > self._cursors.handed_out:
                    raise self._out_of_order("ack of", sequence, due)
                self._cursors.acked = sequence
                self._acks_since_write += 1
                self._measures.acks.inc()
                if self._acks_since_write >= _ACKS_PER_WRITE:
                    self._dequeue(sequence)
            try:
                hand_over(None)
            except Abandoned:
                if before < sequence:
                    self._cursors.acked = before
                else:
                    self._cursors.note_unheard_ack(sequence)
                raise

    def _ack_through(self, sequence: int, hand_over: HandOver[None]) -> None:
        check_whole("sequence", sequence, 0)
        self._check_process()
        with self._lock:
            self._check_open()
            due = self._cursors.next_to_ack
            if self._cursors.was_unheard(sequence):
                try:
                    hand_over(None)
                except Abandoned:
                    self._cursors.note_unheard_ack(sequence)
                    raise
                return
            if due is None or not due <= sequence <= self._cursors.handed_out:
                raise self._out_of_order("ack through", sequence, due)
            self._dequeue(sequence)
            hand_over(None)  # abandoned here, no cursor has moved, and the same call dequeues again
            self._measures.acks.inc(sequence - due + 1)
            self._cursors.acked = sequence

    def _give_back(self, entries: Sequence[BatchDescriptor | ConsumedBatch]) -> None:
        """Let these come first in the next read. In the loop's thread: it acquires no lock."""
        self._cursors.note_unheard_read([entry.sequence for entry in entries])

    def _after_cursor(self, most: int) -> list[BatchDescriptor]:
        self._check_open()
        view = self._read()
        while True:
            try:
                return view.entries(*self._cursors.next_to_read(view.first_sequence, most))
            except NotFound:
                # A segment was acked and collected since the head was read, unless the head is still the same.
                before, view = view, self._read(fresh=True)
                if view.version == before.version:
                    raise

    def _note_fetched(self, batch: ConsumedBatch) -> None:
        if batch.metadata:
            lag = self._clock() - batch.metadata[-1].ingestion_time_ms / 1000
            self._measures.consumer_lag.set(max(lag, 0.0))
        self._cursors.fetched = max(self._cursors.fetched, batch.sequence)

    def _is_referenced(self, descriptor: BatchDescriptor) -> bool:
        """Whether the queue still has an entry, by a fresh read. Raises `Fenced`."""
        view = self._read(fresh=True)
        kept = view.entries(descriptor.sequence, descriptor.sequence + 1)
        return [entry.location for entry in kept] == [descriptor.location]

    def _out_of_order(self, what: str, sequence: int, due: int | None) -> OutOfOrderAck:
        if due is not None:
            text = f"{what} {sequence}: {due} is due, and the last handed out is {self._cursors.handed_out}"
            return OutOfOrderAck(text, sequence=sequence, expected=due)
        acked = "" if self.last_acked_sequence is None else f", and {self.last_acked_sequence} was the last ack"
        return OutOfOrderAck(f"{what} {sequence}: nothing was handed out yet{acked}", sequence=sequence)

    def _read(self, *, fresh: bool = False) -> QueueView:
        self._view = view = self._queue.read(self._epoch, fresh=fresh)
        return view

    def _dequeue(self, through: int) -> None:
        self._view = self._queue.dequeue(self._epoch, through)
        self._acks_since_write = 0

    def _flush(self) -> None:
        if self._cursors.acked == NOTHING:
            self._read()
        else:
            self._dequeue(self._cursors.acked)


def _known(sequence: int) -> int | None:
    return None if sequence == NOTHING else sequence
