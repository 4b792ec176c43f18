"""`close`: stops the collector, then flushes. It hides no error, and after it the consumer cannot be used."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest

from penstock.buffer import Consumer, ConsumerConfig
from penstock.errors import Closed, Fenced, PenstockError, StorageError
from penstock.storage import ObjectStore
from tests.buffer.consumer.intercepted_store import InterceptedStore
from tests.support.filled_buffers import MANIFEST, consume, fill, kept, no_gc, queue_up, read

DOWN = StorageError("the store is down")


class OfTheCaller(Exception):
    """An error of the caller's own work."""


def with_acks(store: ObjectStore) -> Consumer:
    """A consumer with one ack that is not written yet."""
    queue_up(store, 3)
    consumer = consume(store)
    consumer.next_descriptors(2)
    consumer.ack(0)
    return consumer


def errors_logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_close_flushes(store: ObjectStore) -> None:
    with_acks(store).close()
    assert kept(store) == [1, 2]


def test_the_end_of_a_with_block_flushes(store: ObjectStore) -> None:
    queue_up(store, 3)
    with consume(store) as consumer:
        consumer.next_descriptors(2)
        consumer.ack(0)
    assert kept(store) == [1, 2]


def test_a_with_block_that_fails_flushes_too(store: ObjectStore) -> None:
    with pytest.raises(OfTheCaller), with_acks(store):
        raise OfTheCaller
    assert kept(store) == [1, 2]


def test_close_with_nothing_to_write_writes_nothing_and_a_second_close_does_nothing(store: ObjectStore) -> None:
    queue_up(store, 3)
    intercepted = InterceptedStore(store)
    consumer = consume(intercepted)
    intercepted.calls.clear()
    consumer.close()
    assert intercepted.calls == [("get", MANIFEST)]
    consumer.close()  # which does nothing
    assert intercepted.calls == [("get", MANIFEST)]


def test_the_collector_has_stopped_when_close_flushes(memory: ObjectStore) -> None:
    queue_up(memory, 3)
    intercepted = InterceptedStore(memory)
    others = set(threading.enumerate())
    consumer = Consumer(intercepted)
    (collector,) = set(threading.enumerate()) - others
    consumer.next_descriptors(1)
    consumer.ack(0)
    alive: list[bool] = []
    intercepted.before("put_if_match", lambda: alive.append(collector.is_alive()), path=MANIFEST)
    consumer.close()
    assert alive == [False]


def test_a_second_close_does_nothing_after_one_that_failed(memory: ObjectStore) -> None:
    intercepted = InterceptedStore(memory)
    consumer = with_acks(intercepted)
    intercepted.fail("get", DOWN)
    with pytest.raises(StorageError):
        consumer.close()
    intercepted.calls.clear()
    consumer.close()
    assert intercepted.calls == []


# A fence is raised, unless that would hide another error


def test_close_raises_a_fence_dequeues_nothing_and_leaves_the_consumer_closed(store: ObjectStore) -> None:
    consumer = with_acks(store)
    consume(store)
    with pytest.raises(Fenced, match="a newer consumer has taken over"):
        consumer.close()
    assert kept(store) == [0, 1, 2]
    consumer.close()
    with pytest.raises(Closed):
        consumer.next_batch()


def test_a_fence_is_raised_by_close_also_when_there_is_nothing_to_write(memory: ObjectStore) -> None:
    consumer = consume(memory)
    consume(memory)
    with pytest.raises(Fenced) as raised:
        consumer.close()
    assert (raised.value.epoch, raised.value.current_epoch, raised.value.group) == (1, 2, "default")


def test_the_end_of_a_with_block_raises_a_fence(memory: ObjectStore) -> None:
    with pytest.raises(Fenced), consume(memory):
        consume(memory)


