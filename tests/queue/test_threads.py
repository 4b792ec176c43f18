"""Many threads on one durable queue: no event is lost or handed out twice, every call ends, and calls share syncs."""

from __future__ import annotations

import itertools
import random
import re
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar

import pytest
import rocksdict
from rocksdict import Options

from penstock.errors import IdOverflow, OutcomeUnknown
from penstock.queue import DurableEvent, DurableEventQueue
from tests.queue.writes import Writes
from tests.support.queue_folder import LAST, Place, begin_at, ids_of, pop_ids
from tests.support.waiting import Background, together, wait_for_waiting_threads, waiting_threads

THREADS = 32

Answer = TypeVar("Answer")
Arguments = ParamSpec("Arguments")


class Crowd:
    """Threads that use one queue, and which of them has which event in flight."""

    def __init__(self, queue: DurableEventQueue[bytes]) -> None:
        self._queue = queue
        self._lock = threading.Lock()
        self._held: dict[int, int] = {}
        self.pushed: dict[int, bytes] = {}
        self.acked: set[int] = set()
        self.popped_twice: list[int] = []
        self.popped_after_ack: list[int] = []
        self.wrong: list[DurableEvent[bytes]] = []

    def work(self, who: int, rounds: int) -> None:
        """Push and pop. Every event that this thread pops is acked or nacked, now or later."""
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
                self.popped_twice.append(event.id)
            if event.id in self.acked:
                self.popped_after_ack.append(event.id)
            # A thread can pop an event before the thread that pushed it has noted it.
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


def test_many_threads_lose_nothing_and_take_nothing_twice(place: Place) -> None:
    queue = place.open()
    crowd = Crowd(queue)
    together(*[partial(crowd.work, number, 50) for number in range(THREADS)])
    assert (crowd.popped_twice, crowd.popped_after_ack, crowd.wrong) == ([], [], [])
    assert sorted(crowd.pushed) == list(range(len(crowd.pushed)))
    remaining = {one: event for one, event in crowd.pushed.items() if one not in crowd.acked}
    assert {event.id: event.event for event in queue.iterate()} == remaining
    assert (len(queue), queue.ready_len()) == (len(remaining), len(remaining))
    assert pop_ids(queue) == sorted(remaining)
    queue.close()
    assert pop_ids(place.open(lazy=not place.lazy)) == sorted(remaining)


def test_threads_that_drain_a_queue_take_each_event_once(queue: DurableEventQueue[bytes]) -> None:
    queue.push_many([b"event"] * 2_000)
    popped = together(*[partial(pop_ids, queue)] * THREADS)
    assert sorted(one for some in popped for one in some) == list(range(2_000))


def test_an_id_that_many_threads_ack_at_once_is_counted_once(queue: DurableEventQueue[bytes]) -> None:
    queue.push_many([b"event"] * 100)
    together(*[lambda: queue.ack_many(range(50))] * THREADS)
    assert (len(queue), queue.ready_len(), ids_of(queue)) == (50, 50, list(range(50, 100)))


