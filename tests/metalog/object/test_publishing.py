"""Publishing: many threads share an object, one is under way at a time, and nobody is left at the gate."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client import REGISTRY

from penstock.errors import Closed, OutcomeUnknown, StorageError
from penstock.metalog import ObjectMetadataLog, PartitionStart
from penstock.metalog.object import writer as partition_writer
from penstock.metalog.object.chain import End
from penstock.metalog.object.format import decode
from penstock.metalog.object.writer import PartitionWriter, _Waiting
from penstock.storage import MemoryStore
from tests.metalog.object.stores import Clock, WatchedStore, objects_of, plant, read_all
from tests.support.processes import PATIENCE
from tests.support.waiting import A_WHILE, Background, Gate


def stand_in_line(log: ObjectMetadataLog, count: int) -> None:
    """Wait until so many publishers stand in line behind the leader."""
    line = log._writers[0]._line
    deadline = threading.Event()
    for _ in range(int(PATIENCE * 1000)):
        if len(line) >= count:
            return
        deadline.wait(0.001)
    raise AssertionError(f"{len(line)} of {count} stand in line")


def held_up(store: WatchedStore) -> Gate:
    """Hold up the next create."""
    gate = Gate()

    def hold(operation: str, path: str) -> None:
        if operation == "put_if_absent":
            store.before = lambda operation, path: None
            gate()

    store.before = hold
    return gate


@pytest.fixture
def store(fresh_name: str) -> WatchedStore:
    return WatchedStore(MemoryStore(fresh_name))


@pytest.fixture
def log(store: WatchedStore) -> ObjectMetadataLog:
    return ObjectMetadataLog(store, 1)


def test_those_who_come_while_an_object_is_written_share_the_next(store: WatchedStore, log: ObjectMetadataLog) -> None:
    gate = held_up(store)
    first = Background(lambda: log.publish(0, b"first"))
    gate.wait_for_somebody()
    others = [Background(lambda at=at: log.publish(0, b"%d" % at)) for at in range(20)]  # type: ignore[misc]
    stand_in_line(log, 20)
    gate.open()

    assert first.result() == 0
    offsets = [other.result() for other in others]
    assert sorted(offsets) == list(range(1, 21))
    assert len(objects_of(store)) == 2
    there = read_all(log)
    assert [there[offset] for offset in offsets] == [b"%d" % at for at in range(20)]


def test_sixty_four_threads_share_objects(store: WatchedStore, log: ObjectMetadataLog) -> None:
    under_way = most = calls = ended = 0
    counting = threading.Condition()

    def begin(operation: str, path: str) -> None:
        nonlocal under_way, most
        if operation == "put_if_absent":
            with counting:
                under_way += 1
                most = max(most, under_way)
                # A put takes as long as it takes for others to come, however busy the machine is.
                counting.wait_for(lambda: calls - ended >= min(32, 3_200 - ended), PATIENCE)

    def end(operation: str, path: str) -> None:
        nonlocal under_way
        if operation == "put_if_absent":
            with counting:
                under_way -= 1

    def publish(at: int) -> tuple[int, bytes]:
        nonlocal calls, ended
        with counting:
            calls += 1
            counting.notify_all()
        offset = log.publish(0, b"%d" % at)
        with counting:
            ended += 1
        return offset, b"%d" % at

    store.before, store.after = begin, end
    with ThreadPoolExecutor(64) as threads:
        told = list(threads.map(publish, range(3_200)))

    objects = len(objects_of(store))
    print(f"3,200 publishes from 64 threads: {objects} objects, {3_200 / objects:.1f} a piece")
    assert objects < 1_600
    assert most == 1, "one put under way per partition and process"
    assert [payload for _, payload in sorted(told)] == read_all(log)
    assert sorted(offset for offset, _ in told) == list(range(3_200))


def test_partitions_do_not_wait_for_each_other(store: WatchedStore) -> None:
    log = ObjectMetadataLog(store, 2)
    gate = held_up(store)
    held = Background(lambda: log.publish(0, b"x"))
    gate.wait_for_somebody()

    assert log.publish(1, b"y") == 0
    gate.open()
    assert held.result() == 0


@pytest.mark.parametrize(
    ("sizes", "objects"),
    [
        ([400_000, 400_000, 400_000], [2, 1]),
        ([100, 1 << 20, 100], [1, 1, 1]),
        ([3 << 20, 100, 100], [1, 2]),
        ([(1 << 20) - 68], [1]),
    ],
)
def test_a_shared_object_has_at_most_a_mebibyte(
    sizes: list[int], objects: list[int], store: WatchedStore, log: ObjectMetadataLog
) -> None:
    gate = held_up(store)
    first = Background(lambda: log.publish(0, b"first"))
    gate.wait_for_somebody()
    others = []
    for at, size in enumerate(sizes):
        others.append(Background(lambda size=size: log.publish(0, bytes(size))))  # type: ignore[misc]
        stand_in_line(log, at + 1)
    gate.open()
    first.result()
    for other in others:
        other.result()

    data = [store.get(f"0/{name}").data for name in objects_of(store)[1:]]
    assert [len(decode(one).payloads) for one in data] == objects
    assert all(len(one) <= 1 << 20 or len(decode(one).payloads) == 1 for one in data)


class Interrupted(BaseException):
    """As `KeyboardInterrupt`, and no test runner takes it for its own."""


def test_an_interrupted_leader_leaves_its_followers_in_doubt_and_the_next_go_on(
    store: WatchedStore, log: ObjectMetadataLog
) -> None:
    gate = held_up(store)
    first = Background(lambda: log.publish(0, b"first"))
    gate.wait_for_somebody()

    def interrupt(operation: str, path: str) -> None:
        if operation == "put_if_absent":
            store.after = lambda operation, path: None
            raise Interrupted

    followers = [Background(lambda: log.publish(0, b"together")) for _ in range(3)]
    stand_in_line(log, 3)
    calls = 0

    def second(operation: str, path: str) -> None:
        nonlocal calls
        if operation == "put_if_absent":
            calls += 1
            if calls == 2:
                interrupt(operation, path)

    store.after = second
    gate.open()
    assert first.result() == 0
    ended = []
    for follower in followers:
        with pytest.raises((Interrupted, OutcomeUnknown)) as caught:
            follower.result()
        ended.append(caught.type)

    assert sorted(kind.__name__ for kind in ended) == ["Interrupted", "OutcomeUnknown", "OutcomeUnknown"]
    assert log.publish(0, b"next") == 4, "what was sent is there, once"
    assert read_all(log) == [b"first", *[b"together"] * 3, b"next"]
    log.close()


@pytest.mark.parametrize("where", ["_take", "_append", "_leave", "_release", "end", "open", "_own"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_wherever_a_leader_is_interrupted_nobody_is_left_behind(
    where: str, when: str, nth: int, store: WatchedStore, log: ObjectMetadataLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three stand in line; the first of them leads, and is interrupted once, in the nth call of something."""
    gate = held_up(store)
    first = Background(lambda: log.publish(0, b"first"))
    gate.wait_for_somebody()
    others = [Background(lambda: log.publish(0, b"others")) for _ in range(3)]
    stand_in_line(log, 3)
    owner: object = {"end": _Waiting, "open": _Waiting, "_own": partition_writer}.get(where, PartitionWriter)
    original: Callable[..., object] = getattr(owner, where)
    calls = 0
    if where == "_own":  # it is called only if the leader fails
        monkeypatch.setattr(PartitionWriter, "_create", _raise(StorageError("no")))

    def interrupted(*args: object) -> object:
        nonlocal calls
        calls += 1
        mine = calls
        if mine == nth and when == "before":
            raise Interrupted
        answer = original(*args)
        if mine == nth:
            raise Interrupted
        return answer

    monkeypatch.setattr(owner, where, interrupted)
    gate.open()

    for publisher in (first, *others):
        assert publisher.has_ended_within(PATIENCE), "somebody waits at the gate for ever"
    monkeypatch.undo()
    last = Background(lambda: log.publish(0, b"last"))
    end = last.result()
    there = read_all(log)
    assert there[end] == b"last"
    assert there.count(b"first") <= 1
    assert there.count(b"others") <= 3
    for publisher in (first, *others):
        with contextlib.suppress(Interrupted, OutcomeUnknown, StorageError):
            assert there[publisher.result()] in {b"first", b"others"}
    assert Background(log.close).has_ended_within(PATIENCE)


