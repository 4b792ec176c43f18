"""Events, and logs, for tests of the catalog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from prometheus_client import REGISTRY

from penstock.errors import StorageError
from penstock.metalog import InProcessMetadataLog, MetadataRecord, SegmentCatalog
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
from penstock.metalog.subscription import Feed, Wanted
from tests.support.processes import PATIENCE
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
    """Knows what was fetched, and can be slow (`limit`: no offset from there on is fetched), skip records or fail."""

    def __init__(self, partition_count: int = 1) -> None:
        super().__init__(partition_count)
        self.delivered: list[tuple[int, int]] = []
        self.limit: int | None = None
        self.skipped_once: set[int] = set()
        self.marks_fail = False
        self.fetch_errors: list[Exception] = []
        self.failed = Bell()
        self.published = Bell()
        self._feeds: list[Feed] = []

    def publish(self, partition: int, payload: bytes) -> int:
        offset = super().publish(partition, payload)
        self.published()
        return offset

    def high_water_marks(self) -> list[int]:
        if self.marks_fail:
            raise StorageError("the marks cannot be had")
        return super().high_water_marks()

    def open_feed(self) -> Feed:
        self._feeds.append(WatchedFeed(self, super().open_feed()))
        return self._feeds[-1]

    def let_through(self) -> None:
        self.limit = None
        for feed in self._feeds:
            feed.wake()


class WatchedFeed:
    """The feed of a `WatchedLog`."""

    def __init__(self, log: WatchedLog, below: Feed) -> None:
        self._log = log
        self._below = below
        self.wake = below.wake
        self.close = below.close

    def fetch(self, wanted: Sequence[Wanted], timeout: float) -> Sequence[MetadataRecord]:
        log = self._log
        if log.fetch_errors:
            log.failed()
            raise log.fetch_errors.pop()
        asked = [one for one in wanted if log.limit is None or one.offset < log.limit]
        found = self._below.fetch(asked, timeout)
        records = [one for one in found if log.limit is None or one.offset < log.limit]
        records = [one for one in records if one.offset not in log.skipped_once]
        if found:
            log.skipped_once = set()
        log.delivered += [(one.partition, one.offset) for one in records]
        return records


def wait_until_applied(catalog: SegmentCatalog, log: InProcessMetadataLog) -> None:
    """Return when a catalog has applied everything that is in the log."""
    for partition, mark in enumerate(log.high_water_marks()):
        if mark:
            catalog.wait_for(partition, mark - 1, PATIENCE)
