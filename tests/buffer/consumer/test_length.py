"""`len`, `is_empty` and `conflict_rate`: as of the last read or write; and what is not decoded again."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.buffer import Consumer, ConsumerConfig, ProducerConfig
from penstock.errors import CorruptData
from penstock.storage import Object, ObjectStore
from penstock.testing import Fault, FaultyStore
from tests.buffer.consumer.intercepted_store import InterceptedStore
from tests.support.filled_buffers import MANIFEST, consume, fill, no_gc, queue_up, read, sequences
from tests.support.minimal_stores import ThinStore

# As of the last read or write


def test_a_new_consumer_knows_how_long_the_queue_is(store: ObjectStore) -> None:
    queue_up(store, 3)
    assert len(consume(store)) == 3


def test_a_new_consumer_of_an_empty_queue_knows_that_it_is(store: ObjectStore) -> None:
    consumer = consume(store)
    assert (len(consumer), consumer.is_empty) == (0, True)


def test_a_queue_with_entries_is_not_empty(store: ObjectStore) -> None:
    queue_up(store, 1)
    assert consume(store).is_empty is False


def test_a_consumer_is_true_whether_its_queue_is_empty_or_not(memory: ObjectStore) -> None:
    empty = bool(consume(memory))
    queue_up(memory, 1)
    assert (empty, bool(consume(memory))) == (True, True)


def test_the_length_is_without_what_was_acked_before(memory: ObjectStore) -> None:
    queue_up(memory, 5)
    assert len(consume(memory, 1)) == 3


def test_the_length_does_not_count_what_was_enqueued_since(store: ObjectStore) -> None:
    queue_up(store, 3)
    consumer = consume(store)
    queue_up(store, 2)
    assert len(consumer) == 3


@pytest.mark.parametrize(
    "look",
    [lambda consumer: consumer.next_descriptors(1), lambda consumer: consumer.flush()],
    ids=["next_descriptors", "flush"],
)
def test_the_length_is_that_of_the_last_read(store: ObjectStore, look: Callable[[Consumer], object]) -> None:
    queue_up(store, 3)
    consumer = consume(store)
    queue_up(store, 2)
    look(consumer)
    assert len(consumer) == 5


def test_the_length_is_that_of_the_last_read_for_a_batch(memory: ObjectStore) -> None:
    fill(memory, [b"a"])
    consumer = consume(memory)
    fill(memory, [b"b"], [b"c"])
    read(consumer)
    assert len(consumer) == 3


def test_the_length_is_that_of_the_last_write(store: ObjectStore) -> None:
    queue_up(store, 3)
    consumer = consume(store)
    consumer.next_descriptors(3)
    consumer.ack_through(1)
    assert len(consumer) == 1
    consumer.ack_through(2)
    assert consumer.is_empty


def test_the_length_does_not_know_of_acks_in_memory(memory: ObjectStore) -> None:
    queue_up(memory, 3)
    consumer = consume(memory)
    consumer.next_descriptors(3)
    consumer.ack(0)
    assert len(consumer) == 3


def test_looking_at_a_consumer_asks_nothing_of_the_store(memory: ObjectStore) -> None:
    queue_up(memory, 3)
    intercepted = InterceptedStore(memory)
    consumer = consume(intercepted)
    intercepted.calls.clear()
    assert (len(consumer), consumer.is_empty, consumer.conflict_rate, bool(consumer)) == (3, False, 0.0, True)
    assert intercepted.calls == []


def test_a_consumer_shows_where_it_reads_and_no_more(store: ObjectStore) -> None:
    assert repr(consume(store)) == f"Consumer({store.url}, epoch=1)"


# Lost compare-and-sets


def test_a_consumer_that_never_lost_has_no_conflicts(store: ObjectStore) -> None:
    assert consume(store).conflict_rate == 0.0


def test_the_conflict_rate_is_the_percentage_of_writes_that_lost(store: ObjectStore) -> None:
    queue_up(store, 3)
    intercepted = InterceptedStore(store)
    consumer = consume(intercepted)  # one write
    consumer.next_descriptors(3)
    intercepted.before("put_if_match", lambda: queue_up(store, 1), path=MANIFEST)
    consumer.ack_through(0)  # two more, of which the first loses
    consumer.ack_through(1)  # and one more
    assert consumer.conflict_rate == 25.0


def test_the_conflict_rate_counts_a_lost_claim(store: ObjectStore) -> None:
    intercepted = InterceptedStore(store)
    intercepted.before("put_if_absent", lambda: queue_up(store, 1), path=MANIFEST)
    assert consume(intercepted).conflict_rate == 50.0


def test_a_lost_reply_is_not_a_conflict(memory: ObjectStore) -> None:
    faulty = FaultyStore(memory, rates={})
    faulty.inject(Fault.ERROR_AFTER, operation="put_if_absent")
    assert consume(faulty).conflict_rate == 0.0


# A manifest of the same version is not decoded again


class CorruptsTheManifest(ThinStore):
    """From `is_corrupt` on the manifest reads as corrupt bytes, under the version that it has."""

    is_corrupt = False

    def get(self, path: str) -> Object:
        found = super().get(path)
        return replace(found, data=b"corrupt") if self.is_corrupt and path == MANIFEST else found


def test_polling_an_unchanged_queue_decodes_nothing(store: ObjectStore) -> None:
    fill(store, [b"a"], [b"b"])
    corrupting = CorruptsTheManifest(store)
    consumer = consume(corrupting)
    while consumer.next_batch() is not None:
        pass
    corrupting.is_corrupt = True
    for _ in range(5):
        assert consumer.next_batch() is None
        assert consumer.next_descriptors(1) == []
        consumer.flush()


def test_a_queue_is_decoded_once_for_all_its_entries(store: ObjectStore) -> None:
    queue_up(store, 4)
    corrupting = CorruptsTheManifest(store)
    consumer = consume(corrupting)
    corrupting.is_corrupt = True
    assert sequences(consumer.next_descriptors(1) + consumer.next_descriptors(3)) == [0, 1, 2, 3]


def test_a_queue_that_has_changed_is_decoded_again(store: ObjectStore) -> None:
    queue_up(store, 2)
    corrupting = CorruptsTheManifest(store)
    consumer = consume(corrupting)
    consumer.next_descriptors(2)
    queue_up(store, 1)
    corrupting.is_corrupt = True
    with pytest.raises(CorruptData):
        consumer.next_descriptors(1)


def test_an_object_that_is_gone_has_the_manifest_decoded_again(store: ObjectStore) -> None:
    queue_up(store, 2)
    corrupting = CorruptsTheManifest(store)
    consumer = consume(corrupting)
    descriptor = consumer.next_descriptors(2)[0]
    corrupting.is_corrupt = True
    with pytest.raises(CorruptData):
        consumer.fetch_descriptor(descriptor)


# Where


def test_a_consumer_takes_a_path_or_a_url(tmp_path: Path, fresh_name: str) -> None:
    places: list[str | os.PathLike[str]] = [tmp_path, str(tmp_path / "b"), f"memory://{fresh_name}"]
    for place in places:
        with Consumer(place, no_gc()) as consumer:
            assert len(consumer) == 0


def test_a_consumer_reads_the_manifest_of_its_config(memory: ObjectStore) -> None:
    queue_up(memory, 3)
    fill(memory, [b"a"], config=ProducerConfig(data_path_prefix="p", manifest_path="p/m", flush_size_bytes=1))
    consumer = Consumer(memory, ConsumerConfig(gc=False, data_path_prefix="p", manifest_path="p/m"))
    assert [batch.entries for batch in consumer] == [[b"a"]]
