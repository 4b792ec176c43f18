"""One process at a time has a queue: others and forked children are refused, and no event of an ended one is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock import DurableEvent, DurableEventQueue
from penstock.errors import StorageError
from tests.support.codecs import RefusingCodec
from tests.support.processes import PATIENCE, Parent, Start, in_forked_child
from tests.support.queue_folder import Place
from tests.support.waiting import Background, Gate


def hold(parent: Parent, path: Path, lazy: bool) -> None:
    """Have a queue open, with one event that is ready and one in flight, until the test says to close it."""
    with DurableEventQueue(path, lazy=lazy) as queue:
        queue.push_many([b"in flight", b"ready", b"acked"])
        queue.pop()
        queue.ack(2)
        parent.tell(os.getpid())
        parent.wait()


def try_to_open(parent: Parent, path: Path, lazy: bool) -> str:
    """Open a queue, and say what that raised."""
    try:
        DurableEventQueue(path, lazy=lazy).close()
    except StorageError as error:
        return str(error)
    return "it could be opened"


# Two on one path


def test_a_second_process_is_refused_while_the_first_has_the_queue(place: Place, start: Start) -> None:
    holder = start(hold, place.path, place.lazy).hear()
    named = rf" \(process {holder}\)" if sys.platform == "linux" else ""  # others do not show who has a lock
    with pytest.raises(StorageError, match=f"the queue in {place.path} is open in another process{named}") as refused:
        place.open()
    assert "`DurableEventQueue.for_worker(folder)`" in str(refused.value)


def test_a_second_process_that_was_refused_changes_nothing_for_the_first(place: Place, start: Start) -> None:
    with place.open() as queue:
        queue.push(b"a")
        assert "another process" in start(try_to_open, place.path, place.lazy).answer()
        queue.push(b"b")
    assert place.ids() == [0, 1]


def test_a_second_queue_in_the_same_process_is_refused(place: Place) -> None:
    queue = place.open()
    with pytest.raises(StorageError, match=f"the queue in {place.path} is open in this process already"):
        place.open()
    assert queue.push(b"x").id == 0


def test_a_queue_that_was_refused_in_the_same_process_does_not_let_another_one_in(place: Place, start: Start) -> None:
    """Closing a file releases all locks that its process has on it."""
    place.open()
    with pytest.raises(StorageError):
        place.open()
    assert "another process" in start(try_to_open, place.path, place.lazy).answer()


@pytest.mark.parametrize("of", ["queue", "parent"])
def test_a_second_queue_by_another_name_of_the_same_directory_is_refused(place: Place, tmp_path: Path, of: str) -> None:
    queue = place.open()
    link = tmp_path / "link"
    link.symlink_to(place.path if of == "queue" else place.path.parent)
    other = Place(link if of == "queue" else link / place.path.name, lazy=place.lazy)
    try:
        with pytest.raises(StorageError, match="is open in this process already"):
            other.open()
    finally:
        other.close()
    assert queue.push(b"x").id == 0


@pytest.mark.parametrize("end", ["closed it", "was killed"])
def test_the_queue_opens_when_the_first_process_has_ended(place: Place, start: Start, end: str) -> None:
    holder = start(hold, place.path, place.lazy)
    holder.hear()
    if end == "was killed":
        holder.kill()
    else:
        holder.tell("close")
        holder.answer()
    queue = place.open()
    assert [popped.event for popped in iter(queue.pop, None)] == [b"in flight", b"ready"]
    assert queue.push(b"next").id == 3


# Forked children


def use_in_a_with(queue: DurableEventQueue[bytes]) -> None:
    with queue:
        pass


USES: dict[str, Callable[[DurableEventQueue[bytes]], object]] = {
    "push": lambda queue: queue.push(b"x"),
    "push_async": lambda queue: asyncio.run(queue.push_async(b"x")),
    "push_many": lambda queue: queue.push_many([b"x"]),
    "push_many of nothing": lambda queue: queue.push_many([]),
    "get": lambda queue: queue.get(0),
    "pop": lambda queue: queue.pop(),
    "poll": lambda queue: queue.poll(),
    "poll for ever": lambda queue: queue.poll(None),
    "poll_bytes": lambda queue: queue.poll_bytes(10),
    "ack": lambda queue: queue.ack(0),
    "ack_many": lambda queue: queue.ack_many([0, 1]),
    "nack": lambda queue: queue.nack(0),
    "len": len,
    "is_empty": lambda queue: queue.is_empty,
    "ready_len": lambda queue: queue.ready_len(),
    "approximate_len": lambda queue: queue.approximate_len(),
    "iterate": lambda queue: queue.iterate(),
    "oldest_age": lambda queue: queue.oldest_age(),
    "corrupt_keys": lambda queue: queue.corrupt_keys(),
    "with": use_in_a_with,
}


class HoldingCodec(RefusingCodec):
    """Holds the lock of a queue: an event is decoded under it."""

    def __init__(self) -> None:
        super().__init__()
        self._gate: Gate | None = None

    def decode(self, data: bytes, /) -> bytes:
        if self._gate is not None:
            self._gate()
        return data

    @contextmanager
    def held(self, queue: DurableEventQueue[bytes]) -> Iterator[None]:
        gate = self._gate = Gate()
        reading = Background(lambda: queue.get(0))
        gate.wait_for_arrival()
        yield
        self._gate = None
        gate.open()
        reading.result()


def use_in_forked_children(parent: Parent, path: Path, lazy: bool, is_locked: bool) -> dict[str, str]:
    """Use a queue in forked children, and return what that raised there; and then go on with it."""
    codec = HoldingCodec()
    with DurableEventQueue(path, lazy=lazy, codec=codec) as queue:
        queue.push_many([b"a", b"b"])
        queue.pop()
        events = queue.iterate()
        uses = {**USES, "next": lambda _: next(events), "close": lambda queue: queue.close()}
        with codec.held(queue) if is_locked else nullcontext():  # by a thread that a child does not have
            raised = {name: in_forked_child(partial(use, queue)) for name, use in uses.items()}
        queue.push(b"c")
        assert next(events) == DurableEvent(0, b"a")
        queue.ack(0)
        assert queue.pop() == DurableEvent(1, b"b")
    return raised


@pytest.mark.parametrize("is_locked", [False, True], ids=["idle", "while a thread has its lock"])
def test_a_forked_child_cannot_use_the_queue_and_its_parent_can(place: Place, start: Start, is_locked: bool) -> None:
    raised = start(use_in_forked_children, place.path, place.lazy, is_locked).answer()
    assert raised.pop("close") == "nothing was raised"
    assert {
        name: error for name, error in raised.items() if not error.startswith("InvalidInput: DurableEventQueue(")
    } == {}
    assert all("this forked child" in error for error in raised.values())
    assert place.ids() == [1, 2]


def open_anew_in_a_forked_child(parent: Parent, path: Path, lazy: bool) -> str:
    """Open a queue that is open, in a forked child, and return what that raised."""
    with DurableEventQueue(path, lazy=lazy):
        return in_forked_child(lambda: DurableEventQueue(path, lazy=lazy))


def test_a_forked_child_that_opens_the_queue_anew_is_refused_for_its_parent_has_it(place: Place, start: Start) -> None:
    raised = start(open_anew_in_a_forked_child, place.path, place.lazy).answer()
    assert raised.startswith(f"StorageError: the queue in {place.path} ")
    assert "in this process" not in raised


def run(place: Place, script: str) -> tuple[int, str]:
    """Run a script that has a queue open, in a process of its own; return its exit code and what it printed."""
    beginning = f"""
        import gc, os, signal, sys, threading
        from penstock import DurableEventQueue
        queue = DurableEventQueue({str(place.path)!r}, lazy={place.lazy})
        queue.push_many([b"a", b"b", b"c"])
        queue.pop()
    """
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore:This process:DeprecationWarning",
            "-c",
            textwrap.dedent(beginning) + textwrap.dedent(script),
        ],
        timeout=PATIENCE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout.strip()


LEAVING = {
    "sys.exit": "sys.exit(7)",
    "os._exit": "os._exit(7)",
    "freeing the queue": "del queue; gc.collect(); sys.exit(7)",
    "closing the queue": "queue.close(); sys.exit(7)",
}


@pytest.mark.parametrize("way", LEAVING)
def test_a_forked_child_leaves_at_once_and_touches_no_file(place: Place, way: str) -> None:
    code, printed = run(
        place,
        f"""
        def files():
            found = sorted(os.scandir({str(place.path)!r}), key=lambda entry: entry.name)
            return [(entry.name, entry.stat().st_size) for entry in found if not entry.name.startswith("LOG")]

        before = files()
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # which ends it, should it hang
            {LEAVING[way]}
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), files() == before)
        queue.ack(0)
        queue.push(b"d")
        queue.close()
        """,
    )
    assert (code, printed) == (0, "7 True")
    assert [popped.event for popped in iter(place.open().pop, None)] == [b"b", b"c", b"d"]


# To end without close


ENDINGS = {
    "at the end": "",
    "by sys.exit": "sys.exit(0)",
    "in the middle of an iteration": "events = queue.iterate(); next(events)",
    "while a thread waits in poll": """
        queue.pop(), queue.pop()
        from tests.support.waiting import wait_for_waiting_threads
        threading.Thread(target=queue.poll, args=(None,), daemon=True).start()
        wait_for_waiting_threads()
    """,
    "after a push_async": """
        import asyncio
        asyncio.run(queue.push_async(b"d"))
        queue.ack(3)
    """,
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_process_that_ends_without_close_ends_well_and_loses_nothing(place: Place, ending: str) -> None:
    assert run(place, ENDINGS[ending]) == (0, "")
    queue: DurableEventQueue[Any] = place.open()
    assert [popped.event for popped in iter(queue.pop, None)] == [b"a", b"b", b"c"]


def open_another_in_a_forked_child(parent: Parent, path: Path) -> str:
    """Open a queue, close it, and open another one in a forked child: RocksDB's threads are not there."""
    DurableEventQueue(path / "one").close()
    return in_forked_child(lambda: DurableEventQueue(path / "other"))


def test_a_child_that_was_forked_after_a_queue_was_opened_can_open_none(start: Start, tmp_path: Path) -> None:
    raised = start(open_another_in_a_forked_child, tmp_path).answer()
    assert raised.startswith("StorageError: ")
    assert "cannot be opened in this forked child" in raised


def fork_and_die(parent: Parent, path: Path) -> None:
    """Open a queue, fork a child that lives on, and wait to be killed."""
    queue = DurableEventQueue(path)
    queue.push(b"x")
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(theirs, b"x")  # what a fork does in a child is done
        signal.pause()
    os.read(ours, 1)
    parent.tell(pid)
    parent.wait()


def test_a_forked_child_that_outlives_its_parent_does_not_keep_the_queue_locked(place: Place, start: Start) -> None:
    child = start(fork_and_die, place.path)
    grandchild = child.hear()
    child.kill()
    try:
        assert len(place.open()) == 1
    finally:
        os.kill(grandchild, signal.SIGKILL)
