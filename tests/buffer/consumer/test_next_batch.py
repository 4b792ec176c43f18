"""`next_batch`: the next entry after the cursor, fetched and decoded; the cursor moves only after that."""

from __future__ import annotations

import pytest

from penstock.buffer import Consumer, ConsumerConfig, Metadata, ProducerConfig
from penstock.errors import CorruptData, StorageError
from penstock.storage import ObjectStore
from tests.buffer.consumer.intercepted_store import InterceptedStore
from tests.support.filled_buffers import MANIFEST, Cursors, consume, cursors, fill, kept, no_gc, read

INTERRUPTIONS = [StorageError("the store is down"), OSError("a store of a user's"), KeyboardInterrupt()]
BY_NAME = [type(error).__name__ for error in INTERRUPTIONS]


def test_batches_come_in_the_order_of_the_queue(store: ObjectStore) -> None:
    fill(store, [b"a", b"b"], [b"c"])
    consumer = consume(store)
    assert cursors(consumer) == Cursors(None, None, None)
    assert [(batch.sequence, batch.entries) for batch in (read(consumer), read(consumer))] == [
        (0, [b"a", b"b"]),
        (1, [b"c"]),
    ]
    assert cursors(consumer) == Cursors(None, 1, 1)
    assert kept(store) == [0, 1]  # not acked yet


def test_a_batch_has_its_location_and_its_metadata(store: ObjectStore) -> None:
    written = fill(store, [b"a", b"b"], metadata=b"attached", clock=lambda: 1_700_000_000.5)
    batch = read(consume(store))
    assert batch.location == written[0].location
    assert batch.metadata == (Metadata(0, 1_700_000_000_500, b"attached"),)
    assert batch.arrow.column("value").to_pylist() == [b"a", b"b"]
    assert batch.arrow.num_rows == 2


@pytest.mark.parametrize("written_as", ["arrow", "opendata"])
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_batch_of_any_format_is_decoded(memory: ObjectStore, written_as: str, compression: str) -> None:
    fill(memory, [b"a", b"b"], config=ProducerConfig(format=written_as, compression=compression, flush_size_bytes=1))
    assert read(consume(memory)).entries == [b"a", b"b"]


def test_the_entries_of_a_batch_are_decoded_once(memory: ObjectStore) -> None:
    fill(memory, [b"a"])
    batch = read(consume(memory))
    assert batch.entries is batch.entries


def test_there_is_no_batch_where_nothing_was_ever_produced(store: ObjectStore) -> None:
    assert consume(store).next_batch() is None


def test_after_the_last_batch_there_is_none_and_no_cursor_moves(store: ObjectStore) -> None:
    fill(store, [b"a"])
    consumer = consume(store)
    read(consumer)
    assert consumer.next_batch() is None
    assert cursors(consumer) == Cursors(None, 0, 0)


def test_a_batch_that_comes_after_the_last_one_is_found(store: ObjectStore) -> None:
    consumer = consume(store)
    assert consumer.next_batch() is None
    fill(store, [b"late"])
    assert read(consumer).entries == [b"late"]


def test_a_new_consumer_starts_again_at_the_ack_frontier(store: ObjectStore) -> None:
    fill(store, [b"a"], [b"b"], [b"c"])
    consumer = consume(store)
    for _ in range(3):
        read(consumer)
    consumer.ack_through(0)
    assert read(consume(store)).sequence == 1


@pytest.mark.parametrize("error", INTERRUPTIONS, ids=BY_NAME)
def test_a_fetch_that_failed_moves_no_cursor_and_the_same_entry_is_read_again(
    store: ObjectStore, error: BaseException
) -> None:
    _, second = fill(store, [b"a"], [b"b"])
    intercepted = InterceptedStore(store)
    consumer = consume(intercepted)
    read(consumer)
    intercepted.fail("get", error, path=second.location)
    with pytest.raises(type(error)):
        consumer.next_batch()
    assert cursors(consumer) == Cursors(None, 0, 0)
    assert read(consumer).entries == [b"b"]


@pytest.mark.parametrize("error", INTERRUPTIONS, ids=BY_NAME)
def test_after_a_read_of_the_manifest_that_failed_the_same_entry_is_read_again(
    memory: ObjectStore, error: BaseException
) -> None:
    fill(memory, [b"a"], [b"b"])
    intercepted = InterceptedStore(memory)
    consumer = consume(intercepted)
    read(consumer)
    intercepted.fail("get", error, path=MANIFEST)
    with pytest.raises(type(error)):
        consumer.next_batch()
    assert read(consumer).sequence == 1


def test_bytes_that_are_not_a_batch_are_corrupt_data_each_time_and_move_no_cursor(store: ObjectStore) -> None:
    (written,) = fill(store, [b"a"])
    store.put(written.location, b"these bytes are not a batch")
    consumer = consume(store)
    for _ in range(2):
        with pytest.raises(CorruptData, match=f"sequence 0 .*{written.location}.*unsupported"):
            consumer.next_batch()
        assert cursors(consumer) == Cursors(None, None, None)


def test_a_corrupt_batch_that_was_repaired_is_read(store: ObjectStore) -> None:
    first, _ = fill(store, [b"a"], [b"b"])
    whole = store.get(first.location).data
    store.put(first.location, whole[:-1])
    consumer = consume(store)
    with pytest.raises(CorruptData):
        consumer.next_batch()
    store.put(first.location, whole)
    assert read(consumer).entries == [b"a"]


def test_a_batch_that_unpacks_beyond_max_batch_bytes_is_corrupt(memory: ObjectStore) -> None:
    fill(memory, [bytes(100_000)], config=ProducerConfig(compression="zstd", flush_size_bytes=1))
    consumer = Consumer(memory, ConsumerConfig(gc=False, max_batch_bytes=50_000))
    with pytest.raises(CorruptData, match="50000"):
        consumer.next_batch()


def test_an_interrupt_while_the_lag_is_measured_does_not_lose_the_entry(memory: ObjectStore) -> None:
    fill(memory, [b"a"], [b"b"])

    is_interrupted = False

    def clock() -> float:
        if is_interrupted:
            raise KeyboardInterrupt
        return 1.0

    consumer = Consumer(memory, no_gc(), clock=clock)
    is_interrupted = True
    with pytest.raises(KeyboardInterrupt):
        consumer.next_batch()
    assert cursors(consumer) == Cursors(None, None, None)


def test_sequences_go_on_after_the_queue_was_emptied(store: ObjectStore) -> None:
    fill(store, [b"a"], [b"b"])
    consumer = consume(store)
    for batch in consumer:
        batch.ack()
    assert kept(store) == []
    fill(store, [b"c"])
    assert read(consumer).sequence == 2


def test_sequences_go_on_for_a_consumer_that_never_saw_the_entries_before(store: ObjectStore) -> None:
    fill(store, [b"a"], [b"b"])
    for batch in consume(store):
        batch.ack()
    fill(store, [b"c"])
    batch = read(consume(store))
    assert (batch.sequence, batch.entries) == (2, [b"c"])
