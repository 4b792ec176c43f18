"""`flush`: dequeues through the last ack, and always reads the manifest."""

from __future__ import annotations

import pytest

from penstock.errors import Fenced, StorageError
from penstock.storage import ObjectStore
from tests.buffer.consumer.intercepted_store import InterceptedStore
from tests.support.filled_buffers import MANIFEST, Cursors, consume, cursors, kept, queue_up


def test_a_flush_dequeues_through_the_last_ack(store: ObjectStore) -> None:
    queue_up(store, 5)
    consumer = consume(store)
    consumer.next_descriptors(4)
    consumer.ack(0)
    consumer.ack(1)
    consumer.flush()
    assert kept(store) == [2, 3, 4]


def test_a_flush_is_one_read_and_one_write(store: ObjectStore) -> None:
    queue_up(store, 5)
    intercepted = InterceptedStore(store)
    consumer = consume(intercepted)
    consumer.next_descriptors(4)
    consumer.ack(0)
    intercepted.calls.clear()
    consumer.flush()
    assert intercepted.calls == [("get", MANIFEST), ("put_if_match", MANIFEST)]


def test_a_flush_with_nothing_acked_reads_and_writes_nothing(store: ObjectStore) -> None:
    queue_up(store, 5)
    intercepted = InterceptedStore(store)
    consumer = consume(intercepted)
    consumer.next_descriptors(4)
    intercepted.calls.clear()
    consumer.flush()
    assert intercepted.calls == [("get", MANIFEST)]


def test_a_second_flush_reads_and_writes_nothing(store: ObjectStore) -> None:
    queue_up(store, 5)
    intercepted = InterceptedStore(store)
    consumer = consume(intercepted)
    consumer.next_descriptors(4)
    consumer.ack(0)
    consumer.flush()
    intercepted.calls.clear()
    consumer.flush()
    assert intercepted.calls == [("get", MANIFEST)]


def test_a_flush_of_an_emptied_queue_writes_nothing(store: ObjectStore) -> None:
    queue_up(store, 2)
    intercepted = InterceptedStore(store)
    consumer = consume(intercepted)
    consumer.next_descriptors(2)
    consumer.ack_through(1)
    intercepted.calls.clear()
    consumer.flush()
    assert intercepted.calls == [("get", MANIFEST)]


def test_a_flush_moves_no_cursor(store: ObjectStore) -> None:
    queue_up(store, 5)
    consumer = consume(store)
    consumer.next_descriptors(4)
    consumer.ack(0)
    consumer.flush()
    assert cursors(consumer) == Cursors(0, None, 3)


def test_a_flush_after_last_acked_sequence_dequeues_nothing_more(store: ObjectStore) -> None:
    queue_up(store, 5)
    consumer = consume(store, 1)
    consumer.flush()
    assert kept(store) == [2, 3, 4]


@pytest.mark.parametrize("acks", [0, 1])
def test_a_flush_notices_a_fence_whether_there_is_something_to_write_or_not(store: ObjectStore, acks: int) -> None:
    queue_up(store, 5)
    consumer = consume(store)
    consumer.next_descriptors(4)
    for sequence in range(acks):
        consumer.ack(sequence)
    consume(store)
    with pytest.raises(Fenced):
        consumer.flush()


def test_a_flush_under_a_fence_dequeues_nothing(store: ObjectStore) -> None:
    queue_up(store, 5)
    consumer = consume(store)
    consumer.next_descriptors(4)
    consumer.ack(0)
    consume(store)
    with pytest.raises(Fenced):
        consumer.flush()
    assert kept(store) == [0, 1, 2, 3, 4]
    assert cursors(consumer) == Cursors(0, None, 3)


@pytest.mark.parametrize("operation", ["get", "put_if_match"])
def test_a_flush_that_failed_can_be_tried_again(store: ObjectStore, operation: str) -> None:
    queue_up(store, 5)
    intercepted = InterceptedStore(store)
    consumer = consume(intercepted)
    consumer.next_descriptors(4)
    consumer.ack(0)
    intercepted.fail(operation, StorageError("the store is down"), path=MANIFEST)
    with pytest.raises(StorageError):
        consumer.flush()
    assert kept(store) == [0, 1, 2, 3, 4]
    consumer.flush()
    assert kept(store) == [1, 2, 3, 4]
