"""A failed batch fails all its handles and no others. It is not tried again, and the next batch goes on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock import ObjectStore
from penstock.errors import CorruptData, OutcomeUnknown, StorageError
from tests.buffer.producer.conftest import NewGate, OpenProducer, produce_run
from tests.support.buffer_contents import MANIFEST, batches, data_objects, entries, queue
from tests.support.hooked_store import HookedStore
from tests.support.processes import PATIENCE
from tests.support.waiting import Bell


def raising(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize("kind", [StorageError, OutcomeUnknown, RuntimeError])
def test_a_failed_data_object_fails_the_handles_of_its_batch_and_no_others(
    store: ObjectStore, open_producer: OpenProducer, kind: type[Exception]
) -> None:
    hooked = HookedStore(store)
    hooked.before("write data", raising(kind("the disk is full")), skip=1, times=1)
    producer = open_producer(hooked)
    handles = []
    for number in range(3):
        handles.append([producer.produce(b"%d%c" % (number, letter)) for letter in b"ab"])
        if number != 1:
            producer.flush()
        else:
            with pytest.raises(kind, match="the disk is full"):
                producer.flush()
    assert [handle.result(0).sequence for handle in handles[0] + handles[2]] == [0, 0, 1, 1]
    for handle in handles[1]:
        with pytest.raises(kind, match="the disk is full"):
            handle.result(0)
    assert batches(store) == [[b"0a", b"0b"], [b"2a", b"2b"]]


def test_a_failed_data_object_is_not_written_again(memory: ObjectStore, open_producer: OpenProducer) -> None:
    store = HookedStore(memory)
    store.before("write data", raising(StorageError("no")), times=1)
    producer = open_producer(store, flush_size_bytes=1)
    with pytest.raises(StorageError):
        producer.produce(b"lost").result(PATIENCE)
    producer.produce(b"kept")
    producer.flush()
    assert store.count("write data") == 2
    assert entries(memory) == [b"kept"]


def test_an_object_whose_write_is_not_known_to_have_happened_is_not_enqueued(
    store: ObjectStore, open_producer: OpenProducer
) -> None:
    hooked = HookedStore(store)
    hooked.after("write data", raising(OutcomeUnknown("the reply was lost")), times=1)
    producer = open_producer(hooked, flush_size_bytes=1)
    with pytest.raises(OutcomeUnknown, match="the reply was lost"):
        producer.produce(b"orphan").result(PATIENCE)
    producer.produce(b"kept").result(PATIENCE)
    assert (len(data_objects(store)), entries(store)) == (2, [b"kept"])


def test_batches_behind_a_failed_one_do_not_wait_for_it(
    memory: ObjectStore, open_producer: OpenProducer, new_gate: NewGate
) -> None:
    store, gate, written = HookedStore(memory), new_gate(), Bell()
    store.before("write data", gate, times=1)
    store.after("write data", written)
    store.after("write data", raising(StorageError("no")), skip=1, times=1)
    producer = open_producer(store, flush_size_bytes=1)
    failing = producer.produce(b"lost")
    gate.wait_for_arrival()
    behind = producer.produce(b"kept")
    written.wait()
    # The second object to be written fails: the one that was produced first.
    gate.open()
    with pytest.raises(StorageError):
        failing.result(PATIENCE)
    assert behind.result(PATIENCE).sequence == 0


def test_a_manifest_write_that_fails_fails_the_handles_and_is_not_tried_again(
    store: ObjectStore, open_producer: OpenProducer
) -> None:
    hooked = HookedStore(store)
    hooked.before("write manifest", raising(StorageError("read-only")), skip=1, times=1)
    producer = open_producer(hooked, flush_size_bytes=1)
    producer.produce(b"0").result(PATIENCE)
    with pytest.raises(StorageError, match="read-only"):
        producer.produce(b"lost").result(PATIENCE)
    assert hooked.count("write manifest") == 2  # it is certain that it failed: it is not tried again
    assert producer.produce(b"1").result(PATIENCE).sequence == 1
    assert entries(store) == [b"0", b"1"]


def test_a_failed_manifest_write_fails_every_batch_of_its_run(
    memory: ObjectStore, open_producer: OpenProducer, new_gate: NewGate
) -> None:
    store = HookedStore(memory)
    store.before("write manifest", raising(StorageError("read-only")), times=1)
    for handle in produce_run(store, open_producer, new_gate(), 2):
        with pytest.raises(StorageError, match="read-only"):
            handle.result(PATIENCE)
    assert entries(memory) == []


def test_a_manifest_that_cannot_be_read_fails_the_handles_and_is_not_written(
    memory: ObjectStore, open_producer: OpenProducer
) -> None:
    store = HookedStore(memory)
    store.before("read manifest", raising(StorageError("no reply")))
    with pytest.raises(StorageError, match="no reply"):
        open_producer(store, flush_size_bytes=1).produce(b"x").result(PATIENCE)
    assert store.count("write manifest") == 0


@pytest.mark.parametrize("content", [b"", b"garbage", b"\0" * 20 + b"\x09\x00", b"\1" + b"\0" * 19 + b"\1\0"])
def test_a_corrupt_manifest_fails_the_handles_and_is_left_as_it_is(
    store: ObjectStore, open_producer: OpenProducer, content: bytes
) -> None:
    version = store.put(MANIFEST, content)
    with pytest.raises(CorruptData):
        open_producer(store, flush_size_bytes=1).produce(b"x").result(PATIENCE)
    found = store.get(MANIFEST)
    assert (found.data, found.version) == (content, version)


def test_the_producer_goes_on_when_a_corrupt_manifest_was_repaired(
    memory: ObjectStore, open_producer: OpenProducer
) -> None:
    producer = open_producer(memory, flush_size_bytes=1)
    producer.produce(b"0").result(PATIENCE)
    good = memory.get(MANIFEST).data
    memory.put(MANIFEST, b"garbage")
    with pytest.raises(CorruptData):
        producer.produce(b"lost").result(PATIENCE)
    memory.put(MANIFEST, good)
    assert producer.produce(b"1").result(PATIENCE).sequence == 1
    assert entries(memory) == [b"0", b"1"]


def test_a_call_whose_clock_fails_writes_nothing(memory: ObjectStore, open_producer: OpenProducer) -> None:
    broken = True

    def clock() -> float:
        if broken:
            raise LookupError("no clock")
        return 1.0

    producer = open_producer(memory, clock=clock)
    with pytest.raises(LookupError):
        producer.produce(b"x")
    broken = False
    producer.flush()
    assert (queue(memory), data_objects(memory)) == ((), set())


def test_a_store_that_comes_back_is_used_again(store: ObjectStore, open_producer: OpenProducer) -> None:
    hooked = HookedStore(store)
    hooked.before("write data", raising(StorageError("down")), times=10)
    producer = open_producer(hooked, flush_size_bytes=1)
    for _ in range(10):
        with pytest.raises(StorageError, match="down"):
            producer.produce(b"lost").result(PATIENCE)
    for number in range(10):
        assert producer.produce(b"%d" % number).result(PATIENCE).sequence == number
    assert entries(store) == [b"%d" % number for number in range(10)]