def _raise(error: BaseException) -> Callable[..., object]:
    def fail(*args: object) -> object:
        raise error

    return fail


def test_an_interrupted_follower_takes_its_payload_out_of_the_line(
    store: WatchedStore, log: ObjectMetadataLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = held_up(store)
    first = Background(lambda: log.publish(0, b"first"))
    gate.wait_for_somebody()
    made = _Waiting.__init__

    class Gatekeeper:
        """A gate whose wait is interrupted."""

        def acquire(self) -> None:
            raise Interrupted

        def release(self) -> None: ...

    def make(self: _Waiting, payload: bytes) -> None:
        made(self, payload)
        self.gate = Gatekeeper()  # type: ignore[assignment]

    with monkeypatch.context() as patch:
        patch.setattr(_Waiting, "__init__", make)
        with pytest.raises(Interrupted):
            log.publish(0, b"never")
    other = Background(lambda: log.publish(0, b"other"))
    stand_in_line(log, 1)
    gate.open()

    assert (first.result(), other.result()) == (0, 1)
    assert read_all(log) == [b"first", b"other"]


def test_an_error_that_cannot_be_copied_reaches_every_publisher(store: WatchedStore, log: ObjectMetadataLog) -> None:
    class Odd(Exception):
        def __init__(self, one: str, two: str) -> None:
            super().__init__(one)

    gate = held_up(store)
    first = Background(lambda: log.publish(0, b"first"))
    gate.wait_for_somebody()
    others = [Background(lambda: log.publish(0, b"x")) for _ in range(3)]
    stand_in_line(log, 3)
    store.before = _raise(Odd("one", "two"))
    gate.open()
    assert first.result() == 0
    for other in others:
        with pytest.raises(Odd):
            other.result()
    store.before = lambda operation, path: None
    assert log.publish(0, b"y") == 1


def test_close_waits_for_those_who_publish(store: WatchedStore, log: ObjectMetadataLog) -> None:
    gate = held_up(store)
    first = Background(lambda: log.publish(0, b"first"))
    gate.wait_for_somebody()
    second = Background(lambda: log.publish(0, b"second"))
    stand_in_line(log, 1)
    closing = Background(log.close)
    assert not closing.has_ended_within(A_WHILE)
    with pytest.raises(Closed):
        log.publish(0, b"too late")
    gate.open()
    closing.result()

    assert (first.result(), second.result()) == (0, 1)
    assert store.get("0/hint").data == b"%020d" % 1


def test_a_store_that_never_answers_is_given_up(
    store: WatchedStore, fresh_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    log = ObjectMetadataLog(store, 1, give_up_after=30, clock=clock, sleep=clock.sleep)
    log.publish(0, b"before")
    sent: list[bool] = []

    def no_answer(operation: str, path: str) -> None:
        sent.append(operation == "put_if_absent")
        raise OutcomeUnknown("no answer")

    store.before = no_answer
    with caplog.at_level(logging.CRITICAL), pytest.raises(OutcomeUnknown, match="gave up after 30 s"):
        log.publish(0, b"lost")
    assert 30 <= clock.now < 32
    assert any(sent)

    store.before = lambda operation, path: None
    assert log.publish(0, b"after") == 1
    assert read_all(log) == [b"before", b"after"]


def test_what_was_given_up_and_arrived_is_there_once(store: WatchedStore) -> None:
    clock = Clock()
    log = ObjectMetadataLog(store, 1, give_up_after=5, clock=clock, sleep=clock.sleep)

    def reply_lost(operation: str, path: str) -> None:
        if path != "log.json":
            raise StorageError("the reply was lost")

    store.after = store.before = reply_lost
    store.before = lambda operation, path: reply_lost(operation, path) if operation == "get" else None
    log._chains[0]._end = End(0, 0)
    with pytest.raises(OutcomeUnknown):
        log.publish(0, b"given up")
    store.before = store.after = lambda operation, path: None

    assert log.publish(0, b"after") == 1
    assert read_all(log) == [b"given up", b"after"]


def test_one_who_could_not_find_the_end_has_published_nothing(store: WatchedStore) -> None:
    clock = Clock()
    log = ObjectMetadataLog(store, 1, give_up_after=5, clock=clock, sleep=clock.sleep)
    store.before = _raise(StorageError("no answer"))
    with pytest.raises(StorageError) as caught:
        log.publish(0, b"x")

    assert type(caught.value) is StorageError
    assert "put_if_absent" not in [operation for operation, path in store.asked if path != "log.json"]


def test_what_was_published_is_counted(store: WatchedStore, log: ObjectMetadataLog) -> None:
    def value(name: str) -> float:
        return REGISTRY.get_sample_value(f"penstock_metalog_{name}_total", {"log": store.url}) or 0.0

    log.publish(0, b"one")
    plant(store.below, 0, 3, start=1, number=1)
    log.publish(0, b"two")

    assert (value("publishes"), value("objects")) == (2, 2)
    assert value("lost_races") == 2, "at 1, and at 2; then it looked for the end"


def test_a_waiting_poll_is_woken_by_a_publish_of_its_process(fresh_name: str) -> None:
    with ObjectMetadataLog(MemoryStore(fresh_name), 1, poll_interval=3600.0) as log:
        with log.subscribe([PartitionStart(0)]) as records:
            waiting = Background(lambda: records.poll(None))
            assert not waiting.has_ended_within(A_WHILE)
            log.publish(0, b"x")
            found = waiting.result()
        assert found is not None
        assert found.payload == b"x"


def test_a_publish_that_is_given_up_says_what_the_store_said(
    store: WatchedStore, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    log = ObjectMetadataLog(store, 1, give_up_after=30, clock=clock, sleep=clock.sleep)

    def full(operation: str, path: str) -> None:
        if operation == "put_if_absent":
            raise StorageError(f"could not write {path!r}: the disk is full")

    store.before = full
    with caplog.at_level(logging.CRITICAL), pytest.raises(OutcomeUnknown, match="the disk is full"):
        log.publish(0, b"refused")
