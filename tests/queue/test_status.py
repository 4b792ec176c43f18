"""`queue_status`: a queue is looked at from outside, also while a process has it open, and nothing is in its way."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from penstock import DurableEventQueue
from penstock.errors import NotFound
from penstock.queue import QueueStatus, queue_status, queues_in, repair_queue
from tests.support.permissions import as_an_ordinary_user
from tests.support.processes import Parent, Start
from tests.support.waiting import Background


def seen(path: Path | str) -> QueueStatus:
    """The status, without what the time and RocksDB decide."""
    found = queue_status(path)
    assert found.bytes_on_disk > 0
    assert found.seconds_since_write is not None
    assert 0 <= found.seconds_since_write < 100
    return replace(found, bytes_on_disk=0, seconds_since_write=None)


def status(path: Path, not_acked: int, process: int | None) -> QueueStatus:
    return QueueStatus(str(path), False, not_acked, 0, None, process is not None, process, None)


def hold(parent: Parent, path: str) -> None:
    with DurableEventQueue(path) as queue:
        queue.push_many([b"event"] * 5)
        queue.ack_many([0, 1])
        parent.tell(os.getpid())
        parent.wait()


def test_a_queue_is_seen_while_another_process_has_it_open_and_after_that(tmp_path: Path, start: Start) -> None:
    path = tmp_path / "queue"
    holder = start(hold, str(path))
    process = holder.hear()
    assert seen(path) == status(path, 3, process)
    holder.kill()
    assert seen(path) == status(path, 3, None)
    with DurableEventQueue(path) as queue:
        assert seen(path) == status(path, 3, os.getpid())
        queue.ack_many([2, 3, 4])
        assert seen(path) == status(path, 0, os.getpid())
    assert seen(path) == status(path, 0, None)


def test_the_queue_of_a_worker_is_named_as_such(tmp_path: Path) -> None:
    with DurableEventQueue.for_worker(tmp_path) as queue:
        assert seen(queue.path).of_worker


def test_a_new_queue_that_has_only_its_marks_is_empty(tmp_path: Path) -> None:
    (tmp_path / "penstock-worker").touch()
    found = queue_status(tmp_path)
    assert (found.not_acked, found.is_open, found.damage) == (0, False, None)


def test_where_there_is_no_queue_it_says_so(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(NotFound, match="there is no durable queue in"):
            queue_status(path)


@pytest.mark.parametrize("damage", ["missing", "unreadable", "repair"])
def test_damage_that_shows_from_outside_is_named(tmp_path: Path, damage: str) -> None:
    with DurableEventQueue(tmp_path) as queue:
        queue.push(b"event")
    mark = tmp_path / "penstock-mark"
    if damage == "missing":
        mark.unlink()
    elif damage == "unreadable":
        mark.write_bytes(bytes(mark.stat().st_size))
    else:
        (tmp_path / "repair.new").mkdir()
    found = queue_status(tmp_path)
    expected = {
        "missing": "its file penstock-mark is missing",
        "unreadable": "its file penstock-mark cannot be read, so it is not known whether events are missing",
        "repair": "a repair of it was interrupted, and must be run again",
    }
    assert (found.damage, found.not_acked) == (expected[damage], None)


@pytest.mark.parametrize("closed", ["", "penstock-mark"])
def test_a_queue_of_another_user_is_shown_with_the_reason(tmp_path: Path, closed: str) -> None:
    with DurableEventQueue.for_worker(tmp_path) as queue:
        queue.push(b"event")
    os.chmod(os.path.join(queue.path, closed), 0o000)
    with as_an_ordinary_user():
        found = queue_status(queue.path)
    assert (found.not_acked, found.of_worker) == (None, True)
    assert found.damage is not None
    assert found.damage.endswith("could not be read: Permission denied")


def test_a_repaired_queue_counts_what_was_kept(tmp_path: Path) -> None:
    with DurableEventQueue(tmp_path) as queue:
        queue.push_many([b"event"] * 3)
    (tmp_path / "penstock-mark").unlink()
    repair_queue(tmp_path)
    assert (queue_status(tmp_path).not_acked, queue_status(tmp_path).damage) == (3, None)


def everything_in(path: Path) -> dict[str, tuple[int, int, int]]:
    """All files and folders, with when they were changed last."""
    found = [path, *path.rglob("*")]
    return {str(one): (one.stat().st_mtime_ns, one.stat().st_ctime_ns, one.stat().st_size) for one in found}


def test_nothing_is_written(tmp_path: Path) -> None:
    with DurableEventQueue(tmp_path) as queue:
        queue.push(b"event")
        before = everything_in(tmp_path)
        queue_status(tmp_path)
        assert everything_in(tmp_path) == before
    before = everything_in(tmp_path)
    queue_status(tmp_path)
    assert everything_in(tmp_path) == before


def open_and_close(parent: Parent, path: str, folder: str) -> None:
    """Open and close a queue again and again, and those of workers: none of it may fail."""
    for _ in range(40):
        with DurableEventQueue(path) as queue:
            queue.ack(queue.push(b"event").id)
        with DurableEventQueue.for_worker(folder) as queue:
            queue.push(b"event")
    parent.tell("done")
    parent.wait()


def test_a_look_is_never_in_the_way_of_a_process_that_opens_the_queue(tmp_path: Path, start: Start) -> None:
    """And it finds no damage in a mark that is being written."""
    own, folder = tmp_path / "own", tmp_path / "workers"
    with DurableEventQueue(own), DurableEventQueue.for_worker(folder):
        pass
    child = start(open_and_close, str(own), str(folder))
    is_over = threading.Event()

    def look() -> int:
        looks = 0
        while not is_over.is_set():
            for place in (str(own), *queues_in(folder)):
                found = queue_status(place)
                assert found.damage is None
                looks += 1
        return looks

    looking = Background(look)
    assert child.hear() == "done"
    is_over.set()
    assert looking.result() > 100
    assert len(queues_in(folder)) == 1, "a look has kept a worker from its queue"


def test_a_process_that_is_not_seen_from_here_is_known_to_have_it_open(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a container: its /proc/locks names no process of another one."""
    holder = start(hold, str(tmp_path / "queue"))
    holder.hear()
    monkeypatch.setattr("penstock.queue.status.process_with_lock", lambda _: None)
    assert queue_status(tmp_path / "queue").is_open
    holder.kill()
    assert queue_status(tmp_path / "queue").is_open is False
