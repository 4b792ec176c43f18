"""`FollowedPartition`: an assigned metadata partition: its view, how far that is, and the calls that wait for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from penstock import metrics
from penstock.core import get_logger
from penstock.errors import CorruptData, InvalidTransition, NotReady, PenstockError, StorageError
from penstock.metalog.catalog.placing import metadata_partition_for
from penstock.metalog.catalog.segment import SegmentEvent
from penstock.metalog.catalog.segment_view import SegmentView, partition_of
from penstock.metalog.catalog.snapshots import Snapshot
from penstock.metalog.catalog.wire import decode_event
from penstock.metalog.records import MetadataRecord

if TYPE_CHECKING:
    from penstock.core import LoopLatch

_log = get_logger(__name__)

_Answer = TypeVar("_Answer")

_READINESS = -1  # what a coroutine waits for that waits for no offset


class RecordsMissing(StorageError):
    """A record came before one that should have come first."""


class FollowedPartition:
    """One metadata partition from its assignment to its removal. The view and its offset move together.

    `mark` is the high-water mark seen when it was assigned, None if that could not be fetched.
    """

    def __init__(self, partition: int, partition_count: int, snapshot: Snapshot | None) -> None:
        self.partition = partition
        self.mark: int | None = None
        self.start = 0 if snapshot is None else snapshot.next_offset
        """Where it began: everything below is in the snapshot."""
        self._partition_count = partition_count
        self._view = SegmentView() if snapshot is None else SegmentView.of(snapshot.events)
        self.next_offset = self._saved_offset = self.start
        """Everything below it is applied."""
        self._moved = threading.Condition(threading.RLock())
        self._end: PenstockError | None = None
        # The lock of what follows: it is never held for long, for a loop's thread acquires it, and not the one above.
        self._listed = threading.RLock()
        self._awaiting: dict[int, dict[LoopLatch, None]] = {}  # coroutines, by the offset whose event they wait for
        self._listeners: dict[int, dict[int, InvalidTransition]] = {}

    def apply(self, record: MetadataRecord) -> None:
        """Apply the next record, or skip it. Raises `RecordsMissing` if records before it are missing."""
        decoded = self._decoded(record)
        with self._moved:
            if self._end is not None or record.offset < self.next_offset:
                return
            if record.offset > self.next_offset:
                raise RecordsMissing(
                    f"metadata partition {self.partition} went from offset {self.next_offset} to {record.offset}"
                )
            refusal = decoded if isinstance(decoded, _Skipped) else self._applied(decoded)
            if refusal is None:
                metrics.catalog_events_applied.inc()
            else:
                self._skip(record, refusal)
            self.next_offset += 1
            self._notify(record.offset)

    def read(self, question: Callable[[SegmentView], _Answer]) -> _Answer:
        """Ask the view. Raises `NotReady`, or why this ended."""
        with self._moved:
            if self._end is not None:
                raise _again(self._end)
            if not self._is_ready():
                raise self._not_ready()
            return question(self._view)

    def changes(self, event: SegmentEvent, until: float) -> bool:
        """Wait until it is ready, and return whether an event would change anything. Raises `InvalidTransition`."""
        with self._moved:
            if not self._wait(self._is_ready, until):
                raise self._not_ready()
            return self._view.check(event)

    async def ready_async(self, until: float) -> None:
        """Wait until `changes` does not wait: it is ready, this has ended, or the time is over."""
        await self._wait_async(_READINESS, self._is_ready, until)

    @contextmanager
    def listening(self) -> Iterator[dict[int, InvalidTransition]]:
        """Collect the refusals from now on, by offset: an event may be applied before its `publish` returns."""
        refusals: dict[int, InvalidTransition] = {}
        with self._listed:
            self._listeners[id(refusals)] = refusals
        try:
            yield refusals
        finally:
            with self._listed:
                del self._listeners[id(refusals)]

    def wait_for(self, offset: int, until: float) -> None:
        """Return when an offset is applied. Raises `NotReady` if it is not in time, or why this ended."""
        with self._moved:
            if not self._wait(lambda: self.next_offset > offset, until):
                raise self._not_applied()

    async def wait_for_async(self, offset: int, until: float) -> None:
        """Do what `wait_for` does, without blocking the loop."""
        await self._wait_async(offset, lambda: self.next_offset > offset, until)
        if self._end is not None:
            raise _again(self._end)
        if self.next_offset <= offset:
            raise self._not_applied()

    def end(self, why: PenstockError) -> None:
        """Apply and answer nothing from now on; calls that wait raise this error."""
        with self._moved:
            if self._end is None:
                self._end = why
                self._notify()

    def unsaved(self) -> Snapshot | None:
        """A snapshot of now; None if nothing was applied since the last one, or the one that it began with."""
        with self._moved:
            if self.next_offset == self._saved_offset:
                return None
            return Snapshot(self.partition, self._partition_count, self.next_offset, self._view.events())

    def saved(self, snapshot: Snapshot) -> None:
        """A snapshot is on disk."""
        self._saved_offset = snapshot.next_offset

    def _is_ready(self) -> bool:
        return self.mark is not None and self.next_offset >= self.mark

    def set_mark(self, mark: int) -> None:
        """Set the high-water mark of the log."""
        with self._moved:
            self.mark = mark
            self._notify()

    def _not_ready(self) -> NotReady:
        goal = "the log's high-water mark is not known: assign again" if self.mark is None else f"of {self.mark}"
        return NotReady(f"metadata partition {self.partition} is catching up: {self.next_offset} applied, {goal}")

    def _not_applied(self) -> NotReady:
        return NotReady(f"metadata partition {self.partition} has applied the offsets below {self.next_offset}")

    def _wait(self, is_so: Callable[[], bool], until: float) -> bool:
        while self._end is None and not is_so():
            remaining = until - time.monotonic()
            if remaining <= 0:
                return False
            self._moved.wait(min(remaining, threading.TIMEOUT_MAX))
        if self._end is not None:
            raise _again(self._end)
        return True

    async def _wait_async(self, offset: int, is_so: Callable[[], bool], until: float) -> None:
        """Wait until it is so, which it then stays; or until this ends, or the time is over.

        It becomes so with the event at this offset, or is `_READINESS`.
        """
        from penstock.core import LoopLatch  # callers that do not await need not load asyncio

        latch = LoopLatch()
        with self._listed:
            if self._end is not None or is_so():
                return
            self._awaiting.setdefault(offset, {})[latch] = None
        try:
            await latch.wait(max(until - time.monotonic(), 0.0))
        finally:
            with self._listed:
                others = self._awaiting.get(offset, {})
                others.pop(latch, None)
                if not others:
                    self._awaiting.pop(offset, None)

    def _notify(self, applied: int = _READINESS) -> None:
        """Wake what waits for this change: an offset was applied, the mark is known, or this has ended."""
        self._moved.notify_all()
        with self._listed:
            reached = tuple(self._awaiting) if self._end is not None else (applied,)
            if self._is_ready():
                reached += (_READINESS,)
            latches = [latch for offset in reached for latch in self._awaiting.pop(offset, ())]
        for latch in latches:
            latch.open()

    def _decoded(self, record: MetadataRecord) -> SegmentEvent | _Skipped:
        try:
            event = decode_event(record.payload)
            belongs = metadata_partition_for(partition_of(event), self._partition_count)
        except CorruptData as error:
            return _Skipped("corrupt", str(error))
        except Exception as error:  # noqa: BLE001  one record must not stop the others
            _log.exception("reading offset %d of metadata partition %d failed", record.offset, record.partition)
            return _Skipped("failed", repr(error))
        if belongs != self.partition:
            return _Skipped("misplaced", f"it belongs to metadata partition {belongs}")
        return event

    def _applied(self, event: SegmentEvent) -> _Skipped | None:
        try:
            self._view.apply(event)
        except InvalidTransition as error:
            return _Skipped("refused", str(error))
        except Exception as error:  # noqa: BLE001  one record must not stop the others
            _log.exception("applying %r failed", event)
            return _Skipped("failed", repr(error))
        return None

    def _skip(self, record: MetadataRecord, skipped: _Skipped) -> None:
        metrics.catalog_events_skipped.labels(skipped.reason).inc()
        _log.warning("skipped offset %d of metadata partition %d (%s): %s", record.offset, record.partition, *skipped)
        with self._listed:
            for refusals in self._listeners.values():
                refusals[record.offset] = InvalidTransition(skipped.message)


def _again(error: PenstockError) -> PenstockError:
    """A copy: many threads may raise it, each with its own traceback."""
    return type(error)(*error.args)


class _Skipped(NamedTuple):
    """Why an event was not applied."""

    reason: str
    message: str
