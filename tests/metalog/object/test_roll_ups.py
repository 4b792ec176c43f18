"""Roll-ups: a thousand objects are copied, and a new reader makes few requests."""

from __future__ import annotations

import time

import pytest

from penstock.errors import OutcomeUnknown
from penstock.metalog import ObjectLogSettings, ObjectMetadataLog, PartitionStart
from penstock.metalog.object.chain import Chain
from penstock.metalog.object.format import decode_many, encode
from penstock.metalog.object.recent_objects import RecentObjects
from penstock.metalog.object.roll_ups import RollUps
from penstock.storage import MemoryStore
from tests.metalog.object.stores import WatchedStore, objects_of, plant, read_all, roll_ups_of
from tests.metalog.reading import no_thread_is_left
from tests.support.waiting import Bell


@pytest.fixture
def store(fresh_name: str) -> WatchedStore:
    store = WatchedStore(MemoryStore(fresh_name))
    ObjectMetadataLog(store, 1).close()
    return store


def chain_of(store: WatchedStore, max_bytes: int = 1 << 20) -> Chain:
    return Chain(store, 0, RecentObjects(), ObjectLogSettings(max_roll_up_bytes=max_bytes))


def open_small(store: WatchedStore) -> ObjectMetadataLog:
    """A log whose every ten objects are rolled up."""
    return ObjectMetadataLog(store, settings=ObjectLogSettings(roll_up_every=10))


def roll_ups_written(store: WatchedStore) -> Bell:
    """Can be waited for: once for each roll-up that is written from now on."""
    bell = Bell()

    def ring(operation: str, path: str) -> None:
        if "rollups" in path and operation == "put_if_absent":
            bell()

    store.after = ring
    return bell


def test_after_a_thousand_objects_there_is_a_roll_up(store: WatchedStore) -> None:
    written = roll_ups_written(store)
    with ObjectMetadataLog(store) as log:
        for at in range(1_000):
            assert roll_ups_of(store) == []
            log.publish(0, b"%d" % at)
        written.wait()

        assert roll_ups_of(store) == [f"{0:020d}-1000"]
        copied = list(decode_many(store.get(f"0/rollups/{0:020d}-1000").data))
        assert [payload for one in copied for payload in one.payloads] == [b"%d" % at for at in range(1_000)]
        assert len(objects_of(store)) == 1_000, "originals stay"


def test_a_partial_thousand_is_not_rolled_up(store: WatchedStore) -> None:
    plant(store.below, 0, 2_500)
    RollUps().roll_up(chain_of(store))

    assert roll_ups_of(store) == [f"{0:020d}-1000", f"{1000:020d}-1000"]


def test_a_new_reader_of_many_objects_makes_few_requests(store: WatchedStore) -> None:
    plant(store.below, 0, 3_050)
    RollUps().roll_up(chain_of(store))
    for start in (0, 500, 1_999, 2_001, 3_020):
        log = ObjectMetadataLog(store)
        store.asked.clear()
        assert read_all(log, start=start, end=3_050) == [b"%d" % at for at in range(start, 3_050)]
        count = store.count()
        print(f"from {start} of 3,050 objects: {dict(count)}")
        assert count["get"] <= 16 + 3 + 50
        assert count["list_objects"] <= 3


def test_a_start_in_a_roll_up_reads_no_original_before_it(store: WatchedStore) -> None:
    for number in range(1_000):
        store.below.put(f"0/{number * 2:020d}", encode(number * 2, number, bytes(16), [b"x", b"y"]))
    RollUps().roll_up(chain_of(store))
    log = ObjectMetadataLog(store)
    store.asked.clear()

    assert len(read_all(log, start=501, end=2_000)) == 1_499
    assert store.gets() == [f"0/{501:020d}", f"0/rollups/{0:020d}-2000"]


def test_a_writer_killed_before_its_roll_up_leaves_it_to_the_next_thousand(store: WatchedStore) -> None:
    plant(store.below, 0, 19)  # by a writer that was killed before it rolled up the first ten
    written = roll_ups_written(store)
    with open_small(store) as log:
        log.publish(0, b"19")
        written.wait(2)

    assert roll_ups_of(store) == [f"{0:020d}-10", f"{10:020d}-10"]