class Group:
    """A push whose write is held up, and the calls that come meanwhile: they share the next write."""

    def __init__(self, queue: DurableEventQueue[bytes], writes: Writes, *, before: BaseException | None = None) -> None:
        self._queue = queue
        self._first = writes.hold(before=before)
        self.leader = Background(queue.push, b"first")
        self._first.wait_for_arrival()

    def call(
        self, work: Callable[Arguments, Answer], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Background[Answer]:
        """Make a call, and return when it waits in line."""
        count = waiting_threads()
        call = Background(work, *args, **kwargs)
        wait_for_waiting_threads(count + 1)
        return call

    def pushes(self, count: int) -> list[Background[DurableEvent[bytes]]]:
        return [self.call(self._queue.push, b"%d" % number) for number in range(count)]

    def release(self) -> None:
        self._first.open()


def test_calls_that_come_during_a_write_share_the_next_and_each_gets_the_id_of_its_event(
    queue: DurableEventQueue[bytes], writes: Writes
) -> None:
    queue.push_many([b"old"] * 3)
    before = writes.count
    group = Group(queue, writes)
    singles = group.pushes(5)
    many = group.call(queue.push_many, [b"a", b"b", b"c"])
    acks = [group.call(queue.ack, identifier) for identifier in range(3)]
    group.release()
    assert [ack.result() for ack in acks] == [None] * 3
    pushed = [group.leader.result(), *(call.result() for call in singles), *many.result()]
    assert writes.count - before == 2
    assert list(queue.iterate()) == pushed
    assert [event.id for event in pushed] == list(range(3, 12))
    assert [event.event for event in pushed] == [b"first", b"0", b"1", b"2", b"3", b"4", b"a", b"b", b"c"]


def test_a_push_that_finds_no_free_ids_fails_alone_in_its_group(place: Place, writes: Writes) -> None:
    begin_at(place.path, LAST - 4)
    queue = place.holding(b"there").open()
    group = Group(queue, writes)
    ack = group.call(queue.ack, LAST - 4)
    too_many = group.call(queue.push_many, [b"event"] * 3)
    last = group.call(queue.push, b"last")
    group.release()
    assert group.leader.result().id == LAST - 3
    assert isinstance(too_many.error(), IdOverflow)
    assert (last.result().id, ack.error()) == (LAST - 2, None)
    assert ids_of(queue) == [LAST - 3, LAST - 2]


is_written = pytest.mark.parametrize("is_written", [False, True], ids=["before it is written", "after its sync"])


@is_written
def test_a_write_that_fails_fails_each_call_of_its_group_with_an_error_of_its_own_and_the_queue_goes_on(
    queue: DurableEventQueue[bytes], writes: Writes, is_written: bool
) -> None:
    queue.push(b"old")
    writes.fail(1, error=OSError("the disk failed"), is_written=is_written)
    group = Group(queue, writes)
    calls: list[Background[Any]] = [*group.pushes(5), group.call(queue.ack, 0)]
    group.release()
    errors = [call.error() for call in calls]
    assert group.leader.result().id == 1
    assert [type(error) for error in errors] == [OutcomeUnknown] * 6
    assert len({id(error) for error in errors}) == 6
    queue.ack(0)
    assert queue.push(b"next").id == 2
    assert (pop_ids(queue), len(queue)) == ([1, 2], 2)


def test_the_calls_behind_an_interrupted_leader_are_written_by_the_next(
    queue: DurableEventQueue[bytes], writes: Writes
) -> None:
    group = Group(queue, writes, before=KeyboardInterrupt())
    others = group.pushes(5)
    group.release()
    assert isinstance(group.leader.error(), KeyboardInterrupt)
    assert sorted(call.result().id for call in others) == list(range(5))


@is_written
def test_an_interrupt_in_a_shared_write_reaches_one_call_and_the_others_do_not_know_the_outcome(
    queue: DurableEventQueue[bytes], writes: Writes, is_written: bool
) -> None:
    writes.fail(1, error=KeyboardInterrupt(), is_written=is_written)
    group = Group(queue, writes)
    others = group.pushes(5)
    group.release()
    group.leader.result()
    errors = [call.error() for call in others]
    assert sorted(type(error).__name__ for error in errors) == ["KeyboardInterrupt", *["OutcomeUnknown"] * 4]


@is_written
def test_a_queue_works_after_an_interrupt_in_a_write(
    queue: DurableEventQueue[bytes], writes: Writes, is_written: bool
) -> None:
    writes.fail(error=KeyboardInterrupt(), is_written=is_written)
    with pytest.raises(KeyboardInterrupt):
        queue.push(b"interrupted")
    assert queue.push(b"next").id == 0
    assert [event.event for event in queue.iterate()] == [b"next"]
    assert (len(queue), queue.ready_len(), pop_ids(queue)) == (1, 1, [0])


def test_an_event_whose_ack_is_under_way_is_not_handed_out(queue: DurableEventQueue[bytes], writes: Writes) -> None:
    queue.push_many([b"first", b"second"])
    held = writes.hold()
    ack = Background(queue.ack, 0)
    held.wait_for_arrival()
    popped = pop_ids(queue)
    held.open()
    ack.result()
    assert (popped, queue.pop()) == ([1], None)


def test_close_waits_for_the_calls_in_line(place: Place, writes: Writes) -> None:
    queue = place.open()
    group = Group(queue, writes)
    others = group.pushes(5)
    closing = Background(queue.close)
    group.release()
    assert closing.error() is None
    pushed = [call.result().id for call in (group.leader, *others)]
    assert pop_ids(place.open()) == sorted(pushed) == list(range(6))


class Syncs:
    """How often RocksDB has synced its log, by its own count."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._options: list[Options] = []

        def options(*args: Any, **kwargs: Any) -> Options:
            counting = Options(*args, **kwargs)
            counting.enable_statistics()
            self._options.append(counting)
            return counting

        monkeypatch.setattr(rocksdict, "Options", options)

    def count(self) -> int:
        found = re.search(r"rocksdb\.wal\.synced COUNT : (\d+)", self._options[0].get_statistics() or "")
        assert found is not None
        return int(found[1])


CALLS: dict[str, Callable[[DurableEventQueue[bytes]], object]] = {
    "push": lambda queue: queue.push(b"event"),
    "push_many": lambda queue: queue.push_many([b"event"] * 100),
    "ack": lambda queue: queue.ack(0),
    "ack_many": lambda queue: queue.ack_many(range(100)),
}


def test_each_call_syncs_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = Syncs(monkeypatch)
    queue = place.open()
    queue.push_many([b"event"] * 100)
    counts = [syncs.count()]
    for call in (*CALLS.values(), *[CALLS["push"]] * 20):
        call(queue)
        counts.append(syncs.count())
    assert [after - before for before, after in itertools.pairwise(counts)] == [1] * (len(CALLS) + 20)


def test_calls_that_share_a_write_share_its_sync(place: Place, monkeypatch: pytest.MonkeyPatch, writes: Writes) -> None:
    syncs = Syncs(monkeypatch)
    queue = place.open()
    before = syncs.count()
    group = Group(queue, writes)
    others = group.pushes(15)
    group.release()
    for call in (group.leader, *others):
        call.result()
    assert syncs.count() - before == 2
