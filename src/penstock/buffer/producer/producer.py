"""`Producer`: takes entries, gathers them into batches, and has them written and enqueued in order."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial

from penstock.buffer.config import ProducerConfig
from penstock.buffer.locations import Names
from penstock.buffer.manifest.queue import BufferQueue
from penstock.buffer.producer.batches import Batches, BatchShipper
from penstock.buffer.producer.capacity import Ticket
from penstock.buffer.producer.pending_batch import ENTRY_OVERHEAD_BYTES, Entries, Held, Input, PendingBatch, take
from penstock.buffer.producer.write_handle import WriteHandle
from penstock.core import Closing, LoopShare, call_outside, check_config, close_at_exit, current, forget, uptime_ns
from penstock.errors import InvalidInput
from penstock.storage import ObjectStore, open_store, url_of

_NO_METADATA = b""  # the one object that every empty `bytes` is
_CALLS_PER_ITERATION = 2048  # of a loop, which then runs its other tasks
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
        self._closing = threading.RLock()  # held by `close` to its end; re-entrant, for a signal handler may call it
        self._loop_share = LoopShare(_CALLS_PER_ITERATION)
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

    async def produce_async(self, entries: Entries, metadata: bytes = b"", timeout: float | None = None) -> WriteHandle:
        """Do what `produce` does; where there is no space, wait for it without blocking the loop, and without a thread.

        The handle can be awaited. Cancelled while it waits, it has taken nothing: once it has taken the entries there
        is no `await` before it returns.

        >>> import asyncio
        >>> async def main() -> int:
        ...     async with Producer("memory://doctest-produce-async") as producer:
        ...         handle = await producer.produce_async([b"one", b"two"])
        ...         return (await handle).sequence
        >>> asyncio.run(main())
        0
        """
        share = self._loop_share
        if share.left > 0:
            share.left -= 1
        else:
            await share.take()
        if type(entries) is bytes and metadata is _NO_METADATA and self._home == current.number:
            with self._lock:  # the short path, as in `produce`
                batch = self._batches.open
                if batch is not None and (spare := batch.spare - len(entries) - ENTRY_OVERHEAD_BYTES) >= 0:
                    now = self._clock() * 1000
                    if not 0.0 <= now - batch.since < 1.0:
                        batch.note(_whole_ms(now), b"")
                    batch.spare = spare
                    batch.parts.append(entries)
                    return WriteHandle(batch.outcome, batch.now)
        self._check_process()
        from penstock.core import LoopLatch  # here: a caller without coroutines does not load asyncio

        given, call = self._given(entries, metadata)
        capacity = self._batches.capacity
        with self._lock:
            if self._has_space(call):
                return self._add(given, call, metadata)
            latch = LoopLatch()
            ticket = Ticket(call, timeout, latch)
            capacity.line_up(ticket)  # with the lock still held: a call that does not fit has no open batch beside it
        try:
            while True:
                with self._lock:
                    seconds = capacity.wait_of(ticket)
                    if seconds is None:
                        capacity.leave(ticket)
                        return self._add(given, call, metadata)
                await latch.wait(None if timeout is None else seconds)
        except GeneratorExit:
            call_outside(self._lock, partial(self._leave_line, ticket))
            raise
        except BaseException:
            self._leave_line(ticket)
            raise

    def produce_json(self, objects: object, metadata: bytes = b"", timeout: float | None = None) -> WriteHandle:
        """Take an object as JSON, or each object of a list. Otherwise like `produce`.

        Raises `InvalidInput` for what has no form in JSON. Dates, UUIDs, decimals and dataclasses have one; a NaN or
        an infinity becomes null, as JSON has no other word for it.
        """
        return self.produce(_as_json(objects), metadata, timeout)

    async def produce_json_async(
        self, objects: object, metadata: bytes = b"", timeout: float | None = None
    ) -> WriteHandle:
        """Do what `produce_json` does, and wait as `produce_async` does."""
        return await self.produce_async(_as_json(objects), metadata, timeout)

    def flush(self) -> None:
        """Return when everything produced before is durable and enqueued, and every handle of it is done.

        Raises what went wrong with any of it; with what went wrong long before only if some handle was never asked.
        """
        self._check_process()
        self._batches.flush()

    async def flush_async(self) -> None:
        """Do what `flush` does, without blocking the loop. Cancelled, everything stays on its way."""
        self._check_process()
        await self._batches.flush_async()

    def close(self) -> None:
        """Flush, then stop. Raises what `flush` raises, stopped all the same.

        A second `close` does nothing but wait for the first, which may be one whose task was cancelled.
        """
        self._check_process()
        with self._closing:
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

    def _take(self, entries: Entries, metadata: bytes, timeout: float | None) -> WriteHandle:
        """Take what the short path cannot: every limit is checked, and a batch is begun or sealed as need be."""
        given, call = self._given(entries, metadata)
        with self._lock:
            if not self._has_space(call):
                self._batches.capacity.wait(call, timeout)
            return self._add(given, call, metadata)

    def _leave_line(self, ticket: Ticket) -> None:
        with self._lock:
            self._batches.capacity.leave(ticket)

    def _given(self, entries: Entries, metadata: bytes) -> tuple[Input, Held]:
        """Check what a call was given, and count it."""
        given = take(entries, self._shipper.batch_format)
        size = given.size + _size_of(metadata)
        if size > self._config.max_batch_bytes:
            raise InvalidInput(
                f"entries of {size} bytes in one call pass max_batch_bytes = {self._config.max_batch_bytes}"
            )
        return given, Held(1, size, given.count, size + given.overhead)

    # From here on: with the lock held.

    def _has_space(self, call: Held) -> bool:
        """Whether a call can be taken at once. If not, the open batch is sealed, so that its space is free soon."""
        batches = self._batches
        self._check_open()
        batch = batches.still_open()
        if batch is not None:
            batch.settle()
        if batches.capacity.fits(call, batch):
            return True
        batches.is_pressed = True  # batches are sealed early until one is sealed for its time
        if batch is not None:
            batches.seal()
        return False

    def _add(self, given: Input, call: Held, metadata: bytes) -> WriteHandle:
        """Put a call's entries into the open batch, or into a new one. There is space for it."""
        batches, size = self._batches, call.bytes
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

    def _is_full(self, batch: PendingBatch) -> bool:
        total, most = batch.total, self._batches.capacity.most
        if (
            self._batches.capacity.is_short(batch)
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


def _as_json(objects: object) -> list[bytes]:
    import msgspec

    try:
        return [msgspec.json.encode(one) for one in (objects if isinstance(objects, list) else [objects])]
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidInput(f"this cannot be written as JSON: {error}") from error


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
