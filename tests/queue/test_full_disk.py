"""A disk that is full, or fails: what was not reported as done is not there, and the queue goes on when it can."""

from __future__ import annotations

import errno
import itertools
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import OutcomeUnknown, StorageError, UnknownEvent
from penstock.queue import DurableEvent, DurableEventQueue
from tests.queue.rocksdb_calls import SYNCS, WRITES, Real, replace_calls
from tests.support.queue_folder import Place, ids_of, pop_ids
from tests.support.waiting import Background, together

KIB, MIB = 1 << 10, 1 << 20
NOISE = random.Random(1).randbytes(MIB)  # RocksDB would compress what has a pattern


class Disk:
    """A small file system with a queue on it."""

    def __init__(self, point: Path) -> None:
        self.queue = point / "queue"
        self._point = point
        self._filler = point / "filler"

    def fill(self) -> None:
        """Leave no byte free."""
        with self._filler.open("ab", buffering=0) as filler:
            for size in (MIB, 4 * KIB):
                with suppress(OSError):
                    while filler.write(bytes(size)) == size:
                        pass
        assert os.statvfs(self._point).f_bavail == 0

    def free_space(self) -> None:
        """Delete the file that filled it."""
        self._filler.unlink()

    def grow(self) -> None:
        """Make the file system larger."""
        subprocess.run(["mount", "-o", "remount,size=64m", str(self._point)], check=True)


@pytest.fixture
def disk(mount: Callable[[str], Path]) -> Disk:
    return Disk(mount("size=6m"))


@pytest.fixture
def queue(disk: Disk) -> Iterator[DurableEventQueue[bytes]]:
    seconds = itertools.count()
    with DurableEventQueue(disk.queue, clock=lambda: next(seconds)) as queue:  # it looks at the disk before each write
        yield queue


