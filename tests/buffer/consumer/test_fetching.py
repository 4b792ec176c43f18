"""From a descriptor to its batch: by a `FetchHandle` anywhere, or by `fetch_descriptor` of the consumer."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.buffer import BatchDescriptor, ConsumedBatch, Consumer, ConsumerConfig, FetchHandle, ProducerConfig
from penstock.errors import CorruptData, Fenced, InvalidInput, NotFound, OutOfOrderAck, StorageError
from penstock.storage import ObjectStore
from tests.buffer.consumer.intercepted_store import InterceptedStore
from tests.support.filled_buffers import Cursors, consume, cursors, fill, kept, metric, read
from tests.support.processes import Parent, Start


def fetch_elsewhere(parent: Parent, handle: FetchHandle, descriptors: list[BatchDescriptor]) -> list[ConsumedBatch]:
    return [handle.fetch(descriptor) for descriptor in descriptors]


# The handle


def test_a_handle_fetches_the_batch_of_a_descriptor(store: ObjectStore) -> None:
    fill(store, [b"a", b"b"], metadata=b"attached")
    consumer = consume(store)
    (descriptor,) = consumer.next_descriptors(1)
    batch = consumer.fetch_handle().fetch(descriptor)
    assert batch.entries == [b"a", b"b"]
    assert (batch.sequence, batch.location, batch.metadata) == (0, descriptor.location, descriptor.metadata)


@pytest.mark.parametrize("by_handle", [True, False], ids=["handle", "consumer"])
def test_fetching_reads_the_data_object_only_and_moves_at_most_the_fetched_cursor(
    store: ObjectStore, by_handle: bool
) -> None:
    fill(store, [b"a"])
    intercepted = InterceptedStore(store)
    consumer = consume(intercepted)
    (descriptor,) = consumer.next_descriptors(1)
    intercepted.calls.clear()
    if by_handle:
        consumer.fetch_handle().fetch(descriptor)
    else:
        consumer.fetch_descriptor(descriptor)
    assert intercepted.calls == [("get", descriptor.location)]
    assert cursors(consumer) == Cursors(None, None if by_handle else 0, 0)


def test_a_handle_is_not_fenced(store: ObjectStore) -> None:
    fill(store, [b"a"])
    consumer = consume(store)
    (descriptor,) = consumer.next_descriptors(1)
    consume(store)
    with pytest.raises(Fenced):
        consumer.flush()
    assert consumer.fetch_handle().fetch(descriptor).entries == [b"a"]


def test_a_handle_reports_a_missing_object_without_reading_the_manifest(store: ObjectStore) -> None:
    (written,) = fill(store, [b"a"])
    consumer = consume(store)
    (descriptor,) = consumer.next_descriptors(1)
    consume(store)  # with this one, a read of the manifest would raise `Fenced`
    store.delete([written.location])
    with pytest.raises(NotFound, match=f"sequence 0 .*{written.location}"):
        consumer.fetch_handle().fetch(descriptor)


def test_a_handle_outlives_its_consumer(store: ObjectStore) -> None:
    fill(store, [b"a"])
    consumer = consume(store)
    (descriptor,) = consumer.next_descriptors(1)
    handle = consumer.fetch_handle()
    consumer.close()
    assert handle.fetch(descriptor).entries == [b"a"]


def test_a_batch_of_a_handle_cannot_be_acked(store: ObjectStore) -> None:
    fill(store, [b"a"], [b"b"])
    consumer = consume(store)
    batch = consumer.fetch_handle().fetch(consumer.next_descriptors(2)[1])
    with pytest.raises(InvalidInput, match="the batch 1 was fetched without a consumer"):
        batch.ack()
    assert consumer.last_acked_sequence is None


def test_a_handle_fetches_in_another_process(store: ObjectStore, start: Start) -> None:
    fill(store, [b"a"], [b"b", b"c"])
    consumer = consume(store)
    descriptors = consumer.next_descriptors(2)
    batches = start(fetch_elsewhere, consumer.fetch_handle(), descriptors).answer()
    assert [(batch.sequence, batch.entries) for batch in batches] == [(0, [b"a"]), (1, [b"b", b"c"])]
    with pytest.raises(InvalidInput, match="without a consumer"):
        batches[0].ack()


def test_a_batch_of_a_consumer_travels_without_its_consumer(memory: ObjectStore) -> None:
    fill(memory, [b"a"], metadata=b"attached")
    batch = read(consume(memory))
    assert batch.entries == [b"a"]
    twin = pickle.loads(pickle.dumps(batch))
    assert (twin, twin.entries) == (batch, [b"a"])
    with pytest.raises(InvalidInput, match="without a consumer"):
        twin.ack()


def test_a_pickled_handle_keeps_its_limit(memory: ObjectStore) -> None:
    fill(memory, [bytes(100_000)], config=ProducerConfig(compression="zstd", flush_size_bytes=1))
    consumer = Consumer(memory, ConsumerConfig(gc=False, max_batch_bytes=50_000))
    (descriptor,) = consumer.next_descriptors(1)
    twin = pickle.loads(pickle.dumps(consumer.fetch_handle()))
    with pytest.raises(CorruptData, match="50000"):
        twin.fetch(descriptor)


def test_a_pickled_handle_counts_for_the_same_buffer(memory: ObjectStore) -> None:
    fill(memory, [b"a"], config=ProducerConfig(data_path_prefix="p", manifest_path="p/m", flush_size_bytes=1))
    consumer = Consumer(memory, ConsumerConfig(gc=False, data_path_prefix="p", manifest_path="p/m"))
    (descriptor,) = consumer.next_descriptors(1)
    pickle.loads(pickle.dumps(consumer.fetch_handle())).fetch(descriptor)
    assert metric("batches_collected_total", f"{memory.url}/p/m") == 1


def test_a_handle_serves_many_threads(store: ObjectStore) -> None:
    fill(store, *([b"%d" % number] for number in range(12)))
    consumer = consume(store)
    descriptors = consumer.next_descriptors(12)
    with ThreadPoolExecutor(6) as threads:
        batches = list(threads.map(consumer.fetch_handle().fetch, descriptors * 3))
    assert [batch.entries for batch in batches] == [[b"%d" % number] for number in range(12)] * 3


# With the consumer


def test_a_consumer_fetches_the_batch_of_a_descriptor(store: ObjectStore) -> None:
    fill(store, [b"a"], [b"b"])
    consumer = consume(store)
    assert [consumer.fetch_descriptor(one).entries for one in consumer.next_descriptors(2)] == [[b"a"], [b"b"]]


def test_the_fetched_cursor_is_the_highest_that_was_fetched(store: ObjectStore) -> None:
    fill(store, [b"a"], [b"b"], [b"c"])
    consumer = consume(store)
    descriptors = consumer.next_descriptors(3)
    consumer.fetch_descriptor(descriptors[2])
    consumer.fetch_descriptor(descriptors[0])
    assert consumer.last_fetched_sequence == 2


@pytest.mark.parametrize("error", [StorageError("the store is down"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_fetching_a_descriptor_that_fails_moves_no_cursor(store: ObjectStore, error: BaseException) -> None:
    fill(store, [b"a"])
    intercepted = InterceptedStore(store)
    consumer = consume(intercepted)
    (descriptor,) = consumer.next_descriptors(1)
    intercepted.fail("get", error, path=descriptor.location)
    with pytest.raises(type(error)):
        consumer.fetch_descriptor(descriptor)
    assert cursors(consumer) == Cursors(None, None, 0)


def test_a_batch_of_a_descriptor_acks_through_itself(store: ObjectStore) -> None:
    fill(store, [b"a"], [b"b"], [b"c"])
    consumer = consume(store)
    consumer.fetch_descriptor(consumer.next_descriptors(3)[1]).ack()
    assert consumer.last_acked_sequence == 1
    assert kept(store) == [2]


def test_a_descriptor_that_this_consumer_did_not_hand_out_is_fetched_but_not_acked(memory: ObjectStore) -> None:
    fill(memory, [b"a"])
    (descriptor,) = consume(memory).next_descriptors(1)
    batch = consume(memory).fetch_descriptor(descriptor)
    with pytest.raises(OutOfOrderAck):
        batch.ack()
