"""`SegmentView`: the state after the events of one metadata partition. No threads, no files, no clock.

Whether an event is applied depends on the events before it alone, so all readers of a log have the same view.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from uuid import UUID

from penstock.errors import InvalidInput, InvalidTransition
from penstock.metalog.catalog.offset_ranges import OffsetRange, OffsetRanges
from penstock.metalog.catalog.segment import (
    PartitionDelete,
    PartitionDeleteState,
    SegmentEvent,
    SegmentId,
    SegmentMetadata,
    SegmentState,
    SegmentUpdate,
    TopicIdPartition,
)

_STARTED = SegmentState.COPY_SEGMENT_STARTED
_FINISHED = SegmentState.COPY_SEGMENT_FINISHED
_GONE = SegmentState.DELETE_SEGMENT_FINISHED


class SegmentView:
    """The segments of some partitions, and how far the partitions' deletions are."""

    def __init__(self) -> None:
        self._partitions: dict[TopicIdPartition, _Partition] = {}

    @classmethod
    def of(cls, events: Iterable[SegmentEvent]) -> SegmentView:
        """A view from the `events` of another one."""
        view = cls()
        for event in events:
            partition = view._partition(partition_of(event))
            if isinstance(event, SegmentMetadata):
                partition.put(event)
            elif isinstance(event, SegmentUpdate):
                partition.gone.add(event.id.id.int)
            else:
                partition.deletion = event
        return view

    def events(self) -> Iterator[SegmentEvent]:
        """The state as events: each segment as it is, and deleted ones as updates to that state.

        The state is copied when this is called, which is quick; an event is constructed when it is read.
        """
        copies = [
            (tp, list(one.segments.values()), list(one.gone), one.deletion) for tp, one in self._partitions.items()
        ]
        return chain.from_iterable(_events_of(*copy) for copy in copies)

    def check(self, event: SegmentEvent) -> bool:
        """Whether an event would change anything. Raises `InvalidTransition` if it may not follow."""
        tp = partition_of(event)
        partition = self._partitions.get(tp, _NOTHING)
        deleted = None if partition.deletion is None else partition.deletion.state
        if isinstance(event, PartitionDelete):
            return event.state.follows(deleted)
        if deleted is PartitionDeleteState.FINISHED:
            raise InvalidTransition(f"{_name(tp)} is deleted, with all its segments")
        state = partition.state_of(event.id)
        if isinstance(event, SegmentMetadata) and event.state is not _STARTED:
            raise InvalidTransition(f"a segment is added as {_STARTED.name}, not as {event.state.name}")
        if isinstance(event, SegmentUpdate) and state is None:
            raise InvalidTransition(f"there is no segment {event.id.id} of {_name(tp)} that could be updated")
        return event.state.follows(state)

    def apply(self, event: SegmentEvent) -> bool:
        """Apply an event; return whether it changed anything. Raises `InvalidTransition`, and changes nothing then."""
        if not self.check(event):
            return False
        partition = self._partition(partition_of(event))
        if isinstance(event, SegmentMetadata):
            partition.put(event)
        elif isinstance(event, SegmentUpdate):
            partition.update(event)
        else:
            partition.deletion = event
            if event.state is PartitionDeleteState.FINISHED:
                partition.forget()
        return True

    def segment_for(self, tp: TopicIdPartition, leader_epoch: int, offset: int) -> SegmentMetadata | None:
        """The finished segment that has an offset of an epoch: of several the one whose range begins last."""
        partition = self._partitions.get(tp, _NOTHING)
        ranges = partition.finished.get(leader_epoch)
        found = None if ranges is None else ranges.find(offset)
        return None if found is None else partition.segments[found]

    def segments(self, tp: TopicIdPartition) -> list[SegmentMetadata]:
        """Every segment that is not deleted, by start offset."""
        partition = self._partitions.get(tp, _NOTHING)
        return partition.listed(partition.all)

    def segments_by_epoch(self, tp: TopicIdPartition, epoch: int) -> list[SegmentMetadata]:
        """Every segment with an epoch that is not deleted, by start offset."""
        partition = self._partitions.get(tp, _NOTHING)
        return partition.listed(partition.by_epoch.get(epoch, ()))

    def highest_offset(self, tp: TopicIdPartition, epoch: int) -> int | None:
        """The highest end of an epoch's ranges in finished segments."""
        ranges = self._partitions.get(tp, _NOTHING).finished.get(epoch)
        return None if ranges is None else ranges.furthest()

    def _partition(self, tp: TopicIdPartition) -> _Partition:
        return self._partitions.setdefault(tp, _Partition())


