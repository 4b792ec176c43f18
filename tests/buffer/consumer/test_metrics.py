"""The consumer's metrics, by the label `buffer`: what each counts, and that buffers do not share them."""

from __future__ import annotations

import pytest

from penstock.buffer import Consumer, ConsumerConfig, FetchHandle, Producer, ProducerConfig, peek
from penstock.errors import NotFound, OutOfOrderAck, StorageError
from penstock.storage import ObjectStore, open_store
from penstock.testing import Fault, FaultyStore
from tests.buffer.consumer.edited_manifests import appended
from tests.buffer.consumer.intercepted_store import InterceptedStore
from tests.support.filled_buffers import MANIFEST, consume, fill, metric, no_gc, queue_up, read, sequences

NOW = 1_700_000_000.0

# Lag


def also_elsewhere() -> ConsumerConfig:
    return ConsumerConfig(gc=False, data_path_prefix="p", manifest_path="p/m")


def elsewhere() -> ProducerConfig:
    return ProducerConfig(data_path_prefix="p", manifest_path="p/m", flush_size_bytes=1)


def test_the_lag_is_from_the_ingestion_until_now(store: ObjectStore) -> None:
    fill(store, [b"a"], clock=lambda: NOW)
    read(consume(store, clock=lambda: NOW + 12.5))
    assert metric("consumer_lag_seconds", store.url) == 12.5


def test_the_lag_is_never_below_zero(memory: ObjectStore) -> None:
    fill(memory, [b"a"], clock=lambda: NOW)
    read(consume(memory, clock=lambda: NOW - 100.0))
    assert metric("consumer_lag_seconds", memory.url) == 0.0


def test_the_lag_is_that_of_the_last_item_of_a_batch(memory: ObjectStore) -> None:
    times = iter([NOW, NOW + 5.0, NOW + 9.0, *[NOW + 9.0] * 10])
    together = ProducerConfig(flush_interval=60.0)
    with Producer(memory, together, clock=lambda: next(times)) as producer:
        for payload in (b"a", b"b", b"c"):
            producer.produce(payload)
    batch = read(consume(memory, clock=lambda: NOW + 10.0))
    assert len(batch.metadata) == 3
    assert metric("consumer_lag_seconds", memory.url) == 1.0


def test_the_lag_is_that_of_the_batch_fetched_last(memory: ObjectStore) -> None:
    fill(memory, [b"a"], clock=lambda: NOW)
    fill(memory, [b"b"], clock=lambda: NOW + 30.0)
    consumer = consume(memory, clock=lambda: NOW + 40.0)
    read(consumer)
    assert metric("consumer_lag_seconds", memory.url) == 40.0
    read(consumer)
    assert metric("consumer_lag_seconds", memory.url) == 10.0


def test_fetching_a_descriptor_sets_the_lag(store: ObjectStore) -> None:
    fill(store, [b"a"], clock=lambda: NOW)
    consumer = consume(store, clock=lambda: NOW + 3.0)
    (descriptor,) = consumer.next_descriptors(1)
    assert metric("consumer_lag_seconds", store.url) == 0.0
    consumer.fetch_descriptor(descriptor)
    assert metric("consumer_lag_seconds", store.url) == 3.0


def test_a_handle_does_not_set_the_lag(memory: ObjectStore) -> None:
    fill(memory, [b"a"], clock=lambda: NOW)
    consumer = consume(memory, clock=lambda: NOW + 3.0)
    consumer.fetch_handle().fetch(consumer.next_descriptors(1)[0])
    assert metric("consumer_lag_seconds", memory.url) == 0.0


def test_a_batch_without_an_ingestion_time_leaves_the_lag(memory: ObjectStore) -> None:
    (written,) = fill(memory, [b"a"], clock=lambda: NOW)
    memory.put(MANIFEST, appended(memory.get(MANIFEST).data, written.location))
    consumer = consume(memory, clock=lambda: NOW + 3.0)
    assert sequences(consumer) == [0, 1]
    assert metric("consumer_lag_seconds", memory.url) == 3.0


