"""`flush` waits for all that was produced before it, and raises the failures that no handle has raised yet."""

from __future__ import annotations

import pytest

from penstock import ObjectStore
from penstock.buffer.producer.write_handle import Outcome
from penstock.errors import StorageError
from tests.buffer.producer.conftest import NewGate, OpenProducer
from tests.buffer.producer.failing_hook import FailingHook
from tests.support.buffer_contents import entries
from tests.support.call_hooks import hooks_at
from tests.support.hooked_store import HookedStore
from tests.support.processes import PATIENCE
from tests.support.waiting import A_WHILE, Background, Bell, Gate


def test_a_flush_returns_when_everything_before_it_is_done(store: ObjectStore, open_producer: OpenProducer) -> None:
    producer = open_producer(store, flush_size_bytes=10)
    handles = [producer.produce(b"%04d" % number) for number in range(40)]
    producer.flush()
    assert all(handle.done() for handle in handles)
    assert entries(store) == [b"%04d" % number for number in range(40)]


@pytest.mark.parametrize("step", ["write data", "write manifest"])
def test_a_flush_waits_for_batches_on_their_way(
    memory: ObjectStore, open_producer: OpenProducer, new_gate: NewGate, step: str
) -> None:
    store, gate = HookedStore(memory), new_gate()
    store.before("write data" if step == "write data" else "write manifest", gate, times=1)
    producer = open_producer(store, flush_size_bytes=1)
    producer.produce(b"x")
    gate.wait_for_arrival()
    flushing = Background(producer.flush)
    assert not flushing.has_ended_within(A_WHILE)
    gate.open()
    flushing.result()
    assert entries(memory) == [b"x"]


def test_a_flush_waits_for_handles_that_are_about_to_be_done(
    memory: ObjectStore, open_producer: OpenProducer, gate: Gate
) -> None:
    with hooks_at(Outcome.succeed, before=gate):
        producer = open_producer(memory, flush_size_bytes=1)
        handle = producer.produce(b"x")
        gate.wait_for_arrival()

    def flush_and_check() -> bool:
        producer.flush()
        return handle.done()

    flushing = Background(flush_and_check)
    flushing.has_ended_within(A_WHILE)  # it must not; if it does, its result shows it
    gate.open()
    assert flushing.result(), "flush returned before the handle was done"


def test_a_flush_raises_a_failure_that_its_handles_are_about_to_get(
    memory: ObjectStore, open_producer: OpenProducer, gate: Gate
) -> None:
    store = HookedStore(memory)
    store.before("write data", FailingHook())
    with hooks_at(Outcome.fail, before=gate):
        producer = open_producer(store, flush_size_bytes=1)
        producer.produce(b"x")
        gate.wait_for_arrival()
    flushing = Background(producer.flush)
    flushing.has_ended_within(A_WHILE)
    gate.open()
    with pytest.raises(StorageError, match="refusal 1"):
        flushing.result()


def test_a_flush_does_not_wait_for_what_is_produced_after_it(
    memory: ObjectStore, open_producer: OpenProducer, new_gate: NewGate
) -> None:
    store, first, second = HookedStore(memory), new_gate(), new_gate()
    store.before("write data", first, times=1)
    store.before("write data", second, skip=1, times=1)
    producer = open_producer(store, flush_size_bytes=1)
    before = producer.produce(b"before")
    first.wait_for_arrival()
    flushing = Background(producer.flush)
    assert not flushing.has_ended_within(A_WHILE)
    producer.produce(b"after")
    second.wait_for_arrival()
    first.open()
    flushing.result()
    assert before.done()


def test_a_flush_raises_an_earlier_failure_that_no_handle_has_raised(
    memory: ObjectStore, open_producer: OpenProducer
) -> None:
    store, tried = HookedStore(memory), Bell()
    store.before("write data", tried, times=1)
    store.before("write data", FailingHook(), times=1)
    producer = open_producer(store, flush_size_bytes=1)
    producer.produce(b"lost")
    tried.wait()
    for _ in range(3):
        producer.produce(b"kept").result(PATIENCE)
    with pytest.raises(StorageError, match="refusal 1"):
        producer.flush()


def test_a_flush_raises_the_failure_of_a_batch_once(store: ObjectStore, open_producer: OpenProducer) -> None:
    hooked = HookedStore(store)
    hooked.before("write data", FailingHook(), times=1)
    producer = open_producer(hooked)
    handle = producer.produce(b"x")
    with pytest.raises(StorageError, match="refusal 1"):
        producer.flush()
    producer.flush()
    with pytest.raises(StorageError, match="refusal 1"):
        handle.result(0)


def test_a_flush_right_after_a_handle_has_raised_does_not_raise_it_again(
    memory: ObjectStore, open_producer: OpenProducer, gate: Gate
) -> None:
    store = HookedStore(memory)
    store.before("write data", FailingHook(), times=1)
    with hooks_at(Outcome.fail, after=gate):
        producer = open_producer(store, flush_size_bytes=1)
        handle = producer.produce(b"x")
        gate.wait_for_arrival()
    with pytest.raises(StorageError, match="refusal 1"):
        handle.result(PATIENCE)
    flushing = Background(producer.flush)
    flushing.has_ended_within(A_WHILE)
    gate.open()
    flushing.result()


@pytest.mark.parametrize("asked", [0, 1], ids=["first", "second"])
def test_a_flush_raises_what_only_one_of_two_handles_has_raised(
    memory: ObjectStore, open_producer: OpenProducer, asked: int
) -> None:
    store = HookedStore(memory)
    store.before("write data", FailingHook(), times=1)
    producer = open_producer(store, flush_size_bytes=2)
    handles = [producer.produce(b"1"), producer.produce(b"2")]
    for _ in range(2):  # the same one again is not the other one
        with pytest.raises(StorageError):
            handles[asked].result(PATIENCE)
    producer.produce(b"34").result(PATIENCE)
    with pytest.raises(StorageError, match="refusal 1"):
        producer.flush()


def test_a_flush_does_not_raise_what_all_handles_have_raised(memory: ObjectStore, open_producer: OpenProducer) -> None:
    store = HookedStore(memory)
    store.before("write data", FailingHook(), times=1)
    producer = open_producer(store, flush_size_bytes=2)
    for handle in [producer.produce(b"1"), producer.produce(b"2")]:
        with pytest.raises(StorageError):
            handle.result(PATIENCE)
    producer.produce(b"34").result(PATIENCE)
    producer.flush()


def test_a_flush_raises_the_failure_of_the_batch_whose_handle_was_not_asked(
    memory: ObjectStore, open_producer: OpenProducer
) -> None:
    store = HookedStore(memory)
    store.before("write data", FailingHook(), times=2)
    producer = open_producer(store, flush_size_bytes=1)
    with pytest.raises(StorageError, match="refusal 1"):
        producer.produce(b"asked").result(PATIENCE)
    producer.produce(b"not asked")
    with pytest.raises(StorageError, match="refusal 2"):
        producer.flush()
