"""The life of a producer's batches: one takes entries, sealed ones are written and enqueued, and each gets its outcome.

Two kinds of threads carry a batch on: writers encode it and write its object, side by side; one enqueuer appends the
oldest unbroken run of written batches to the manifest. What guards what is in `docs/design/buffer.md`.

To wake a thread for a small batch takes longer than to write it to a quick store. So while one writer works, a second
one stands by instead of working beside it, and takes over when the first one is not back soon.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from penstock.buffer.config import ProducerConfig
from penstock.buffer.descriptors import NewEntry
from penstock.buffer.format.batch import BatchFormat, Compression
from penstock.buffer.locations import Names
from penstock.buffer.manifest.enqueuing import Attempts
from penstock.buffer.manifest.queue import BufferQueue
from penstock.buffer.manifest.state import Unwritten
from penstock.buffer.measures import Measures, label_of
from penstock.buffer.producer.capacity import LONGEST_WAIT, Capacity
from penstock.buffer.producer.pending_batch import NOT_ENCODED, PendingBatch, Stage
from penstock.buffer.producer.write_handle import Outcome, Written
from penstock.core import get_logger
from penstock.errors import Closed, CorruptData, InvalidInput, OutcomeUnknown, PenstockError
from penstock.storage import ObjectStore, url_of

_WRITERS = 4
_STANDBY_SECONDS = 0.005  # how long a writer waits for the one before it: as long as a few small batches take
_MAX_FAILURES = 100
_MAX_SECONDS_AT_START = 1.0

_log = get_logger(__name__)
_numbers = itertools.count(1)


@dataclass(eq=False)
class BatchShipper:
    """Writes batches into one buffer. Writing is safe from several threads; `enqueue` is for one at a time.

    `uptime` is the clock of the deadlines: one that runs during suspend.
    """

    store: ObjectStore
    config: ProducerConfig
    queue: BufferQueue
    names: Names
    uptime: Callable[[], float]
    _owns_prefix: bool = False
    _is_version_known: bool = False  # of a manifest that is there: another process may yet create one that is not
    _claiming: threading.Lock = field(default_factory=threading.Lock)

    @property
    def batch_format(self) -> BatchFormat:
        """How batches are written now. An upgrade is noticed at the next enqueue, and batches change then."""
        return self.config.batch_format(self.queue.batch_format)

    @property
    def can_hold_keys(self) -> bool:
        """Whether batches are known to be in a format with keys. If not, entries without keys have their own batches.

        A manifest that turns out to be version 1 refuses a batch with keys as a whole. Nothing else must be in it.
        """
        is_known = self._is_version_known or self.config.format is not None
        return is_known and self.batch_format is BatchFormat.ARROW

    def look_at_owner(self) -> None:
        """Read which buffer the prefix belongs to. Raises `InvalidInput` where it is another one."""
        self._is_version_known = self.queue.own_prefix(self.config.data_path_prefix, claim=False)

    def encode(self, batch: PendingBatch) -> None:
        """Encode a batch, before the first one claim the prefix, and set the deadline of the batch."""
        # Before anything is written: the collector counts on it that nothing is enqueued later than this says.
        batch.deadline = self.uptime() + self.config.enqueue_deadline
        if not self._owns_prefix:
            self._own_prefix()
        batch.encode(Compression(self.config.compression), self.batch_format, self.config.max_batch_bytes)

    def put(self, batch: PendingBatch, floor: int | None = None) -> None:
        """Write the data object of a batch that is encoded, under a new name above the collector's floor."""
        floor = self.queue.floor if floor is None else floor
        batch.location = self.names.location(self.config.data_path_prefix, floor)
        self.store.put(batch.location, batch.encoded.data)

    def enqueue(self, run: Sequence[PendingBatch]) -> Iterator[tuple[PendingBatch, Written | OutcomeUnknown]]:
        """Append batches in one write of the manifest. Yields what became of each, as soon as it is known.

        Raises what went wrong: then none of the batches without an outcome is known to be enqueued.
        """
        batches = {batch.location: batch for batch in run}
        attempts: Attempts | None = None
        while True:
            done = self.queue.enqueue([batch.entry() for batch in run], attempts=attempts)
            if not isinstance(done, Unwritten):
                break
            attempts = done.attempts
            for entry in done.late:
                yield batches[entry.location], self._too_late(entry)
            late = {entry.location for entry in done.late}
            run = [batch for batch in run if batch.location not in late]
            for entry in done.closed:
                batch = batches[entry.location]
                self.put(batch, done.floor)
                batches[batch.location] = batch
        for location, sequence in done.sequences.items():
            yield batches[location], Written(sequence, location)

    def _own_prefix(self) -> None:
        with self._claiming:  # one writer claims, and the others find that it has
            if not self._owns_prefix:
                self._owns_prefix = self.queue.own_prefix(self.config.data_path_prefix, claim=True)
                self._is_version_known = True

    def _too_late(self, entry: NewEntry) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"{entry.location} was not enqueued in {url_of(self.store)}/{self.config.manifest_path} within "
            f"enqueue_deadline = {self.config.enqueue_deadline} s; it is not known to be enqueued"
        )


