"""`peek` shows the next entries, and `Manifest.read` what is queued: neither claims an epoch or changes anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import penstock
from penstock import Record
from penstock.buffer import Manifest, Metadata, Producer, ProducerConfig, peek
from penstock.buffer.manifest.state import Group
from penstock.errors import CorruptData, InvalidInput, NotFound, StorageError
from penstock.storage import ObjectStore
from tests.buffer.consumer.edited_manifests import with_locations
from tests.buffer.consumer.intercepted_store import InterceptedStore
from tests.support.filled_buffers import MANIFEST, consume, epoch, fill, kept, queue_up, read, sequences


def values(records: list[Record]) -> list[bytes]:
    return [record.value for record in records]


# Peeking


def test_peek_is_one_of_the_public_names() -> None:
    assert penstock.peek is peek


def test_peek_shows_the_next_entries(store: ObjectStore) -> None:
    fill(store, [b"a", b"b"])
    assert peek(store) == [Record(b"a"), Record(b"b")]


def test_peek_shows_records_with_all_that_they_have(store: ObjectStore) -> None:
    whole = Record(b"a", key=b"k", headers=[("h", b"1"), ("h", b"2")], timestamp_ms=1_700_000_000_123)
    fill(store, [whole, Record(b"b")], config=ProducerConfig(format="arrow"))
    assert peek(store) == [whole, Record(b"b")]


@pytest.mark.parametrize(("n", "shown"), [(1, 1), (2, 2), (3, 3), (5, 5), (6, 5), (1 << 40, 5)])
def test_peek_shows_at_most_n_entries_across_batches(memory: ObjectStore, n: int, shown: int) -> None:
    fill(memory, [b"a", b"b"], [b"c"], [b"d", b"e"])
    assert values(peek(memory, n)) == [b"a", b"b", b"c", b"d", b"e"][:shown]


def test_peek_shows_ten_by_default(memory: ObjectStore) -> None:
    fill(memory, [b"%d" % number for number in range(12)])
    assert len(peek(memory)) == 10


def test_peek_reads_no_more_batches_than_it_shows_and_shows_them_again(store: ObjectStore) -> None:
    first, second, _ = fill(store, [b"a", b"b"], [b"c", b"d"], [b"e"])
    intercepted = InterceptedStore(store)
    peek(intercepted, 4)
    assert intercepted.calls == [("get", MANIFEST), ("get", first.location), ("get", second.location)]
    assert peek(intercepted, 4) == peek(store, 4)


def test_peek_at_nothing_shows_nothing(store: ObjectStore) -> None:
    fill(store, [b"a"])
    intercepted = InterceptedStore(store)
    assert peek(intercepted, 0) == []
    assert intercepted.calls == []


def test_peek_where_nothing_was_ever_produced_shows_nothing(store: ObjectStore) -> None:
    assert peek(store) == []
    assert list(store.list_objects()) == []


@pytest.mark.parametrize("n", [-1, True, 1.0, "1", None])
def test_peek_at_an_invalid_number_is_refused(memory: ObjectStore, n: object) -> None:
    with pytest.raises(InvalidInput, match=f"n must be an integer, 0 or more, not {n!r}"):
        peek(memory, n)  # type: ignore[arg-type]


def test_peek_ignores_what_was_dequeued(store: ObjectStore) -> None:
    fill(store, [b"a"], [b"b"])
    read(consume(store)).ack()
    assert values(peek(store)) == [b"b"]


def test_peek_shows_what_was_read_and_not_acked(store: ObjectStore) -> None:
    fill(store, [b"a"], [b"b"])
    read(consume(store))
    assert values(peek(store)) == [b"a", b"b"]


def test_peek_fences_no_consumer_and_changes_nothing(store: ObjectStore) -> None:
    fill(store, [b"a"])
    consumer = consume(store)
    before = store.get(MANIFEST)
    peek(store)
    assert store.get(MANIFEST) == before
    consumer.flush()


def test_peek_reads_the_manifest_of_its_path(memory: ObjectStore) -> None:
    fill(memory, [b"usual"])
    fill(memory, [b"other"], config=ProducerConfig(data_path_prefix="p", manifest_path="p/m", flush_size_bytes=1))
    assert values(peek(memory, manifest_path="p/m")) == [b"other"]


def test_peek_reads_batches_of_every_format(memory: ObjectStore) -> None:
    for number, form in enumerate(["arrow", "opendata"]):
        for compression in ("none", "zstd"):
            config = ProducerConfig(format=form, compression=compression, flush_size_bytes=1)
            fill(memory, [b"%d-%s" % (number, compression.encode())], config=config)
    assert values(peek(memory)) == [b"0-none", b"0-zstd", b"1-none", b"1-zstd"]


# When an object is gone


def test_peek_reports_an_object_that_is_gone_and_still_referenced(store: ObjectStore) -> None:
    first, _ = fill(store, [b"a"], [b"b"])
    store.delete([first.location])
    with pytest.raises(NotFound, match=f"sequence 0 .*{first.location}"):
        peek(store)


def test_peek_checks_in_the_manifest_of_its_path_whether_an_object_is_still_referenced(memory: ObjectStore) -> None:
    elsewhere = ProducerConfig(data_path_prefix="p", manifest_path="p/m", flush_size_bytes=1)
    (written,) = fill(memory, [b"other"], config=elsewhere)
    memory.delete([written.location])
    with pytest.raises(NotFound):
        peek(memory, manifest_path="p/m")


def test_peek_does_not_miss_an_object_that_it_does_not_need(memory: ObjectStore) -> None:
    _, second = fill(memory, [b"a"], [b"b"])
    memory.delete([second.location])
    assert values(peek(memory, 1)) == [b"a"]


def test_peek_skips_what_was_acked_and_collected_meanwhile(store: ObjectStore) -> None:
    first, _ = fill(store, [b"a"], [b"b"])
    intercepted = InterceptedStore(store)

    def ack_and_collect() -> None:
        read(consume(store)).ack()
        store.delete([first.location])

    intercepted.before("get", ack_and_collect, path=first.location)
    assert values(peek(intercepted)) == [b"b"]


def test_peek_reports_bytes_that_are_not_a_batch(memory: ObjectStore) -> None:
    (written,) = fill(memory, [b"a"])
    memory.put(written.location, b"these bytes are not a batch")
    with pytest.raises(CorruptData, match=f"sequence 0 .*{written.location}"):
        peek(memory)


def test_peek_reports_a_location_that_leaves_the_store(memory: ObjectStore) -> None:
    memory.put(MANIFEST, with_locations("../x"))
    with pytest.raises(CorruptData, match=r"\.\./x"):
        peek(memory)


def test_peek_reports_a_store_that_fails(memory: ObjectStore) -> None:
    (written,) = fill(memory, [b"a"])
    for path in (MANIFEST, written.location):
        intercepted = InterceptedStore(memory)
        intercepted.fail("get", StorageError("the store is down"), path=path)
        with pytest.raises(StorageError, match="the store is down"):
            peek(intercepted)


def test_peek_takes_a_path_or_a_url(tmp_path: Path) -> None:
    places: list[str | os.PathLike[str]] = [tmp_path, str(tmp_path), f"file://{tmp_path}"]
    with Producer(tmp_path) as producer:
        producer.produce(b"a")
    assert [values(peek(place)) for place in places] == [[b"a"]] * 3


# Reading a manifest


VERSIONS = {"native": 2, "opendata": 1}


def test_a_manifest_has_the_queued_entries(store: ObjectStore, manifest: str) -> None:
    (written,) = fill(store, [b"a"], metadata=b"attached", clock=lambda: 1_700_000_000.0)
    found = Manifest.read(store)
    assert (found.version, found.epoch, found.next_sequence) == (VERSIONS[manifest], 0, 1)
    (entry,) = found.entries
    assert (entry.sequence, entry.location) == (0, written.location)
    assert entry.metadata == (Metadata(0, 1_700_000_000_000, b"attached"),)
    size = len(store.get(written.location).data)
    assert (entry.size, entry.records) == ((size, 1) if manifest == "native" else (None, None))


def test_a_manifest_that_is_not_there_reads_as_an_empty_queue_and_is_not_created(store: ObjectStore) -> None:
    found = Manifest.read(store)
    assert (found.version, found.epoch, found.next_sequence, found.entries) == (
        2,
        0,
        0,
        (),
    )  # the version that it would be created with
    assert dict(found.groups) == {"default": Group(epoch=0, acked_through=-1)}
    assert list(store.list_objects()) == []


def test_reading_a_manifest_claims_no_epoch(store: ObjectStore) -> None:
    queue_up(store, 1)
    consumer = consume(store)
    before = store.get(MANIFEST)
    assert Manifest.read(store).epoch == 1
    assert store.get(MANIFEST) == before
    consumer.flush()


def test_reading_a_manifest_is_one_read_and_on_version_1_another_of_the_id(store: ObjectStore) -> None:
    queue_up(store, 1)
    intercepted = InterceptedStore(store)
    found = Manifest.read(intercepted)
    assert intercepted.calls == [("get", MANIFEST), *([("get", f"{MANIFEST}.id")] if found.version == 1 else [])]


def test_a_manifest_keeps_its_next_sequence_when_it_is_empty(store: ObjectStore, manifest: str) -> None:
    queue_up(store, 3)
    consumer = consume(store)
    consumer.next_descriptors(3)
    consumer.ack_through(2)
    found = Manifest.read(store)
    assert (found.version, found.epoch, found.next_sequence, found.entries) == (VERSIONS[manifest], 1, 3, ())
    (group,) = found.groups.values()
    assert (group.epoch, group.acked_through) == (1, 2)


def test_a_manifest_elsewhere_is_read_there(memory: ObjectStore) -> None:
    queue_up(memory, 2)
    memory.put("p/m", memory.get(MANIFEST).data)
    memory.delete([MANIFEST])
    assert sequences(Manifest.read(memory, "p/m").entries) == [0, 1]
    assert kept(memory) == []


def test_reading_a_manifest_is_decoding_its_bytes(memory: ObjectStore) -> None:
    queue_up(memory, 2)
    consume(memory)
    assert Manifest.read(memory) == Manifest.decode(memory.get(MANIFEST).data)
    assert epoch(memory) == 1


def test_a_store_that_fails_does_not_read_as_an_empty_queue(memory: ObjectStore) -> None:
    intercepted = InterceptedStore(memory)
    intercepted.fail("get", StorageError("the store is down"))
    with pytest.raises(StorageError, match="the store is down"):
        Manifest.read(intercepted)
