"""Reading: object by object, nothing that is before the start, and less often while there is nothing new."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.errors import StorageError
from penstock.metalog import ObjectLogSettings, ObjectMetadataLog, PartitionStart
from penstock.metalog.object.chain import Chain
from penstock.metalog.object.feed import ObjectFeed
from penstock.metalog.object.format import encode
from penstock.metalog.object.recent_objects import RecentObjects
from penstock.metalog.subscription import Wanted
from penstock.storage import MemoryStore
from tests.metalog.object.stores import Clock, TimedSignal, WatchedStore, plant, read_all
from tests.support.waiting import A_WHILE, Background

EACH = 10


@pytest.fixture
def store(fresh_name: str) -> WatchedStore:
    """A log of five objects of ten records each."""
    store = WatchedStore(MemoryStore(fresh_name))
    ObjectMetadataLog(store, 1).close()
    for number in range(5):
        payloads = [b"%d" % (number * EACH + at) for at in range(EACH)]
        store.put(f"0/{number * EACH:020d}", encode(number * EACH, number, b"%016d" % number, payloads))
    return store


@pytest.mark.parametrize("start", [0, 10, 40, 7, 19, 25, 49, -3])
def test_what_is_before_the_start_is_not_read(start: int, store: WatchedStore) -> None:
    log = ObjectMetadataLog(store)
    store.asked.clear()

    assert read_all(log, start=max(start, 0), end=50) == [b"%d" % at for at in range(max(start, 0), 50)]
    names = [int(path.rpartition("/")[2]) for path in store.gets()]
    has_it = max(start, 0) // EACH * EACH
    assert min(names) == has_it
    assert store.count()["list_objects"] == (0 if start % EACH == 0 or start < 0 else 2), "roll-ups, and names"
    assert names.count(has_it) == 1


def test_a_start_at_an_end_that_is_known_needs_no_look_around(store: WatchedStore) -> None:
    log = ObjectMetadataLog(store)
    assert log.high_water_marks() == [50]
    store.asked.clear()
    with log.subscribe([PartitionStart(0, 50)]) as records:
        assert records.poll(0) is None

    assert store.asked == [("get", f"0/{50:020d}")]


def test_a_start_at_an_end_that_is_not_known_reads_the_last_object_alone(store: WatchedStore) -> None:
    log = ObjectMetadataLog(store)
    store.asked.clear()
    with log.subscribe([PartitionStart(0, 50)]) as records:
        assert records.poll(0.01) is None

    assert set(store.gets()) == {f"0/{40:020d}", f"0/{50:020d}"}


@pytest.mark.parametrize("beyond", [51, 55, 75])
def test_a_start_beyond_the_end_waits_for_it(beyond: int, store: WatchedStore) -> None:
    log = ObjectMetadataLog(store)
    store.asked.clear()
    with log.subscribe([PartitionStart(0, beyond)]) as records:
        waiting = Background(lambda: next(records))
        assert not waiting.has_ended_within(A_WHILE / 2)
        for at in range(50, beyond + 2):
            assert log.publish(0, b"%d" % at) == at

        assert (waiting.result().offset, next(records).offset) == (beyond, beyond + 1)
    assert min(int(path.rpartition("/")[2]) for path in store.gets() if "hint" not in path) >= 40


def test_a_start_beyond_the_end_of_an_empty_log_waits_for_it(fresh_name: str) -> None:
    with ObjectMetadataLog(MemoryStore(fresh_name), 1) as log, log.subscribe([PartitionStart(0, 2)]) as records:
        assert records.poll(0.01) is None
        for at in range(4):
            log.publish(0, b"%d" % at)
        assert [next(records).payload for _ in range(2)] == [b"2", b"3"]


def test_a_start_in_a_long_log_walks_from_a_roll_up_or_the_hint(store: WatchedStore) -> None:
    roll_up = b"".join(store.get(f"0/{name:020d}").data for name in (0, 10))
    store.put(f"0/rollups/{0:020d}-20", roll_up)
    store.put(f"0/rollups/{0:020d}-33", b"a name whose end is inside an object")
    store.put("0/hint", b"%020d" % 30)

    for start, first in ((27, 20), (45, 30), (35, 30), (5, 20)):
        log = ObjectMetadataLog(store, settings=ObjectLogSettings(long_chain=1000))
        store.asked.clear()
        assert read_all(log, start=start, end=50) == [b"%d" % at for at in range(start, 50)]
        assert "0" not in [path for operation, path in store.asked if operation == "list_objects"]
        names = [path.rpartition("/")[2] for path in store.gets() if "hint" not in path]
        assert min(name for name in names if "-" not in name and int(name) != start) >= f"{first:020d}"


def test_a_reader_that_meets_an_error_goes_on_where_it_was(store: WatchedStore) -> None:
    log = ObjectMetadataLog(store)
    with log.subscribe([PartitionStart(0)]) as records:
        got = [next(records).offset for _ in range(10)]

        def fail(operation: str, path: str) -> None:
            raise StorageError("no")

        store.before = fail
        with pytest.raises(StorageError):
            next(records)
        store.before = lambda operation, path: None
        got += [next(records).offset for _ in range(40)]
    assert got == list(range(50))


def fails_for(store: WatchedStore, calls: int) -> None:
    """Let the next calls fail, and no more."""
    left = iter(range(calls))

    def fail(operation: str, path: str) -> None:
        if next(left, None) is not None:
            raise StorageError("not now")

    store.before = fail


def test_a_short_failure_of_the_store_is_retried(store: WatchedStore) -> None:
    fails_for(store, 4)
    log = ObjectMetadataLog(store)
    fails_for(store, 4)
    assert log.high_water_marks() == [50]
    with log.subscribe([PartitionStart(0)]) as records:
        for offset in range(50):
            if offset % 16 == 0:
                fails_for(store, 4)
            assert next(records).offset == offset


def test_a_log_cannot_be_opened_while_the_store_does_not_answer(store: WatchedStore) -> None:
    fails_for(store, 5)
    with pytest.raises(StorageError, match="not now"):
        ObjectMetadataLog(store)
    log = ObjectMetadataLog(store)
    fails_for(store, 5)
    with pytest.raises(StorageError, match="not now"):
        log.high_water_marks()
    assert log.high_water_marks() == [50]


def test_idle_polling_backs_off_to_a_second(fresh_name: str) -> None:
    store = WatchedStore(MemoryStore(fresh_name))
    clock = Clock()
    signal = TimedSignal(clock)
    chain = Chain(store, 0, RecentObjects())
    with ThreadPoolExecutor() as threads:
        feed = ObjectFeed([chain], signal, lambda: None, lambda: threads, 0.05, clock)
        assert not feed.fetch([Wanted(0, 0, 1)], 10.0)

        assert [round(wait, 2) for wait in signal.waits[:7]] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
        assert len(store.gets()) == len(signal.waits) <= 15
        # After a record the waits begin with the shortest again.
        plant(store.below, 0, 1)
        signal.waits.clear()
        assert [record.offset for record in feed.fetch([Wanted(0, 0, 1)], 10.0)] == [0]
        assert len(signal.waits) <= 1
        signal.waits.clear()
        assert not feed.fetch([Wanted(0, 1, 1)], 0.3)
        assert [round(wait, 2) for wait in signal.waits] == [0.05, 0.1, 0.15]


def test_polls_that_do_not_wait_ask_the_store_no_more_often(fresh_name: str) -> None:
    store = WatchedStore(MemoryStore(fresh_name))
    clock = Clock()
    log = ObjectMetadataLog(store, 1, clock=clock)
    with log.subscribe([PartitionStart(0)]) as records:
        store.asked.clear()
        for _ in range(1_000):
            assert records.poll(0) is None
            clock.now += 0.01

    assert len(store.gets()) <= 15


def test_what_another_process_publishes_is_seen(tmp_path: Path) -> None:
    with ObjectMetadataLog(tmp_path, 2) as here, ObjectMetadataLog(tmp_path) as there:
        with here.subscribe([PartitionStart(0), PartitionStart(1)]) as records:
            waiting = Background(lambda: next(records))
            assert not waiting.has_ended_within(A_WHILE / 2)
            there.publish(1, b"x")

            assert (waiting.result().partition, waiting.result().payload) == (1, b"x")
        assert here.high_water_marks() == [0, 1]


def test_a_reader_of_its_own_process_asks_the_store_for_nothing(store: WatchedStore) -> None:
    log = ObjectMetadataLog(store)
    assert log.high_water_marks() == [50]
    with log.subscribe([PartitionStart(0, 50)]) as records:
        log.publish(0, b"50")
        store.asked.clear()
        assert next(records).payload == b"50"

    assert not store.gets()
