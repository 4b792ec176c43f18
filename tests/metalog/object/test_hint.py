"""The hint: a place to walk from, and nothing that anybody believes."""

from __future__ import annotations

import pytest

from penstock.metalog import ObjectMetadataLog
from penstock.metalog.object.format import encode
from penstock.storage import MemoryStore
from tests.metalog.object.stores import WatchedStore, objects_of, plant

HINT = "0/hint"


@pytest.fixture
def store(fresh_name: str) -> WatchedStore:
    store = WatchedStore(MemoryStore(fresh_name))
    ObjectMetadataLog(store, 1).close()
    return store


def hints(store: WatchedStore) -> int:
    return sum(asked == ("put", HINT) for asked in store.asked)


def test_the_hint_moves_on_every_64_objects_and_on_close(store: WatchedStore) -> None:
    log = ObjectMetadataLog(store)
    for at in range(63):
        log.publish(0, b"%d" % at)
    assert hints(store) == 0
    log.publish(0, b"63")
    assert store.get(HINT).data == b"%020d" % 63
    for at in range(64, 150):
        log.publish(0, b"%d" % at)
    assert store.get(HINT).data == b"%020d" % 127
    assert hints(store) == 2
    log.close()
    assert store.get(HINT).data == b"%020d" % 149
    assert hints(store) == 3


def test_a_log_that_wrote_nothing_leaves_no_hint(store: WatchedStore) -> None:
    with ObjectMetadataLog(store) as log:
        log.high_water_marks()
    assert hints(store) == 0


def test_writers_agree_on_which_is_the_64th(store: WatchedStore) -> None:
    logs = [ObjectMetadataLog(store.below) for _ in range(3)]
    for at in range(64):
        logs[at % 3].publish(0, b"x")
    assert store.get(HINT).data == b"%020d" % 63


def test_a_log_that_is_closed_long_after_does_not_move_the_hint_back(store: WatchedStore) -> None:
    early = ObjectMetadataLog(store)
    early.publish(0, b"x")
    with ObjectMetadataLog(store.below) as late:
        for _ in range(300):
            late.publish(0, b"y")
    early.close()

    assert store.get(HINT).data == b"%020d" % 300


@pytest.mark.parametrize(
    "hint",
    [
        None,
        b"",
        b"rubbish",
        b"\xff" * 20,
        "²".encode() * 20,
        b"%020d" % 299,
        b"%020d" % 5,
        b"%020d" % 300,
        b"%020d" % 2**64,
        b"9" * 20,
        b"%020d" % 7,
    ],
)
def test_whatever_the_hint_says_the_end_is_right(hint: bytes | None, store: WatchedStore) -> None:
    plant(store.below, 0, 300)
    if hint is not None:
        store.put(HINT, hint)
    if hint == b"%020d" % 7:
        store.below.put(f"0/{7:020d}", b"corrupt")

    assert ObjectMetadataLog(store).high_water_marks() == [300]
    assert ObjectMetadataLog(store).publish(0, b"x") == 300


def test_a_hint_that_cannot_be_read_or_written_is_no_loss(store: WatchedStore) -> None:
    def fail(operation: str, path: str) -> None:
        if path == HINT and operation == "put":
            raise RuntimeError("no")

    store.before = fail
    with ObjectMetadataLog(store) as log:
        assert [log.publish(0, b"x") for _ in range(70)] == list(range(70))
    assert ObjectMetadataLog(store).high_water_marks() == [70]


def test_a_new_writer_makes_few_requests_with_a_hint(store: WatchedStore) -> None:
    plant(store.below, 0, 1_000)
    store.put(HINT, b"%020d" % 959)
    log = ObjectMetadataLog(store)
    store.asked.clear()

    assert log.publish(0, b"x") == 1_000
    assert store.count() == {"get": 2 + 40 + 1, "put_if_absent": 1}


def test_a_new_writer_makes_few_requests_after_a_clean_close(store: WatchedStore) -> None:
    with ObjectMetadataLog(store.below) as log:
        for _ in range(200):
            log.publish(0, b"x")
    log = ObjectMetadataLog(store)
    store.asked.clear()

    assert log.publish(0, b"x") == 200
    assert store.count() == {"get": 3, "put_if_absent": 1}


def test_a_new_writer_without_a_hint_lists(store: WatchedStore) -> None:
    plant(store.below, 0, 1_000)
    log = ObjectMetadataLog(store)
    store.asked.clear()

    assert log.publish(0, b"x") == 1_000
    assert store.count() == {"get": 3, "list_objects": 1, "put_if_absent": 1}


def test_a_writer_that_was_idle_jumps_to_the_hint(store: WatchedStore) -> None:
    idle = ObjectMetadataLog(store)
    assert idle.publish(0, b"x") == 0
    with ObjectMetadataLog(store.below) as other:
        for _ in range(2_000):
            other.publish(0, b"y")
    store.asked.clear()

    assert idle.publish(0, b"x") == 2_001
    assert sum(store.count().values()) < 80


def test_the_end_is_right_after_objects_of_many_records(store: WatchedStore) -> None:
    store.put(f"0/{0:020d}", encode(0, 0, bytes(16), [b"x"] * 1_000))
    store.put(f"0/{1000:020d}", encode(1_000, 1, bytes(16), [b"x"] * 500))
    log = ObjectMetadataLog(store)

    assert log.high_water_marks() == [1_500]
    assert log.publish(0, b"y") == 1_500
    assert objects_of(store)[-1] == f"{1500:020d}"
