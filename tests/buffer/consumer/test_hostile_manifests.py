"""Manifests that anyone with the bucket could have written: nothing outside is read, and nothing is written over."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.buffer import Consumer, Manifest, encode_batch, peek
from penstock.buffer.opendata_manifest import OpenDataManifest
from penstock.errors import CorruptData, StorageError
from penstock.storage import ObjectStore, open_store
from tests.buffer.consumer.queues import (
    MANIFEST,
    Cursors,
    consume,
    cursors,
    fill,
    kept,
    queue_up,
    read,
    sequences,
)
from tests.buffer.consumer.watched_store import WatchedStore

OUTSIDE = [
    "../x",
    "../../etc/passwd",
    "ingest/../../x",
    "/etc/passwd",
    "..",
    ".",
    "ingest//x",
    "ingest/./x",
    "ingest/",
    "..\\x",
    "ingest/\x00x",
    "ingest/\nx",
    "x" * 1025,
]


def manifest_with(*locations: str) -> bytes:
    return OpenDataManifest.empty().append([(location, ()) for location in locations]).data


# Locations that leave the store


@pytest.mark.parametrize("location", OUTSIDE)
def test_a_location_that_is_no_path_is_corrupt_and_named(memory: ObjectStore, location: str) -> None:
    memory.put(MANIFEST, manifest_with(location))
    with pytest.raises(CorruptData) as refused:
        consume(memory).next_batch()
    assert location in str(refused.value)
    assert "sequence 0" in str(refused.value)


@pytest.mark.parametrize("location", ["../x", "/etc/passwd", "ingest/../../x"])
def test_nothing_is_read_for_a_location_that_is_no_path(store: ObjectStore, location: str) -> None:
    store.put(MANIFEST, manifest_with(location))
    watched = WatchedStore(store)
    consumer = consume(watched)
    (descriptor,) = consumer.next_descriptors(1)
    watched.calls.clear()
    uses: list[Callable[[], object]] = [
        lambda: consume(store).fetch_handle().fetch(descriptor),
        lambda: consumer.fetch_handle().fetch(descriptor),
        lambda: consumer.fetch_descriptor(descriptor),
    ]
    for use in uses:
        with pytest.raises(CorruptData):
            use()
    assert watched.calls == []


def test_a_file_beside_the_store_is_not_read(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    (tmp_path / "x").write_bytes(encode_batch([b"secret"]))
    for location in ("../x", str(tmp_path / "x"), f"ingest/../../{tmp_path.name}/x"):
        store.put(MANIFEST, manifest_with(location))
        with pytest.raises(CorruptData):
            consume(store).next_batch()
        with pytest.raises(CorruptData):
            peek(store)


def test_a_link_that_leads_out_of_the_store_is_not_followed(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    store.put(MANIFEST, manifest_with("ingest/link"))
    (tmp_path / "x").write_bytes(encode_batch([b"secret"]))
    (tmp_path / "store" / "ingest" / "link").symlink_to(tmp_path / "x")
    with pytest.raises(StorageError, match="ingest/link"):
        consume(store).next_batch()


def test_an_empty_location_is_corrupt(memory: ObjectStore) -> None:
    entry = struct.pack("<QHI", 0, 0, 0)
    memory.put(MANIFEST, struct.pack("<I", len(entry)) + entry + struct.pack("<IQQH", 1, 1, 0, 1))
    with pytest.raises(CorruptData, match="sequence 0 "):
        consume(memory).next_batch()


def test_a_location_that_is_no_path_comes_again_each_time(memory: ObjectStore) -> None:
    memory.put(MANIFEST, manifest_with("../x"))
    consumer = consume(memory)
    for _ in range(2):
        with pytest.raises(CorruptData):
            consumer.next_batch()
        assert cursors(consumer) == Cursors(None, None, None)


def test_a_location_that_is_no_path_can_be_stepped_over(memory: ObjectStore) -> None:
    memory.put(MANIFEST, manifest_with("../x"))
    fill(memory, [b"a"])
    consumer = consume(memory)
    with pytest.raises(CorruptData):
        consumer.next_batch()
    consumer.next_descriptors(1)
    consumer.ack_through(0)
    assert read(consumer).entries == [b"a"]


def test_a_location_that_is_the_manifest_itself_is_corrupt(memory: ObjectStore) -> None:
    memory.put(MANIFEST, manifest_with(MANIFEST))
    with pytest.raises(CorruptData, match=f"sequence 0 .*{MANIFEST}"):
        consume(memory).next_batch()


# Bytes that are no manifest

CORRUPTIONS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "one byte": lambda _: b"\x01",
    "text": lambda _: b"this is no manifest at all, but it is long enough to be one",
    "another version": lambda data: data[:-2] + b"\x07\x00",
    "half a footer": lambda data: data[-12:],
    "without its end": lambda data: data[:-1],
    "more entries than sequences": lambda data: data[:-22] + struct.pack("<IQQH", 9, 3, 1, 1),
    "entries though there are none": lambda data: data[:-22] + struct.pack("<IQQH", 0, 3, 1, 1),
}
CALLS: dict[str, Callable[[Consumer], object]] = {
    "next_batch": lambda consumer: consumer.next_batch(),
    "next_descriptors": lambda consumer: consumer.next_descriptors(1),
    "ack_through": lambda consumer: consumer.ack_through(1),
    "flush": lambda consumer: consumer.flush(),
    "close": lambda consumer: consumer.close(),
    "iteration": lambda consumer: list(consumer),
    "follow": lambda consumer: list(consumer.follow(0)),
}


def corrupted(store: ObjectStore, corruption: str) -> tuple[Consumer, bytes]:
    """A consumer with an ack to write, whose manifest was corrupted under it; and the bytes that are there now."""
    queue_up(store, 3)
    consumer = consume(store)
    consumer.next_descriptors(2)
    consumer.ack(0)
    corrupt = CORRUPTIONS[corruption](store.get(MANIFEST).data)
    store.put(MANIFEST, corrupt)
    return consumer, corrupt


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_a_corrupt_manifest_is_told_by_every_call_and_left_alone(
    memory: ObjectStore, corruption: str, call: str
) -> None:
    consumer, corrupt = corrupted(memory, corruption)
    with pytest.raises(CorruptData):
        CALLS[call](consumer)
    assert memory.get(MANIFEST).data == corrupt


@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_a_corrupt_manifest_is_no_place_for_a_new_consumer(memory: ObjectStore, corruption: str) -> None:
    _, corrupt = corrupted(memory, corruption)
    for last_acked_sequence in (None, 0):
        with pytest.raises(CorruptData):
            consume(memory, last_acked_sequence)
    assert memory.get(MANIFEST).data == corrupt


@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_a_corrupt_manifest_is_told_to_whoever_only_looks(memory: ObjectStore, corruption: str) -> None:
    corrupted(memory, corruption)
    with pytest.raises(CorruptData):
        Manifest.read(memory)
    with pytest.raises(CorruptData):
        peek(memory)


def test_a_corrupt_manifest_is_left_alone_on_every_store(store: ObjectStore) -> None:
    consumer, corrupt = corrupted(store, "text")
    with pytest.raises(CorruptData):
        consumer.flush()
    with pytest.raises(CorruptData):
        consume(store)
    with pytest.raises(CorruptData):
        consumer.close()
    assert store.get(MANIFEST).data == corrupt


def test_a_corrupt_manifest_is_told_by_the_ack_that_would_write_it(memory: ObjectStore) -> None:
    queue_up(memory, 101)
    consumer = consume(memory)
    consumer.next_descriptors(101)
    for sequence in range(99):
        consumer.ack(sequence)
    corrupt = CORRUPTIONS["another version"](memory.get(MANIFEST).data)
    memory.put(MANIFEST, corrupt)
    with pytest.raises(CorruptData):
        consumer.ack(99)
    assert memory.get(MANIFEST).data == corrupt


def test_a_manifest_that_was_mended_is_read_on(memory: ObjectStore) -> None:
    queue_up(memory, 3)
    consumer = consume(memory)
    consumer.next_descriptors(1)
    whole = memory.get(MANIFEST).data
    memory.put(MANIFEST, whole[:-1])
    with pytest.raises(CorruptData):
        consumer.next_descriptors(1)
    memory.put(MANIFEST, whole)
    assert sequences(consumer.next_descriptors(5)) == [1, 2]


# A footer that is whole, over entries that are not

BROKEN_ENTRIES: dict[str, Callable[[bytes], bytes]] = {
    "a length too long": lambda data: struct.pack("<I", 10_000) + data[4:],
    "a length too short": lambda data: struct.pack("<I", 1) + data[4:],
    "a sequence not due": lambda data: data[:4] + struct.pack("<Q", 5) + data[12:],
    "a location that is not UTF-8": lambda data: data[:14] + b"\xff\xff" + data[16:],
    "bytes left over": lambda data: data[:-22] + b"left over" + data[-22:],
}


@pytest.mark.parametrize("broken", BROKEN_ENTRIES)
def test_entries_that_are_corrupt_come_to_nobody(memory: ObjectStore, broken: str) -> None:
    queue_up(memory, 3)
    consumer = consume(memory)
    memory.put(MANIFEST, BROKEN_ENTRIES[broken](memory.get(MANIFEST).data))
    uses: list[Callable[[], object]] = [consumer.next_batch, lambda: consumer.next_descriptors(1), lambda: peek(memory)]
    for use in uses:
        with pytest.raises(CorruptData):
            use()
    assert cursors(consumer) == Cursors(None, None, None)


@pytest.mark.parametrize("broken", BROKEN_ENTRIES)
def test_entries_that_are_corrupt_are_kept_byte_for_byte(memory: ObjectStore, broken: str) -> None:
    queue_up(memory, 3)
    corrupt = BROKEN_ENTRIES[broken](memory.get(MANIFEST).data)
    memory.put(MANIFEST, corrupt)
    consumer = consume(memory)
    consumer.flush()
    consumer.close()
    assert memory.get(MANIFEST).data[:-22] == corrupt[:-22]


@pytest.mark.parametrize("broken", ["a length too long", "a length too short", "a sequence not due"])
def test_entries_that_are_corrupt_are_not_dequeued(memory: ObjectStore, broken: str) -> None:
    queue_up(memory, 3)
    consumer = consume(memory)
    consumer.next_descriptors(2)
    corrupt = BROKEN_ENTRIES[broken](memory.get(MANIFEST).data)
    memory.put(MANIFEST, corrupt)
    with pytest.raises(CorruptData):
        consumer.ack_through(1)
    with pytest.raises(CorruptData):
        consume(memory, 1)
    assert memory.get(MANIFEST).data == corrupt


def test_a_manifest_of_an_unused_epoch_is_read_like_any_other(memory: ObjectStore) -> None:
    queue_up(memory, 2)
    memory.put(MANIFEST, OpenDataManifest(memory.get(MANIFEST).data).with_epoch((1 << 64) - 1).data)
    assert kept(memory) == [0, 1]
