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
from penstock.queue import DurableEventQueue
from penstock.queue.database import Database
from tests.queue.calls import Call, drained, ids, together
from tests.queue.rocksdb_calls import SYNCS, WRITES, Real, replace_calls

KIB, MIB = 1 << 10, 1 << 20
NOISE = random.Random(1).randbytes(MIB)  # RocksDB would compress what has a pattern


@pytest.fixture(params=[True, False], ids=["lazy", "eager"])
def lazy(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


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

    def make_room(self) -> None:
        """Delete what filled it."""
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


@pytest.fixture(params=[True, False], ids=["which is seen before", "which is met in the write"])
def sees(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the queue sees that the disk is full; otherwise others fill it between its look and its write."""
    if not request.param:
        real = os.statvfs

        def statvfs(path: Any) -> Any:
            is_push = sys._getframe(2).f_code is Database.has_space_for.__code__
            return SimpleNamespace(f_bavail=1 << 40, f_blocks=1 << 40, f_frsize=1) if is_push else real(path)

        monkeypatch.setattr(os, "statvfs", statvfs)
    return bool(request.param)


def push_until_full(queue: DurableEventQueue[bytes], size: int = 100 * KIB) -> list[int]:
    """Push until the disk is full, and return the ids that were told."""
    pushed: list[int] = []
    with suppress(StorageError):
        while True:
            pushed.append(queue.push(NOISE[:size]).id)
    assert pushed
    return pushed


def test_a_push_on_a_full_disk_leaves_what_was_reported_and_nothing_else(
    queue: DurableEventQueue[bytes], sees: bool
) -> None:
    pushed = push_until_full(queue)
    assert (len(queue), queue.ready_len(), ids(queue)) == (len(pushed), len(pushed), pushed)


def test_what_was_pushed_until_the_disk_was_full_is_there_when_it_is_opened_anew(disk: Disk, sees: bool) -> None:
    with DurableEventQueue(disk.queue) as queue:
        pushed = push_until_full(queue)
    disk.grow()
    with DurableEventQueue(disk.queue) as queue:
        assert drained(queue) == pushed


def test_events_can_be_taken_while_the_disk_is_full(queue: DurableEventQueue[bytes], sees: bool) -> None:
    pushed = push_until_full(queue)
    assert drained(queue) == pushed


def test_events_can_be_looked_at_while_the_disk_is_full(queue: DurableEventQueue[bytes], sees: bool) -> None:
    last = push_until_full(queue)[-1]
    event = queue.get(last)
    assert event is not None
    assert event.event == NOISE[: 100 * KIB]
    assert queue.get(last + 1) is None


def test_events_can_be_taken_after_many_tries_to_push_on_a_full_disk(
    queue: DurableEventQueue[bytes], sees: bool
) -> None:
    pushed = push_until_full(queue)
    for _ in range(10):
        with pytest.raises(StorageError):
            queue.push(NOISE)
    assert drained(queue) == pushed


def test_a_push_works_at_once_on_a_disk_that_was_made_larger(
    queue: DurableEventQueue[bytes], disk: Disk, sees: bool
) -> None:
    pushed = push_until_full(queue)
    disk.grow()
    assert queue.push(b"next").id == len(pushed)
    assert ids(queue) == [*pushed, len(pushed)]


def test_a_push_works_at_once_when_others_have_made_room(
    queue: DurableEventQueue[bytes], disk: Disk, sees: bool
) -> None:
    queue.push(b"first")
    disk.fill()
    with pytest.raises(StorageError):
        queue.push(NOISE[: 100 * KIB])
    disk.make_room()
    assert queue.push(b"next").id == 1
    assert (ids(queue), len(queue)) == ([0, 1], 2)


def test_a_push_works_at_once_though_the_error_of_the_last_one_is_kept(
    queue: DurableEventQueue[bytes], disk: Disk, sees: bool
) -> None:
    queue.push(b"first")
    disk.fill()
    with pytest.raises(StorageError) as kept:
        queue.push(NOISE[: 100 * KIB])
    disk.make_room()
    assert queue.push(b"next").id == 1
    assert kept.value.__traceback__ is not None


def test_a_disk_that_is_full_again_and_again_loses_nothing_and_skips_no_id(
    queue: DurableEventQueue[bytes], disk: Disk, sees: bool
) -> None:
    pushed: list[int] = []
    for _ in range(2):
        disk.fill()
        for _ in range(3):
            with pytest.raises(StorageError):
                queue.push(NOISE[: 100 * KIB])
        disk.make_room()
        pushed += [queue.push(b"small").id for _ in range(5)]
    assert pushed == list(range(10)) == drained(queue)


def test_push_many_on_a_full_disk_is_all_or_none(disk: Disk, sees: bool) -> None:
    with DurableEventQueue(disk.queue) as queue:
        queue.push(b"first")
        with pytest.raises(StorageError):
            queue.push_many([NOISE[: 100 * KIB]] * 100)
        assert (len(queue), ids(queue)) == (1, [0])
    disk.grow()
    with DurableEventQueue(disk.queue) as queue:
        assert drained(queue) == [0]


def fail_to_ack(queue: DurableEventQueue[bytes], disk: Disk, count: int) -> None:
    """Take so many of twice as many events, and fail to ack them."""
    queue.push_many([b"event"] * (2 * count))
    for _ in range(count):
        queue.pop()
    disk.fill()
    with pytest.raises(StorageError):
        # What is left of the last block of the log is room for a few.
        queue.ack_many(range(count))


def test_events_that_could_not_be_acked_are_in_flight_as_before(queue: DurableEventQueue[bytes], disk: Disk) -> None:
    fail_to_ack(queue, disk, 5_000)
    assert (len(queue), queue.ready_len()) == (10_000, 5_000)


def test_events_that_could_not_be_acked_can_be_given_back_and_taken(
    queue: DurableEventQueue[bytes], disk: Disk
) -> None:
    fail_to_ack(queue, disk, 5_000)
    queue.nack(7)
    assert drained(queue) == [7, *range(5_000, 10_000)]


def test_events_that_could_not_be_acked_can_be_acked_when_there_is_room(
    queue: DurableEventQueue[bytes], disk: Disk
) -> None:
    fail_to_ack(queue, disk, 5_000)
    disk.make_room()
    queue.ack_many(range(5_000))
    assert (len(queue), queue.ready_len(), ids(queue)) == (5_000, 5_000, list(range(5_000, 10_000)))


def test_events_that_could_not_be_acked_are_there_when_the_queue_is_opened_anew(disk: Disk) -> None:
    with DurableEventQueue(disk.queue) as queue:
        fail_to_ack(queue, disk, 5_000)
    disk.make_room()
    with DurableEventQueue(disk.queue) as queue:
        assert drained(queue) == list(range(10_000))


@pytest.mark.chaos  # it holds as a rule, and is not promised: a compaction may take the reserve for a while
def test_a_disk_that_pushes_have_filled_has_room_for_acks(mount: Callable[[str], Path], lazy: bool) -> None:
    with DurableEventQueue(Disk(mount("size=64m")).queue, lazy=lazy) as queue:
        pushed = push_until_full(queue, 300 * KIB)
        for identifier in drained(queue):
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
        assert ids(queue) == [1, 2]


# --- injected faults, which take no file system of one's own


Break = Callable[[], None]


@pytest.fixture(params=[WRITES, SYNCS], ids=["the write fails", "the sync fails"])
def break_it(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Break:
    """Lets the next write fail, once it is called."""

    def break_once() -> None:
        is_first = iter([True])  # `next` gives it to one thread alone

        def fail_once(real: Real, *args: Any, **kwargs: Any) -> Any:
            if next(is_first, False):
                raise OSError(errno.EIO, "the disk has failed")
            return real(*args, **kwargs)

        replace_calls(monkeypatch, request.param, fail_once)

    return break_once


@pytest.fixture
def sound(tmp_path: Path, lazy: bool) -> Iterator[DurableEventQueue[bytes]]:
    """A queue with three events, the first of which is in flight."""
    with DurableEventQueue(tmp_path / "queue", lazy=lazy) as queue:
        queue.push_many([b"old"] * 3)
        queue.pop()
        yield queue


PUSHES: dict[str, Callable[[DurableEventQueue[bytes]], object]] = {
    "push": lambda queue: queue.push(b"failed"),
    "push_many": lambda queue: queue.push_many([b"failed"] * 3),
}
Push = Callable[[DurableEventQueue[bytes]], object]


@pytest.mark.parametrize("push", PUSHES.values(), ids=PUSHES)
def test_a_push_that_fails_is_not_there(sound: DurableEventQueue[bytes], break_it: Break, push: Push) -> None:
    break_it()
    with pytest.raises(OutcomeUnknown):
        push(sound)
    assert (len(sound), sound.ready_len(), ids(sound), sound.get(3)) == (3, 2, [0, 1, 2], None)


@pytest.mark.parametrize("push", PUSHES.values(), ids=PUSHES)
def test_a_push_that_fails_is_never_taken(sound: DurableEventQueue[bytes], break_it: Break, push: Push) -> None:
    break_it()
    with pytest.raises(OutcomeUnknown):
        push(sound)
    assert drained(sound) == [1, 2]


@pytest.mark.parametrize("push", PUSHES.values(), ids=PUSHES)
def test_the_push_after_one_that_failed_gets_the_next_id(
    sound: DurableEventQueue[bytes], break_it: Break, push: Push
) -> None:
    break_it()
    with pytest.raises(OutcomeUnknown):
        push(sound)
    assert sound.push(b"next").id == 3
    assert [event.event for event in sound.iterate()] == [b"old", b"old", b"old", b"next"]
    assert (len(sound), sound.ready_len(), drained(sound)) == (4, 3, [1, 2, 3])


@pytest.mark.parametrize("push", PUSHES.values(), ids=PUSHES)
def test_a_push_that_failed_is_not_there_after_the_next_one_and_a_restart(
    sound: DurableEventQueue[bytes], break_it: Break, push: Push, tmp_path: Path, lazy: bool
) -> None:
    break_it()
    with pytest.raises(OutcomeUnknown):
        push(sound)
    sound.push(b"next")
    sound.close()
    with DurableEventQueue(tmp_path / "queue", lazy=not lazy) as again:
        assert [(event.id, event.event) for event in again.iterate()] == [
            *((one, b"old") for one in range(3)),
            (3, b"next"),
        ]


@pytest.mark.parametrize("push", PUSHES.values(), ids=PUSHES)
def test_a_queue_whose_write_failed_can_be_closed_and_opened(
    sound: DurableEventQueue[bytes], break_it: Break, push: Push, tmp_path: Path
) -> None:
    break_it()
    with pytest.raises(OutcomeUnknown) as kept:
        push(sound)
    sound.close()
    assert kept.value.__traceback__ is not None
    with DurableEventQueue(tmp_path / "queue") as again:
        assert drained(again)[:3] == [0, 1, 2]


def test_what_is_in_flight_stays_so_when_a_push_failed(sound: DurableEventQueue[bytes], break_it: Break) -> None:
    break_it()
    with pytest.raises(OutcomeUnknown):
        sound.push(b"failed")
    sound.push(b"next")
    sound.nack(0)
    assert drained(sound) == [0, 1, 2, 3]


ACKS = {"of one in flight": [0], "of one that is ready": [1], "of both": [0, 1]}


@pytest.mark.parametrize("acked", ACKS.values(), ids=ACKS)
def test_the_counts_are_what_is_on_disk_after_an_ack_that_failed(
    sound: DurableEventQueue[bytes], break_it: Break, acked: list[int]
) -> None:
    break_it()
    with pytest.raises(OutcomeUnknown):
        sound.ack_many(acked)
    there = ids(sound)
    assert (len(sound), sound.ready_len()) == (len(there), len([one for one in there if one != 0]))


@pytest.mark.parametrize("acked", ACKS.values(), ids=ACKS)
def test_an_ack_that_failed_can_be_made_again(
    sound: DurableEventQueue[bytes], break_it: Break, acked: list[int]
) -> None:
    break_it()
    with pytest.raises(OutcomeUnknown):
        sound.ack_many(acked)
    sound.ack_many(acked)
    left = [one for one in range(3) if one not in acked]
    assert (len(sound), ids(sound)) == (len(left), left)
    assert sound.ready_len() == len([one for one in left if one != 0])


@pytest.mark.parametrize("acked", ACKS.values(), ids=ACKS)
def test_the_counts_are_what_is_on_disk_when_a_push_follows_an_ack_that_failed(
    sound: DurableEventQueue[bytes], break_it: Break, acked: list[int]
) -> None:
    break_it()
    with pytest.raises(OutcomeUnknown):
        sound.ack_many(acked)
    sound.push(b"next")
    there = ids(sound)
    assert (len(sound), sound.ready_len()) == (len(there), len([one for one in there if one != 0]))


@pytest.mark.parametrize("acked", ACKS.values(), ids=ACKS)
def test_an_ack_that_failed_can_be_made_again_after_a_push(
    sound: DurableEventQueue[bytes], break_it: Break, acked: list[int]
) -> None:
    break_it()
    with pytest.raises(OutcomeUnknown):
        sound.ack_many(acked)
    sound.push(b"next")
    sound.ack_many(acked)
    left = [one for one in range(4) if one not in acked]
    assert (len(sound), ids(sound)) == (len(left), left)
    assert sound.ready_len() == len([one for one in left if one != 0])


@pytest.mark.parametrize("pushes", [False, True], ids=["at once", "after a push"])
@pytest.mark.parametrize("acked", ACKS.values(), ids=ACKS)
def test_an_event_whose_ack_failed_does_not_hide_those_behind_it(
    sound: DurableEventQueue[bytes], break_it: Break, acked: list[int], pushes: bool
) -> None:
    break_it()
    with pytest.raises(OutcomeUnknown):
        sound.ack_many(acked)
    behind = [2, sound.push(b"next").id] if pushes else [2]
    with suppress(UnknownEvent):  # it may have happened
        sound.nack(0)
    assert drained(sound)[-len(behind) :] == behind


def test_threads_during_a_fault_are_told_the_truth(tmp_path: Path, lazy: bool, break_it: Break) -> None:
    with DurableEventQueue(tmp_path / "queue", lazy=lazy) as queue:
        told: dict[int, bytes] = {}
        failures: list[StorageError] = []

        def push(who: int) -> None:
            for number in range(30):
                if (who, number) == (0, 10):
                    break_it()
                event = b"%d/%d" % (who, number)
                try:
                    told[queue.push(event).id] = event
                except StorageError as error:
                    failures.append(error)

        together(*[partial(push, who) for who in range(8)])
        assert failures
        assert len(told) == 8 * 30 - len(failures)
        assert {event.id: event.event for event in queue.iterate()} == told
        assert (len(queue), drained(queue)) == (len(told), sorted(told))


def test_a_thread_that_polls_during_a_fault_gets_the_next_event(tmp_path: Path, lazy: bool, break_it: Break) -> None:
    with DurableEventQueue(tmp_path / "queue", lazy=lazy) as queue:
        break_it()
        poll = Call(queue.poll, 30)
        with pytest.raises(OutcomeUnknown):
            queue.push(b"failed")
        queue.push(b"next")
        event = poll.answer()
        assert event is not None
        assert (event.id, event.event) == (0, b"next")


def test_a_write_that_rocksdb_holds_up_is_tried_again_whole(
    sound: DurableEventQueue[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    stalls = iter([True] * 3)

    def stall(real: Real, database: Any, batch: Any, *args: Any) -> Any:
        if next(stalls, False):
            batch.clear()  # a try uses it up
            raise Exception("Operation failed. Try again.: Incomplete: Write stall")
        return real(database, batch, *args)

    replace_calls(monkeypatch, ["write"], stall)
    before = ids(sound)
    pushed = [event.id for event in sound.push_many([b"a", b"b"])]
    assert ids(sound) == before + pushed
    sound.ack_many(pushed)
    assert ids(sound) == before
