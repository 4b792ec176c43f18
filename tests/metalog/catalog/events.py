"""Events, and logs, for tests of the catalog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from prometheus_client import REGISTRY

from penstock.errors import StorageError
from penstock.metalog.catalog.placing import metadata_partition_for
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
from penstock.metalog.catalog.segment_view import SegmentView, partition_of
from penstock.metalog.catalog.wire import encode_event
from penstock.metalog.in_process import InProcessMetadataLog, _Feed
from penstock.metalog.log import MetadataRecord
from penstock.metalog.subscription import Wanted
from tests.support.waiting import Bell

STARTED, FINISHED, DELETING, DELETED = SegmentState
MARKED, DELETION_STARTED, DELETION_FINISHED = PartitionDeleteState

TP = TopicIdPartition(UUID(int=1), "orders", 0)


def segment(
    number: int,
    start: int = 0,
    end: int = 99,
    epochs: Mapping[int, int] | None = None,
    tp: TopicIdPartition = TP,
    state: SegmentState = STARTED,
) -> SegmentMetadata:
    name = SegmentId(tp, UUID(int=number))
    return SegmentMetadata(name, start, end, 5, 1, 6, 700, state, epochs or {0: start}, b"custom")


def update(number: int, state: SegmentState, tp: TopicIdPartition = TP) -> SegmentUpdate:
    return SegmentUpdate(SegmentId(tp, UUID(int=number)), 9, state, 2)


def deletion(state: PartitionDeleteState, tp: TopicIdPartition = TP) -> PartitionDelete:
    return PartitionDelete(tp, state, 9, 2)


def in_state(number: int, state: SegmentState) -> list[SegmentEvent]:
    """Events that bring a new segment into a state."""
    path: dict[SegmentState, list[SegmentState]] = {
        STARTED: [],
        FINISHED: [FINISHED],
        DELETING: [DELETING],
        DELETED: [DELETING, DELETED],
    }
    return [segment(number, 100 * number, 100 * number + 99), *(update(number, one) for one in path[state])]


def contents(view: SegmentView) -> set[bytes]:
    """All there is in a view, to be compared."""
    return {encode_event(event) for event in view.events()}


def publish(log: InProcessMetadataLog, *events: SegmentEvent) -> None:
    for event in events:
        log.publish(metadata_partition_for(partition_of(event), log.partition_count), encode_event(event))


def counted(name: str, **labels: str) -> float:
    """What a metric of the catalog says."""
    return REGISTRY.get_sample_value(f"penstock_catalog_{name}_total", labels) or 0.0


class WatchedLog(InProcessMetadataLog):
    """Knows what was fetched, and can be slow (`limit`: no offset from there on is fetched) or fail."""

    def __init__(self, partition_count: int = 1) -> None:
        super().__init__(partition_count)
        self.delivered: list[tuple[int, int]] = []
        self.limit: int | None = None
        self.marks_fail = False
        self.fetch_errors: list[Exception] = []
        self.failed = Bell()
        self.published = Bell()

    def publish(self, partition: int, payload: bytes) -> int:
        offset = super().publish(partition, payload)
        self.published()
        return offset

    def high_water_marks(self) -> list[int]:
        if self.marks_fail:
            raise StorageError("the marks cannot be had")
        return super().high_water_marks()

    def let_through(self) -> None:
        with self._grown:
            self.limit = None
            self._grown.notify_all()

    def _fetch(self, feed: _Feed, wanted: Sequence[Wanted], timeout: float) -> list[MetadataRecord]:
        if self.fetch_errors:
            self.failed()
            raise self.fetch_errors.pop()
        return super()._fetch(feed, wanted, timeout)

    def _from(self, wanted: Wanted) -> list[MetadataRecord]:
        records = [one for one in super()._from(wanted) if self.limit is None or one.offset < self.limit]
        self.delivered += [(one.partition, one.offset) for one in records]
        return records