@pytest.fixture(params=[True, False], ids=["seen before the write", "met in the write"])
def sees(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a push sees that the disk is full; otherwise the disk fills between its look and its write."""
    if not request.param:
        real = os.statvfs

        def statvfs(path: Any) -> Any:
            is_push = sys._getframe(2).f_code.co_name == "has_space_for"
            return SimpleNamespace(f_bavail=1 << 40, f_blocks=1 << 40, f_frsize=1) if is_push else real(path)

        monkeypatch.setattr(os, "statvfs", statvfs)
    return bool(request.param)


def push_until_full(queue: DurableEventQueue[bytes], size: int = 100 * KIB) -> list[int]:
    """Push until the disk is full, and return the ids of the pushes that were reported."""
    pushed: list[int] = []
    with suppress(StorageError):
        while True:
            pushed.append(queue.push(NOISE[:size]).id)
    assert pushed
    return pushed


def test_the_events_pushed_until_the_disk_is_full_and_no_others_are_there(
    queue: DurableEventQueue[bytes], disk: Disk, sees: bool
) -> None:
    """They can be counted, looked at and popped on the full disk, and after more pushes have failed."""
    pushed = push_until_full(queue)
    assert (len(queue), queue.ready_len(), ids_of(queue)) == (len(pushed), len(pushed), pushed)
    assert queue.get(pushed[-1]) == DurableEvent(pushed[-1], NOISE[: 100 * KIB])
    assert queue.get(pushed[-1] + 1) is None
    for _ in range(10):
        with pytest.raises(StorageError):
            queue.push(NOISE)
    assert pop_ids(queue) == pushed
    queue.close()
    disk.grow()
    with DurableEventQueue(disk.queue) as again:
        assert pop_ids(again) == pushed


def test_a_push_works_at_once_on_a_disk_that_has_grown(queue: DurableEventQueue[bytes], disk: Disk, sees: bool) -> None:
    pushed = push_until_full(queue)
    disk.grow()
    assert queue.push(b"next").id == len(pushed)
    assert ids_of(queue) == [*pushed, len(pushed)]


def test_a_disk_that_is_full_again_and_again_loses_nothing_and_skips_no_id(
    queue: DurableEventQueue[bytes], disk: Disk, sees: bool
) -> None:
    """Pushes work as soon as space is free, also while the error of an earlier one is kept with its traceback."""
    pushed: list[int] = []
    errors = []
    for _ in range(2):
        disk.fill()
        for _ in range(3):
            with pytest.raises(StorageError) as error:
                queue.push(NOISE[: 100 * KIB])
            errors.append(error)
        disk.free_space()
        pushed += [queue.push(b"small").id for _ in range(5)]
    assert all(error.value.__traceback__ is not None for error in errors)
    assert pushed == list(range(10)) == ids_of(queue) == pop_ids(queue)
    assert len(queue) == 10


def test_push_many_on_a_full_disk_is_all_or_none(disk: Disk, sees: bool) -> None:
    with DurableEventQueue(disk.queue) as queue:
        queue.push(b"first")
        with pytest.raises(StorageError):
            queue.push_many([NOISE[: 100 * KIB]] * 100)
        assert (len(queue), ids_of(queue)) == (1, [0])
    disk.grow()
    with DurableEventQueue(disk.queue) as queue:
        assert pop_ids(queue) == [0]


@pytest.mark.parametrize("then", ["acked again", "given back", "opened anew"])
def test_events_that_could_not_be_acked_stay_in_flight(disk: Disk, then: str) -> None:
    with DurableEventQueue(disk.queue) as queue:
        queue.push_many([b"event"] * 10_000)
        for _ in range(5_000):
            queue.pop()
        disk.fill()
        with pytest.raises(StorageError):
            queue.ack_many(range(5_000))  # the last block of the log has space for a few
        assert (len(queue), queue.ready_len()) == (10_000, 5_000)
        if then == "given back":
            queue.nack(7)
            assert pop_ids(queue) == [7, *range(5_000, 10_000)]
        disk.free_space()
        if then == "acked again":
            queue.ack_many(range(5_000))
            assert (len(queue), queue.ready_len(), ids_of(queue)) == (5_000, 5_000, list(range(5_000, 10_000)))
    with DurableEventQueue(disk.queue) as queue:
        assert pop_ids(queue) == list(range(5_000 if then == "acked again" else 0, 10_000))


@pytest.mark.chaos  # it holds as a rule, and is not promised: a compaction may use the reserve for a while
def test_a_disk_that_pushes_have_filled_has_space_for_acks(mount: Callable[[str], Path], lazy: bool) -> None:
    with DurableEventQueue(Disk(mount("size=64m")).queue, lazy=lazy) as queue:
        pushed = push_until_full(queue, 300 * KIB)
        for identifier in pop_ids(queue):
            queue.ack(identifier)
        assert len(pushed) > 100
        assert (len(queue), queue.ready_len()) == (0, 0)


@pytest.mark.parametrize(("total", "reserve"), [(100 << 30, 128 * MIB), (64 * MIB, 8 * MIB), (MIB, 2 * MIB)])
def test_below_the_reserve_pushes_are_refused_and_acks_go_on(
    tmp_path: Path, lazy: bool, monkeypatch: pytest.MonkeyPatch, total: int, reserve: int
) -> None:
    seconds = itertools.count()
    with DurableEventQueue(tmp_path / "queue", lazy=lazy, clock=lambda: next(seconds)) as queue:
        queue.push_many([b"a", b"b"])
        free = reserve
        monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=free, f_blocks=total, f_frsize=1))
        with pytest.raises(StorageError, match="full, but for what acks need: nothing was pushed"):
            queue.push(b"c")
        queue.ack(0)
        free = reserve + 100
        assert queue.push(b"d").id == 2
        assert ids_of(queue) == [1, 2]


# Injected faults


Break = Callable[[], None]


@pytest.fixture(params=[WRITES, SYNCS], ids=["the write fails", "the sync fails"])
def break_it(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Break:
    """Lets the next write fail."""

    def break_once() -> None:
        is_first = iter([True])  # `next` gives it to one thread alone

        def fail_once(real: Real, *args: Any, **kwargs: Any) -> Any:
            if next(is_first, False):
                raise OSError(errno.EIO, "the disk has failed")
            return real(*args, **kwargs)

        replace_calls(monkeypatch, request.param, fail_once)

    return break_once


@pytest.fixture
def sound(place: Place) -> DurableEventQueue[bytes]:
    """A queue with three events, the first of which is in flight."""
    queue = place.open()
    queue.push_many([b"old"] * 3)
    queue.pop()
    return queue


PUSHES: dict[str, Callable[[DurableEventQueue[bytes]], object]] = {
    "push": lambda queue: queue.push(b"failed"),
    "push_many": lambda queue: queue.push_many([b"failed"] * 3),
}


@pytest.mark.parametrize("push", PUSHES.values(), ids=PUSHES)
def test_a_push_that_failed_is_not_there_and_the_next_gets_its_id(
    sound: DurableEventQueue[bytes], place: Place, break_it: Break, push: Callable[[DurableEventQueue[bytes]], object]
) -> None:
    break_it()
    with pytest.raises(OutcomeUnknown):
        push(sound)
    assert (len(sound), sound.ready_len(), ids_of(sound), sound.get(3)) == (3, 2, [0, 1, 2], None)
    assert pop_ids(sound) == [1, 2]
    for identifier in (1, 2):
        sound.nack(identifier)
    assert sound.push(b"next").id == 3
    assert [event.event for event in sound.iterate()] == [b"old", b"old", b"old", b"next"]
    sound.nack(0)  # it was in flight, and still is
    assert (len(sound), sound.ready_len(), pop_ids(sound)) == (4, 4, [0, 1, 2, 3])
    sound.close()
    again = place.open(lazy=not place.lazy)
    assert [(event.id, event.event) for event in again.iterate()] == [
        *((one, b"old") for one in range(3)),
        (3, b"next"),
    ]


@pytest.mark.parametrize("push", PUSHES.values(), ids=PUSHES)
def test_a_queue_whose_write_failed_can_be_closed_and_opened_while_the_error_is_kept(
    sound: DurableEventQueue[bytes], place: Place, break_it: Break, push: Callable[[DurableEventQueue[bytes]], object]
) -> None:
    break_it()
    with pytest.raises(OutcomeUnknown) as kept:
        push(sound)
    sound.close()
    assert kept.value.__traceback__ is not None
    assert pop_ids(place.open())[:3] == [0, 1, 2]


@pytest.mark.parametrize("pushes", [False, True], ids=["at once", "after a push"])
@pytest.mark.parametrize("acked", [[0], [1], [0, 1]], ids=["one in flight", "one that is ready", "both"])
def test_an_ack_that_failed_can_be_repeated_and_hides_no_event(
    sound: DurableEventQueue[bytes], break_it: Break, acked: list[int], pushes: bool
) -> None:
    break_it()
    with pytest.raises(OutcomeUnknown):
        sound.ack_many(acked)
    behind = [2, sound.push(b"next").id] if pushes else [2]
    there = ids_of(sound)  # the acks happened or not
    assert there in ([0, 1, *behind], [one for one in (0, 1) if one not in acked] + behind)
    assert (len(sound), sound.ready_len()) == (len(there), len([one for one in there if one != 0]))
    with suppress(UnknownEvent):
        sound.nack(0)
    assert pop_ids(sound)[-len(behind) :] == behind
    for identifier in there:
        sound.nack(identifier)
    sound.ack_many(acked)
    remaining = [one for one in (0, 1, *behind) if one not in acked]
    assert (len(sound), sound.ready_len(), ids_of(sound)) == (len(remaining), len(remaining), remaining)


def test_every_push_of_many_threads_that_was_reported_during_a_fault_is_there(place: Place, break_it: Break) -> None:
    queue = place.open()
    reported: dict[int, bytes] = {}
    failures: list[StorageError] = []

    def push(thread: int) -> None:
        for number in range(30):
            if (thread, number) == (0, 10):
                break_it()
            event = b"%d/%d" % (thread, number)
            try:
                reported[queue.push(event).id] = event
            except StorageError as error:
                failures.append(error)

    together(*[partial(push, thread) for thread in range(8)])
    assert failures
    assert len(reported) == 8 * 30 - len(failures)
    assert {event.id: event.event for event in queue.iterate()} == reported
    assert (len(queue), pop_ids(queue)) == (len(reported), sorted(reported))


def test_a_poll_during_a_fault_gets_the_next_event(place: Place, break_it: Break) -> None:
    queue = place.open()
    break_it()
    polling = Background(queue.poll, 30)
    with pytest.raises(OutcomeUnknown):
        queue.push(b"failed")
    queue.push(b"next")
    assert polling.result() == DurableEvent(0, b"next")


def test_a_write_that_rocksdb_stalls_is_repeated_whole(
    sound: DurableEventQueue[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    stalls = iter([True] * 3)

    def stall(real: Real, database: Any, batch: Any, *args: Any) -> Any:
        if next(stalls, False):
            batch.clear()  # a try uses it up
            raise Exception("Operation failed. Try again.: Incomplete: Write stall")
        return real(database, batch, *args)

    replace_calls(monkeypatch, ["write"], stall)
    before = ids_of(sound)
    pushed = [event.id for event in sound.push_many([b"a", b"b"])]
    assert ids_of(sound) == before + pushed
    sound.ack_many(pushed)
    assert ids_of(sound) == before
