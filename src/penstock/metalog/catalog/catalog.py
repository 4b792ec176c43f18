"""`SegmentCatalog`: the log segments that the events of a metadata log describe; a write is visible when it returns.

`docs/design/catalog.md` has the invariants, and what a kill leaves behind at each step.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from penstock import metrics
from penstock.core import Backoff, Closing, LoopShare, check_seconds, close_at_exit, forget, get_logger
from penstock.errors import Closed, InvalidInput, InvalidTransition, NotReady, PenstockError
from penstock.metalog.catalog.followed_partition import FollowedPartition, RecordsMissing
from penstock.metalog.catalog.placing import metadata_partition_for
from penstock.metalog.catalog.segment import (
    PartitionDelete,
    SegmentEvent,
    SegmentMetadata,
    SegmentState,
    SegmentUpdate,
    TopicIdPartition,
    check_kind,
)
from penstock.metalog.catalog.segment_view import SegmentView, partition_of
from penstock.metalog.catalog.snapshots import SnapshotFiles
from penstock.metalog.catalog.wire import encode_event
from penstock.metalog.log import MetadataLog
from penstock.metalog.records import MetadataRecord, PartitionStart, check_partition
from penstock.metalog.subscription import Subscription

if TYPE_CHECKING:
    from penstock.core import Threads

_LONGEST_POLL_SECONDS = 0.5  # after which a waiting thread looks whether its catalog still exists
_LONGEST_RETRY_SECONDS = 5.0

_CALLS_PER_ITERATION = 256  # of a loop, which then runs its other tasks

_log = get_logger(__name__)
_Answer = TypeVar("_Answer")


class SegmentCatalog(Closing):
    """The log segments that a metadata log describes. Any number of threads may use one, and catalogs may share a log.

    It follows the metadata partitions that `assign` names, at first none. `snapshot_dir` is a directory of its own for
    snapshots, with which the next catalog need not read the whole log; None writes none. The log belongs to the
    caller: `close()` leaves it open. Where the log cannot be read it tries again, within `first_retry_after` seconds
    at first, and within 5 in the end.

    Reads raise `NotReady` while a partition is catching up, and return nothing for one that is not assigned.
    Every call raises `Closed` after `close()`, and after the log was closed.

    >>> from penstock.metalog import InProcessMetadataLog
    >>> from uuid import UUID
    >>> with SegmentCatalog(InProcessMetadataLog(1), snapshot_dir=None) as catalog:
    ...     catalog.assign([0])
    ...     catalog.segments(TopicIdPartition(UUID(int=1), "orders", 0))
    []
    """

    _instead_in_child = "make a catalog in the child"

    def __init__(
        self,
        log: MetadataLog,
        *,
        snapshot_dir: str | os.PathLike[str] | None,
        snapshot_interval: float = 30,
        first_retry_after: float = 0.05,
        step: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__()
        check_seconds("snapshot_interval", snapshot_interval)
        check_seconds("first_retry_after", first_retry_after)
        if snapshot_dir is not None and not isinstance(snapshot_dir, str | os.PathLike):
            raise InvalidInput(f"snapshot_dir must be a path or None, not {snapshot_dir!r}")
        self._log = log
        self._count = log.partition_count
        self._files = None if snapshot_dir is None else SnapshotFiles(snapshot_dir, step=step)
        self._followed: dict[int, FollowedPartition] = {}
        self._assigning = threading.RLock()  # one assign at a time, also while it asks the log
        self._changing = threading.RLock()  # held to change which partitions are followed, or to write their files
        self._closing = threading.RLock()
        self._stop = threading.Event()
        self._why_ended: str | None = None
        self._loop_share = LoopShare(_CALLS_PER_ITERATION)
        self._subscription = log.subscribe([])
        backoff = Backoff(first_retry_after, _LONGEST_RETRY_SECONDS)
        me = weakref.ref(self)
        self._threads = [_start("penstock-catalog-apply", _apply_records, me, self._subscription, self._stop, backoff)]
        if self._files is not None:
            self._threads.append(
                _start("penstock-catalog-snapshots", _write_snapshots, me, self._stop, snapshot_interval)
            )
        close_at_exit(self)

    def __repr__(self) -> str:
        return f"SegmentCatalog(metadata partitions {self.assigned()} of {self._log!r})"

    def assigned(self) -> list[int]:
        """The metadata partitions that are followed, sorted."""
        return sorted(self._followed)

    def assign(self, metadata_partitions: Iterable[int]) -> None:
        """Follow these metadata partitions and no others: new ones from their snapshots on.

        Where the high-water marks cannot be fetched, new ones are followed too, and stay `NotReady` until another
        `assign`, be it of the same ones, fetches them. Raises `PartitionOutOfRange`, and changes nothing then.
        """
        if not isinstance(metadata_partitions, Iterable):
            raise InvalidInput(f"metadata_partitions must be numbers of partitions, not {metadata_partitions!r}")
        wanted = list(dict.fromkeys(metadata_partitions))
        for partition in wanted:
            check_partition(partition, self._count)
        self._check_usable()
        with self._assigning:
            marks = self._marks()
            with self._changing:
                self._check_usable()
                for partition in self._followed.keys() - set(wanted):
                    self._leave(partition)
                for partition in wanted:
                    self._follow(partition, None if marks is None else marks[partition])

    async def assign_async(self, metadata_partitions: Iterable[int]) -> None:
        """Do what `assign` does, without blocking the loop. Cancelled, it may be done or not: assign again."""
        await self._assigns.run(self.assign, metadata_partitions)

    def add_segment(self, metadata: SegmentMetadata, timeout: float = 30) -> None:
        """Publish that the copy of a segment begins, and return when this catalog shows it.

        After `timeout` seconds it raises `NotReady`, with whether the event is in the log. To try again is safe. Raises
        `InvalidInput` for another state than `COPY_SEGMENT_STARTED`, `InvalidTransition` for an id that was used, and
        what the log's `publish` raises.
        """
        self._write(_checked_new(metadata), timeout)

    async def add_segment_async(self, metadata: SegmentMetadata, timeout: float = 30) -> None:
        """Do what `add_segment` does, without blocking the loop.

        Cancelled, the event may be in the log, now or soon, as after `OutcomeUnknown`. To try again is safe.
        """
        await self._write_async(_checked_new(metadata), timeout)

    def update_segment(self, update: SegmentUpdate, timeout: float = 30) -> None:
        """Publish a segment's new state, and return when this catalog shows it; otherwise as `add_segment`."""
        check_kind("update", update, SegmentUpdate)
        self._write(update, timeout)

    async def update_segment_async(self, update: SegmentUpdate, timeout: float = 30) -> None:
        """Do what `update_segment` does, without blocking the loop; cancelled as `add_segment_async`."""
        check_kind("update", update, SegmentUpdate)
        await self._write_async(update, timeout)

    def delete_partition(self, delete: PartitionDelete, timeout: float = 30) -> None:
        """Publish how far the deletion of a partition is, and return when this catalog has it; as `add_segment`."""
        check_kind("delete", delete, PartitionDelete)
        self._write(delete, timeout)

    async def delete_partition_async(self, delete: PartitionDelete, timeout: float = 30) -> None:
        """Do what `delete_partition` does, without blocking the loop; cancelled as `add_segment_async`."""
        check_kind("delete", delete, PartitionDelete)
        await self._write_async(delete, timeout)

    def wait_for(self, metadata_partition: int, offset: int, timeout: float = 30) -> None:
        """Return when the event at an offset of the log is applied: one that another process published, say.

        Raises `NotReady` after `timeout` seconds, and for a partition that is not assigned; `PartitionOutOfRange`.
        """
        self._followed_for(metadata_partition, timeout).wait_for(offset, time.monotonic() + timeout)

    async def wait_for_async(self, metadata_partition: int, offset: int, timeout: float = 30) -> None:
        """Do what `wait_for` does, without blocking the loop."""
        await self._followed_for(metadata_partition, timeout).wait_for_async(offset, time.monotonic() + timeout)

    def segment_for(self, tp: TopicIdPartition, leader_epoch: int, offset: int) -> SegmentMetadata | None:
        """The `COPY_SEGMENT_FINISHED` segment that has an offset of a leader epoch, or None."""
        return self._read(tp, lambda view: view.segment_for(tp, leader_epoch, offset), None)

    async def segment_for_async(self, tp: TopicIdPartition, leader_epoch: int, offset: int) -> SegmentMetadata | None:
        """Do what `segment_for` does, without blocking the loop."""
        return await self._calls.run(self.segment_for, tp, leader_epoch, offset)

    def segments(self, tp: TopicIdPartition) -> list[SegmentMetadata]:
        """All segments of a partition that are not deleted, by start offset."""
        return self._read(tp, lambda view: view.segments(tp), [])

    async def segments_async(self, tp: TopicIdPartition) -> list[SegmentMetadata]:
        """Do what `segments` does, without blocking the loop."""
        return await self._calls.run(self.segments, tp)

    def segments_by_epoch(self, tp: TopicIdPartition, epoch: int) -> list[SegmentMetadata]:
        """All segments of a partition that have a leader epoch and are not deleted, by start offset."""
        return self._read(tp, lambda view: view.segments_by_epoch(tp, epoch), [])

    async def segments_by_epoch_async(self, tp: TopicIdPartition, epoch: int) -> list[SegmentMetadata]:
        """Do what `segments_by_epoch` does, without blocking the loop."""
        return await self._calls.run(self.segments_by_epoch, tp, epoch)

    def highest_offset(self, tp: TopicIdPartition, epoch: int) -> int | None:
        """The highest offset of a leader epoch in `COPY_SEGMENT_FINISHED` segments, or None."""
        return self._read(tp, lambda view: view.highest_offset(tp, epoch), None)

    async def highest_offset_async(self, tp: TopicIdPartition, epoch: int) -> int | None:
        """Do what `highest_offset` does, without blocking the loop."""
        return await self._calls.run(self.highest_offset, tp, epoch)

    def close(self) -> None:
        """Write the snapshots and close. Calls that wait raise `Closed`; the log stays open.

        In a forked child it does nothing.
        """
        if self._is_in_child:
            return
        with self._closing:
            self._end(f"{self!r} is closed")
            self._stop.set()
            self._subscription.close()
            for thread in self._threads:
                if thread is not threading.current_thread():
                    thread.join()
            with self._changing:
                self._save_changed()
                self._followed = {}
            forget(self)

    # Which partitions are followed. All of this under `_changing`.

    def _marks(self) -> list[int] | None:
        try:
            return self._log.high_water_marks()
        except Closed:
            raise
        except Exception as error:  # noqa: BLE001  any error of a log: they are not known, and nothing is ready
            _log.warning("the high-water marks cannot be fetched; what is assigned now is not ready: %s", error)
            return None

    def _follow(self, partition: int, mark: int | None) -> None:
        followed = self._followed.get(partition)
        if followed is None:
            snapshot = None if self._files is None else self._files.load(partition, self._count)
            followed = FollowedPartition(partition, self._count, snapshot)
        if mark is not None and followed.mark is None:
            if followed.start > mark:
                followed = self._replayed(followed, mark)
            followed.set_mark(mark)
        self._followed[partition] = followed
        # Does nothing if the partition is assigned already.
        self._subscription.add(PartitionStart(partition, followed.next_offset))

    def _replayed(self, followed: FollowedPartition, mark: int) -> FollowedPartition:
        """The same partition from 0 on: its snapshot is of another log, or the log has lost its end."""
        partition = followed.partition
        if self._files is not None:
            self._files.set_aside(partition, f"it goes to offset {followed.start}, and the log to {mark}")
        followed.end(NotReady(f"metadata partition {partition} is replayed"))
        self._subscription.remove(partition)
        return FollowedPartition(partition, self._count, None)

    def _leave(self, partition: int) -> None:
        followed = self._followed.pop(partition)
        followed.end(NotReady(f"metadata partition {partition} is not assigned any more"))
        self._subscription.remove(partition)
        self._save(followed)

    def _save_changed(self) -> None:
        for followed in self._followed.values():
            self._save(followed)

    def _save(self, followed: FollowedPartition) -> None:
        snapshot = None if self._files is None else followed.unsaved()
        if self._files is not None and snapshot is not None and self._files.save(snapshot):
            followed.saved(snapshot)

    # Reading and writing.

    def _read(self, tp: TopicIdPartition, question: Callable[[SegmentView], _Answer], unassigned: _Answer) -> _Answer:
        self._check_usable()
        partition = metadata_partition_for(tp, self._count)
        followed = self._followed.get(partition)
        if followed is not None:
            try:
                return followed.read(question)
            except NotReady:
                if partition in self._followed:
                    raise
        self._check_usable()  # again: `close` drops the partitions, and then the answer is not `unassigned`
        return unassigned

    def _write(self, event: SegmentEvent, timeout: float) -> None:
        followed = self._followed_for(metadata_partition_for(partition_of(event), self._count), timeout)
        until = time.monotonic() + timeout
        if not followed.changes(event, until):
            return
        with followed.listening() as refusals:
            offset = self._log.publish(followed.partition, encode_event(event))
            with _published_at(offset, refusals):
                followed.wait_for(offset, until)

    async def _write_async(self, event: SegmentEvent, timeout: float) -> None:
        followed = self._followed_for(metadata_partition_for(partition_of(event), self._count), timeout)
        until = time.monotonic() + timeout
        await followed.ready_async(until)
        if not await self._calls.run(followed.changes, event, until):
            return
        with followed.listening() as refusals:
            offset = await self._log.publish_async(followed.partition, encode_event(event))
            await self._loop_share.take()  # thousands may have been in one write of the log
            with _published_at(offset, refusals):
                await followed.wait_for_async(offset, until)

    def _followed_for(self, partition: int, timeout: float) -> FollowedPartition:
        """The partition that a call with a timeout is about. Raises what such a call raises at once."""
        check_seconds("timeout", timeout, zero=True)
        check_partition(partition, self._count)
        self._check_usable()
        return self._assigned_partition(partition)

    @cached_property
    def _calls(self) -> Threads:
        """The thread of coroutines' calls that ask a view; without coroutines asyncio is not loaded."""
        from penstock.core import Threads

        return Threads("catalog-read")

    @cached_property
    def _assigns(self) -> Threads:
        """The thread of coroutines that assign: the log may take long to answer, and views are asked meanwhile."""
        from penstock.core import Threads

        return Threads("catalog-assign")

    def _assigned_partition(self, partition: int) -> FollowedPartition:
        followed = self._followed.get(partition)
        if followed is None:
            self._check_usable()
            raise NotReady(f"metadata partition {partition} is not assigned")
        return followed

    # What the threads call.

    def _apply(self, record: MetadataRecord) -> None:
        followed = self._followed.get(record.partition)
        if followed is None:
            return
        try:
            followed.apply(record)
        except RecordsMissing:
            with self._changing:
                if self._followed.get(record.partition) is followed and not self._stop.is_set():
                    self._subscription.remove(record.partition)
                    self._subscription.add(PartitionStart(record.partition, followed.next_offset))
            raise

    def _save_now(self) -> None:
        with self._changing:
            if not self._stop.is_set():
                self._save_changed()

    def _end(self, why: str) -> None:
        with self._changing:
            self._why_ended = self._why_ended or why
            for followed in self._followed.values():
                followed.end(Closed(why))

    def _check_usable(self) -> None:
        self._check_process()
        if self._why_ended is not None:
            raise Closed(self._why_ended)


