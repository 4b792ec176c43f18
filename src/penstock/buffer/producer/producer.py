"""`Producer`: takes entries, gathers them into batches, and has them written and enqueued in order."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from types import TracebackType

from penstock.buffer.config import ProducerConfig
from penstock.buffer.locations import Names
from penstock.buffer.manifest.queue import BufferQueue
from penstock.buffer.producer.batches import Batches, BatchShipper
from penstock.buffer.producer.pending_batch import ENTRY_OVERHEAD_BYTES, Entries, Held, PendingBatch, take
from penstock.buffer.producer.write_handle import WriteHandle
from penstock.core import Closing, check_config, close_at_exit, current, forget, uptime_ns
from penstock.errors import InvalidInput
from penstock.storage import ObjectStore, open_store, url_of

_NO_METADATA = b""  # the one object that every empty `bytes` is
_MIN_BYTES_TO_SEAL_EARLY = 4 << 20
_FIRST_MS, _LAST_MS = -(1 << 62), 1 << 62
_MAX_METADATA_BYTES = (1 << 32) - 1


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
        self._batches = Batches(self._shipper, self)
        self._lock = self._batches.lock
        self._batches.start()
        close_at_exit(self)

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
                batch = self._batches.open
                if batch is not None and (spare := batch.spare - len(entries) - ENTRY_OVERHEAD_BYTES) >= 0:
                    now = self._clock() * 1000
                    if not 0.0 <= now - batch.since < 1.0:
                        batch.note(_whole_ms(now), b"")
                    batch.spare = spare
                    batch.parts.append(entries)
                    return WriteHandle(batch.outcome, batch.now)
        return self._take(entries, metadata, timeout)

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
        self._batches.flush()

    def close(self) -> None:
        """Flush, then stop. A second `close` does nothing. Raises what `flush` raises, stopped all the same."""
        self._check_process()
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._batches.capacity.close()
        try:
            self._batches.flush()
        finally:
            self._batches.stop()
            forget(self)

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import asyncio  # here and below: what few need is loaded by those who do

        await asyncio.to_thread(self.__exit__, kind, error, trace)

    def _take(self, entries: Entries, metadata: bytes, timeout: float | None) -> WriteHandle:
        """Take what the short path cannot: every limit is checked, and a batch is begun or sealed as need be."""
        given = take(entries, self._shipper.batch_format)
        size = given.size + _size_of(metadata)
        if size > self._config.max_batch_bytes:
            raise InvalidInput(
                f"entries of {size} bytes in one call pass max_batch_bytes = {self._config.max_batch_bytes}"
            )
        batches = self._batches
        with self._lock:
            self._check_open()
            batch = batches.still_open()
            if batch is not None:
                batch.settle()
            call = Held(1, size, given.count, size + given.overhead)
            if not batches.capacity.fits(call, batch):
                batches.is_pressed = True  # batches are sealed early until one is sealed for its time
                if batch is not None:
                    batches.seal()
                batches.capacity.wait(call, timeout)
                batch = batches.still_open()
            now = _whole_ms(self._clock() * 1000)
            if batch is not None:
                # Keys have batches of their own where the format is not known to hold them.
                fits_kind = batch.is_values_only == given.is_values_only or self._shipper.can_hold_keys
                if not fits_kind or batch.total.bytes + size > self._config.max_batch_bytes:
                    batches.seal()
                    batch = None
            if batch is None:
                batch = PendingBatch(time.monotonic() + self._config.flush_interval)
            batch.add(given, size, now, metadata)
            batches.open = batch
            if self._is_full(batch):
                batches.seal()
            else:
                batches.watch()  # before the grant: calls on the short path do not
                batch.grant(self._spare(batch))
            return WriteHandle(batch.outcome, now)

    # From here on: with the lock held.

    def _is_full(self, batch: PendingBatch) -> bool:
        total, most = batch.total, self._batches.capacity.most
        if (
            self._batches.capacity.is_awaited
            or total.bytes >= self._config.flush_size_bytes
            or total.entries * 4 >= most.entries
        ):
            return True
        is_large = total.calls * 4 >= most.calls or total.memory * 4 >= most.memory
        return self._batches.is_pressed and is_large and total.memory >= _MIN_BYTES_TO_SEAL_EARLY

    def _spare(self, batch: PendingBatch) -> int:
        """Bytes that may come by the short path, with each call's overhead, and leave the batch below each limit."""
        if not batch.is_values_only and not self._shipper.can_hold_keys:
            return -1
        calls, size, _, memory = self._batches.capacity.remaining(batch)
        until_sealed = min(self._config.flush_size_bytes, self._config.max_batch_bytes) - batch.total.bytes - 1
        return min(until_sealed, size, memory, calls * ENTRY_OVERHEAD_BYTES)


def _whole_ms(milliseconds: float) -> int:
    if not _FIRST_MS <= milliseconds <= _LAST_MS:
        raise InvalidInput(
            f"the clock says {milliseconds / 1000} s since 1970, which no manifest can hold; nothing was taken"
        )
    return int(milliseconds // 1)


def _size_of(metadata: object) -> int:
    if not isinstance(metadata, bytes):
        raise InvalidInput(f"metadata must be bytes, not {type(metadata).__name__}")
    if len(metadata) > _MAX_METADATA_BYTES:
        raise InvalidInput(f"metadata cannot have more than {_MAX_METADATA_BYTES} bytes, and have {len(metadata)}")
    return len(metadata)
