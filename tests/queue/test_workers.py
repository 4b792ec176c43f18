"""`DurableEventQueue.for_worker`: a queue for each process of a server, made and found again under one folder."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import itertools
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock import DurableEventQueue
from penstock.errors import CorruptData, InvalidInput, StorageError
from penstock.queue import MsgspecCodec, WorkerQueues, queues_in, workers
from tests.support.dying_calls import die_at
from tests.support.permissions import as_an_ordinary_user
from tests.support.processes import Child, Parent, Start, in_forked_child
from tests.support.twins import Twins

MARK = "penstock-worker"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "queues"


@pytest.fixture
def open_queue(folder: Path) -> Iterator[Callable[[], DurableEventQueue[bytes]]]:
    """Open the queue of one more worker, which is closed at the end."""
    opened: list[DurableEventQueue[bytes]] = []

    def open_queue() -> DurableEventQueue[bytes]:
        opened.append(DurableEventQueue.for_worker(folder))
        return opened[-1]

    yield open_queue
    for queue in opened:
        queue.close()


def dead_queue(folder: Path, *events: bytes) -> str:
    """The queue of a worker that has ended, with these events."""
    with DurableEventQueue.for_worker(folder) as queue:
        queue.push_many(events)
    return queue.path


def live(parent: Parent, folder: str, *events: bytes) -> None:
    """A worker that pushes some events, and lives on."""
    with DurableEventQueue.for_worker(folder) as queue:
        queue.push_many(events)
        parent.tell((queue.path, len(queue)))
        parent.wait()


# --- which queue a worker gets


def test_each_worker_has_a_queue_of_its_own(folder: Path, open_queue: Callable[[], DurableEventQueue[bytes]]) -> None:
    queues = [open_queue() for _ in range(3)]
    for number, queue in enumerate(queues):
        queue.push(b"%d" % number)
    assert [[event.event for event in queue.iterate()] for queue in queues] == [[b"0"], [b"1"], [b"2"]]
    assert WorkerQueues(folder).places() == queues_in(folder) == sorted(queue.path for queue in queues)


def test_processes_that_start_together_each_get_a_queue(folder: Path, start: Start) -> None:
    for count in (6, 8):  # six of the second time find a queue, two make one
        workers = [start(live, str(folder), b"event") for _ in range(count)]
        paths = [worker.hear()[0] for worker in workers]
        assert len(set(paths)) == count
        for worker in workers:
            worker.kill()
    assert sorted(paths) == queues_in(folder)


def test_the_next_worker_goes_on_with_the_queue_of_one_that_was_killed(folder: Path, start: Start) -> None:
    worker = start(live, str(folder), b"one", b"two")
    path, _ = worker.hear()
    worker.kill()
    with DurableEventQueue.for_worker(folder) as queue:
        assert queue.path == path
        assert [event.event for event in iter(queue.pop, None)] == [b"one", b"two"]
        assert queue.push(b"three").id == 2


def test_a_queue_that_a_shipper_has_open_is_passed_over(folder: Path) -> None:
    path = dead_queue(folder, b"event")
    claimed = WorkerQueues(folder).claim(path)
    assert claimed is not None
    with DurableEventQueue(claimed), DurableEventQueue.for_worker(folder) as queue:
        assert queue.path != path


def test_a_damaged_queue_is_passed_over_and_logged(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = dead_queue(folder, b"event")
    (Path(path) / "penstock-mark").unlink()
    with DurableEventQueue.for_worker(folder) as queue:
        assert queue.path != path
    assert "a worker passes over a queue" in caplog.text
    assert path in caplog.text


def test_a_queue_without_the_mark_of_a_worker_is_never_given_to_one(folder: Path) -> None:
    with DurableEventQueue(folder / "own") as own:
        own.push(b"stays")
    renamed = dead_queue(folder, b"stays")
    Path(renamed, MARK).unlink()
    with DurableEventQueue.for_worker(folder) as queue:
        assert queue.is_empty
    assert len(queues_in(folder)) == 3


def test_a_codec_is_that_of_any_queue(folder: Path) -> None:
    with DurableEventQueue.for_worker(folder, codec=MsgspecCodec(dict[str, int])) as queue:
        queue.push({"clicks": 3})
    with DurableEventQueue.for_worker(folder, codec=MsgspecCodec(dict[str, int]), lazy=False) as queue:
        event = queue.pop()
        assert event is not None
        assert event.event == {"clicks": 3}
    with pytest.raises(InvalidInput, match="codec must have encode"):
        DurableEventQueue.for_worker(folder, codec="json")  # type: ignore[call-overload]
    assert len(queues_in(folder)) == 1, "a mistake makes no queue"


def test_the_twin_does_the_same(folder: Path, call: Twins) -> None:
    first = call(DurableEventQueue.for_worker, folder)
    second = call(DurableEventQueue.for_worker, folder)
    assert first.path != second.path
    call(first.close)
    call(second.close)


async def opening_is_cancelled(folder: Path) -> None:
    opening = asyncio.create_task(DurableEventQueue.for_worker_async(folder))
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening


def test_a_twin_that_is_cancelled_leaves_no_queue_open(folder: Path) -> None:
    asyncio.run(opening_is_cancelled(folder))
    with DurableEventQueue.for_worker(folder) as queue:
        queue.push(b"event")


def test_where_no_folder_can_be_made_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"in .*file/queues: "):
        DurableEventQueue.for_worker(tmp_path / "file" / "queues")


@pytest.mark.parametrize("call", ["penstock.queue.workers._write", "penstock.queue.workers.sync_directory"])
def test_what_could_not_be_made_is_not_left_for_each_next_start_to_add_to(
    call: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a server that starts a worker again and again on a full disk."""

    def fail(path: str, *_: object) -> None:
        if "worker-" in path:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folder.mkdir()
    with monkeypatch.context() as full:
        full.setattr(call, fail)
        with pytest.raises(StorageError, match=r"a queue for a worker cannot be made in .*: No space left on device"):
            DurableEventQueue.for_worker(folder)
    assert [name for name in os.listdir(folder) if name.startswith("worker-")] == []