# Queue length


def test_the_queue_length_is_that_of_the_last_read_or_write(store: ObjectStore) -> None:
    queue_up(store, 3)
    consumer = consume(store)
    queue_up(store, 2)
    consumer.next_descriptors(2)
    assert metric("queue_length", store.url) == 5
    consumer.ack_through(1)
    assert metric("queue_length", store.url) == 3


def test_the_queue_length_of_a_new_consumer_is_without_what_was_acked(memory: ObjectStore) -> None:
    queue_up(memory, 5)
    consume(memory, 1)
    assert metric("queue_length", memory.url) == 3


# Acks


def test_acks_count_entries_acked_one_by_one_or_through(store: ObjectStore) -> None:
    queue_up(store, 9)
    consumer = consume(store)
    consumer.next_descriptors(9)
    consumer.ack(0)
    consumer.ack(1)
    assert metric("acks_total", store.url) == 2
    consumer.ack_through(4)
    consumer.ack_through(5)
    assert metric("acks_total", store.url) == 6


def test_acks_through_behind_a_start_count_from_there(memory: ObjectStore) -> None:
    queue_up(memory, 9)
    consumer = consume(memory, 3)
    consumer.next_descriptors(3)
    consumer.ack_through(5)
    assert metric("acks_total", memory.url) == 2


def test_acks_count_once_though_their_write_failed(memory: ObjectStore) -> None:
    queue_up(memory, 101)
    intercepted = InterceptedStore(memory)
    consumer = consume(intercepted)
    consumer.next_descriptors(101)
    for sequence in range(99):
        consumer.ack(sequence)
    intercepted.fail("put_if_match", StorageError("the store refuses to write"))
    with pytest.raises(StorageError):
        consumer.ack(99)
    consumer.flush()
    assert metric("acks_total", memory.url) == 100


def test_acks_out_of_order_count_nothing(memory: ObjectStore) -> None:
    queue_up(memory, 3)
    consumer = consume(memory)
    consumer.next_descriptors(2)
    with pytest.raises(OutOfOrderAck):
        consumer.ack(1)
    with pytest.raises(OutOfOrderAck):
        consumer.ack_through(2)
    assert metric("acks_total", memory.url) == 0


# What was handed out, and what was fetched


def test_descriptors_count_as_they_are_handed_out(store: ObjectStore) -> None:
    queue_up(store, 5)
    consumer = consume(store)
    consumer.next_descriptors(3)
    consumer.next_descriptors(3)
    consumer.next_descriptors(3)
    assert metric("descriptors_handed_out_total", store.url) == 5


def test_batches_count_no_descriptors(memory: ObjectStore) -> None:
    fill(memory, [b"a"])
    read(consume(memory))
    assert metric("descriptors_handed_out_total", memory.url) == 0


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_what_was_fetched_counts_batches_and_entries_and_the_bytes_of_their_objects(
    memory: ObjectStore, compression: str
) -> None:
    config = ProducerConfig(compression=compression, flush_size_bytes=1)
    written = fill(memory, [bytes(5000), b"b"], [b"c"], config=config)
    assert len(list(consume(memory))) == 2
    sizes = [memory.head(one.location).size for one in written]
    assert metric("batches_collected_total", memory.url) == 2
    assert metric("entries_collected_total", memory.url) == 3
    assert metric("bytes_collected_total", memory.url) == sum(sizes)


def test_every_way_to_fetch_counts_alike(store: ObjectStore) -> None:
    fill(store, [b"a"], [b"b"], [b"c"])
    consumer = consume(store)
    read(consumer)
    second, third = consumer.next_descriptors(2)
    consumer.fetch_descriptor(second)
    consumer.fetch_handle().fetch(third)
    assert metric("batches_collected_total", store.url) == 3
    assert metric("fetch_duration_seconds_count", store.url) == 3