class Batches:
    """All batches of a producer. `lock` guards them, and the threads are started by `start` and ended by `stop`.

    While the threads run they keep the `producer` alive, which is closed at exit then.
    """

    def __init__(self, shipper: BatchShipper, producer: object) -> None:
        self.lock = threading.Lock()
        self.capacity = Capacity(self.lock, shipper.config)
        self.open: PendingBatch | None = None
        """The batch that takes entries. It has some: an empty one is never here."""
        self.is_pressed = False
        """Whether a call had to wait since a batch was last sealed for its time."""
        self._shipper = shipper
        self._producer = producer
        self._measures = Measures(label_of(shipper.store, shipper.config.manifest_path))
        self._unwritten: deque[PendingBatch] = deque()  # sealed, and no writer has them yet
        self._unfinished: deque[PendingBatch] = deque()  # sealed and without an outcome, in order
        self._failures: list[Outcome] = []
        self._is_stopped = False
        self._work = threading.Condition(self.lock)  # the writers wait for it
        self._soon_back = 0  # writers that have a batch, and do not wait for a slow store
        self._standing_by = 0  # writers that wait for one of those to come back
        self._watching = 0  # writers that wait until a batch is due, which is never after the open one is
        self._is_store_quick = False  # the last put took less than `_STANDBY_SECONDS`
        self._ready = threading.Condition(self.lock)  # the enqueuer waits for it
        self._is_enqueuer_near = True  # it works, or looks again within `_STANDBY_SECONDS`

    def flush(self) -> None:
        """Return when everything taken before is durable and enqueued. Raises what went wrong, and `Closed`."""
        before, outcomes = self._begin_flush()
        for outcome in outcomes:
            outcome.wait(None)
        self._end_flush(before, outcomes)

    async def flush_async(self) -> None:
        """Do what `flush` does, without blocking the loop."""
        before, outcomes = self._begin_flush()
        for outcome in outcomes:
            await outcome.wait_async()
        self._end_flush(before, outcomes)

    def _begin_flush(self) -> tuple[list[Outcome], list[Outcome]]:
        """Seal the open batch. Returns the failures so far, and the outcomes that are still to come."""
        with self.lock:
            if self._is_stopped:
                raise Closed(f"{self._producer!r} is closed")
            if self.still_open() is not None:
                self.seal()
            elif self._unwritten:
                self._announce()  # should an interrupt have kept an earlier call from it
            before = list(self._failures)
            # One that has an outcome may still be on its way out of the line: it is from before, if it failed.
            return before, [batch.outcome for batch in self._unfinished if not batch.outcome.is_done]

    def _end_flush(self, before: list[Outcome], outcomes: list[Outcome]) -> None:
        """Raise what went wrong."""
        failures = [outcome for outcome in before if outcome.is_done and outcome.unheard]
        failures += [outcome for outcome in outcomes if outcome.error is not None and outcome not in failures]
        with self.lock:
            self._failures = [outcome for outcome in self._failures if outcome not in failures]
        if len(failures) > 1:
            _log.error(
                "%d batches of %r are not known to be enqueued; raising what the first met",
                len(failures),
                self._producer,
            )
        for outcome in failures:
            outcome.get()

    # From here to the next line like this: with the lock held. No batch is open while calls in line do not all fit.

    def still_open(self) -> PendingBatch | None:
        """The batch that takes entries. One whose sealing was interrupted is sealed first."""
        batch = self.open
        if batch is None or batch.stage is Stage.TAKING:
            return batch
        self.seal()
        return None

    def seal(self) -> None:
        """Send the open batch on its way. Interrupted between any two lines, it can be called again, and goes on."""
        batch = self.open
        assert batch is not None  # noqa: S101  every caller has looked
        if batch.stage is Stage.TAKING:
            batch.settle()
            batch.outcome.unheard = batch.total.calls
            batch.stage = Stage.SEALED
            batch.grant(-1)  # nothing comes by the short path any more
        if not self._unfinished or self._unfinished[-1] is not batch:
            self._unfinished.append(batch)
        if not self._unwritten or self._unwritten[-1] is not batch:
            self._unwritten.append(batch)
        self.open = None
        self.capacity.add(batch)
        self._announce()

    def watch(self) -> None:
        """Make sure that some writer watches the time of the open batch."""
        if not self._watching:
            self._work.notify()

    def _announce(self) -> None:
        """Wake a writer for what was sealed, unless one comes by itself within `_STANDBY_SECONDS`."""
        if not self._soon_back or not self._standing_by:
            self._work.notify()

    def _has_stood_by_long(self) -> bool:
        """Wait for a writer to come back. Returns whether the oldest sealed batch still waits then."""
        oldest = self._unwritten[0]
        self._standing_by += 1
        self._work.wait(_STANDBY_SECONDS)
        self._standing_by -= 1
        return bool(self._unwritten) and self._unwritten[0] is oldest

    # Writing data objects: in the writers' threads.

    def _write_batches(self) -> None:
        while (batch := self._next_to_write()) is not None:
            try:
                self._write(batch)
            except BaseException as error:  # noqa: BLE001  whatever it is, the handles get it, and the next goes on
                _log.warning(
                    "a batch of %d entries could not be written to %r", batch.count, self._producer, exc_info=True
                )
                self._finish(batch, error)

    def _next_to_write(self) -> PendingBatch | None:
        """Wait for the oldest sealed batch; None when the producer stops. Seals the open batch when it is due."""
        with self.lock:
            while True:
                if self._unwritten:
                    if not self._soon_back or self._has_stood_by_long():
                        break
                elif self._is_stopped:
                    return None
                elif (open_batch := self.still_open()) is None:
                    if not self._unwritten:  # else it was sealed just now
                        self._work.wait()
                elif (seconds := open_batch.due - time.monotonic()) > 0:
                    self._watching += 1
                    self._work.wait(min(seconds, LONGEST_WAIT))
                    self._watching -= 1
                else:
                    self.is_pressed = False
                    self.seal()
            self._soon_back += 1
            batch = self._unwritten.popleft()
            if self._unwritten and not self._standing_by:
                self._work.notify()  # that one stands by
            if batch is self.open:
                self.open = None  # an interrupt came between the two
            if self.open is not None:
                self.watch()  # this writer may have been the one that did
            return batch

    def _write(self, batch: PendingBatch) -> None:
        batch.started = time.perf_counter()
        is_soon_back, seconds = True, None
        try:
            self._shipper.encode(batch)
            with self.lock:
                if not self._is_store_quick:
                    is_soon_back = False
                    self._soon_back -= 1
                    if self._unwritten:
                        self._work.notify()
            started = time.perf_counter()
            self._shipper.put(batch)
            seconds = time.perf_counter() - started
        finally:
            with self.lock:
                self._soon_back -= is_soon_back
                if seconds is not None:
                    self._is_store_quick = seconds < _STANDBY_SECONDS
                    batch.stage = Stage.WRITTEN
                    # One write of the manifest for several batches: the next one is soon there, and if not, an
                    # enqueuer that stands by looks by itself.
                    if not (self._unwritten and self._is_store_quick and self._is_enqueuer_near):
                        self._ready.notify()

    # Enqueuing: in the enqueuer's thread.

    def _enqueue_batches(self) -> None:
        while run := self._next_to_enqueue():
            try:
                for batch, outcome in self._shipper.enqueue(run):
                    self._finish(batch, outcome)
            except BaseException as error:  # noqa: BLE001  as above
                _log.warning("%d batches could not be enqueued in %r", len(run), self._producer, exc_info=True)
                for batch in run:
                    self._finish(batch, error)

    def _next_to_enqueue(self) -> list[PendingBatch]:
        """The oldest unbroken run of written batches; none when everything is done and the producer stops."""
        with self.lock:
            while True:
                run = list[PendingBatch]()
                for batch in self._unfinished:
                    if batch.stage is Stage.WRITTEN:
                        run.append(batch)
                    elif batch.stage is not Stage.FINISHED:
                        break
                if run or (self._is_stopped and not self._unfinished):
                    return run
                self._is_enqueuer_near = bool(self._unfinished) and self._is_store_quick
                self._ready.wait(_STANDBY_SECONDS if self._is_enqueuer_near else None)
                self._is_enqueuer_near = True

    def _finish(self, batch: PendingBatch, outcome: Written | BaseException) -> None:
        """Finish a batch: its capacity is free before its handles are done, for the calls that follow."""
        plain_size, size = batch.encoded.plain_size, len(batch.encoded.data)
        with self.lock:
            if batch.stage is Stage.FINISHED:
                return  # its deadline passed during its write
            batch.stage = Stage.FINISHED
            self.capacity.release(batch)
            batch.encoded = NOT_ENCODED  # a list that still has the batch does not hold its bytes
            if not isinstance(outcome, Written):
                self._failures = [failure for failure in self._failures if failure.unheard]
                if len(self._failures) < _MAX_FAILURES:  # a caller that never asks must not make it grow
                    self._failures.append(batch.outcome)
        try:
            if isinstance(outcome, Written):
                self._measures.batches_flushed.inc()
                self._measures.entries_flushed.inc(batch.count)
                self._measures.bytes_flushed.inc(plain_size)
                self._measures.bytes_written.inc(size)
                self._measures.flush_duration.observe(time.perf_counter() - batch.started)
                batch.outcome.succeed(outcome)
            else:
                batch.outcome.fail(outcome)
        finally:
            with self.lock:
                # Only now: a `flush` that does not find a batch here takes its handles for done.
                self._unfinished.remove(batch)
                self._ready.notify()  # those behind it may be next, or the producer may stop

    # Starting and stopping.

    def start(self) -> None:
        """Start the threads. Raises `InvalidInput` for a prefix of another manifest, if the store answers soon."""
        number = next(_numbers)
        looked = threading.Event()
        refused: list[PenstockError] = []

        def look_and_write() -> None:
            try:
                self._shipper.look_at_owner()
            except (InvalidInput, CorruptData) as error:
                refused.append(error)
            except Exception as error:  # noqa: BLE001  whatever it is, the first batch meets it again
                _log.info("looking at the owner of %r: %s; looking again with the first batch", self._producer, error)
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
        looked.wait(_MAX_SECONDS_AT_START)  # a store that hangs delays nothing
        if refused:
            self.stop()
            raise refused[0]

    def stop(self) -> None:
        """End the threads, once every sealed batch has an outcome."""
        with self.lock:
            self._is_stopped = True
            self._work.notify_all()
            self._ready.notify_all()
        for thread in self._threads:
            thread.join()