def test_a_fence_does_not_hide_an_exception_in_flight_and_is_logged(
    memory: ObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = with_acks(memory)
    consume(memory)
    with pytest.raises(OfTheCaller), consumer:
        raise OfTheCaller
    (message,) = errors_logged(caplog)
    assert "a newer consumer has taken over" in message
    assert memory.url in message


# An error of the store is raised, and hides nothing


@pytest.mark.parametrize("operation", ["get", "put_if_match"])
def test_an_error_of_the_store_is_raised_by_close(store: ObjectStore, operation: str) -> None:
    intercepted = InterceptedStore(store)
    consumer = with_acks(intercepted)
    intercepted.fail(operation, DOWN, path=MANIFEST)
    with pytest.raises(StorageError, match="the store is down"):
        consumer.close()


def test_an_error_of_the_store_is_raised_at_the_end_of_a_with_block(memory: ObjectStore) -> None:
    intercepted = InterceptedStore(memory)
    consumer = with_acks(intercepted)
    intercepted.fail("get", DOWN)
    with pytest.raises(StorageError, match="the store is down"), consumer:
        pass


def test_an_error_of_the_store_stops_the_collector_all_the_same(memory: ObjectStore) -> None:
    intercepted = InterceptedStore(memory)
    others = set(threading.enumerate())
    consumer = Consumer(intercepted)
    intercepted.fail("get", DOWN)
    with pytest.raises(StorageError):
        consumer.close()
    assert not set(threading.enumerate()) - others


@pytest.mark.parametrize("in_flight", [OfTheCaller(), KeyboardInterrupt()], ids=["exception", "interrupt"])
def test_an_error_of_the_store_does_not_hide_what_is_in_flight_out_of_a_with_block(
    memory: ObjectStore, in_flight: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    intercepted = InterceptedStore(memory)
    consumer = with_acks(intercepted)
    intercepted.fail("get", DOWN)
    with pytest.raises(type(in_flight)) as raised, consumer:
        raise in_flight
    assert raised.value is in_flight
    assert [record.exc_info[1] for record in caplog.records if record.exc_info] == [DOWN]


def test_an_error_of_the_store_does_not_hide_what_is_in_flight_through_a_finally(memory: ObjectStore) -> None:
    intercepted = InterceptedStore(memory)
    consumer = with_acks(intercepted)
    intercepted.fail("get", DOWN)

    def work() -> None:
        try:
            raise OfTheCaller
        finally:
            consumer.close()

    with pytest.raises(OfTheCaller):
        work()


def test_an_error_of_the_store_is_raised_at_the_end_of_a_with_block_within_an_except_block(memory: ObjectStore) -> None:
    # An error that is handled already is not in flight: nothing is hidden, and the lost acks must be reported.
    intercepted = InterceptedStore(memory)
    consumer = with_acks(intercepted)
    intercepted.fail("get", DOWN)

    def recover() -> None:
        try:
            raise OfTheCaller
        except OfTheCaller:
            with consumer:
                pass

    with pytest.raises(StorageError, match="the store is down"):
        recover()


# After it

USES: dict[str, Callable[[Consumer], object]] = {
    "next_batch": lambda consumer: consumer.next_batch(),
    "next_descriptors": lambda consumer: consumer.next_descriptors(1),
    "next_descriptors of none": lambda consumer: consumer.next_descriptors(0),
    "ack": lambda consumer: consumer.ack(0),
    "ack_through": lambda consumer: consumer.ack_through(0),
    "flush": lambda consumer: consumer.flush(),
    "iteration": lambda consumer: next(iter(consumer)),
}


@pytest.mark.parametrize("use", USES)
def test_a_closed_consumer_cannot_be_used(memory: ObjectStore, use: str) -> None:
    fill(memory, [b"a"], [b"b"])
    consumer = consume(memory)
    read(consumer)
    consumer.close()
    with pytest.raises(Closed, match=memory.url):
        USES[use](consumer)


def test_a_closed_consumer_neither_fetches_a_descriptor_nor_acks_a_batch(memory: ObjectStore) -> None:
    fill(memory, [b"a"], [b"b"])
    consumer = consume(memory)
    batch = read(consumer)
    (descriptor,) = consumer.next_descriptors(1)
    consumer.close()
    with pytest.raises(Closed):
        consumer.fetch_descriptor(descriptor)
    with pytest.raises(Closed):
        batch.ack()


def test_a_closed_consumer_does_not_call_the_store(memory: ObjectStore) -> None:
    fill(memory, [b"a"])
    intercepted = InterceptedStore(memory)
    consumer = consume(intercepted)
    read(consumer)
    consumer.close()
    intercepted.calls.clear()
    for use in USES.values():
        with pytest.raises(PenstockError):
            use(consumer)
    assert intercepted.calls == []


def test_a_closed_consumer_still_has_its_cursors(memory: ObjectStore) -> None:
    fill(memory, [b"a"])
    with Consumer(memory, no_gc()) as consumer:
        read(consumer).ack()
    assert (consumer.last_acked_sequence, len(consumer), bool(consumer)) == (0, 0, True)


def test_the_next_consumer_goes_on_where_a_closed_one_ended(store: ObjectStore) -> None:
    fill(store, [b"a"], [b"b"])
    with Consumer(store, ConsumerConfig(gc_interval=60.0)) as consumer:
        consumer.next_descriptors(2)
        consumer.ack(0)
    assert read(consume(store)).sequence == 1
