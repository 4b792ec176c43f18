"""A data object that is gone: the manifest is read again, and says whether that is a fence, an ack or a loss."""

from __future__ import annotations

import pytest

from penstock.errors import Fenced, NotFound, StorageError
from penstock.storage import ObjectStore
from tests.buffer.consumer.edited_manifests import dequeued, with_epoch, with_locations
from tests.buffer.consumer.intercepted_store import InterceptedStore
from tests.support.filled_buffers import MANIFEST, Cursors, consume, cursors, fill, kept, read, sequences

# Still referenced


def test_an_object_that_is_gone_is_reported_each_time_and_moves_no_cursor(store: ObjectStore) -> None:
    _, second, _ = fill(store, [b"a"], [b"b"], [b"c"])
    consumer = consume(store)
    read(consumer)
    store.delete([second.location])
    for _ in range(3):
        with pytest.raises(NotFound, match=f"sequence 1 .*{second.location}"):
            consumer.next_batch()
        assert cursors(consumer) == Cursors(None, 0, 0)


def test_an_object_that_is_back_is_read(store: ObjectStore) -> None:
    (written,) = fill(store, [b"a"])
    data = store.get(written.location).data
    store.delete([written.location])
    consumer = consume(store)
    with pytest.raises(NotFound):
        consumer.next_batch()
    store.put(written.location, data)
    assert read(consumer).entries == [b"a"]


def test_an_object_that_is_gone_can_be_skipped(store: ObjectStore) -> None:
    _, second, _ = fill(store, [b"a"], [b"b"], [b"c"])
    store.delete([second.location])
    consumer = consume(store)
    read(consumer).ack()
    with pytest.raises(NotFound):
        consumer.next_batch()
    assert sequences(consumer.next_descriptors(1)) == [1]
    consumer.ack_through(1)
    assert kept(store) == [2]
    assert read(consumer).entries == [b"c"]


def test_an_object_that_is_gone_is_reported_to_a_fetch_of_its_descriptor(store: ObjectStore) -> None:
    (written,) = fill(store, [b"a"])
    consumer = consume(store)
    (descriptor,) = consumer.next_descriptors(1)
    store.delete([written.location])
    for _ in range(2):
        with pytest.raises(NotFound, match=f"sequence 0 .*{written.location}.* is gone$"):
            consumer.fetch_descriptor(descriptor)
    assert cursors(consumer) == Cursors(None, None, 0)


def test_the_manifest_is_read_again_when_an_object_is_gone(store: ObjectStore) -> None:
    (written,) = fill(store, [b"a"])
    store.delete([written.location])
    intercepted = InterceptedStore(store)
    consumer = consume(intercepted)
    intercepted.calls.clear()
    with pytest.raises(NotFound):
        consumer.next_batch()
    assert intercepted.calls == [("get", MANIFEST), ("get", written.location), ("get", MANIFEST)]


def test_an_object_that_is_gone_is_not_reported_while_the_manifest_cannot_be_read(memory: ObjectStore) -> None:
    (written,) = fill(memory, [b"a"])
    memory.delete([written.location])
    intercepted = InterceptedStore(memory)
    consumer = consume(intercepted)
    # Whether it is lost or acked is not known then.
    intercepted.before("get", lambda: intercepted.fail("get", StorageError("the store is down")), path=written.location)
    with pytest.raises(StorageError, match="the store is down"):
        consumer.next_batch()
    with pytest.raises(NotFound, match="sequence 0 "):
        consumer.next_batch()


# Gone because of a newer consumer


def test_an_object_that_a_newer_consumer_had_collected_is_a_fence(store: ObjectStore) -> None:
    (written,) = fill(store, [b"a"])
    intercepted = InterceptedStore(store)
    consumer = consume(intercepted)

    def take_over() -> None:
        read(consume(store)).ack()
        store.delete([written.location])

    intercepted.before("get", take_over, path=written.location)
    with pytest.raises(Fenced):
        consumer.next_batch()
    assert cursors(consumer) == Cursors(None, None, None)


@pytest.mark.parametrize("is_acked", [True, False])
def test_an_object_that_is_gone_is_a_fence_where_a_newer_consumer_has_taken_over(
    store: ObjectStore, is_acked: bool
) -> None:
    (written,) = fill(store, [b"a"])
    consumer = consume(store)
    (descriptor,) = consumer.next_descriptors(1)
    newer = consume(store)
    if is_acked:
        read(newer).ack()
    store.delete([written.location])
    with pytest.raises(Fenced):
        consumer.fetch_descriptor(descriptor)


# No longer referenced


@pytest.mark.parametrize("is_last", [False, True])
def test_an_object_that_is_not_referenced_any_more_is_skipped(store: ObjectStore, is_last: bool) -> None:
    first, *_ = fill(store, *([[b"a"]] if is_last else [[b"a"], [b"b"]]))
    intercepted = InterceptedStore(store)
    consumer = consume(intercepted)

    def dequeue_and_collect() -> None:
        store.put(MANIFEST, dequeued(store.get(MANIFEST).data, 0))
        store.delete([first.location])

    intercepted.before("get", dequeue_and_collect, path=first.location)
    if is_last:
        assert consumer.next_batch() is None
        assert cursors(consumer) == Cursors(None, None, None)
    else:
        assert read(consumer).entries == [b"b"]
        assert cursors(consumer) == Cursors(None, 1, 1)


def test_a_sequence_that_refers_to_another_object_by_now_is_read_there(memory: ObjectStore) -> None:
    (written,) = fill(memory, [b"a"])
    intercepted = InterceptedStore(memory)
    consumer = consume(intercepted)

    def move() -> None:
        memory.put("ingest/elsewhere", memory.get(written.location).data)
        memory.put(MANIFEST, with_epoch(with_locations("ingest/elsewhere", like=memory.get(MANIFEST).data), 1))
        memory.delete([written.location])

    intercepted.before("get", move, path=written.location)
    assert read(consumer).location == "ingest/elsewhere"


def test_the_error_for_a_descriptor_that_was_acked_and_collected_says_acked(store: ObjectStore) -> None:
    (written,) = fill(store, [b"a"])
    consumer = consume(store)
    (descriptor,) = consumer.next_descriptors(1)
    consumer.ack_through(0)
    store.delete([written.location])
    with pytest.raises(NotFound, match=f"sequence 0 .*{written.location}.*acked"):
        consumer.fetch_descriptor(descriptor)


def test_a_descriptor_that_was_acked_is_fetched_while_its_object_is_there(store: ObjectStore) -> None:
    fill(store, [b"a"])
    consumer = consume(store)
    (descriptor,) = consumer.next_descriptors(1)
    consumer.ack_through(0)
    assert consumer.fetch_descriptor(descriptor).entries == [b"a"]
