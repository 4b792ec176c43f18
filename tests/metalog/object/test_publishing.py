"""Publishing: threads share an object, one is under way at a time. How they share: `core/test_group_commit`."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from prometheus_client import REGISTRY

from penstock.errors import Closed, OutcomeUnknown, StorageError
from penstock.metalog import ObjectMetadataLog, PartitionStart
from penstock.metalog.object.format import decode
from penstock.storage import MemoryStore
from tests.metalog.object.stores import Clock, WatchedStore, objects_of, plant, read_all
from tests.support.processes import PATIENCE
from tests.support.waiting import A_WHILE, Background, Gate, wait_for_waiting_threads


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
        published = list(threads.map(publish, range(3_200)))

    objects = len(objects_of(store))
    print(f"3,200 publishes from 64 threads: {objects} objects, {3_200 / objects:.1f} a piece")
    assert objects < 1_600
    assert most == 1, "one put under way per partition and process"
    assert [payload for _, payload in sorted(published)] == read_all(log)
    assert sorted(offset for offset, _ in published) == list(range(3_200))


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
    publishing = [Background(partial(log.publish, 0, b"first"))]
    gate.wait_for_arrival()
    for at, size in enumerate(sizes):
        publishing.append(Background(partial(log.publish, 0, bytes(size))))
        wait_for_waiting_threads(at + 1)
    gate.open()
    assert [one.result() for one in publishing] == list(range(len(sizes) + 1))

    data = [store.get(f"0/{name}").data for name in objects_of(store)[1:]]
    assert [len(decode(one).payloads) for one in data] == objects
    assert all(len(one) <= 1 << 20 or len(decode(one).payloads) == 1 for one in data)


def test_partitions_do_not_wait_for_each_other(store: WatchedStore) -> None:
    log = ObjectMetadataLog(store, 2)
    gate = held_up(store)
    held = Background(lambda: log.publish(0, b"x"))
    gate.wait_for_arrival()

    assert log.publish(1, b"y") == 0
    gate.open()
    assert held.result() == 0


def test_close_waits_for_a_publish_that_is_under_way(store: WatchedStore, log: ObjectMetadataLog) -> None:
    log.publish(0, b"first")
    gate = held_up(store)
    second = Background(lambda: log.publish(0, b"second"))
    gate.wait_for_arrival()
    closing = Background(log.close)
    assert not closing.has_ended_within(A_WHILE)
    with pytest.raises(Closed):
        log.publish(0, b"too late")
    gate.open()
    closing.result()

    assert second.result() == 1
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
    assert log.high_water_marks() == [0], "the end is known"

    def reply_lost(operation: str, path: str) -> None:
        if path != "log.json":
            raise StorageError("the reply was lost")

    store.after = store.before = reply_lost
    store.before = lambda operation, path: reply_lost(operation, path) if operation == "get" else None
    with pytest.raises(OutcomeUnknown):
        log.publish(0, b"given up")
    store.before = store.after = lambda operation, path: None

    assert log.publish(0, b"after") == 1
    assert read_all(log) == [b"given up", b"after"]


def test_a_publish_that_could_not_find_the_end_has_written_nothing(store: WatchedStore) -> None:
    clock = Clock()
    log = ObjectMetadataLog(store, 1, give_up_after=5, clock=clock, sleep=clock.sleep)

    def no_answer(operation: str, path: str) -> None:
        raise StorageError("no answer")

    store.before = no_answer
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
