"""`flush` waits for all that was produced before it, and tells what nobody has heard; `close` flushes, then stops."""

from __future__ import annotations

import threading

import pytest

from penstock import ObjectStore, Producer, ProducerConfig, Written
from penstock.buffer.write_handle import Outcome
from penstock.errors import Closed, StorageError
from tests.buffer.producer.conftest import NewGate, OpenProducer
from tests.buffer.producer.hooked_store import HookedStore
from tests.buffer.producer.looking import entries, queue
from tests.buffer.producer.waiting import A_WHILE, NEVER, Background, Bell, Gate
from tests.processes import PATIENCE


class Refusal:
    """Raises, numbered, so that it can be told which one arrived."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1
        raise StorageError(f"refusal {self.times}")


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
    gate.wait_for_somebody()
    flushing = Background(producer.flush)
    assert not flushing.has_ended_within(A_WHILE)
    gate.open()
    flushing.result()
    assert entries(memory) == [b"x"]


def hold_up(monkeypatch: pytest.MonkeyPatch, gate: Gate, ending: str) -> None:
    """Hold up a batch when all is done but its handles have not been told."""
    tell = getattr(Outcome, ending)

    def wait_and_tell(self: Outcome, what: object) -> None:
        gate()
        tell(self, what)

    monkeypatch.setattr(Outcome, ending, wait_and_tell)


def test_a_flush_waits_for_handles_that_are_about_to_be_done(
    memory: ObjectStore, open_producer: OpenProducer, new_gate: NewGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = new_gate()
    hold_up(monkeypatch, gate, "succeed")
    producer = open_producer(memory, flush_size_bytes=1)
    handle = producer.produce(b"x")
    gate.wait_for_somebody()

    def flush_and_look() -> bool:
        producer.flush()
        return handle.done()

    flushing = Background(flush_and_look)
    flushing.has_ended_within(A_WHILE)  # it must not; if it does, its answer tells
    gate.open()
    assert flushing.result(), "flush returned before the handle was done"


def test_a_flush_raises_a_failure_of_which_handles_are_about_to_be_told(
    memory: ObjectStore, open_producer: OpenProducer, new_gate: NewGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, gate = HookedStore(memory), new_gate()
    store.before("write data", Refusal())
    hold_up(monkeypatch, gate, "fail")
    producer = open_producer(store, flush_size_bytes=1)
    producer.produce(b"x")
    gate.wait_for_somebody()
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
    first.wait_for_somebody()
    flushing = Background(producer.flush)
    assert not flushing.has_ended_within(A_WHILE)
    producer.produce(b"after")
    second.wait_for_somebody()
    first.open()
    flushing.result()
    assert before.done()


def test_a_flush_raises_what_went_wrong_with_a_batch(store: ObjectStore, open_producer: OpenProducer) -> None:
    hooked = HookedStore(store)
    hooked.before("write data", Refusal())
    producer = open_producer(hooked)
    producer.produce(b"x")
    with pytest.raises(StorageError, match="refusal 1"):
        producer.flush()


def test_a_flush_raises_a_failure_from_long_before_that_nobody_heard(
    memory: ObjectStore, open_producer: OpenProducer
) -> None:
    store, tried = HookedStore(memory), Bell()
    store.before("write data", tried, times=1)
    store.before("write data", Refusal(), times=1)
    producer = open_producer(store, flush_size_bytes=1)
    producer.produce(b"lost")
    tried.wait()
    for _ in range(3):
        producer.produce(b"kept").result(PATIENCE)
    with pytest.raises(StorageError, match="refusal 1"):
        producer.flush()


def test_a_flush_raises_a_failure_once(memory: ObjectStore, open_producer: OpenProducer) -> None:
    store = HookedStore(memory)
    store.before("write data", Refusal(), times=1)
    producer = open_producer(store)
    producer.produce(b"x")
    with pytest.raises(StorageError):
        producer.flush()
    producer.flush()


def test_a_flush_does_not_raise_what_a_handle_has_told(memory: ObjectStore, open_producer: OpenProducer) -> None:
    store = HookedStore(memory)
    store.before("write data", Refusal(), times=1)
    producer = open_producer(store, flush_size_bytes=1)
    with pytest.raises(StorageError, match="refusal 1"):
        producer.produce(b"x").result(PATIENCE)
    producer.flush()


def test_a_flush_raises_what_one_of_two_batches_has_not_told(memory: ObjectStore, open_producer: OpenProducer) -> None:
    store = HookedStore(memory)
    store.before("write data", Refusal(), times=2)
    producer = open_producer(store, flush_size_bytes=1)
    with pytest.raises(StorageError, match="refusal 1"):
        producer.produce(b"told").result(PATIENCE)
    producer.produce(b"untold")
    with pytest.raises(StorageError, match="refusal 2"):
        producer.flush()


def test_a_handle_still_tells_what_a_flush_has_raised(memory: ObjectStore, open_producer: OpenProducer) -> None:
    store = HookedStore(memory)
    store.before("write data", Refusal())
    producer = open_producer(store)
    handle = producer.produce(b"x")
    with pytest.raises(StorageError):
        producer.flush()
    with pytest.raises(StorageError, match="refusal 1"):
        handle.result(0)


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


def test_a_second_close_does_not_raise_what_the_first_has_raised(memory: ObjectStore) -> None:
    store = HookedStore(memory)
    store.before("write data", Refusal())
    producer = Producer(store)
    producer.produce(b"x")
    with pytest.raises(StorageError):
        producer.close()
    producer.close()


def test_a_close_that_raises_has_stopped_all_the_same(memory: ObjectStore) -> None:
    store = HookedStore(memory)
    store.before("write data", Refusal())
    before = set(threading.enumerate())
    producer = Producer(store)
    producer.produce(b"x")
    with pytest.raises(StorageError, match="refusal 1"):
        producer.close()
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("given", [b"x", [b"x"]], ids=["one entry", "a list"])
def test_to_produce_after_a_close_raises(store: ObjectStore, given: bytes | list[bytes]) -> None:
    producer = Producer(store)
    producer.produce(b"before")
    producer.close()
    with pytest.raises(Closed):
        producer.produce(given)
    assert entries(store) == [b"before"]


def test_to_flush_after_a_close_raises(memory: ObjectStore) -> None:
    producer = Producer(memory)
    producer.close()
    with pytest.raises(Closed):
        producer.flush()


def test_a_call_that_waits_for_room_is_sent_away_by_a_close(
    memory: ObjectStore, open_producer: OpenProducer, new_gate: NewGate
) -> None:
    store, gate = HookedStore(memory), new_gate()
    store.before("write data", gate, times=1)
    producer = open_producer(store, max_buffered_inputs=1)
    producer.produce(b"taken")
    blocked = Background(lambda: producer.produce(b"blocked"))
    gate.wait_for_somebody()  # a call that waits sends what there is on its way
    closing = Background(producer.close)
    with pytest.raises(Closed):
        blocked.result()
    gate.open()
    closing.result()
    assert entries(memory) == [b"taken"]


def test_with_flushes_and_closes(store: ObjectStore) -> None:
    with Producer(store, ProducerConfig(flush_interval=NEVER)) as producer:
        producer.produce(b"x")
    assert entries(store) == [b"x"]
    with pytest.raises(Closed):
        producer.produce(b"y")


def test_what_went_wrong_within_with_is_not_hidden_by_a_close_that_fails(memory: ObjectStore) -> None:
    store = HookedStore(memory)
    store.before("write data", Refusal())

    def work() -> None:
        with Producer(store, ProducerConfig(flush_interval=NEVER)) as producer:
            producer.produce(b"x")
            raise LookupError("what really happened")

    with pytest.raises(LookupError, match="what really happened"):
        work()


def test_an_interrupt_within_with_is_not_hidden_by_a_close_that_fails(memory: ObjectStore) -> None:
    store = HookedStore(memory)
    store.before("write data", Refusal())

    def work() -> None:
        with Producer(store, ProducerConfig(flush_interval=NEVER)) as producer:
            producer.produce(b"x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()


def test_what_was_produced_before_an_error_within_with_is_flushed(memory: ObjectStore) -> None:
    def work() -> None:
        with Producer(memory, ProducerConfig(flush_interval=NEVER)) as producer:
            producer.produce(b"x")
            raise LookupError

    with pytest.raises(LookupError):
        work()
    assert entries(memory) == [b"x"]


def test_with_raises_what_its_close_met(memory: ObjectStore) -> None:
    store = HookedStore(memory)
    store.before("write data", Refusal())

    def work() -> None:
        with Producer(store, ProducerConfig(flush_interval=NEVER)) as producer:
            producer.produce(b"x")

    with pytest.raises(StorageError, match="refusal 1"):
        work()


def test_a_producer_that_was_given_nothing_leaves_nothing(store: ObjectStore) -> None:
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
