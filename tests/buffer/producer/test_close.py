"""`close` flushes, and then stops; so does the end of a `with` block."""

from __future__ import annotations

import threading

import pytest

from penstock import ObjectStore, Producer, ProducerConfig, Written
from penstock.errors import Closed, StorageError
from tests.buffer.producer.conftest import NewGate, OpenProducer
from tests.buffer.producer.failing_hook import FailingHook
from tests.support.buffer_contents import entries, queue
from tests.support.hooked_store import HookedStore
from tests.support.waiting import NEVER, Background


def test_a_close_flushes(store: ObjectStore) -> None:
    producer = Producer(store, ProducerConfig(flush_interval=NEVER))
    handle = producer.produce(b"x")
    producer.close()
    assert (handle.done(), entries(store)) == (True, [b"x"])


def test_a_close_ends_all_threads_of_the_producer(memory: ObjectStore) -> None:
    before = set(threading.enumerate())
    producer = Producer(memory)
    started = set(threading.enumerate()) - before
    producer.close()
    assert started
    assert not any(thread.is_alive() for thread in started)


def test_a_second_close_does_nothing(memory: ObjectStore) -> None:
    store = HookedStore(memory)
    producer = Producer(store)
    producer.produce(b"x")
    producer.close()
    steps = list(store.steps)
    producer.close()
    assert store.steps == steps


def test_a_close_that_raises_has_stopped_too_and_raises_once(memory: ObjectStore) -> None:
    store = HookedStore(memory)
    store.before("write data", FailingHook())
    before = set(threading.enumerate())
    producer = Producer(store)
    producer.produce(b"x")
    with pytest.raises(StorageError, match="refusal 1"):
        producer.close()
    assert set(threading.enumerate()) <= before
    producer.close()  # which does not raise it again


@pytest.mark.parametrize("given", [b"x", [b"x"]], ids=["one entry", "a list"])
def test_produce_after_a_close_raises(store: ObjectStore, given: bytes | list[bytes]) -> None:
    producer = Producer(store)
    producer.produce(b"before")
    producer.close()
    with pytest.raises(Closed):
        producer.produce(given)
    assert entries(store) == [b"before"]


def test_flush_after_a_close_raises(memory: ObjectStore) -> None:
    producer = Producer(memory)
    producer.close()
    with pytest.raises(Closed):
        producer.flush()


def test_a_close_ends_a_call_that_waits_for_free_space(
    memory: ObjectStore, open_producer: OpenProducer, new_gate: NewGate
) -> None:
    store, gate = HookedStore(memory), new_gate()
    store.before("write data", gate, times=1)
    producer = open_producer(store, max_buffered_inputs=1)
    producer.produce(b"accepted")
    blocked = Background(lambda: producer.produce(b"blocked"))
    gate.wait_for_arrival()  # a call that waits ends the open batch
    closing = Background(producer.close)
    with pytest.raises(Closed):
        blocked.result()
    gate.open()
    closing.result()
    assert entries(memory) == [b"accepted"]


def test_with_flushes_and_closes(store: ObjectStore) -> None:
    with Producer(store, ProducerConfig(flush_interval=NEVER)) as producer:
        producer.produce(b"x")
    assert entries(store) == [b"x"]
    with pytest.raises(Closed):
        producer.produce(b"y")


@pytest.mark.parametrize("error", [LookupError("the first error"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_an_error_within_with_is_not_hidden_by_a_close_that_fails(memory: ObjectStore, error: BaseException) -> None:
    store = HookedStore(memory)
    store.before("write data", FailingHook())

    def work() -> None:
        with Producer(store, ProducerConfig(flush_interval=NEVER)) as producer:
            producer.produce(b"x")
            raise error

    with pytest.raises(type(error)) as raised:
        work()
    assert raised.value is error


def test_what_was_produced_before_an_error_within_with_is_flushed(memory: ObjectStore) -> None:
    def work() -> None:
        with Producer(memory, ProducerConfig(flush_interval=NEVER)) as producer:
            producer.produce(b"x")
            raise LookupError

    with pytest.raises(LookupError):
        work()
    assert entries(memory) == [b"x"]


def test_with_raises_the_error_of_its_close(memory: ObjectStore) -> None:
    store = HookedStore(memory)
    store.before("write data", FailingHook())

    def work() -> None:
        with Producer(store, ProducerConfig(flush_interval=NEVER)) as producer:
            producer.produce(b"x")

    with pytest.raises(StorageError, match="refusal 1"):
        work()


def test_a_producer_that_produced_nothing_writes_nothing(store: ObjectStore) -> None:
    with Producer(store):
        pass
    assert list(store.list_objects()) == []


def test_producers_one_after_another_go_on_with_the_sequences(store: ObjectStore) -> None:
    written: list[Written] = []
    for number in range(3):
        with Producer(store) as producer:
            handle = producer.produce(b"%d" % number)
        written.append(handle.result())
    assert [one.sequence for one in written] == [entry.sequence for entry in queue(store)] == [0, 1, 2]
