"""Repairing a damaged queue: it is killed at each step, and at the end nothing that could be read is lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rocksdict import Rdict

from penstock import DurableEventQueue
from penstock.errors import CorruptData, NotFound, StorageError
from penstock.queue import is_queue, repair_queue
from tests.queue.damage import MARK, Killed, contents, copy, cut, event, killed, log_of
from tests.queue.rocksdb_calls import SYNCS, WRITES
from tests.support.processes import Parent, Start

PUSHED, KEPT = 100, 60


def push(killed_queue: Killed, queue: DurableEventQueue[bytes]) -> None:
    for number in range(PUSHED):
        killed_queue.push(queue, event(number))


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """A queue that has lost the last of its events."""
    killed_queue = killed(tmp_path_factory.mktemp("damaged") / "queue", push)
    log = log_of(killed_queue.path)
    cut(log, log.read_bytes().rindex(b"event %d: " % KEPT))
    return killed_queue


@pytest.fixture
def path(damaged: Killed, tmp_path: Path) -> Path:
    return damaged.copy_to(tmp_path / "queue")


# Killed at each step


class Steps:
    """Kills this process before one of the calls that change a directory."""

    def __init__(self, number: int) -> None:
        self._remaining = number

    def before(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            if self._remaining == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self._remaining -= 1
            return call(*args, **kwargs)

        return step


def repair_and_die(parent: Parent, path: Path, number: int) -> str:
    """Repair a queue, and be killed before a step."""
    steps = Steps(number)
    for name in ("rename", "mkdir", "rmdir", "unlink", "fsync", "pwrite"):
        setattr(os, name, steps.before(getattr(os, name)))
    for name in (*WRITES, *SYNCS):
        setattr(Rdict, name, steps.before(getattr(Rdict, name)))
    repair_queue(path)
    return "it was repaired"


def is_killed_at(start: Start, path: Path, number: int) -> bool:
    child = start(repair_and_die, path, number)
    try:
        assert child.answer() == "it was repaired"
    except EOFError:
        child.kill()
        return True
    return False


def check_kill(damaged: Killed, start: Start, path: Path, number: int) -> bool:
    """Kill a repair at a step, and look at what it leaves; False if it has not so many steps."""
    if not is_killed_at(start, damaged.copy_to(path), number):
        return False
    assert is_queue(path)
    before = contents(damaged.path)
    # The killed repair had not begun to change the queue; or it can only be brought to its end; or it was at its end.
    try:
        DurableEventQueue(path).close()
    except CorruptData as error:
        assert "events are missing" in str(error) or "a repair of it was interrupted" in str(error)  # noqa: PT017
        report = repair_queue(path)
        assert (report.kept, report.lost_at_least, report.lost_at_most) == (KEPT, 40, 40)
        assert report.missing_ids == ((KEPT, PUSHED - 1),)
    (aside,) = path.glob("damaged-*")
    assert {name: (aside / name).read_bytes() for name in before} == before
    with DurableEventQueue(path) as queue:
        assert [found.event for found in queue.iterate()] == [event(number) for number in range(KEPT)]
        assert queue.push(b"next").id >= PUSHED
    return True


def test_a_repair_that_is_killed_leaves_the_damaged_queue_or_one_that_can_be_repaired(
    damaged: Killed, start: Start, tmp_path: Path
) -> None:
    for number in (0, 5, 10, 20, 40):
        check_kill(damaged, start, tmp_path / "queue", number)


@pytest.mark.chaos
def test_a_repair_that_is_killed_at_any_step_leaves_what_can_be_repaired(
    damaged: Killed, start: Start, tmp_path: Path
) -> None:
    number = 0
    while check_kill(damaged, start, tmp_path / "queue", number):
        number += 1
    print(f"killed at {number} steps")
    assert number > 25


def make_and_die(parent: Parent, path: Path, number: int) -> str:
    """Make a queue, and be killed before a step."""
    steps = Steps(number)
    for name in ("open", "mkdir", "rename", "fsync", "pwrite"):
        setattr(os, name, steps.before(getattr(os, name)))
    for name in (*WRITES, *SYNCS):
        setattr(Rdict, name, steps.before(getattr(Rdict, name)))
    DurableEventQueue(path).close()
    return "it was created"


def test_a_queue_whose_making_is_killed_at_any_step_is_made_by_the_next_opening(start: Start, tmp_path: Path) -> None:
    for number in range(100):
        path = tmp_path / f"queue{number}"
        child = start(make_and_die, path, number)
        try:
            assert child.answer() == "it was created"
            break
        except EOFError:
            child.kill()
            with DurableEventQueue(path) as queue:
                assert queue.push(b"first").id == 0
            with DurableEventQueue(path) as queue:
                assert len(queue) == 1
    assert 5 < number < 50


# What it says, and what it leaves


def test_a_whole_queue_is_not_repaired(tmp_path: Path) -> None:
    killed_queue = killed(tmp_path / "queue", push)
    report = repair_queue(killed_queue.path)
    assert (report.damage, report.damaged_files) == ("", "")
    assert (report.kept, report.first_id, report.last_id, report.next_id) == (PUSHED, 0, PUSHED - 1, PUSHED)
    assert list(killed_queue.path.glob("damaged*")) == []
    assert killed_queue.opens_with_all_or_is_refused(killed_queue.path)


def test_where_there_is_no_queue_none_is_repaired(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no durable queue in"):
        repair_queue(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_queue_that_is_open_is_not_repaired(tmp_path: Path) -> None:
    with DurableEventQueue(tmp_path) as queue, pytest.raises(StorageError, match="is open in this process already"):
        repair_queue(tmp_path)
    assert queue is not None


def test_a_queue_on_a_full_disk_is_not_repaired(damaged: Killed, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = SimpleNamespace(f_bavail=1000, f_blocks=1 << 40, f_frsize=1)
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    with pytest.raises(StorageError, match=r"bytes of free disk\. Nothing was changed"):
        repair_queue(path)
    assert contents(path) == contents(damaged.path)


def test_a_queue_can_be_repaired_again_and_again(damaged: Killed, path: Path) -> None:
    next_ids = []
    for number in (1, 2, 3):
        report = repair_queue(path)
        assert report.damaged_files == str(path / f"damaged-{number}")
        next_ids.append(report.next_id)
        with DurableEventQueue(path) as queue:
            assert queue.push(b"%d" % number).id == report.next_id
        (path / MARK).unlink()
    assert next_ids == sorted(set(next_ids))
    repair_queue(path)
    with DurableEventQueue(path) as queue:
        assert [found.event for found in queue.iterate()][KEPT:] == [b"1", b"2", b"3"]


def test_files_of_others_in_the_directory_stay_where_they_are(path: Path) -> None:
    (path / "notes.txt").write_text("mine")
    repair_queue(path)
    assert (path / "notes.txt").read_text() == "mine"


def test_keys_that_are_no_ids_and_times_outlive_a_repair(tmp_path: Path) -> None:
    from tests.support.queue_folder import Place

    place = Place(tmp_path / "queue", lazy=True)
    place.holding(b"a", b"b").plant(b"odd", b"?")
    (place.path / MARK).unlink()
    repair_queue(place.path)
    with place.open() as queue:
        assert queue.corrupt_keys() == [b"odd"]
        assert queue.oldest_age() is not None
        assert [found.event for found in queue.iterate(skip_corrupt=True)] == [b"a", b"b"]


def test_an_event_that_is_known_to_be_acked_does_not_come_back(tmp_path: Path) -> None:
    """The log with the acks is lost, and the mark knows of the oldest event."""
    path = tmp_path / "queue"
    seconds = iter(range(1000))
    with DurableEventQueue(path, clock=lambda: next(seconds) * 10.0) as queue:
        queue.push_many([event(number) for number in range(10)])
        old = copy(path, tmp_path / "old")
        queue.ack_many(range(5))
        queue.push(b"later")
    (old / MARK).write_bytes((path / MARK).read_bytes())
    report = repair_queue(old)
    assert (report.kept, report.lost_at_least, report.lost_at_most, report.again_at_most) == (5, 1, 1, 0)
    with DurableEventQueue(old) as queue:
        assert [found.id for found in queue.iterate()] == [5, 6, 7, 8, 9]
