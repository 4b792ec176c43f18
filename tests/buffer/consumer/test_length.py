"""`len`, `is_empty` and `conflict_rate`: as of the last read or write; and what is not read again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.buffer import Consumer, ConsumerConfig, ProducerConfig
from penstock.buffer.manifest.v1.codec import OpenDataManifest
from penstock.buffer.manifest.v2 import queue as native_queue
from penstock.buffer.manifest.v2.head import Head, decode_head
from penstock.errors import NotFound
from penstock.storage import ObjectStore
from penstock.testing import Fault, FaultyStore
from tests.buffer.consumer.queues import MANIFEST, NO_GC, consume, fill, queue_up, read
from tests.buffer.consumer.watched_store import WatchedStore

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


def test_the_length_does_not_know_of_what_came_since(store: ObjectStore) -> None:
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
    watched = WatchedStore(memory)
    consumer = consume(watched)
    watched.calls.clear()
    assert (len(consumer), consumer.is_empty, consumer.conflict_rate, bool(consumer)) == (3, False, 0.0, True)
    assert watched.calls == []


def test_a_consumer_shows_where_it_reads_and_no_more(store: ObjectStore) -> None:
    assert repr(consume(store)) == f"Consumer({store.url}, epoch=1)"


# Lost compare-and-sets


def test_a_consumer_that_never_lost_has_no_conflicts(store: ObjectStore) -> None:
    assert consume(store).conflict_rate == 0.0


def test_the_conflict_rate_is_the_percentage_of_writes_that_lost(store: ObjectStore) -> None:
    queue_up(store, 3)
    watched = WatchedStore(store)
    consumer = consume(watched)  # one write
    consumer.next_descriptors(3)
    watched.before("put_if_match", lambda: queue_up(store, 1), path=MANIFEST)
    consumer.ack_through(0)  # two more, of which the first loses
    consumer.ack_through(1)  # and one more
    assert consumer.conflict_rate == 25.0


def test_the_conflict_rate_counts_a_lost_claim(store: ObjectStore) -> None:
    watched = WatchedStore(store)
    watched.before("put_if_absent", lambda: queue_up(store, 1), path=MANIFEST)
    assert consume(watched).conflict_rate == 50.0


def test_a_reply_that_is_lost_is_no_conflict(memory: ObjectStore) -> None:
    faulty = FaultyStore(memory, rates={})
    faulty.inject(Fault.ERROR_AFTER, operation="put_if_absent")
    assert consume(faulty).conflict_rate == 0.0


# What has not changed is not parsed again


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every head, or footer and entry of version 1, that is parsed from now on."""
    found: list[str] = []
    parse_footer, parse_entry = OpenDataManifest.__init__, OpenDataManifest._skip

    def noted_head(data: bytes) -> Head:
        found.append("head")
        return decode_head(data)

    def noted_footer(self: OpenDataManifest, data: bytes) -> None:
        found.append("footer")
        parse_footer(self, data)

    def noted_entry(self: OpenDataManifest, at: int, number: int) -> int:
        found.append("entry")
        return parse_entry(self, at, number)

    monkeypatch.setattr(native_queue, "decode_head", noted_head)
    monkeypatch.setattr(OpenDataManifest, "__init__", noted_footer)
    monkeypatch.setattr(OpenDataManifest, "_skip", noted_entry)
    return found


def test_polling_an_unchanged_queue_parses_nothing(store: ObjectStore, parsed: list[str]) -> None:
    fill(store, [b"a"], [b"b"])
    consumer = consume(store)
    while consumer.next_batch() is not None:
        pass
    parsed.clear()
    for _ in range(5):
        assert consumer.next_batch() is None
        assert consumer.next_descriptors(1) == []
        consumer.flush()
    assert parsed == []


def test_a_queue_is_parsed_once_for_all_its_entries(store: ObjectStore, manifest: str, parsed: list[str]) -> None:
    queue_up(store, 4)
    consumer = consume(store)
    parsed.clear()
    for _ in range(4):
        consumer.next_descriptors(1)
    assert parsed == ([] if manifest == "native" else ["entry"] * 4)  # the claim has left its own head


def test_a_queue_that_has_changed_is_parsed_again(store: ObjectStore, manifest: str, parsed: list[str]) -> None:
    queue_up(store, 2)
    consumer = consume(store)
    consumer.next_descriptors(2)
    queue_up(store, 1)
    parsed.clear()
    consumer.next_descriptors(1)
    assert parsed == (["head"] if manifest == "native" else ["footer", *["entry"] * 3])


def test_an_object_that_is_gone_has_the_manifest_read_again_uncached(
    store: ObjectStore, manifest: str, parsed: list[str]
) -> None:
    queue_up(store, 2)
    consumer = consume(store)
    descriptor = consumer.next_descriptors(2)[0]
    parsed.clear()
    with pytest.raises(NotFound):
        consumer.fetch_descriptor(descriptor)
    assert parsed == (["head"] if manifest == "native" else ["footer", *["entry"] * 2])


# Where


def test_a_consumer_reads_where_it_is_told_to(tmp_path: Path, fresh_name: str) -> None:
    places: list[str | os.PathLike[str]] = [tmp_path, str(tmp_path / "b"), f"memory://{fresh_name}"]
    for place in places:
        with Consumer(place, NO_GC) as consumer:
            assert len(consumer) == 0


def test_a_consumer_reads_the_manifest_it_is_told_to(memory: ObjectStore) -> None:
    queue_up(memory, 3)
    fill(memory, [b"a"], config=ProducerConfig(data_path_prefix="p", manifest_path="p/m", flush_size_bytes=1))
    consumer = Consumer(memory, ConsumerConfig(gc=False, data_path_prefix="p", manifest_path="p/m"))
    assert [batch.entries for batch in consumer] == [[b"a"]]
