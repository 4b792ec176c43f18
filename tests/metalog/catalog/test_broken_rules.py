"""Rules that a catalog could break without any other test here noticing."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest

from penstock.errors import Closed, InvalidTransition, NotReady
from penstock.metalog import MetadataRecord, PartitionDeleteState, SegmentCatalog, TopicIdPartition, encode_event
from penstock.metalog.catalog.followed_partition import FollowedPartition
from penstock.metalog.catalog.segment_view import SegmentView
from penstock.metalog.catalog.snapshots import Snapshot, SnapshotFiles
from tests.metalog.catalog.events import (
    DELETED,
    DELETING,
    DELETION_FINISHED,
    DELETION_STARTED,
    FINISHED,
    MARKED,
    TP,
    WatchedLog,
    contents,
    deletion,
    in_state,
    publish,
    segment,
    update,
)
from tests.support.processes import PATIENCE
from tests.support.waiting import A_WHILE, NEVER, Background


@pytest.mark.parametrize("error", [OSError("no route"), RuntimeError("a bug"), KeyError(0)], ids=repr)
def test_whatever_keeps_the_marks_away_makes_a_partition_not_ready(tmp_path: Path, error: Exception) -> None:
    class Markless(WatchedLog):
        errors: tuple[Exception, ...] = (error,)

        def high_water_marks(self) -> list[int]:
            for one in self.errors:
                raise one
            return super().high_water_marks()

    with Markless() as log, SegmentCatalog(log, snapshot_dir=tmp_path) as catalog:
        publish(log, segment(1))
        catalog.assign([0])
        assert catalog.assigned() == [0]
        with pytest.raises(NotReady, match="mark is not known"):
            catalog.segments(TP)
        log.errors = ()
        catalog.assign([0])
        catalog.add_segment(segment(2))
        assert len(catalog.segments(TP)) == 2
        log.errors = (error,)
        catalog.assign([0])
        assert len(catalog.segments(TP)) == 2, "what was ready stays so"
        catalog.assign([])
        assert catalog.segments(TP) == [], "to leave a partition needs no marks"


def test_a_write_that_loses_a_race_is_refused_though_the_refusal_comes_before_its_offset() -> None:
    class LateAnswers(WatchedLog):
        catalog: SegmentCatalog
        others: tuple[bytes, ...] = ()

        def publish(self, partition: int, payload: bytes) -> int:
            for other in self.others:
                super().publish(partition, other)
            offset = super().publish(partition, payload)
            self.catalog.wait_for(partition, offset, PATIENCE)
            return offset

    with LateAnswers() as log, SegmentCatalog(log, snapshot_dir=None) as log.catalog:
        log.catalog.assign([0])
        log.catalog.add_segment(segment(1))
        log.others = (encode_event(update(1, DELETING)),)
        with pytest.raises(InvalidTransition):
            log.catalog.update_segment(update(1, FINISHED))


def test_every_write_that_loses_a_race_is_refused() -> None:
    with WatchedLog() as log, SegmentCatalog(log, snapshot_dir=None) as catalog:
        catalog.assign([0])
        numbers = range(1, 5)
        for number in numbers:
            catalog.add_segment(segment(number))
        log.published.wait(len(numbers))
        log.limit = len(numbers)
        publish(log, *(update(number, DELETING) for number in numbers))
        losers = [Background(partial(catalog.update_segment, update(number, FINISHED))) for number in numbers]
        log.published.wait(2 * len(numbers))
        log.let_through()
        for loser in losers:
            with pytest.raises(InvalidTransition):
                loser.result()


def test_a_write_that_waits_for_the_mark_goes_on_when_a_later_assign_has_it() -> None:
    with WatchedLog() as log, SegmentCatalog(log, snapshot_dir=None) as catalog:
        log.marks_fail = True
        catalog.assign([0])
        writer = Background(lambda: catalog.add_segment(segment(1), timeout=NEVER))
        assert not writer.has_ended_within(A_WHILE)
        log.marks_fail = False
        catalog.assign([0])
        writer.result()
        assert len(catalog.segments(TP)) == 1


def test_a_restart_remembers_the_deleted(tmp_path: Path) -> None:
    gone = TopicIdPartition(UUID(int=2), "gone", 0)
    with WatchedLog() as log:
        publish(log, *in_state(1, DELETED), deletion(MARKED), deletion(DELETION_STARTED))
        publish(log, segment(2, tp=gone), *(deletion(state, gone) for state in PartitionDeleteState))
        for _ in range(2):
            with SegmentCatalog(log, snapshot_dir=tmp_path) as catalog:
                catalog.assign([0])
                with pytest.raises(InvalidTransition):
                    catalog.add_segment(segment(1))
                catalog.update_segment(update(1, DELETED))
                with pytest.raises(InvalidTransition):
                    catalog.delete_partition(deletion(MARKED))
                catalog.delete_partition(deletion(DELETION_STARTED))
                with pytest.raises(InvalidTransition):
                    catalog.add_segment(segment(3, tp=gone))
                catalog.delete_partition(deletion(DELETION_FINISHED, gone))
        assert log.high_water_marks() == [9], "all that was allowed had happened before"
        assert [log.delivered.count((0, offset)) for offset in range(9)] == [1] * 9, "the second began at its snapshot"


def test_what_was_replayed_because_its_snapshot_was_beyond_the_end_has_a_snapshot_again(tmp_path: Path) -> None:
    SnapshotFiles(tmp_path).save(Snapshot(0, 1, 5, [segment(9)]))
    with WatchedLog() as log:
        publish(log, segment(1), segment(2))
        with SegmentCatalog(log, snapshot_dir=tmp_path) as catalog:
            catalog.assign([0])
            catalog.wait_for(0, 1, PATIENCE)
    snapshot = SnapshotFiles(tmp_path).load(0, 1)
    assert snapshot is not None
    assert (snapshot.next_offset, list(snapshot.events)) == (2, [segment(1), segment(2)])


def test_what_has_ended_applies_nothing() -> None:
    one = FollowedPartition(0, 1, None)
    one.end(NotReady("not assigned any more"))
    one.apply(MetadataRecord(0, 0, encode_event(segment(1))))
    assert one.next_offset == 0


def test_a_snapshot_is_of_one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    one = FollowedPartition(0, 1, None)
    one.apply(MetadataRecord(0, 0, encode_event(segment(1))))
    late = MetadataRecord(0, 1, encode_event(segment(2)))
    appliers: list[Background[None]] = []
    events = SegmentView.events

    def slowly(view: SegmentView) -> object:
        copied = events(view)
        appliers.append(Background(lambda: one.apply(late)))
        appliers[0].has_ended_within(A_WHILE)
        return copied

    monkeypatch.setattr(SegmentView, "events", slowly)
    snapshot = one.unsaved()
    monkeypatch.undo()
    assert snapshot is not None
    appliers[0].result()
    view = SegmentView()
    for event in (segment(1), segment(2))[: snapshot.next_offset]:
        view.apply(event)
    assert contents(SegmentView.of(snapshot.events)) == contents(view)


def test_a_snapshot_is_synced_before_it_has_its_name_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, rename = os.fsync, os.rename

    def noted_fsync(at: int) -> None:
        fsync(at)
        done.append("directory" if stat.S_ISDIR(os.fstat(at).st_mode) else "file")

    def noted_rename(source: str, target: str) -> None:
        rename(source, target)
        done.append("name")

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", noted_rename)
    assert SnapshotFiles(tmp_path).save(Snapshot(0, 1, 1, [segment(1)]))
    assert done == ["file", "name", "directory"]


@pytest.mark.parametrize(
    "call",
    [lambda catalog: catalog.segments(TP), lambda catalog: catalog.add_segment(segment(2))],
    ids=["read", "write"],
)
def test_a_call_that_meets_the_closing_does_not_take_it_for_a_removal(
    monkeypatch: pytest.MonkeyPatch, call: Callable[[SegmentCatalog], object]
) -> None:
    with WatchedLog() as log, SegmentCatalog(log, snapshot_dir=None) as catalog:
        catalog.assign([0])
        catalog.add_segment(segment(1))

        def close_first(_: TopicIdPartition, __: int) -> int:
            catalog.close()
            return 0

        monkeypatch.setattr("penstock.metalog.catalog.catalog.metadata_partition_for", close_first)
        with pytest.raises(Closed):
            call(catalog)