def test_what_could_not_be_fetched_counts_nothing(memory: ObjectStore) -> None:
    (written,) = fill(memory, [b"a"])
    memory.delete([written.location])
    with pytest.raises(NotFound):
        consume(memory).next_batch()
    for name in ("batches_collected_total", "entries_collected_total", "bytes_collected_total"):
        assert metric(name, memory.url) == 0


# Writes of the manifest


def test_writes_of_the_manifest_count_for_the_consumer(store: ObjectStore) -> None:
    queue_up(store, 3)
    consumer = consume(store)
    consumer.next_descriptors(2)
    consumer.ack_through(1)
    consumer.flush()  # which has nothing to write
    assert metric("manifest_writes_total", store.url, role="consumer") == 2
    assert metric("manifest_conflicts_total", store.url, role="consumer") == 0


def test_lost_writes_of_the_manifest_count_as_conflicts(store: ObjectStore) -> None:
    queue_up(store, 3)
    intercepted = InterceptedStore(store)
    consumer = consume(intercepted)
    consumer.next_descriptors(2)
    intercepted.before("put_if_match", lambda: queue_up(store, 1), path=MANIFEST)
    consumer.ack_through(1)
    assert metric("manifest_writes_total", store.url, role="consumer") == 3
    assert metric("manifest_conflicts_total", store.url, role="consumer") == 1


def test_a_write_whose_reply_is_lost_counts_as_a_write_and_as_no_conflict(memory: ObjectStore) -> None:
    queue_up(memory, 3)
    faulty = FaultyStore(memory, rates={})
    faulty.inject(Fault.ERROR_BEFORE, operation="put_if_match")
    consume(faulty)
    assert metric("manifest_writes_total", memory.url, role="consumer") == 2
    assert metric("manifest_conflicts_total", memory.url, role="consumer") == 0


# Two buffers


def test_two_buffers_do_not_share_their_metrics(memory: ObjectStore, fresh_name: str) -> None:
    other = open_store(f"memory://{fresh_name}-other")
    fill(memory, [b"a"], [b"b"], clock=lambda: NOW)
    fill(other, [b"c"], clock=lambda: NOW)
    read(consume(memory, clock=lambda: NOW + 1.0)).ack()
    read(consume(other, clock=lambda: NOW + 7.0)).ack()
    names = ("consumer_lag_seconds", "queue_length", "acks_total", "batches_collected_total")
    assert [metric(name, memory.url) for name in names] == [1.0, 1, 1, 1]
    assert [metric(name, other.url) for name in names] == [7.0, 0, 1, 1]


def test_two_buffers_of_one_store_do_not_share_their_metrics(memory: ObjectStore) -> None:
    fill(memory, [b"a"], [b"b"], clock=lambda: NOW)
    fill(memory, [b"c"], config=elsewhere(), clock=lambda: NOW)
    read(Consumer(memory, no_gc(), clock=lambda: NOW + 1.0)).ack()
    read(Consumer(memory, also_elsewhere(), clock=lambda: NOW + 7.0)).ack()
    names = ("consumer_lag_seconds", "queue_length", "acks_total", "batches_collected_total")
    assert [metric(name, memory.url) for name in names] == [1.0, 1, 1, 1]
    assert [metric(name, f"{memory.url}/p/m") for name in names] == [7.0, 0, 1, 1]


def test_peeking_at_one_buffer_of_a_store_does_not_count_for_another(memory: ObjectStore) -> None:
    fill(memory, [b"a"])
    fill(memory, [b"c"], config=elsewhere())
    consume(memory)
    peek(memory, manifest_path="p/m")
    assert metric("batches_collected_total", memory.url) == 0


def test_a_handle_of_its_own_counts_for_the_buffer_of_its_store(memory: ObjectStore) -> None:
    fill(memory, [b"a"])
    (descriptor,) = consume(memory).next_descriptors(1)
    FetchHandle(memory.url).fetch(descriptor)
    assert metric("batches_collected_total", memory.url) == 1
