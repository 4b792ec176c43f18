"""`Producer`: takes entries, writes them as data objects, and enqueues those in order.

Two kinds of threads carry a batch on: writers encode it and write its object, side by side; one enqueuer appends the
oldest unbroken run of written batches to the manifest. What guards what is in `docs/design/buffer.md`.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType

from penstock.buffer.config import ProducerConfig
from penstock.buffer.locations import Names
from penstock.buffer.manifest.queue import BufferQueue
from penstock.buffer.measures import Measures, label_of
from penstock.buffer.producer.capacity import Capacity
from penstock.buffer.producer.pending_batch import ENTRY_OVERHEAD_BYTES, Entries, Held, Input, PendingBatch, Stage, take
from penstock.buffer.producer.sealed_batches import STANDBY_SECONDS, SealedBatches
from penstock.buffer.producer.shipping import BatchShipper
from penstock.buffer.producer.write_handle import Outcome, WriteHandle, Written
from penstock.core import Closing, check_config, close_at_exit, current, forget, get_logger, uptime_ns
from penstock.errors import Closed, CorruptData, InvalidInput, PenstockError
from penstock.storage import ObjectStore, open_store, url_of

_WRITERS = 4
_NO_METADATA = b""  # the one object that every empty `bytes` is
_MIN_BYTES_TO_SEAL_EARLY = 4 << 20
_FIRST_MS, _LAST_MS = -(1 << 62), 1 << 62
_MAX_METADATA_BYTES = (1 << 32) - 1
_MAX_FAILURES = 100
_MAX_SECONDS_AT_START = 1.0

_log = get_logger(__name__)
_numbers = itertools.count(1)


def seconds_since_boot() -> float:
    """A clock that runs during suspend, and that cannot be set."""
    return uptime_ns() / 1e9


class Producer(Closing):
    """Puts entries into a buffer: durably, in order, and within the memory that its configuration allows.

    Any number of producers, anywhere, can share a buffer. `produce` returns a `WriteHandle` at once; it is done when
    the entries are durable and enqueued. Safe to share between threads, but not with a forked child.

    >>> with Producer("memory://doctest-producer") as producer:
    ...     handle = producer.produce([b"one", b"two"])
    >>> handle.result().sequence
    0
    """

    _instead_in_child = "make a Producer here"

    def __init__(
        self,
        where: str | os.PathLike[str] | ObjectStore,
        config: ProducerConfig | None = None,
        *,
        clock: Callable[[], float] = time.time,
        uptime: Callable[[], float] = seconds_since_boot,
    ) -> None:
        super().__init__()
        config = ProducerConfig() if config is None else config
        check_config(config, ProducerConfig)
        self._store = open_store(where)
        names = Names(clock)
        queue = BufferQueue.of(self._store, config, "producer", names=names, clock=clock, uptime=uptime)
        self._shipper = BatchShipper(self._store, config, queue, names, uptime)
        self._config = config
        self._clock = clock
        self._measures = Measures(label_of(self._store, config.manifest_path))

        self._lock = threading.Lock()
        self._capacity = Capacity(self._lock, config)
        self._ready = threading.Condition(self._lock)  # the enqueuer waits for it
        self._open: PendingBatch | None = None
        self._sealed = SealedBatches(self._lock)
        self._pipeline: deque[PendingBatch] = deque()  # sealed and not finished, in order
        self._is_enqueuer_near = True  # it works, or looks again within STANDBY_SECONDS
        self._is_pressed = False
        self._failures: list[Outcome] = []
        self._is_stopped = False
        self._start()

    @property
    def conflict_rate(self) -> float:
        """Percent of this producer's manifest writes that lost a compare-and-set."""
        return self._shipper.queue.conflict_rate

    @property
    def max_batch_bytes(self) -> int:
        """How many bytes one call of `produce` can have."""
        return self._config.max_batch_bytes

    def __repr__(self) -> str:
        return f"Producer({url_of(self._store)})"

    def produce(self, entries: Entries, metadata: bytes = b"", timeout: float | None = None) -> WriteHandle:
        """Take entries: one (`bytes`, `str` as UTF-8, or a `Record`), a list of them, or their columns.

        `metadata` goes into the manifest, for the consumer. Where there is no space it waits, in the order of the
        calls; past `timeout` seconds it raises `BackpressureTimeout`, and nothing was taken. Raises `InvalidInput` for
        no entries, more than `max_batch_bytes` of them, or what is no entry, and `Closed` after `close`.
        """
        if self._home != current.number:  # a call less than `_check_process`, for this is the busiest method of all
            self._check_process()
        if type(entries) is bytes and metadata is _NO_METADATA:
            # By far the most calls are like this one. They take the short path while the open batch has bytes to spare:
            # that is less than what is left of each limit, so none of them has to be looked at.
            with self._lock:
                batch = self._open
                if batch is not None and (spare := batch.spare - len(entries) - ENTRY_OVERHEAD_BYTES) >= 0:
                    now = self._clock() * 1000
                    if not batch.since <= now < batch.until:
                        batch.note(_whole_ms(now), b"")
                    batch.spare = spare
                    batch.parts.append(entries)
                    return WriteHandle(batch.outcome, batch.now)
        return self._take(take(entries, self._shipper.batch_format), metadata, timeout)

    def produce_json(self, objects: object, metadata: bytes = b"", timeout: float | None = None) -> WriteHandle:
        """Take an object as JSON, or each object of a list. Otherwise like `produce`.

        Raises `InvalidInput` for what has no form in JSON. Dates, UUIDs, decimals and dataclasses have one; a NaN or
        an infinity becomes null, as JSON has no other word for it.
        """
        import msgspec

        try:
            encoded = [msgspec.json.encode(one) for one in (objects if isinstance(objects, list) else [objects])]
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidInput(f"this cannot be written as JSON: {error}") from error
        return self.produce(encoded, metadata, timeout)

    def flush(self) -> None:
        """Return when everything produced before is durable and enqueued, and every handle of it is done.

        Raises what went wrong with any of it; with what went wrong long before only if some handle was never asked.
        """
        self._check_process()
        with self._lock:
            if self._is_stopped:
                raise Closed(f"{self!r} is closed")
            if self._still_open() is not None:
                self._seal()
            elif self._sealed:
                self._sealed.announce()  # should an interrupt have kept an earlier call from it
            before = list(self._failures)
            # One that has an outcome may still be on its way out of the pipeline: it is from before, if it failed.
            outcomes = [batch.outcome for batch in self._pipeline if not batch.outcome.is_done]
        for outcome in outcomes:
            outcome.wait(None)
        failures = [outcome for outcome in before if outcome.is_done and outcome.unheard]
        failures += [outcome for outcome in outcomes if outcome.error is not None and outcome not in failures]
        with self._lock:
            self._failures = [outcome for outcome in self._failures if outcome not in failures]
        if len(failures) > 1:
            _log.error("%d batches of %r are not known to be enqueued; raising what the first met", len(failures), self)
        for outcome in failures:
            outcome.get()

    def close(self) -> None:
        """Flush, then stop. A second `close` does nothing. Raises what `flush` raises, stopped all the same."""
        self._check_process()
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._capacity.close()
        try:
            self.flush()
        finally:
            self._stop()

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import asyncio  # here and below: what few need is loaded by those who do

        await asyncio.to_thread(self.__exit__, kind, error, trace)

    # Taking entries.

    def _take(self, given: Input, metadata: bytes, timeout: float | None) -> WriteHandle:
        size = given.size + _size_of(metadata)
        if size > self._config.max_batch_bytes:
            raise InvalidInput(
                f"entries of {size} bytes in one call pass max_batch_bytes = {self._config.max_batch_bytes}"
            )
        with self._lock:
            self._check_open()
            open_batch = self._still_open()
            if open_batch is not None:
                open_batch.settle()
            call = Held(1, size, given.count, size + given.overhead)
            if not self._capacity.fits(call, open_batch):
                self._capacity.wait(call, timeout, self._hurry)
            now = _whole_ms(self._clock() * 1000)
            batch = self._batch_for(given, size)
            batch.add(given, size, now, metadata)
            if self._is_full(batch):
                self._seal()
            else:
                batch.grant(self._spare(batch))
                self._sealed.watch()
            return WriteHandle(batch.outcome, now)

    # From here to the next line like this: with the lock held. While a call waits in line there is no open batch.

    def _batch_for(self, given: Input, size: int) -> PendingBatch:
        """The open batch, if the call fits into it; else a new one. Keys have batches of their own while need be."""
        batch = self._still_open()
        if batch is not None:
            fits_kind = batch.is_values_only == given.is_values_only or self._shipper.can_hold_keys
            if fits_kind and batch.size + size <= self._config.max_batch_bytes:
                return batch
            self._seal()
        self._open = PendingBatch(time.monotonic() + self._config.flush_interval)
        return self._open

    def _spare(self, batch: PendingBatch) -> int:
        """Bytes that may come by the short path, with each call's overhead, and leave the batch below each limit."""
        if not batch.is_values_only and not self._shipper.can_hold_keys:
            return -1
        calls, size, _, memory = self._capacity.remaining(batch)
        until_sealed = min(self._config.flush_size_bytes, self._config.max_batch_bytes) - batch.size - 1
        return min(until_sealed, size, memory, calls * ENTRY_OVERHEAD_BYTES)

    def _is_full(self, batch: PendingBatch) -> bool:
        total, most = batch.total, self._capacity.most
        if (
            self._capacity.is_awaited
            or total.bytes >= self._config.flush_size_bytes
            or total.entries * 4 >= most.entries
        ):
            return True
        is_large = total.calls * 4 >= most.calls or total.memory * 4 >= most.memory
        return self._is_pressed and is_large and total.memory >= _MIN_BYTES_TO_SEAL_EARLY

    def _hurry(self) -> None:
        """A call waits: seal the open batch, and seal batches early until the pressure is gone."""
        self._is_pressed = True
        if self._still_open() is not None:
            self._seal()

    def _still_open(self) -> PendingBatch | None:
        """The batch that takes entries. One whose sealing was interrupted is sealed first."""
        batch = self._open
        if batch is None or batch.stage is Stage.TAKING:
            return batch
        self._seal()
        return None

    def _seal(self) -> None:
        """Send the open batch on its way. Interrupted between any two lines, it can be called again, and goes on."""
        batch = self._open
        assert batch is not None  # noqa: S101  every caller has looked
        if batch.stage is Stage.TAKING:
            batch.settle()
            batch.outcome.unheard = batch.calls
            batch.stage = Stage.SEALED
            batch.grant(-1)  # nothing comes by the short path any more
        if not self._pipeline or self._pipeline[-1] is not batch:
            self._pipeline.append(batch)
        self._sealed.append(batch)
        self._open = None
        self._capacity.add(batch)
        self._sealed.announce()

    # Writing data objects: in the writers' threads.

    def _write_batches(self) -> None:
        while (batch := self._next_to_write()) is not None:
            try:
                self._write(batch)
            except BaseException as error:  # noqa: BLE001  whatever it is, the handles get it, and the next goes on
                _log.warning("a batch of %d entries could not be written to %r", batch.count, self, exc_info=True)
                self._finish(batch, error)
            else:
                with self._lock:
                    batch.stage = Stage.WRITTEN
                    # One write of the manifest for several batches: the next one is soon there, and if not, an
                    # enqueuer that stands by looks by itself.
                    if not (self._sealed and self._sealed.is_store_quick and self._is_enqueuer_near):
                        self._ready.notify()

    def _next_to_write(self) -> PendingBatch | None:
        """The oldest sealed batch; None when the producer stops."""
        with self._lock:
            while (batch := self._sealed.next()) is None:
                if self._is_stopped:
                    return None
                open_batch = self._still_open()
                if open_batch is not None and open_batch.due <= time.monotonic():
                    self._is_pressed = False
                    self._seal()
                else:
                    self._sealed.wait(None if open_batch is None else open_batch.due)
            if batch is self._open:
                self._open = None  # an interrupt came between the two
            if self._open is not None:
                self._sealed.watch()  # this writer may have been the one that did
            return batch

    def _write(self, batch: PendingBatch) -> None:
        batch.started = time.perf_counter()
        is_soon_back, seconds = True, None
        try:
            self._shipper.encode(batch)
            with self._lock:
                is_soon_back = self._sealed.put_begins()
            started = time.perf_counter()
            self._shipper.put(batch)
            seconds = time.perf_counter() - started
        finally:
            with self._lock:
                self._sealed.put_ended(is_soon_back, seconds)

    # Enqueuing: in the enqueuer's thread.

    def _enqueue_batches(self) -> None:
        while run := self._next_to_enqueue():
            try:
                for batch, outcome in self._shipper.enqueue(run):
                    self._finish(batch, outcome)
            except BaseException as error:  # noqa: BLE001  as above
                _log.warning("%d batches could not be enqueued in %r", len(run), self, exc_info=True)
                for batch in run:
                    self._finish(batch, error)

    def _next_to_enqueue(self) -> list[PendingBatch]:
        """The oldest unbroken run of written batches; none when everything is done and the producer stops."""
        with self._lock:
            while True:
                waiting = (batch for batch in self._pipeline if batch.stage is not Stage.FINISHED)
                run = list(itertools.takewhile(lambda batch: batch.stage is Stage.WRITTEN, waiting))
                if run or (self._is_stopped and not self._pipeline):
                    return run
                self._is_enqueuer_near = bool(self._pipeline) and self._sealed.is_store_quick
                self._ready.wait(STANDBY_SECONDS if self._is_enqueuer_near else None)
                self._is_enqueuer_near = True

    def _finish(self, batch: PendingBatch, outcome: Written | BaseException) -> None:
        """Finish a batch: its capacity is free before its handles are done, for the calls that follow."""
        with self._lock:
            if batch.stage is Stage.FINISHED:
                return  # its deadline passed during its write
            batch.stage = Stage.FINISHED
            self._capacity.release(batch)
            batch.data = b""  # a list that still has the batch does not hold its bytes
            if not isinstance(outcome, Written):
                self._failures = [failure for failure in self._failures if failure.unheard]
                if len(self._failures) < _MAX_FAILURES:  # a caller that never asks must not make it grow
                    self._failures.append(batch.outcome)
        try:
            if isinstance(outcome, Written):
                self._count_flushed(batch)
                batch.outcome.succeed(outcome)
            else:
                batch.outcome.fail(outcome)
        finally:
            with self._lock:
                # Only now: a `flush` that does not find a batch in the pipeline takes its handles for done.
                self._pipeline.remove(batch)
                self._ready.notify()  # those behind it may be next, or the producer may stop

    def _count_flushed(self, batch: PendingBatch) -> None:
        plain_size, size = batch.encoded_sizes
        self._measures.batches_flushed.inc()
        self._measures.entries_flushed.inc(batch.count)
        self._measures.bytes_flushed.inc(plain_size)
        self._measures.bytes_written.inc(size)
        self._measures.flush_duration.observe(time.perf_counter() - batch.started)

    # Starting and stopping.

    def _start(self) -> None:
        number = next(_numbers)
        looked = threading.Event()
        refused: list[PenstockError] = []

        def look_and_write() -> None:
            try:
                self._shipper.look_at_owner()
            except (InvalidInput, CorruptData) as error:
                refused.append(error)
            except Exception as error:  # noqa: BLE001  whatever it is, the first batch meets it again
                _log.info("looking at the owner of %r: %s; looking again with the first batch", self, error)
            finally:
                looked.set()
            self._write_batches()

        works = [look_and_write, *[self._write_batches] * (_WRITERS - 1), self._enqueue_batches]
        names = [*(f"writer-{writer}" for writer in range(_WRITERS)), "enqueuer"]
        self._threads = [
            threading.Thread(target=work, name=f"penstock-producer-{number}-{name}", daemon=True)
            for work, name in zip(works, names, strict=True)
        ]
        for thread in self._threads:
            thread.start()
        # A prefix of another manifest is refused here, if the store answers soon; a store that hangs delays nothing.
        looked.wait(_MAX_SECONDS_AT_START)
        if refused:
            self._is_closed = True
            self._stop()
            raise refused[0]
        close_at_exit(self)

    def _stop(self) -> None:
        with self._lock:
            self._is_stopped = True
            self._sealed.wake_all()
            self._ready.notify_all()
        for thread in self._threads:
            thread.join()
        forget(self)


def _whole_ms(milliseconds: float) -> int:
    if not _FIRST_MS <= milliseconds <= _LAST_MS:
        raise InvalidInput(
            f"the clock says {milliseconds / 1000} s since 1970, which no manifest can hold; nothing was taken"
        )
    return int(milliseconds)


def _size_of(metadata: object) -> int:
    if not isinstance(metadata, bytes):
        raise InvalidInput(f"metadata must be bytes, not {type(metadata).__name__}")
    if len(metadata) > _MAX_METADATA_BYTES:
        raise InvalidInput(f"metadata cannot have more than {_MAX_METADATA_BYTES} bytes, and have {len(metadata)}")
    return len(metadata)