def _checked_new(metadata: SegmentMetadata) -> SegmentMetadata:
    check_kind("metadata", metadata, SegmentMetadata)
    if metadata.state is not SegmentState.COPY_SEGMENT_STARTED:
        raise InvalidInput(f"state of an added segment must be COPY_SEGMENT_STARTED, not {metadata.state.name}")
    return metadata


@contextmanager
def _published_at(offset: int, refusals: Mapping[int, InvalidTransition]) -> Iterator[None]:
    """Wait, in this block, until an event is applied. Errors get the event's offset; raises why it was refused."""
    try:
        yield
    except PenstockError as error:
        published = f"the event is in the log, at offset {offset}, and was not seen to be applied"
        raise type(error)(f"{published}: {error}") from error
    if offset in refusals:
        raise refusals[offset]


def _start(name: str, target: Callable[..., None], *args: object) -> threading.Thread:
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    thread.start()
    return thread


def _apply_records(
    me: weakref.ref[SegmentCatalog], subscription: Subscription, stop: threading.Event, backoff: Backoff
) -> None:
    """Apply records as they come, until the catalog or the log is closed, or the catalog is garbage."""
    while not stop.is_set():
        try:
            record = subscription.poll(_LONGEST_POLL_SECONDS)
            catalog = me()  # held for one record: a catalog without other references can be freed
            if catalog is None:
                break
            if record is not None:
                catalog._apply(record)
            backoff.reset()
        except Closed as error:
            catalog = me()
            if catalog is not None and not stop.is_set():
                _log.error("the metadata log is closed, and its catalog with it: %s", error)
                catalog._end(f"the metadata log is closed: {error}")
            break
        except Exception:  # noqa: BLE001  after any error it goes on
            metrics.catalog_pump_failures.inc()
            seconds = backoff.seconds()
            _log.exception("reading the metadata log failed, and is tried again in %.2f s", seconds)
            stop.wait(seconds)
        finally:
            catalog = None
    subscription.close()


def _write_snapshots(me: weakref.ref[SegmentCatalog], stop: threading.Event, interval: float) -> None:
    """Write what has changed every interval, until the catalog is closed or garbage."""
    due = time.monotonic() + interval
    while not stop.wait(min(max(due - time.monotonic(), 0.001), _LONGEST_POLL_SECONDS)):
        catalog = me()
        if catalog is None:
            return
        if time.monotonic() >= due:
            try:
                catalog._save_now()
            except Exception:  # noqa: BLE001  the catalog works without snapshots
                metrics.catalog_snapshots_failed.inc()
                _log.exception("writing snapshots failed, and is tried again in %s s", interval)
            due = time.monotonic() + interval
        del catalog
