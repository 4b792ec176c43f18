"""A handle is done when its entries are durable and enqueued, and has its result for all threads, as often as asked."""

from __future__ import annotations

import math

import pytest

from penstock import ObjectStore, Producer, WriteHandle, Written
from penstock.errors import BackpressureTimeout, PenstockError, StorageError
from tests.buffer.producer.conftest import NewGate, OpenProducer
from tests.support.buffer_contents import entries, payloads, queue
from tests.support.hooked_store import HookedStore, Step
from tests.support.processes import PATIENCE
from tests.support.waiting import A_WHILE, Background


def test_its_result_is_where_the_entries_are(store: ObjectStore, open_producer: OpenProducer) -> None:
    producer = open_producer(store, flush_size_bytes=1)
    results = [producer.produce(given).result(PATIENCE) for given in (b"a", b"b")]
    assert results == [Written(entry.sequence, entry.location) for entry in queue(store)]
    assert [payloads(store, result.location) for result in results] == [[b"a"], [b"b"]]


@pytest.mark.parametrize("held_up", ["write owner", "write data", "read manifest", "write manifest"])
def test_it_is_not_done_before_its_entries_are_durable_and_enqueued(
    store: ObjectStore, open_producer: OpenProducer, new_gate: NewGate, held_up: Step
) -> None:
    hooked, gate = HookedStore(store), new_gate()
    hooked.before(held_up, gate, times=1)
    producer = open_producer(hooked, flush_size_bytes=1)
    handle = producer.produce(b"x")
    gate.wait_for_arrival()
    assert not handle.done()
    gate.open()
    handle.result(PATIENCE)
    assert handle.done()


def test_once_it_is_done_its_entries_can_be_read(store: ObjectStore, open_producer: OpenProducer) -> None:
    producer = open_producer(store, flush_size_bytes=1)
    for number in range(20):
        producer.produce(b"%d" % number).result(PATIENCE)
        assert entries(store)[-1] == b"%d" % number


def test_a_timeout_raises_and_does_not_end_the_write(
    memory: ObjectStore, open_producer: OpenProducer, new_gate: NewGate
) -> None:
    store, gate = HookedStore(memory), new_gate()
    store.before("write manifest", gate, times=1)
    handle = open_producer(store, flush_size_bytes=1).produce(b"x")
    for timeout in (0, 0.01):
        with pytest.raises(TimeoutError):
            handle.result(timeout)
    gate.open()
    assert handle.result(PATIENCE).sequence == 0


@pytest.mark.parametrize("timeout", [None, 1e300, math.inf])
def test_it_can_be_waited_for_as_long_as_it_takes(
    memory: ObjectStore, open_producer: OpenProducer, new_gate: NewGate, timeout: float | None
) -> None:
    store, gate = HookedStore(memory), new_gate()
    store.before("write data", gate, times=1)
    handle = open_producer(store, flush_size_bytes=1).produce(b"x")
    waiting = Background(lambda: handle.result(timeout))
    assert not waiting.has_ended_within(A_WHILE)
    gate.open()
    assert waiting.result().sequence == 0


def test_a_timeout_is_not_an_error_of_the_store(memory: ObjectStore, open_producer: OpenProducer) -> None:
    with pytest.raises(TimeoutError) as raised:
        open_producer(memory).produce(b"x").result(0)
    assert not isinstance(raised.value, PenstockError)


def test_its_result_is_the_same_each_time(memory: ObjectStore, open_producer: OpenProducer) -> None:
    producer = open_producer(memory)
    handle = producer.produce(b"x")
    producer.flush()
    assert len({handle.result(timeout) for timeout in (None, 0, 1, None)}) == 1


def refuse() -> None:
    raise StorageError("the disk is full")


def failed_handle(memory: ObjectStore, open_producer: OpenProducer) -> WriteHandle:
    store = HookedStore(memory)
    store.before("write data", refuse)
    return open_producer(store, flush_size_bytes=1).produce(b"x")


def test_it_raises_its_error_each_time(memory: ObjectStore, open_producer: OpenProducer) -> None:
    handle = failed_handle(memory, open_producer)
    for timeout in (PATIENCE, None, 0):
        with pytest.raises(StorageError, match="the disk is full"):
            handle.result(timeout)
        assert handle.done()


def test_every_handle_of_a_batch_gets_its_sequence(store: ObjectStore, open_producer: OpenProducer) -> None:
    producer = open_producer(store)
    handles = [producer.produce(given) for given in (b"a", [b"b", b"c"], "d", b"e")]
    producer.flush()
    assert {handle.result() for handle in handles} == {Written(0, queue(store)[0].location)}


def test_every_handle_of_a_batch_gets_its_failure(memory: ObjectStore, open_producer: OpenProducer) -> None:
    store = HookedStore(memory)
    store.before("write data", refuse)
    producer = open_producer(store)
    handles = [producer.produce(given) for given in (b"a", [b"b", b"c"], "d", b"e")]
    with pytest.raises(StorageError):
        producer.flush()
    for handle in handles:
        with pytest.raises(StorageError, match="the disk is full"):
            handle.result(PATIENCE)


def test_many_threads_can_wait_for_one_handle(
    memory: ObjectStore, open_producer: OpenProducer, new_gate: NewGate
) -> None:
    store, gate = HookedStore(memory), new_gate()
    store.before("write data", gate, times=1)
    handle = open_producer(store, flush_size_bytes=1).produce(b"x")
    waiting = [Background(lambda: handle.result(PATIENCE)) for _ in range(10)]
    gate.open()
    assert {waiter.result() for waiter in waiting} == {handle.result(PATIENCE)}


def test_it_shows_whether_it_is_done(memory: ObjectStore, open_producer: OpenProducer) -> None:
    producer = open_producer(memory, clock=lambda: 1.5)
    handle = producer.produce(b"x")
    before = repr(handle)
    producer.flush()
    assert (before, repr(handle)) == (
        "WriteHandle(ingestion_time_ms=1500, under way)",
        "WriteHandle(ingestion_time_ms=1500, done)",
    )


def test_a_backpressure_timeout_is_a_timeout_and_a_penstock_error() -> None:
    assert issubclass(BackpressureTimeout, TimeoutError)
    assert issubclass(BackpressureTimeout, PenstockError)


def test_a_handle_outlives_its_producer(memory: ObjectStore) -> None:
    with Producer(memory) as producer:
        handle = producer.produce(b"x")
    del producer
    assert handle.result(A_WHILE).sequence == 0
