"""`SegmentCatalog`: the segments that a metadata log tells of, kept up to date, with what is written read at once.

`docs/design/catalog.md` has the invariants, and what a kill leaves behind at each step.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self, TypeVar

from penstock import metrics
from penstock.core import check_seconds, close_at_exit, current, forget, get_logger
from penstock.errors import Closed, InvalidInput, NotReady, PenstockError
from penstock.metalog.catalog.followed_partition import FollowedPartition, RecordsMissing
from penstock.metalog.catalog.placing import metadata_partition_for
from penstock.metalog.catalog.segment import (
    PartitionDelete,
    SegmentEvent,
    SegmentMetadata,
    SegmentState,
    SegmentUpdate,
    TopicIdPartition,
)
from penstock.metalog.catalog.segment_view import SegmentView, partition_of
from penstock.metalog.catalog.snapshots import SnapshotFiles
from penstock.metalog.catalog.wire import encode_event
from penstock.metalog.log import MetadataLog, MetadataRecord, PartitionStart, check_partition
from penstock.metalog.subscription import Subscription

_BEAT = 0.5  # seconds after which a waiting thread looks whether its catalog is still there
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0  # after a failure to read the log

_log = get_logger(__name__)
_Answer = TypeVar("_Answer")


class SegmentCatalog:
    """The segments that a metadata log tells of. Any number of threads may use one, and any number may follow a log.

    It follows no metadata partition until `assign` says which. `snapshot_dir` is a directory of its own, where it
    leaves what it knows, so that the next one need not read the whole log; None for none. The log stays its
    caller's: `close()` leaves it open.

    Reads raise `NotReady` while a partition is catching up, and answer nothing for one that is not assigned.
    Every call raises `Closed` after `close()`, and when the log is found closed.

    >>> from penstock.metalog import InProcessMetadataLog
    >>> from uuid import UUID
    >>> with SegmentCatalog(InProcessMetadataLog(1), snapshot_dir=None) as catalog:
    ...     catalog.assign([0])
    ...     catalog.segments(TopicIdPartition(UUID(int=1), "orders", 0))
    []
    """

    def __init__(
        self,
        log: MetadataLog,
        *,
        snapshot_dir: str | os.PathLike[str] | None,
        snapshot_interval: float = 30,
        step: Callable[[str], None] = lambda _: None,
    ) -> None:
        check_seconds("snapshot_interval", snapshot_interval)
        if snapshot_dir is not None and not isinstance(snapshot_dir, str | os.PathLike):
            raise InvalidInput(f"snapshot_dir must be a path or None, not {snapshot_dir!r}")
        self._log = log
        self._count = log.partition_count
        self._files = None if snapshot_dir is None else SnapshotFiles(snapshot_dir, step=step)
        self._followed: dict[int, FollowedPartition] = {}
        self._assigning = threading.RLock()  # one assign at a time, while it asks the log too
        self._steering = threading.RLock()  # whoever changes which partitions are followed, or writes their files
        self._closing = threading.RLock()
        self._stop = threading.Event()
        self._why_ended: str | None = None
        self._home = current.number
        self._subscription = log.subscribe([])
        me = weakref.ref(self)
        self._threads = [
            threading.Thread(
                target=_pump, args=(me, self._subscription, self._stop), name="penstock-catalog-pump", daemon=True
            )
        ]
        if self._files is not None:
            self._threads.append(
                threading.Thread(
                    target=_write_snapshots,
                    args=(me, self._stop, snapshot_interval),
                    name="penstock-catalog-snapshots",
                    daemon=True,
                )
            )
        for thread in self._threads:
            thread.start()
        close_at_exit(self)

    def __repr__(self) -> str:
        return f"SegmentCatalog(metadata partitions {self.assigned()} of {self._log!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def assigned(self) -> list[int]:
        """The metadata partitions that are followed, sorted."""
        return sorted(self._followed)

    def assign(self, metadata_partitions: Iterable[int]) -> None:
        """Follow exactly these metadata partitions: new ones from their snapshots on, and no others any more.

        Those whose high-water mark could not be fetched are followed too, and stay `NotReady` until a later `assign`,
        also of the same ones, has it. Raises `PartitionOutOfRange`, and changes nothing then.
        """
        if not isinstance(metadata_partitions, Iterable):
            raise InvalidInput(f"metadata_partitions must be some numbers of partitions, not {metadata_partitions!r}")
        wanted = list(dict.fromkeys(metadata_partitions))
        for partition in wanted:
            check_partition(partition, self._count)
        self._check_usable()
        with self._assigning:
            marks = self._marks()
            with self._steering:
                self._check_usable()
                for partition in self._followed.keys() - set(wanted):
                    self._leave(partition)
                for partition in wanted:
                    self._follow(partition, None if marks is None else marks[partition])

    def add_segment(self, metadata: SegmentMetadata, timeout: float = 30) -> None:
        """Tell of a segment whose copy begins, and return when this catalog shows it.

        Within `timeout` seconds, or it raises `NotReady`: then it says whether the event is in the log. To try again
        is safe. Raises `InvalidInput` for another state than `COPY_SEGMENT_STARTED`, `InvalidTransition` for an
        id that was used, and what the log's `publish` raises.
        """
        _check_kind("metadata", metadata, SegmentMetadata)
        if metadata.state is not SegmentState.COPY_SEGMENT_STARTED:
            raise InvalidInput(f"state of an added segment must be COPY_SEGMENT_STARTED, not {metadata.state.name}")
        self._write(metadata, timeout)

    def update_segment(self, update: SegmentUpdate, timeout: float = 30) -> None:
        """Tell what a segment has become, and return when this catalog shows it; otherwise as `add_segment`."""
        _check_kind("update", update, SegmentUpdate)
        self._write(update, timeout)

    def delete_partition(self, delete: PartitionDelete, timeout: float = 30) -> None:
        """Tell how far the deletion of a partition is, and return when this catalog knows; else as `add_segment`."""
        _check_kind("delete", delete, PartitionDelete)
        self._write(delete, timeout)

    def segment_for(self, tp: TopicIdPartition, leader_epoch: int, offset: int) -> SegmentMetadata | None:
        """The `COPY_SEGMENT_FINISHED` segment that has an offset of a leader epoch, or None."""
        return self._read(tp, lambda view: view.segment_for(tp, leader_epoch, offset), None)

    def segments(self, tp: TopicIdPartition) -> list[SegmentMetadata]:
        """All segments of a partition that are not deleted, by start offset."""
        return self._read(tp, lambda view: view.segments(tp), [])

    def segments_by_epoch(self, tp: TopicIdPartition, epoch: int) -> list[SegmentMetadata]:
        """All segments of a partition that have a leader epoch and are not deleted, by start offset."""
        return self._read(tp, lambda view: view.segments_by_epoch(tp, epoch), [])

    def highest_offset(self, tp: TopicIdPartition, epoch: int) -> int | None:
        """The highest offset of a leader epoch in `COPY_SEGMENT_FINISHED` segments, or None."""
        return self._read(tp, lambda view: view.highest_offset(tp, epoch), None)

    def close(self) -> None:
        """Write the snapshots and end. Whoever waits is told so; the log stays open. Closing twice is fine."""
        if self._home != current.number:
            return
        with self._closing:
            self._end(f"{type(self).__name__} is closed")
            self._stop.set()
            self._subscription.close()
            for thread in self._threads:
                if thread is not threading.current_thread():
                    thread.join()
            with self._steering:
                self._save_changed()
                self._followed = {}
            forget(self)

    # Which partitions are followed. All of this under `_steering`.

    def _marks(self) -> list[int] | None:
        try:
            return self._log.high_water_marks()
        except Closed:
            raise
        except Exception as error:  # noqa: BLE001  whatever a log raises: they are not known, and nothing is ready
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
        self._subscription.add(PartitionStart(partition, followed.next_offset))  # nothing, if it is there already

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
        self._check_usable()  # again: `close` forgets the partitions, and then nothing is not the answer
        return unassigned

    def _write(self, event: SegmentEvent, timeout: float) -> None:
        check_seconds("timeout", timeout, zero=True)
        self._check_usable()
        until = time.monotonic() + timeout
        partition = metadata_partition_for(partition_of(event), self._count)
        followed = self._followed.get(partition)
        if followed is None:
            self._check_usable()
            raise NotReady(f"metadata partition {partition} is not assigned")
        if not followed.changes(event, until):
            return
        with followed.listening() as refusals:
            offset = self._log.publish(partition, encode_event(event))
            try:
                followed.wait_for(offset, until)
            except PenstockError as error:
                said = f"the event is in the log, at offset {offset}, and was not seen to be applied: {error}"
                raise type(error)(said) from error
            if offset in refusals:
                raise refusals[offset]

    # What the threads do.

    def _take(self, record: MetadataRecord) -> None:
        followed = self._followed.get(record.partition)
        if followed is None:
            return
        try:
            followed.apply(record)
        except RecordsMissing:
            with self._steering:
                if self._followed.get(record.partition) is followed and not self._stop.is_set():
                    self._subscription.remove(record.partition)
                    self._subscription.add(PartitionStart(record.partition, followed.next_offset))
            raise

    def _save_now(self) -> None:
        with self._steering:
            if not self._stop.is_set():
                self._save_changed()

    def _end(self, why: str) -> None:
        with self._steering:
            self._why_ended = self._why_ended or why
            for followed in self._followed.values():
                followed.end(Closed(why))

    def _check_usable(self) -> None:
        if self._home != current.number:
            raise InvalidInput(f"a catalog of process {self._home} cannot be used in its forked child {current.number}")
        if self._why_ended is not None:
            raise Closed(self._why_ended)


def _check_kind(field: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise InvalidInput(f"{field} must be a {kind.__name__}, not {value!r}")


def _pump(me: weakref.ref[SegmentCatalog], subscription: Subscription, stop: threading.Event) -> None:
    """Take records and have them applied, until the catalog or the log is closed, or the catalog is gone."""
    pause = _FIRST_PAUSE
    while not stop.is_set():
        try:
            record = subscription.poll(_BEAT)
            catalog = me()  # held for one record: a catalog that nobody holds can go
            if catalog is None:
                break
            if record is not None:
                catalog._take(record)
            pause = _FIRST_PAUSE
        except Closed as error:
            catalog = me()
            if catalog is not None and not stop.is_set():
                _log.error("the metadata log is closed, and its catalog with it: %s", error)
                catalog._end(f"the metadata log is closed: {error}")
            break
        except Exception:  # noqa: BLE001  whatever it is, the pump goes on
            metrics.catalog_pump_failures.inc()
            _log.exception("reading the metadata log failed, and is tried again in %s s", pause)
            stop.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        finally:
            catalog = None
    subscription.close()


def _write_snapshots(me: weakref.ref[SegmentCatalog], stop: threading.Event, interval: float) -> None:
    """Write what has changed every interval, until the catalog is closed or gone."""
    due = time.monotonic() + interval
    while not stop.wait(min(max(due - time.monotonic(), 0.001), _BEAT)):
        catalog = me()
        if catalog is None:
            return
        if time.monotonic() >= due:
            try:
                catalog._save_now()
            except Exception:  # noqa: BLE001  the catalog is as good without
                metrics.catalog_snapshots_failed.inc()
                _log.exception("writing snapshots failed, and is tried again in %s s", interval)
            due = time.monotonic() + interval
        del catalog
