"""What a catalog leaves on disk, and what it makes of what it finds there."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.errors import StorageError
from penstock.metalog import SegmentCatalog
from penstock.metalog.catalog.segment import SegmentEvent
from penstock.metalog.catalog.segment_view import SegmentView
from penstock.metalog.catalog.snapshots import Snapshot, SnapshotFiles
from tests.metalog.catalog.events import (
    DELETED,
    FINISHED,
    MARKED,
    TP,
    WatchedLog,
    contents,
    counted,
    deletion,
    in_state,
    publish,
    segment,
    update,
    wait_until_applied,
)
from tests.support.processes import Parent, Start
from tests.support.waiting import NEVER, Bell

EVENTS: list[SegmentEvent] = [*in_state(1, FINISHED), *in_state(2, DELETED), *in_state(3, FINISHED), deletion(MARKED)]
STEPS = ["created", "written", "synced", "renamed", "directory synced"]


def open_catalog(log: WatchedLog, directory: Path, interval: float = NEVER) -> SegmentCatalog:
    return SegmentCatalog(log, snapshot_dir=directory, snapshot_interval=interval)


def filled_log(count: int = len(EVENTS)) -> WatchedLog:
    log = WatchedLog()
    publish(log, *EVENTS[:count])
    return log


def follow(catalog: SegmentCatalog, log: WatchedLog) -> None:
    """Assign partition 0, and return when everything in the log is applied."""
    catalog.assign([0])
    wait_until_applied(catalog, log)


def saved(directory: Path) -> set[bytes]:
    """All that a catalog knew of partition 0 when it was closed."""
    snapshot = SnapshotFiles(directory).load(0, 1)
    assert snapshot is not None
    return contents(SegmentView.of(snapshot.events))


def expected(count: int = len(EVENTS)) -> set[bytes]:
    view = SegmentView()
    for event in EVENTS[:count]:
        view.apply(event)
    return contents(view)


def leave_snapshot(directory: Path, count: int) -> None:
    with filled_log(count) as log, open_catalog(log, directory) as catalog:
        follow(catalog, log)


@pytest.mark.parametrize("before", [1, 4, len(EVENTS)])
def test_a_restart_replays_only_what_is_after_the_snapshot(tmp_path: Path, before: int) -> None:
    leave_snapshot(tmp_path, before)
    log = filled_log()
    with open_catalog(log, tmp_path) as catalog:
        follow(catalog, log)
    assert saved(tmp_path) == expected()
    assert log.delivered == [(0, offset) for offset in range(before, len(EVENTS))]


def test_a_partition_that_is_assigned_again_goes_on_at_its_snapshot(tmp_path: Path) -> None:
    log = filled_log(4)
    with open_catalog(log, tmp_path) as catalog:
        follow(catalog, log)
        catalog.assign([])
        publish(log, *EVENTS[4:])
        follow(catalog, log)
    assert saved(tmp_path) == expected()
    # A fetch that was under way for the earlier assignment may have been in vain; nothing below was asked for again.
    assert [log.delivered.count((0, offset)) for offset in range(4)] == [1] * 4


def test_a_snapshot_at_the_end_of_the_log_is_ready_at_once(tmp_path: Path) -> None:
    leave_snapshot(tmp_path, len(EVENTS))
    log = filled_log()
    log.limit = 0
    with open_catalog(log, tmp_path) as catalog:
        catalog.assign([0])
        assert len(catalog.segments(TP)) == 2


def spoiled(content: bytes) -> Iterator[bytes]:
    """Torn at every length, and each byte changed."""
    for length in range(len(content)):
        yield content[:length]
    for place in range(len(content)):
        yield content[:place] + bytes([content[place] ^ 0x41]) + content[place + 1 :]
    yield content + b"\x00"


def test_a_torn_or_damaged_snapshot_is_set_aside(tmp_path: Path) -> None:
    leave_snapshot(tmp_path, 3)
    whole = (tmp_path / "0.snapshot").read_bytes()
    for content in spoiled(whole):
        (tmp_path / "0.snapshot").write_bytes(content)
        assert SnapshotFiles(tmp_path).load(0, 1) is None
        assert not (tmp_path / "0.snapshot").exists()
        aside = tmp_path / "0.snapshot.set-aside-1"
        assert aside.read_bytes() == content
        aside.unlink()


def resealed(content: bytes, change: Callable[[bytearray], object]) -> bytes:
    body = bytearray(content[:-16])
    change(body)
    return bytes(body) + hashlib.blake2b(body, digest_size=16).digest()


def other_version(body: bytearray) -> None:
    body[9] = 2


def other_count(body: bytearray) -> None:
    body[17] = 2


def fewer_events(body: bytearray) -> None:
    body[33] -= 1


def more_events(body: bytearray) -> None:
    body[33] += 1


def unknown_event(body: bytearray) -> None:
    body[34 + 4] = 9


@pytest.mark.parametrize("change", [other_version, other_count, fewer_events, more_events, unknown_event])
def test_after_a_snapshot_that_cannot_be_used_everything_is_replayed(
    tmp_path: Path, change: Callable[[bytearray], None]
) -> None:
    leave_snapshot(tmp_path, 3)
    path = tmp_path / "0.snapshot"
    path.write_bytes(resealed(path.read_bytes(), change))
    set_aside = counted("snapshots_set_aside")
    log = filled_log()
    with open_catalog(log, tmp_path) as catalog:
        follow(catalog, log)
    assert saved(tmp_path) == expected()
    assert len(log.delivered) == len(EVENTS)
    assert counted("snapshots_set_aside") == set_aside + 1
    assert [one.name for one in tmp_path.glob("*set-aside*")] == ["0.snapshot.set-aside-1"]


def test_those_set_aside_do_not_replace_each_other(tmp_path: Path) -> None:
    for content in (b"one", b"two"):
        (tmp_path / "0.snapshot").write_bytes(content)
        SnapshotFiles(tmp_path).load(0, 1)
    assert [(tmp_path / f"0.snapshot.set-aside-{n}").read_bytes() for n in (1, 2)] == [b"one", b"two"]


def test_a_snapshot_of_another_partition_is_set_aside(tmp_path: Path) -> None:
    leave_snapshot(tmp_path, 3)
    os.rename(tmp_path / "0.snapshot", tmp_path / "1.snapshot")
    assert SnapshotFiles(tmp_path).load(1, 1) is None
    assert (tmp_path / "1.snapshot.set-aside-1").exists()


def test_a_snapshot_beyond_the_end_of_the_log_is_set_aside(tmp_path: Path) -> None:
    leave_snapshot(tmp_path, 5)
    log = filled_log(4)
    with open_catalog(log, tmp_path) as catalog:
        follow(catalog, log)
    assert saved(tmp_path) == expected(4)
    assert len(log.delivered) == 4
    assert (tmp_path / "0.snapshot.set-aside-1").exists()


def test_a_snapshot_beyond_the_end_is_found_out_when_the_marks_are_there(tmp_path: Path) -> None:
    leave_snapshot(tmp_path, 5)
    log = filled_log(4)
    log.marks_fail = True
    with open_catalog(log, tmp_path) as catalog:
        catalog.assign([0])
        log.marks_fail = False
        follow(catalog, log)
    assert saved(tmp_path) == expected(4)
    assert (tmp_path / "0.snapshot.set-aside-1").exists()


def test_snapshots_are_written_every_interval_if_anything_changed(tmp_path: Path) -> None:
    bell = Bell()
    steps: list[str] = []

    def step(name: str) -> None:
        steps.append(name)
        if name == "directory synced":
            bell()

    log = filled_log(1)
    with SegmentCatalog(log, snapshot_dir=tmp_path, snapshot_interval=0.01, step=step) as catalog:
        catalog.assign([0])
        bell.wait()
        catalog.update_segment(update(1, FINISHED))
        bell.wait()
        snapshot = SnapshotFiles(tmp_path).load(0, 1)
    assert snapshot is not None
    assert (snapshot.next_offset, contents(SegmentView.of(snapshot.events))) == (2, expected(2))
    assert steps == STEPS * 2


def test_a_snapshot_that_cannot_be_written_is_tried_again(tmp_path: Path) -> None:
    bell = Bell()
    failures = [OSError(errno.ENOSPC, "no space left")] * 3
    before = counted("snapshots_failed")

    def step(name: str) -> None:
        if name == "written" and failures:
            raise failures.pop()
        if name == "directory synced":
            bell()

    with SegmentCatalog(filled_log(1), snapshot_dir=tmp_path, snapshot_interval=0.01, step=step) as catalog:
        catalog.assign([0])
        bell.wait()
        catalog.update_segment(update(1, FINISHED))
    assert counted("snapshots_failed") == before + 3
    assert [one.name for one in tmp_path.iterdir()] == ["0.snapshot"]


@pytest.mark.parametrize("name", ["file", "a\0b", "a\ud800b"], ids=ascii)
def test_a_directory_that_cannot_be_used_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="snapshot directory"):
        open_catalog(WatchedLog(), tmp_path / name)


def test_many_events_are_written_in_pieces(tmp_path: Path) -> None:
    events = [segment(number, number, number) for number in range(40)]
    assert SnapshotFiles(tmp_path, bytes_per_write=1000).save(Snapshot(0, 1, 40, iter(events)))
    loaded = SnapshotFiles(tmp_path).load(0, 1)
    assert loaded is not None
    assert list(loaded.events) == events


def write_until(parent: Parent, directory: Path, stop_at: str) -> None:
    """Leave one snapshot, and stand still at a step of the second."""
    written: list[str] = []

    def step(name: str) -> None:
        written.append(name)
        if name == stop_at and written.count(name) == 2:
            parent.tell(name)
            parent.wait()

    log = filled_log(3)
    with SegmentCatalog(log, snapshot_dir=directory, snapshot_interval=NEVER, step=step) as catalog:
        follow(catalog, log)
        catalog.assign([])
        publish(log, *EVENTS[3:5])
        follow(catalog, log)
        catalog.assign([])


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_any_step_leaves_a_whole_snapshot(tmp_path: Path, start: Start, step: str) -> None:
    child = start(write_until, tmp_path, step)
    child.hear()
    child.kill()
    log = filled_log()
    with open_catalog(log, tmp_path) as catalog:
        assert not list(tmp_path.glob("*.tmp"))
        follow(catalog, log)
    assert saved(tmp_path) == expected()
    first = 5 if step in ("renamed", "directory synced") else 3
    assert log.delivered == [(0, offset) for offset in range(first, len(EVENTS))]
    assert not list(tmp_path.glob("*set-aside*"))