@pytest.mark.parametrize("call", ["create_mark", "open_for_writing", "_write_totals"])
def test_a_new_queue_that_cannot_be_opened_is_removed(call: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StorageError("No space left on device")

    with monkeypatch.context() as full:
        full.setattr(f"penstock.queue.database.{call}", fail)
        with pytest.raises(StorageError, match="No space left"):
            DurableEventQueue.for_worker(folder)
        assert os.listdir(folder) == ["penstock-workers"]
    path = dead_queue(folder, b"event")
    with monkeypatch.context() as full:
        full.setattr("penstock.queue.database.open_for_writing", fail)
        with pytest.raises(StorageError, match="No space left"):
            DurableEventQueue.for_worker(folder)
    assert queues_in(folder) == [path], "one that was there is kept"


def test_a_folder_that_is_a_queue_itself_is_refused(folder: Path) -> None:
    """`ship` and `queue status` take it for that one queue, and would never look at those of workers in it."""
    with DurableEventQueue(folder) as own:
        own.push(b"event")
    before = sorted(os.listdir(folder))
    with pytest.raises(InvalidInput, match=f"{folder} is a durable queue itself: give for_worker another folder"):
        DurableEventQueue.for_worker(folder)
    assert sorted(os.listdir(folder)) == before


def test_a_queue_is_not_made_in_the_folder_of_workers_queues_itself(folder: Path) -> None:
    path = dead_queue(folder, b"event")
    before = sorted(os.listdir(folder))
    with pytest.raises(InvalidInput, match=r"has the queues of workers: .*for_worker"):
        DurableEventQueue(folder)
    assert sorted(os.listdir(folder)) == before
    DurableEventQueue(folder / "own").close()
    DurableEventQueue(path).close()


def test_a_link_in_place_of_a_lock_is_passed_over(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = Path(dead_queue(folder, b"event"))
    (path / "penstock-lock").unlink()
    (path / "penstock-lock").symlink_to("/dev/null")
    with DurableEventQueue.for_worker(folder) as queue:
        assert queue.path != str(path)
    assert f"{path} cannot be locked: " in caplog.text


def test_the_queue_of_another_user_is_passed_over_and_named(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = dead_queue(folder, b"event")
    (folder / "lost+found").mkdir(0o000)
    os.chmod(path, 0o000)
    with as_an_ordinary_user(), DurableEventQueue.for_worker(folder) as queue:
        assert queue.path != path
        assert queues_in(folder) == sorted([queue.path, path])
    assert f"{path} cannot be locked: Permission denied" in caplog.text


# --- forks


def worker_of_a_fork(folder: str) -> None:
    with DurableEventQueue.for_worker(folder) as queue:
        queue.push(b"event")


def fork_two_workers(_: Parent, folder: str) -> list[str]:
    return [in_forked_child(lambda: worker_of_a_fork(folder)) for _ in range(2)]


def fork_with_an_open_queue(_: Parent, folder: str) -> tuple[str, str]:
    with DurableEventQueue.for_worker(folder) as queue:
        return in_forked_child(lambda: queue.push(b"event")), in_forked_child(lambda: worker_of_a_fork(folder))


def test_a_forked_child_opens_a_queue_of_its_own(folder: Path, start: Start) -> None:
    assert start(fork_two_workers, str(folder)).answer() == ["nothing was raised"] * 2
    with DurableEventQueue.for_worker(folder) as queue:
        assert len(queue) == 2


def test_a_child_whose_parent_had_a_queue_open_is_told_what_to_do(folder: Path, start: Start) -> None:
    of_parent, own = start(fork_with_an_open_queue, str(folder)).answer()
    assert of_parent.startswith("InvalidInput: ")
    assert "Open queues after the fork" in of_parent
    assert own.startswith("StorageError: ")
    assert "fork before the first queue is opened" in own
    assert len(queues_in(folder)) == 1, "the child leaves no directory"


# --- removing


def test_an_empty_queue_whose_worker_has_ended_is_removed(folder: Path) -> None:
    queues, path = WorkerQueues(folder), dead_queue(folder)
    assert queues.remove(path)
    assert queues.remove(path), "it is gone"
    assert os.listdir(folder) == ["penstock-workers"]
    assert queues.exist


def test_two_removals_of_one_queue_are_not_in_each_others_way(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second shipper takes what the first has renamed for what a kill left, and may be done at any time."""
    calls = (os, "rename"), (workers, "sync_directory"), (os, "listdir"), (os, "unlink"), (os, "rmdir")
    for moment in itertools.count():
        path, count = dead_queue(folder), itertools.count()

        def beside_another(real: Callable[..., Any], count: Iterator[int], moment: int, *args: Any) -> Any:
            found = real(*args)
            if next(count) == moment:
                WorkerQueues(folder).tidy()
            return found

        with monkeypatch.context() as patched:
            for of, name in calls:
                patched.setattr(of, name, partial(beside_another, getattr(of, name), count, moment))
            assert WorkerQueues(folder).remove(path)
        assert os.listdir(folder) == ["penstock-workers"]
        if next(count) < moment:
            break
    assert moment > 10


def test_each_step_of_a_removal_is_durable_before_the_next(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a loss of power could undo an earlier one alone: then a queue is damaged, or is never removed."""
    path, steps = dead_queue(folder), list[tuple[str, str]]()
    for name, of in (("unlink", os), ("rename", os), ("rmdir", os), ("sync_directory", workers)):
        real = getattr(of, name)

        def noted(*args: Any, name: str = name, real: Callable[..., object] = real) -> None:
            real(*args)
            steps.append((name, os.path.basename(args[0])))

        monkeypatch.setattr(of, name, noted)
    assert WorkerQueues(folder).remove(path)
    removed = f"{os.path.basename(path)}.removed"
    files = [step for step in steps if step[0] == "unlink"]
    assert len(files) > 8
    assert steps == [
        ("rename", os.path.basename(path)),
        ("sync_directory", folder.name),
        *files[:-1],
        ("sync_directory", removed),
        ("unlink", MARK),
        ("rmdir", removed),
    ]


def test_the_queue_of_a_live_worker_is_not_removed(folder: Path, start: Start) -> None:
    worker = start(live, str(folder))
    path, _ = worker.hear()
    assert not WorkerQueues(folder).remove(path)
    worker.kill()
    assert WorkerQueues(folder).remove(path)


def test_a_queue_with_events_is_not_removed(folder: Path) -> None:
    path = dead_queue(folder, b"event")
    assert not WorkerQueues(folder).remove(path)
    with DurableEventQueue.for_worker(folder) as queue:
        assert len(queue) == 1


def test_a_damaged_queue_is_not_removed(folder: Path) -> None:
    path = dead_queue(folder)
    (Path(path) / "penstock-mark").unlink()
    before = sorted(os.listdir(path))
    with pytest.raises(CorruptData):
        WorkerQueues(folder).remove(path)
    assert sorted(os.listdir(path)) == before


@pytest.mark.parametrize("name", ["own", "worker-0123456789abcdef", "worker-0123456789abcdef.removed"])
def test_a_queue_that_no_worker_made_is_never_removed(folder: Path, name: str) -> None:
    with DurableEventQueue(folder / name) as own:
        own.push(b"event")
        own.ack(0)
    queues = WorkerQueues(folder)
    assert not queues.remove(str(folder / name))
    queues.tidy()
    with DurableEventQueue(folder / name) as own:
        assert own.push(b"event").id == 1


def test_a_queue_behind_a_link_is_never_removed(folder: Path, tmp_path: Path) -> None:
    elsewhere = Path(dead_queue(folder)).rename(tmp_path / "elsewhere")
    (folder / "worker-0123456789abcdef").symlink_to(elsewhere)
    assert not WorkerQueues(folder).remove(str(folder / "worker-0123456789abcdef"))
    assert (elsewhere / MARK).exists()


def test_a_queue_beside_other_files_is_not_removed(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = dead_queue(folder)
    (Path(path) / "damaged-1").mkdir()
    assert not WorkerQueues(folder).remove(path)
    assert "is drained, and is not removed: it also has damaged-1" in caplog.text


def test_a_queue_that_is_removed_while_a_worker_takes_its_lock_is_passed_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker has opened the lock file, and waits for the lock: what it gets is the lock of nothing."""
    path, flock, removed = dead_queue(folder), fcntl.flock, list[bool]()

    def flock_after_a_removal(*args: Any) -> None:
        if not removed:
            removed.append(False)
            removed[0] = WorkerQueues(folder).remove(path)
        flock(*args)

    monkeypatch.setattr(fcntl, "flock", flock_after_a_removal)
    with DurableEventQueue.for_worker(folder) as queue:
        assert removed == [True]
        assert queues_in(folder) == [queue.path] != [path]


@pytest.mark.parametrize("place", ["mkdir", "flock"])
def test_a_shipper_that_tidies_up_while_a_worker_makes_its_queue_does_no_harm(
    place: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = {"mkdir": os, "flock": fcntl}[place]
    real, calls = getattr(module, place), list[str]()

    def with_a_shipper(*args: Any) -> None:
        calls.append("made")
        if place == "mkdir":
            real(*args)
        if len(calls) == 1:
            WorkerQueues(folder).tidy()
        if place == "flock":
            real(*args)

    folder.mkdir()
    monkeypatch.setattr(module, place, with_a_shipper)
    with DurableEventQueue.for_worker(folder) as queue:
        queue.push(b"event")
        assert len(calls) >= 2, "the first directory was removed"
    with DurableEventQueue.for_worker(folder) as queue:
        assert len(queue) == 1
    assert len(queues_in(folder)) == len(os.listdir(folder)) - 1 == 1


# --- a kill at each step


def make_and_die(parent: Parent, folder: str, call: int) -> None:
    die_at(call)
    queue = DurableEventQueue.for_worker(folder)
    queue.push(b"event")
    parent.tell("pushed")
    parent.wait()


def remove_and_die(parent: Parent, folder: str, path: str, call: int) -> None:
    die_at(call)
    WorkerQueues(folder).remove(path)
    parent.tell("removed")
    parent.wait()


def heard(child: Child) -> Any:
    """What a process reported; None if it died before."""
    try:
        message = child.hear()
    except EOFError:
        message = None
    child.kill()
    return message


def clear(folder: Path) -> int:
    """Remove what remains in the folder, as a shipper does; return how many events were there."""
    queues, count = WorkerQueues(folder), 0
    queues.tidy()
    for place in queues.places():
        with DurableEventQueue(place) as queue:
            count += len(queue)
            queue.ack_many([event.id for event in queue.iterate()])
        assert queues.remove(place)
    queues.tidy()
    assert set(os.listdir(folder)) <= {"penstock-workers"}
    return count


def test_a_worker_that_is_killed_at_each_step_of_making_its_queue_leaves_nothing_in_the_way(
    tmp_path: Path, start: Start
) -> None:
    killed = 0
    for call in range(100):
        folder = tmp_path / str(call)
        was_pushed = heard(start(make_and_die, str(folder), call)) is not None
        if folder.exists() and call % 2:
            assert clear(folder) == was_pushed
        else:
            with DurableEventQueue.for_worker(folder) as queue:
                assert len(queue) == was_pushed
            clear(folder)
        if was_pushed:
            break
        killed += 1
    assert was_pushed
    assert killed >= 8


def test_a_removal_that_is_killed_at_each_step_leaves_a_whole_queue_or_what_is_tidied_up(
    tmp_path: Path, start: Start
) -> None:
    killed = renamed = 0
    for call in range(100):
        folder = tmp_path / str(call)
        path = dead_queue(folder)
        was_removed = heard(start(remove_and_die, str(folder), path, call)) is not None
        assert os.path.exists(path) == (path in queues_in(folder))
        renamed += os.path.exists(f"{path}.removed")
        with DurableEventQueue.for_worker(folder) as queue:  # beside what is left
            assert queue.is_empty
        assert clear(folder) == 0
        if was_removed:
            break
        killed += 1
    assert was_removed
    assert renamed >= 5
    assert killed > renamed