def test_one_killed_between_the_parts_of_a_thousand_is_followed_by_another(store: WatchedStore) -> None:
    plant(store.below, 0, 1_000)
    RollUps().roll_up(chain_of(store, 20_000))
    whole = roll_ups_of(store)
    assert len(whole) > 2
    store.delete(f"0/rollups/{name}" for name in whole[1:])
    RollUps().roll_up(chain_of(store, 20_000))

    assert roll_ups_of(store) == whole


def test_the_parts_of_a_roll_up_are_not_too_large(store: WatchedStore) -> None:
    plant(store.below, 0, 500)
    store.put(f"0/{500:020d}", encode(500, 500, bytes(16), [bytes(50_000)]))
    plant(store.below, 0, 499, start=501, number=501)
    RollUps().roll_up(chain_of(store, 10_000))

    parts = [store.get(f"0/rollups/{name}").data for name in roll_ups_of(store)]
    assert all(len(part) <= 10_000 or len(list(decode_many(part))) == 1 for part in parts)
    assert [one.first for part in parts for one in decode_many(part)] == list(range(1_000))
    assert len(read_all(ObjectMetadataLog(store), end=1_000)) == 1_000


def test_a_thousand_large_objects_are_not_in_memory_together(store: WatchedStore) -> None:
    plant(store.below, 0, 1_000)
    order: list[str] = []
    store.before = lambda operation, path: order.append(operation)
    RollUps().roll_up(chain_of(store, 10_000))

    assert order.index("put_if_absent") < 300, "the first part is written before the rest is read"


def test_two_processes_write_the_same_roll_up(store: WatchedStore) -> None:
    plant(store.below, 0, 1_000)
    written: list[bytes] = []

    def another(operation: str, path: str) -> None:
        if operation == "put_if_absent":
            store.before = lambda operation, path: None
            RollUps().roll_up(chain_of(store))
            written.append(store.get(path).data)

    store.before = another
    RollUps().roll_up(chain_of(store))

    assert roll_ups_of(store) == [f"{0:020d}-1000"]
    assert store.get(f"0/rollups/{0:020d}-1000").data == written[0]


def test_a_roll_up_that_fails_is_no_loss_and_is_written_later(store: WatchedStore) -> None:
    failed = Bell()

    def fail(operation: str, path: str) -> None:
        if "rollups" in path and operation == "put_if_absent":
            failed()
            raise OutcomeUnknown("no answer")

    plant(store.below, 0, 9)
    with open_small(store) as log:
        store.before = fail
        log.publish(0, b"9")
        failed.wait()
        assert roll_ups_of(store) == []
        store.before = lambda operation, path: None
        plant(store.below, 0, 9, start=10, number=10)
        written = roll_ups_written(store)
        log.publish(0, b"19")
        written.wait(2)
    assert roll_ups_of(store) == [f"{0:020d}-10", f"{10:020d}-10"]


def test_closing_ends_the_thread_of_the_roll_ups(store: WatchedStore) -> None:
    plant(store.below, 0, 9)
    with no_thread_is_left(), open_small(store) as log:
        log.publish(0, b"9")


@pytest.mark.slow
def test_a_new_reader_of_a_hundred_thousand_objects(fresh_name: str) -> None:
    store = WatchedStore(MemoryStore(fresh_name))
    ObjectMetadataLog(store, 1).close()
    plant(store.below, 0, 100_000)
    RollUps().roll_up(chain_of(store))
    log = ObjectMetadataLog(store)
    store.asked.clear()
    began = time.monotonic()
    with log.subscribe([PartitionStart(0)]) as records:
        assert [next(records).offset for _ in range(100_000)] == list(range(100_000))

    print(f"100,000 objects of one record: {time.monotonic() - began:.2f} s, {dict(store.count())}")
    assert store.count()["get"] < 150
