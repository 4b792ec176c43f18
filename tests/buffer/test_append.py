"""`append`: objects that were written elsewhere are enqueued together, once, whatever is killed or lost."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from penstock import Consumer, NewObject, ProducerConfig, append, new_location, peek
from penstock.buffer import ConsumerConfig, GarbageCollector, Groups, Manifest, Producer, encode_batch
from penstock.errors import CorruptData, InvalidInput, NotFound
from penstock.storage import MemoryStore, ObjectStore
from tests.support.dying_store import Dying, Killed, Writes
from tests.support.hooked_store import HookedStore

MANIFESTS = ["native"]


def written(store: ObjectStore, *values: bytes, clock: Callable[[], float] | None = None) -> NewObject:
    data = encode_batch(list(values))
    location = new_location(store) if clock is None else new_location(store, clock=clock)
    store.put(location, data)
    return NewObject(location, len(values), len(data))


def values(store: ObjectStore) -> list[bytes]:
    return [record.value for record in peek(store, 1000)]


def test_objects_are_enqueued_in_their_order_in_one_write(store: ObjectStore) -> None:
    objects = [written(store, b"a", b"b"), written(store, b"c")]
    with Producer(store) as producer:
        producer.produce(b"before")
    assert append(store, objects, writer="nightly", transaction=3) == [1, 2]
    assert values(store) == [b"before", b"a", b"b", b"c"]
    assert [entry.location for entry in Manifest.read(store).entries[1:]] == [one.location for one in objects]


def test_a_repeated_transaction_appends_nothing_and_returns_the_same_sequences(store: ObjectStore) -> None:
    objects = [written(store, b"a"), written(store, b"b")]
    first = append(store, objects, writer="nightly", transaction=0)
    with Consumer(store, ConsumerConfig(gc=False)) as consumer:
        for batch in consumer:
            batch.ack()
    store.delete([one.location for one in objects])  # as a collector does, after they were read
    assert append(store, objects, writer="nightly", transaction=0) == first == [0, 1]
    assert Manifest.read(store).next_sequence == 2


def test_what_is_no_list_of_objects_is_refused(store: ObjectStore) -> None:
    one = written(store, b"a")
    for wrong in (one, None, 7, [one.location]):
        with pytest.raises(InvalidInput, match="NewObjects"):
            append(store, wrong, writer="nightly", transaction=0)  # type: ignore[arg-type]
    assert append(store, iter([one]), writer="nightly", transaction=0) == [0]  # type: ignore[arg-type]


def test_a_transaction_before_the_last_is_refused(store: ObjectStore) -> None:
    append(store, [written(store, b"a")], writer="nightly", transaction=5)
    with pytest.raises(InvalidInput):
        append(store, [written(store, b"b")], writer="nightly", transaction=4)
    assert values(store) == [b"a"]


@pytest.mark.parametrize("count", [1, 3])
def test_a_transaction_that_had_other_objects_is_refused(store: ObjectStore, count: int) -> None:
    objects = [written(store, b"%d" % number) for number in range(3)]
    append(store, objects[:2], writer="nightly", transaction=0)
    with pytest.raises(InvalidInput, match="nightly"):
        append(store, objects[:count], writer="nightly", transaction=0)
    with pytest.raises(InvalidInput, match="with other objects"):
        append(store, objects[2:], writer="nightly", transaction=0)
    assert values(store) == [b"0", b"1"]


def test_an_object_that_is_not_there_is_named_and_nothing_is_enqueued(store: ObjectStore) -> None:
    there, gone = written(store, b"a"), NewObject(new_location(store), 1, 10)
    with pytest.raises(NotFound) as raised:
        append(store, [there, gone], writer="nightly", transaction=0)
    assert raised.value.location == gone.location
    assert values(store) == []


@pytest.mark.parametrize(("records", "more_bytes"), [(2, 0), (1, 1)])
def test_an_object_of_another_size_or_count_is_refused(store: ObjectStore, records: int, more_bytes: int) -> None:
    one = written(store, b"a")
    with pytest.raises(InvalidInput, match="has 1 records in"):
        append(store, [NewObject(one.location, records, one.bytes + more_bytes)], writer="nightly", transaction=0)
    assert values(store) == []


def test_an_object_that_is_no_batch_is_refused(store: ObjectStore) -> None:
    location = new_location(store)
    store.put(location, b"hello")
    with pytest.raises(CorruptData):
        append(store, [NewObject(location, 1, 5)], writer="nightly", transaction=0)


@pytest.mark.parametrize("location", ["elsewhere/01ARZ3NDEKTSV4RRFFQ69G5FAV.batch", "ingest/mine.batch"])
def test_a_location_that_no_collector_would_know_is_refused(store: ObjectStore, location: str) -> None:
    with pytest.raises(InvalidInput, match="new_location"):
        append(store, [NewObject(location, 1, 5)], writer="nightly", transaction=0)


def test_an_object_is_given_once(store: ObjectStore) -> None:
    one = written(store, b"a")
    with pytest.raises(InvalidInput, match="twice"):
        append(store, [one, one], writer="nightly", transaction=0)


def test_a_manifest_of_version_1_is_refused_and_says_what_to_do(store: ObjectStore) -> None:
    config = ProducerConfig(manifest_format="opendata")
    with Producer(store, config) as producer:
        producer.produce(b"a")
    with pytest.raises(InvalidInput, match="penstock manifest upgrade"):
        new_location(store)
    with pytest.raises(InvalidInput, match="version 1"):
        append(store, [NewObject("ingest/01ARZ3NDEKTSV4RRFFQ69G5FAV.batch", 1, 5)], writer="w", transaction=0)


def test_a_name_below_the_floor_of_the_collector_is_refused_and_a_new_one_is_accepted(store: ObjectStore) -> None:
    Groups(store).create("audit")
    now = time.time()
    old = written(store, b"a", clock=lambda: now - 10_000)
    GarbageCollector(store, ConsumerConfig(), clock=lambda: now).collect_once()  # sets the floor
    with pytest.raises(InvalidInput, match=r"so old.*new_location"):
        append(store, [old], writer="nightly", transaction=0)
    again = written(store, b"a", clock=lambda: now - 10_000)  # by a clock that is slow, and above the floor even so
    assert append(store, [again], writer="nightly", transaction=0) == [0]
    GarbageCollector(store, ConsumerConfig(), clock=lambda: now + 5_000).collect_once()
    assert values(store) == [b"a"]


@pytest.mark.parametrize("after", [False, True])
def test_killed_at_any_write_and_repeated_it_is_there_once(after: bool) -> None:
    for step in range(100):
        store = MemoryStore(f"append-killed-{after}-{step}")
        objects = [written(store, b"a"), written(store, b"b")]
        try:
            append(Dying(store, Writes(step, after=after)), objects, writer="nightly", transaction=0)
        except Killed:
            assert append(store, objects, writer="nightly", transaction=0) == [0, 1]
            assert values(store) == [b"a", b"b"]
        else:
            assert values(store) == [b"a", b"b"]
            assert step >= 1
            return
    pytest.fail("it never came to its end")


def test_a_lost_compare_and_set_is_tried_again(store: ObjectStore) -> None:
    one, hooked = written(store, b"mine"), HookedStore(store)

    def produce() -> None:
        with Producer(store) as producer:
            producer.produce(b"other")

    hooked.before("write manifest", produce, times=1)
    assert append(hooked, [one], writer="nightly", transaction=0) == [1]
    assert values(store) == [b"other", b"mine"]
