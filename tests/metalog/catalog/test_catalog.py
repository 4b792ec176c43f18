"""The catalog: when it can be read and written, and that a write is visible when it returns."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import pytest

from penstock.errors import (
    Closed,
    InvalidInput,
    InvalidTransition,
    NotReady,
    OutcomeUnknown,
    PartitionOutOfRange,
    StorageError,
)
from penstock.metalog import (
    MetadataRecord,
    SegmentCatalog,
    SegmentState,
    TopicIdPartition,
    encode_event,
    metadata_partition_for,
)
from penstock.metalog.catalog.followed_partition import FollowedPartition
from penstock.metalog.catalog.segment_view import SegmentView
from tests.metalog.catalog.events import (
    DELETED,
    DELETING,
    DELETION_FINISHED,
    DELETION_STARTED,
    FINISHED,
    MARKED,
    STARTED,
    TP,
    WatchedLog,
    counted,
    deletion,
    in_state,
    publish,
    segment,
    update,
    wait_until_applied,
)
from tests.metalog.reading import no_thread_is_left
from tests.support.processes import PATIENCE
from tests.support.waiting import A_WHILE, NEVER, Background


def open_catalog(log: WatchedLog, partitions: range | None = None) -> SegmentCatalog:
    catalog = SegmentCatalog(log, snapshot_dir=None)
    catalog.assign(range(log.partition_count) if partitions is None else partitions)
    return catalog


def test_what_is_written_is_read() -> None:
    with WatchedLog(3) as log, open_catalog(log) as catalog:
        catalog.add_segment(segment(1))
        assert [one.state for one in catalog.segments(TP)] == [STARTED]
        catalog.update_segment(update(1, FINISHED))
        found = catalog.segment_for(TP, 0, 50)
        assert found is not None
        assert found.state is FINISHED
        assert catalog.highest_offset(TP, 0) == 99
        assert catalog.segments_by_epoch(TP, 0) == [found]
        catalog.delete_partition(deletion(MARKED))
        catalog.delete_partition(deletion(DELETION_STARTED))
        catalog.delete_partition(deletion(DELETION_FINISHED))
        assert catalog.segments(TP) == []


def test_many_threads_read_their_own_writes() -> None:
    def write(topic: int) -> None:
        tp = TopicIdPartition(UUID(int=topic), "t", topic)
        for number in range(25):
            catalog.add_segment(segment(number, 100 * number, 100 * number + 99, tp=tp))
            catalog.update_segment(update(number, FINISHED, tp))
            assert catalog.highest_offset(tp, 0) == 100 * number + 99

    with WatchedLog(3) as log, open_catalog(log) as catalog, ThreadPoolExecutor(8) as threads:
        list(threads.map(write, range(8)))


@pytest.mark.parametrize("state", [FINISHED, DELETING, DELETED])
def test_a_segment_that_does_not_begin_its_copy_cannot_be_added(state: SegmentState) -> None:
    with WatchedLog() as log, open_catalog(log) as catalog, pytest.raises(InvalidInput, match="COPY_SEGMENT_STARTED"):
        catalog.add_segment(segment(1, state=state))


def test_what_is_no_event_is_refused() -> None:
    with WatchedLog() as log, open_catalog(log) as catalog:
        for write in (catalog.add_segment, catalog.update_segment, catalog.delete_partition):
            with pytest.raises(InvalidInput, match="must be a"):
                write("nonsense")  # type: ignore[arg-type]


def test_what_the_view_does_not_allow_is_not_published() -> None:
    with WatchedLog() as log, open_catalog(log) as catalog:
        for wrong in (update(1, FINISHED), update(1, STARTED)):
            with pytest.raises(InvalidTransition):
                catalog.update_segment(wrong)
        with pytest.raises(InvalidTransition):
            catalog.delete_partition(deletion(DELETION_STARTED))
        assert log.high_water_marks() == [0]


def test_the_same_state_again_publishes_nothing() -> None:
    with WatchedLog() as log, open_catalog(log) as catalog:
        for _ in range(2):
            catalog.add_segment(segment(1))
        for state in (FINISHED, DELETING, DELETED):
            for _ in range(2):
                catalog.update_segment(update(1, state))
        for _ in range(2):
            catalog.delete_partition(deletion(MARKED))
        assert log.high_water_marks() == [5]


class RacingLog(WatchedLog):
    """Another event comes into the log just before ours."""

    other = b""

    def publish(self, partition: int, payload: bytes) -> int:
        if self.other:
            super().publish(partition, self.other)
            self.other = b""
        return super().publish(partition, payload)


def test_a_write_that_loses_a_race_in_the_log_is_refused() -> None:
    with RacingLog() as log, open_catalog(log) as catalog:
        catalog.add_segment(segment(1))
        log.other = encode_event(update(1, DELETING))
        with pytest.raises(InvalidTransition):
            catalog.update_segment(update(1, FINISHED))
        assert [one.state for one in catalog.segments(TP)] == [DELETING]
        log.other = encode_event(update(1, DELETED))
        catalog.update_segment(update(1, DELETED))
        assert catalog.segments(TP) == []


def test_what_the_log_raises_is_raised() -> None:
    class Doubtful(WatchedLog):
        def publish(self, partition: int, payload: bytes) -> int:
            raise OutcomeUnknown("no answer")

    with Doubtful() as log, open_catalog(log) as catalog, pytest.raises(OutcomeUnknown):
        catalog.add_segment(segment(1))


# Ready or not.


def reads(catalog: SegmentCatalog) -> list[object]:
    return [
        catalog.segment_for(TP, 0, 150),
        catalog.segments(TP),
        catalog.segments_by_epoch(TP, 0),
        catalog.highest_offset(TP, 0),
    ]


def assert_not_ready(catalog: SegmentCatalog, match: str = "catching up") -> None:
    for read in (
        lambda: catalog.segment_for(TP, 0, 150),
        lambda: catalog.segments(TP),
        lambda: catalog.segments_by_epoch(TP, 0),
        lambda: catalog.highest_offset(TP, 0),
    ):
        with pytest.raises(NotReady, match=match):
            read()


def test_nothing_is_read_until_the_mark_is_reached() -> None:
    with WatchedLog() as log:
        publish(log, *in_state(1, FINISHED), segment(2))
        log.limit = 2
        with open_catalog(log) as catalog:
            catalog.wait_for(0, 1, PATIENCE)
            assert_not_ready(catalog, "2 applied, of 3")
            with pytest.raises(NotReady, match="2 applied, of 3"):
                catalog.add_segment(segment(3), timeout=0.01)
            writer = Background(lambda: catalog.add_segment(segment(3)))
            assert not writer.has_ended_within(A_WHILE)
            assert log.high_water_marks() == [3]
            log.let_through()
            writer.result()
            assert len(catalog.segments(TP)) == 3


def test_a_later_assign_does_not_make_a_ready_partition_wait() -> None:
    with WatchedLog() as log, open_catalog(log) as catalog:
        log.limit = 0
        publish(log, segment(1))
        catalog.assign([0])
        assert catalog.segments(TP) == []


def test_without_marks_a_partition_is_consumed_and_not_ready() -> None:
    with WatchedLog() as log:
        publish(log, *in_state(1, FINISHED))
        log.marks_fail = True
        with open_catalog(log) as catalog:
            catalog.wait_for(0, 1, PATIENCE)
            assert_not_ready(catalog, "mark is not known")
            with pytest.raises(NotReady):
                catalog.update_segment(update(1, DELETING), timeout=0)
            catalog.assign([0])
            assert_not_ready(catalog)
            log.marks_fail = False
            catalog.assign([0])
            assert catalog.highest_offset(TP, 0) == 199


def test_an_empty_log_is_ready_at_once_but_not_without_its_mark() -> None:
    with WatchedLog() as log:
        log.marks_fail = True
        with open_catalog(log) as catalog:
            assert_not_ready(catalog)
            log.marks_fail = False
            catalog.assign([0])
            assert catalog.segments(TP) == []


def test_what_is_not_assigned_answers_nothing() -> None:
    with WatchedLog() as log, open_catalog(log) as catalog:
        catalog.add_segment(segment(1, 100, 199))
        catalog.update_segment(update(1, FINISHED))
        assert all(reads(catalog))
        catalog.assign([])
        assert reads(catalog) == [None, [], [], None]
        with pytest.raises(NotReady, match="not assigned"):
            catalog.update_segment(update(1, DELETING))
        catalog.assign([0])
        wait_until_applied(catalog, log)
        assert all(reads(catalog))


def test_a_partition_that_the_log_does_not_have_changes_nothing() -> None:
    with WatchedLog(2) as log, open_catalog(log, range(1)) as catalog:
        for wrong in ([1, 2], [-1]):
            with pytest.raises(PartitionOutOfRange):
                catalog.assign(wrong)
        for nonsense in (1, None, ["1"], [True]):
            with pytest.raises(InvalidInput):
                catalog.assign(nonsense)  # type: ignore[arg-type]  # on purpose
        assert catalog.assigned() == [0]


def test_a_write_that_waits_for_a_partition_that_is_removed_is_not_ready() -> None:
    with WatchedLog() as log:
        publish(log, segment(1))
        log.limit = 0
        with open_catalog(log) as catalog:
            waiting = Background(lambda: catalog.add_segment(segment(2)))
            assert not waiting.has_ended_within(A_WHILE)
            catalog.assign([])
            with pytest.raises(NotReady, match="not assigned any more"):
                waiting.result()
            assert log.high_water_marks() == [1]


def test_a_write_that_was_published_and_not_applied_in_time_says_that_it_is_in_the_log() -> None:
    with WatchedLog() as log, open_catalog(log) as catalog:
        log.limit = 0
        with pytest.raises(NotReady, match="in the log, at offset 0"):
            catalog.add_segment(segment(1), timeout=0.05)
        waiting = Background(lambda: catalog.add_segment(segment(2)))
        log.published.wait(2)
        catalog.assign([])
        with pytest.raises(NotReady, match="in the log, at offset 1"):
            waiting.result()
        log.let_through()
        catalog.assign([0])
        catalog.add_segment(segment(1))
        assert len(catalog.segments(TP)) == 2
        assert log.high_water_marks() == [2]


# Records of the log.


def test_events_that_make_no_sense_are_counted_and_gone_past() -> None:
    reasons = ("corrupt", "misplaced", "refused")
    before = [counted("events_skipped", reason=reason) for reason in reasons]
    with WatchedLog(2) as log:
        at = metadata_partition_for(TP, 2)
        log.publish(at, b"garbage")
        log.publish(1 - at, encode_event(segment(7)))
        publish(log, update(1, FINISHED), *in_state(1, FINISHED))
        with open_catalog(log) as catalog:
            wait_until_applied(catalog, log)
            assert catalog.highest_offset(TP, 0) == 199
            catalog.add_segment(segment(2))
    assert [counted("events_skipped", reason=reason) for reason in reasons] == [one + 1 for one in before]


def test_an_event_that_fails_unexpectedly_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    before = counted("events_skipped", reason="failed")
    with WatchedLog() as log, open_catalog(log) as catalog:
        with monkeypatch.context() as patch:
            patch.setattr(SegmentView, "apply", lambda *_: 1 / 0)
            with pytest.raises(InvalidTransition, match="ZeroDivisionError"):
                catalog.add_segment(segment(1))
        catalog.add_segment(segment(2))
        assert len(catalog.segments(TP)) == 1
    assert counted("events_skipped", reason="failed") == before + 1


@pytest.mark.parametrize("error", [StorageError("no answer"), ValueError("a bug")], ids=repr)
def test_a_log_that_fails_is_read_again(error: Exception) -> None:
    before = counted("pump_failures")
    with WatchedLog() as log:
        publish(log, segment(1))
        log.fetch_errors = [error] * 2
        with open_catalog(log) as catalog:
            wait_until_applied(catalog, log)
            assert len(catalog.segments(TP)) == 1
    assert counted("pump_failures") == before + 2


def test_closing_does_not_wait_until_a_log_that_fails_is_tried_again() -> None:
    with WatchedLog() as log:
        log.fetch_errors = [StorageError("no answer")] * 9
        catalog = SegmentCatalog(log, snapshot_dir=None, first_retry_after=NEVER)
        log.failed.wait()
        Background(catalog.close).result()
        assert len(log.fetch_errors) == 8


def test_after_a_record_that_is_missing_the_partition_is_read_again_from_there() -> None:
    before = counted("pump_failures")
    with WatchedLog() as log:
        publish(log, segment(1), update(1, FINISHED))
        log.skipped_once = {0}
        with open_catalog(log) as catalog:
            wait_until_applied(catalog, log)
            assert [one.state for one in catalog.segments(TP)] == [FINISHED]
    assert counted("pump_failures") == before + 1
    assert log.delivered == [(0, 1), (0, 0), (0, 1)]


def test_a_record_is_applied_once_and_only_as_the_next() -> None:
    one = FollowedPartition(0, 1, None)
    records = [MetadataRecord(0, at, encode_event(event)) for at, event in enumerate(in_state(1, FINISHED))]
    with pytest.raises(StorageError, match="went from offset 0 to 1"):
        one.apply(records[1])
    for record in (*records, records[1]):
        one.apply(record)
    assert one.next_offset == 2, "a record that was applied is not applied again"


def test_to_wait_for_an_offset_needs_an_assigned_partition_and_ends_in_time() -> None:
    with WatchedLog(2) as log, open_catalog(log, range(1)) as catalog:
        with pytest.raises(NotReady, match="applied the offsets below 0"):
            catalog.wait_for(0, 0, timeout=0)
        with pytest.raises(NotReady, match="not assigned"):
            catalog.wait_for(1, 0)
        with pytest.raises(PartitionOutOfRange):
            catalog.wait_for(2, 0)


# The end.


def test_after_closing_every_call_says_so(tmp_path: Path) -> None:
    with WatchedLog() as log:
        with no_thread_is_left():
            catalog = SegmentCatalog(log, snapshot_dir=tmp_path)
            catalog.assign([0])
            catalog.close()
            catalog.close()
        for call in (
            lambda: catalog.assign([0]),
            lambda: catalog.add_segment(segment(1)),
            lambda: catalog.update_segment(update(1, FINISHED)),
            lambda: catalog.delete_partition(deletion(MARKED)),
            lambda: catalog.segment_for(TP, 0, 0),
            lambda: catalog.segments(TP),
            lambda: catalog.segments_by_epoch(TP, 0),
            lambda: catalog.highest_offset(TP, 0),
        ):
            with pytest.raises(Closed):
                call()
        assert log.publish(0, b"the log is open") == 0


def test_closing_ends_a_write_that_waits() -> None:
    with WatchedLog() as log, open_catalog(log) as catalog:
        log.limit = 0
        waiting = Background(lambda: catalog.add_segment(segment(1)))
        log.published.wait()
        catalog.close()
        with pytest.raises(Closed, match="in the log, at offset 0"):
            waiting.result()


def test_a_log_that_is_closed_ends_its_catalog() -> None:
    log = WatchedLog()
    with open_catalog(log) as catalog:
        log.limit = 0
        waiting = Background(lambda: catalog.add_segment(segment(1)))
        log.published.wait()
        log.close()
        with pytest.raises(Closed, match="log is closed"):
            waiting.result()
        with pytest.raises(Closed, match="log is closed"):
            catalog.segments(TP)


def test_a_catalog_that_is_dropped_leaves_no_thread(tmp_path: Path) -> None:
    with WatchedLog() as log, no_thread_is_left():
        catalog = SegmentCatalog(log, snapshot_dir=tmp_path)
        catalog.assign([0])
        del catalog
        gc.collect()


def test_wrong_settings_are_refused() -> None:
    with WatchedLog() as log:
        before = threading.active_count()
        with pytest.raises(InvalidInput, match="snapshot_dir"):
            SegmentCatalog(log, snapshot_dir=7)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="snapshot_interval"):
            SegmentCatalog(log, snapshot_dir=None, snapshot_interval=0)
        assert threading.active_count() == before
