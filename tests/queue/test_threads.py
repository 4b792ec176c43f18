"""Many threads on one durable queue: nothing is lost or taken twice, nobody waits for ever, and syncs are shared."""

from __future__ import annotations

import random
import re
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from rocksdict import DBRecoveryMode, Options

from penstock.errors import IdOverflow, OutcomeUnknown
from penstock.queue import DurableEvent, DurableEventQueue, rocks
from tests.queue.calls import PATIENCE, Call, Writes, drained, ids, pushes, together
from tests.support.queue_folder import begin_at
from tests.support.waiting import wait_for_waiting_threads

THREADS = 32
LAST = (1 << 64) - 1


@pytest.fixture(params=[True, False], ids=["lazy", "eager"])
def lazy(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def queue(tmp_path: Path, lazy: bool) -> Iterator[DurableEventQueue[bytes]]:
    with DurableEventQueue(tmp_path / "queue", lazy=lazy) as queue:
        yield queue


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Writes:
    return Writes(monkeypatch)


class Crowd:
    """What some threads do with a queue, and who of them has which event."""

    def __init__(self, queue: DurableEventQueue[bytes]) -> None:
        self._queue = queue
        self._lock = threading.Lock()
        self._held: dict[int, int] = {}
        self.pushed: dict[int, bytes] = {}
        self.acked: set[int] = set()
        self.taken_twice: list[int] = []
        self.taken_after_ack: list[int] = []
        self.wrong: list[DurableEvent[bytes]] = []

    def work(self, who: int, rounds: int) -> None:
        """Push and take all the time. Whatever this thread takes it acks or gives back, now or later."""
        dice = random.Random(who)
        mine: list[int] = []
        for number in range(rounds):
            if dice.random() < 0.2:
                self._push(self._queue.push_many([b"%d/%d/%d" % (who, number, one) for one in range(3)]))
            else:
                self._push([self._queue.push(b"%d/%d" % (who, number))])
            for _ in range(dice.randrange(3)):
                self._take(who, mine)
            dice.shuffle(mine)
            if mine and dice.random() < 0.5:
                self._give_back(mine.pop())
            if dice.random() < 0.5:
                self._ack([mine.pop() for _ in range(min(len(mine), dice.randrange(1, 4)))])
        for identifier in mine:
            self._give_back(identifier)

    def _push(self, events: list[DurableEvent[bytes]]) -> None:
        with self._lock:
            for event in events:
                assert event.id not in self.pushed
                self.pushed[event.id] = event.event

    def _take(self, who: int, mine: list[int]) -> None:
        event = self._queue.pop()
        if event is None:
            return
        mine.append(event.id)
        with self._lock:
            if event.id in self._held:
                self.taken_twice.append(event.id)
            if event.id in self.acked:
                self.taken_after_ack.append(event.id)
            # It can be taken before the thread that pushed it has noted it down.
            if self.pushed.get(event.id, event.event) != event.event:
                self.wrong.append(event)
            self._held[event.id] = who

    def _give_back(self, identifier: int) -> None:
        with self._lock:
            del self._held[identifier]
        self._queue.nack(identifier)

    def _ack(self, identifiers: list[int]) -> None:
        with self._lock:
            self.acked.update(identifiers)
            for identifier in identifiers:
                del self._held[identifier]
        self._queue.ack_many(identifiers)


@pytest.fixture
def crowd(queue: DurableEventQueue[bytes]) -> Crowd:
    """A queue on which many threads have worked."""
    crowd = Crowd(queue)
    together(*[partial(crowd.work, who, 50) for who in range(THREADS)])
    return crowd


def test_no_thread_takes_what_another_has(crowd: Crowd) -> None:
    assert crowd.taken_twice == []


def test_no_thread_takes_what_another_has_begun_to_ack(crowd: Crowd) -> None:
    assert crowd.taken_after_ack == []


def test_a_thread_takes_what_was_pushed_under_that_id(crowd: Crowd) -> None:
    assert crowd.wrong == []


def test_the_ids_of_many_threads_have_no_gaps(crowd: Crowd) -> None:
    assert sorted(crowd.pushed) == list(range(len(crowd.pushed)))


def test_what_many_threads_left_is_there_with_its_bytes(crowd: Crowd, queue: DurableEventQueue[bytes]) -> None:
    left = {event.id: event.event for event in queue.iterate()}
    assert left == {one: event for one, event in crowd.pushed.items() if one not in crowd.acked}


def test_the_counts_are_exact_after_many_threads(crowd: Crowd, queue: DurableEventQueue[bytes]) -> None:
    left = len(crowd.pushed) - len(crowd.acked)
    assert (len(queue), queue.ready_len()) == (left, left)


def test_what_many_threads_left_comes_in_the_order_of_its_ids(crowd: Crowd, queue: DurableEventQueue[bytes]) -> None:
    assert drained(queue) == sorted(set(crowd.pushed) - crowd.acked)


def test_what_many_threads_left_is_there_after_a_restart(
    crowd: Crowd, queue: DurableEventQueue[bytes], tmp_path: Path, lazy: bool
) -> None:
    queue.close()
    with DurableEventQueue(tmp_path / "queue", lazy=not lazy) as again:
        assert drained(again) == sorted(set(crowd.pushed) - crowd.acked)


def test_threads_that_drain_a_queue_take_each_event_once(queue: DurableEventQueue[bytes]) -> None:
    queue.push_many([b"event"] * 2_000)
    taken = together(*[partial(drained, queue)] * THREADS)
    assert sorted(one for some in taken for one in some) == list(range(2_000))


def test_an_id_that_many_threads_ack_at_once_is_counted_once(queue: DurableEventQueue[bytes]) -> None:
    queue.push_many([b"event"] * 100)
    together(*[lambda: queue.ack_many(range(50))] * THREADS)
    assert (len(queue), queue.ready_len(), ids(queue)) == (50, 50, list(range(50, 100)))


def wake_ups(queue: DurableEventQueue[bytes], wake: Callable[[], int], rounds: int) -> list[float]:
    """The seconds from the return of what wakes a poll to the return of that poll."""

    def poll() -> tuple[DurableEvent[bytes] | None, float]:
        return queue.poll(timeout=PATIENCE / 2), time.perf_counter()

    seconds = []
    for _ in range(rounds):
        call = Call(poll)
        wait_for_waiting_threads()
        woken_by = wake()
        woke = time.perf_counter()
        event, returned = call.answer()
        assert event is not None
        assert event.id == woken_by
        seconds.append(returned - woke)
    return seconds


def test_a_push_wakes_a_poll_in_milliseconds(queue: DurableEventQueue[bytes]) -> None:
    seconds = wake_ups(queue, lambda: queue.push(b"event").id, rounds=50)
    assert statistics.median(seconds) < 0.05


def test_a_nack_wakes_a_poll_in_milliseconds(queue: DurableEventQueue[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    queue.push(b"event")
    queue.pop()

    def give_back() -> int:
        queue.nack(0)
        return 0

    assert statistics.median(wake_ups(queue, give_back, rounds=50)) < 0.05


def test_push_many_wakes_as_many_polls_as_it_has_events(queue: DurableEventQueue[bytes]) -> None:
    polls = [Call(queue.poll, PATIENCE / 2) for _ in range(8)]
    queue.push_many([b"event"] * 8)
    taken = [poll.answer() for poll in polls]
    assert sorted(event.id for event in taken if event is not None) == list(range(8))


def test_calls_that_come_during_a_write_share_the_next_one(queue: DurableEventQueue[bytes], writes: Writes) -> None:
    queue.push_many([b"old"] * 3)
    first = writes.hold(0)
    leader = Call(queue.push, b"first")
    first.wait()
    others = pushes(queue, [b"%d" % number for number in range(15)])
    acks = [Call(queue.ack, identifier) for identifier in range(3)]
    wait_for_waiting_threads(18)
    first.release()
    assert [leader.answer().id, *sorted(call.answer() for call in others)] == list(range(3, 19))
    assert [ack.answer() for ack in acks] == [None] * 3
    assert writes.seen == [(3, 0), (1, 0), (15, 3)]
    assert ids(queue) == list(range(3, 19))


def test_a_call_of_a_group_returns_the_id_of_its_own_event(queue: DurableEventQueue[bytes], writes: Writes) -> None:
    first = writes.hold(0)
    leader = Call(queue.push, b"first")
    first.wait()
    singles = {b"%d" % number: Call(queue.push, b"%d" % number) for number in range(5)}
    many = Call(queue.push_many, [b"a", b"b", b"c"])
    wait_for_waiting_threads(6)
    first.release()
    leader.answer()
    told = {call.answer().id: event for event, call in singles.items()} | {one.id: one.event for one in many.answer()}
    assert told == {event.id: event.event for event in queue.iterate() if event.event != b"first"}


def test_a_push_that_finds_no_ids_left_fails_alone_in_its_group(tmp_path: Path, lazy: bool, writes: Writes) -> None:
    begin_at(tmp_path / "queue", LAST - 4)
    with DurableEventQueue(tmp_path / "queue") as queue:
        queue.push(b"there")
    with DurableEventQueue(tmp_path / "queue", lazy=lazy) as queue:
        first = writes.hold(0)
        leader = Call(queue.push, b"first")
        first.wait()
        ack = Call(queue.ack, LAST - 4)
        wait_for_waiting_threads(1)
        too_many = Call(queue.push_many, [b"event"] * 3)
        wait_for_waiting_threads(2)
        last = Call(queue.push, b"last")
        wait_for_waiting_threads(3)
        first.release()
        assert leader.answer().id == LAST - 3
        assert isinstance(too_many.error(), IdOverflow)
        assert (last.answer().id, ack.error()) == (LAST - 2, None)
        assert ids(queue) == [LAST - 3, LAST - 2]


@pytest.mark.parametrize("is_written", [False, True], ids=["before it is made", "after it was made"])
def test_a_write_that_fails_fails_each_call_of_its_group_with_an_error_of_its_own(
    queue: DurableEventQueue[bytes], writes: Writes, is_written: bool
) -> None:
    queue.push(b"old")
    first = writes.hold(0)
    failed = OutcomeUnknown("the write failed")
    second = writes.hold(1, after=failed) if is_written else writes.hold(1, before=failed)
    second.release()
    leader = Call(queue.push, b"first")
    first.wait()
    calls: list[Call[int] | Call[None]] = [*pushes(queue, [b"event"] * 5), Call(queue.ack, 0)]
    wait_for_waiting_threads(6)
    first.release()
    errors = [call.error() for call in calls]
    assert leader.error() is None
    assert [type(error) for error in errors] == [OutcomeUnknown] * 6
    assert len({id(error) for error in errors}) == 6


@pytest.mark.parametrize("is_written", [False, True], ids=["before it is made", "after it was made"])
def test_a_queue_goes_on_after_a_write_that_failed_a_group(
    queue: DurableEventQueue[bytes], writes: Writes, is_written: bool
) -> None:
    first = writes.hold(0)
    failed = OutcomeUnknown("the write failed")
    second = writes.hold(1, after=failed) if is_written else writes.hold(1, before=failed)
    second.release()
    leader = Call(queue.push, b"first")
    first.wait()
    calls = pushes(queue, [b"event"] * 5)
    wait_for_waiting_threads(5)
    first.release()
    assert [type(call.error()) for call in calls] == [OutcomeUnknown] * 5
    assert leader.answer().id == 0
    assert queue.push(b"next").id == 1
    assert (drained(queue), len(queue)) == ([0, 1], 2)


def test_a_leader_that_is_interrupted_leaves_those_in_line_to_the_next(
    queue: DurableEventQueue[bytes], writes: Writes
) -> None:
    first = writes.hold(0, before=KeyboardInterrupt())
    leader = Call(queue.push, b"first")
    first.wait()
    others = pushes(queue, [b"event"] * 5)
    wait_for_waiting_threads(5)
    first.release()
    assert isinstance(leader.error(), KeyboardInterrupt)
    assert sorted(call.answer() for call in others) == list(range(5))


@pytest.mark.parametrize("is_written", [False, True], ids=["before it is made", "after it was made"])
def test_an_interrupt_in_a_write_for_others_reaches_one_and_tells_the_others(
    queue: DurableEventQueue[bytes], writes: Writes, is_written: bool
) -> None:
    first = writes.hold(0)
    stop = KeyboardInterrupt()
    second = writes.hold(1, after=stop) if is_written else writes.hold(1, before=stop)
    second.release()
    leader = Call(queue.push, b"first")
    first.wait()
    others = pushes(queue, [b"event"] * 5)
    wait_for_waiting_threads(5)
    first.release()
    leader.answer()
    errors = [call.error() for call in others]
    assert sorted(type(error).__name__ for error in errors) == ["KeyboardInterrupt", *["OutcomeUnknown"] * 4]


@pytest.mark.parametrize("is_written", [False, True], ids=["before it is made", "after it was made"])
def test_a_queue_works_after_an_interrupt_in_a_write(
    queue: DurableEventQueue[bytes], writes: Writes, is_written: bool
) -> None:
    stop = KeyboardInterrupt()
    hold = writes.hold(0, after=stop) if is_written else writes.hold(0, before=stop)
    hold.release()
    with pytest.raises(KeyboardInterrupt):
        queue.push(b"interrupted")
    assert queue.push(b"next").id == 0
    assert [event.event for event in queue.iterate()] == [b"next"]
    assert (len(queue), queue.ready_len(), drained(queue)) == (1, 1, [0])


def test_what_is_about_to_be_acked_is_not_handed_out(queue: DurableEventQueue[bytes], writes: Writes) -> None:
    queue.push_many([b"first", b"second"])
    held = writes.hold(0)
    ack = Call(queue.ack, 0)
    held.wait()
    taken = queue.pop()
    held.release()
    ack.answer()
    assert taken is not None
    assert (taken.id, queue.pop()) == (1, None)


def test_close_waits_for_what_is_in_line(queue: DurableEventQueue[bytes], writes: Writes, tmp_path: Path) -> None:
    first = writes.hold(0)
    leader = Call(queue.push, b"first")
    first.wait()
    others = pushes(queue, [b"event"] * 5)
    wait_for_waiting_threads(5)
    closing = Call(queue.close)
    first.release()
    assert closing.error() is None
    pushed = [leader.answer().id, *(call.answer() for call in others)]
    with DurableEventQueue(tmp_path / "queue") as again:
        assert drained(again) == sorted(pushed) == list(range(6))


class Syncs:
    """How often RocksDB has synced its log, by its own count."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._options: list[Options] = []
        really = rocks.options

        def options(path: str, mode: DBRecoveryMode, *, create: bool = False) -> Options:
            made = really(path, mode, create=create)
            made.enable_statistics()
            self._options.append(made)
            return made

        monkeypatch.setattr(rocks, "options", options)

    def count(self) -> int:
        """So many until now."""
        found = re.search(r"rocksdb\.wal\.synced COUNT : (\d+)", self._options[0].get_statistics() or "")
        assert found is not None
        return int(found[1])


CALLS: dict[str, Callable[[DurableEventQueue[bytes]], object]] = {
    "push": lambda queue: queue.push(b"event"),
    "push_many": lambda queue: queue.push_many([b"event"] * 100),
    "ack": lambda queue: queue.ack(0),
    "ack_many": lambda queue: queue.ack_many(range(100)),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_call_syncs_once(
    call: Callable[[DurableEventQueue[bytes]], object],
    lazy: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    syncs = Syncs(monkeypatch)
    with DurableEventQueue(tmp_path / "queue", lazy=lazy) as queue:
        queue.push_many([b"event"] * 100)
        before = syncs.count()
        call(queue)
        assert syncs.count() - before == 1


def test_every_push_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = Syncs(monkeypatch)
    with DurableEventQueue(tmp_path / "queue") as queue:
        before = syncs.count()
        for _ in range(50):
            queue.push(b"event")
        assert syncs.count() - before == 50


def test_calls_that_share_a_write_share_its_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: Writes
) -> None:
    syncs = Syncs(monkeypatch)
    with DurableEventQueue(tmp_path / "queue") as queue:
        first = writes.hold(0)
        before = syncs.count()
        leader = Call(queue.push, b"first")
        first.wait()
        others = pushes(queue, [b"event"] * 15)
        wait_for_waiting_threads(15)
        first.release()
        leader.answer()
        for call in others:
            call.answer()
        assert syncs.count() - before == 2
