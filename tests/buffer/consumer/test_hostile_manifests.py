"""Bytes that are not a manifest in its place: every call raises `CorruptData`, and nothing is overwritten."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from penstock.buffer import Consumer, Manifest, peek
from penstock.errors import CorruptData
from penstock.storage import ObjectStore
from tests.buffer.consumer.edited_manifests import changed, is_native
from tests.support.filled_buffers import MANIFEST, consume, queue_up, sequences

CORRUPTIONS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "one byte": lambda _: b"\x01",
    "text": lambda _: b"this is not a manifest, but it is long enough to be one",
    "another version": lambda data: data[:-2] + b"\x07\x00",
    "half a footer": lambda data: data[-12:],
    "without its end": lambda data: data[:-1],
    "nothing but its version": lambda data: data[-2:],
    "more entries than sequences": lambda data: (
        changed(data, next_sequence=2) if is_native() else data[:-22] + struct.pack("<IQQH", 9, 3, 1, 1)
    ),
    "entries though there are none": lambda data: (
        changed(data, tail=[]) if is_native() else data[:-22] + struct.pack("<IQQH", 0, 3, 1, 1)
    ),
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
    """A consumer with an ack to write, whose manifest was then corrupted; and the corrupt bytes."""
    queue_up(store, 3)
    consumer = consume(store)
    consumer.next_descriptors(2)
    consumer.ack(0)
    corrupt = CORRUPTIONS[corruption](store.get(MANIFEST).data)
    store.put(MANIFEST, corrupt)
    return consumer, corrupt


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_a_corrupt_manifest_is_reported_by_every_call_and_not_overwritten(
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
def test_a_corrupt_manifest_is_reported_by_calls_that_only_read(memory: ObjectStore, corruption: str) -> None:
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


def test_a_corrupt_manifest_is_reported_by_the_ack_that_would_write_it(memory: ObjectStore) -> None:
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