def partition_of(event: SegmentEvent) -> TopicIdPartition:
    """The partition that an event is about. Raises `InvalidInput` for what is no event."""
    if isinstance(event, SegmentMetadata | SegmentUpdate):
        return event.id.topic_id_partition
    if isinstance(event, PartitionDelete):
        return event.topic_id_partition
    raise InvalidInput(f"event must be a SegmentMetadata, a SegmentUpdate or a PartitionDelete, not {event!r}")


@dataclass(slots=True)
class _Partition:
    """Segments by the number of their id; and the same ones in order: all, by epoch, and the finished by epoch."""

    segments: dict[int, SegmentMetadata] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    deletion: PartitionDelete | None = None
    all: OffsetRanges = field(default_factory=OffsetRanges)
    by_epoch: dict[int, OffsetRanges] = field(default_factory=dict)
    finished: dict[int, OffsetRanges] = field(default_factory=dict)

    def state_of(self, segment: SegmentId) -> SegmentState | None:
        number = segment.id.int
        if number in self.gone:
            return _GONE
        found = self.segments.get(number)
        return None if found is None else found.state

    def put(self, segment: SegmentMetadata) -> None:
        self.segments[segment.id.id.int] = segment
        whole = _whole(segment)
        self.all.add(whole)
        for epoch in segment.segment_leader_epochs:
            self.by_epoch.setdefault(epoch, OffsetRanges()).add(whole)
        self._index_finished(segment)

    def update(self, update: SegmentUpdate) -> None:
        """Change only the indexes by state: the offsets of a segment never change."""
        number = update.id.id.int
        before = self.segments[number]
        updated = before.with_update(update)
        if before.state is _FINISHED:
            for epoch, part in _parts(before):
                self.finished[epoch].remove(part)
        if updated.state is _GONE:
            self._remove(before)
            self.gone.add(number)
        else:
            self.segments[number] = updated
            self._index_finished(updated)

    def _index_finished(self, segment: SegmentMetadata) -> None:
        if segment.state is _FINISHED:
            for epoch, part in _parts(segment):
                self.finished.setdefault(epoch, OffsetRanges()).add(part)

    def _remove(self, segment: SegmentMetadata) -> None:
        del self.segments[segment.id.id.int]
        whole = _whole(segment)
        self.all.remove(whole)
        for epoch in segment.segment_leader_epochs:
            self.by_epoch[epoch].remove(whole)

    def listed(self, ranges: Iterable[OffsetRange]) -> list[SegmentMetadata]:
        return [self.segments[one.segment] for one in ranges]

    def forget(self) -> None:
        """Keep only how far the deletion is."""
        self.segments, self.gone = {}, set()
        self.all, self.by_epoch, self.finished = OffsetRanges(), {}, {}


_NOTHING = _Partition()


def _whole(segment: SegmentMetadata) -> OffsetRange:
    return OffsetRange(segment.start_offset, segment.end_offset, segment.id.id.int)


def _parts(segment: SegmentMetadata) -> Iterator[tuple[int, OffsetRange]]:
    """The offsets of each epoch in a segment: from its first one to the next epoch, within the segment's own."""
    epochs = list(segment.segment_leader_epochs.items())  # they ascend
    lasts = [first - 1 for _, first in epochs[1:]] + [segment.end_offset]
    for (epoch, first), last in zip(epochs, lasts, strict=True):
        start, end = max(first, segment.start_offset), min(last, segment.end_offset)
        if start <= end:
            yield epoch, OffsetRange(start, end, segment.id.id.int)


def _events_of(
    tp: TopicIdPartition, segments: list[SegmentMetadata], gone: list[int], deletion: PartitionDelete | None
) -> Iterator[SegmentEvent]:
    yield from segments
    for number in gone:
        yield SegmentUpdate(SegmentId(tp, UUID(int=number)), 0, _GONE, 0)
    if deletion is not None:
        yield deletion


def _name(tp: TopicIdPartition) -> str:
    return f"partition {tp.partition} of {tp.topic!r}"
