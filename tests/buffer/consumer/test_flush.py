"""`flush`: dequeues through the last ack, and always reads the manifest."""

from __future__ import annotations

import pytest

from penstock.errors import Fenced, StorageError
from penstock.storage import ObjectStore
from tests.buffer.consumer.intercepted_store import InterceptedStore
from tests.support.filled_buffers import MANIFEST, Cursors, consume, cursors, kept, queue_up


def test_a_flush_dequeues_through_the_last_ack_by_one_read_and_one_write(store: ObjectStore) -> None:
    queue_up(store, 5)
    intercepted = InterceptedStore(store)
    consumer = consume(intercepted)
    consumer.next_descriptors(4)
    consumer.ack(0)
    consumer.ack(1)
    intercepted.calls.clear()
    consumer.flush()
    assert intercepted.calls == [("get", MANIFEST), ("put_if_match", MANIFEST)]
    assert kept(store) == [2, 3, 4]
    assert cursors(consumer) == Cursors(1, None, 3)
    intercepted.calls.clear()
    consumer.flush()  # nothing was acked since
    assert intercepted.calls == [("get", MANIFEST)]


@pytest.mark.parametrize("acked_through", [None, 4])
def test_a_flush_without_new_acks_reads_and_writes_nothing(store: ObjectStore, acked_through: int | None) -> None:
    queue_up(store, 5)
    intercepted = InterceptedStore(store)
    consumer = consume(intercepted)
    consumer.next_descriptors(5)
    if acked_through is not None:
        consumer.ack_through(acked_through)
    intercepted.calls.clear()
    consumer.flush()
    assert intercepted.calls == [("get", MANIFEST)]


def test_a_flush_after_last_acked_sequence_dequeues_nothing_more(store: ObjectStore) -> None:
    queue_up(store, 5)
    consumer = consume(store, 1)
    consumer.flush()
    assert kept(store) == [2, 3, 4]


@pytest.mark.parametrize("acks", [0, 1])
def test_a_flush_under_a_fence_raises_and_dequeues_nothing(store: ObjectStore, acks: int) -> None:
    queue_up(store, 5)
    consumer = consume(store)
    consumer.next_descriptors(4)
    for sequence in range(acks):
        consumer.ack(sequence)
    consume(store)
    with pytest.raises(Fenced):
        consumer.flush()
    assert kept(store) == [0, 1, 2, 3, 4]
    assert cursors(consumer) == Cursors(0 if acks else None, None, 3)


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
