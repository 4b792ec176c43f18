"""Corrupt entries of version 1 under a sound footer: they are not handed out, and stay as they are."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from penstock.buffer import peek
from penstock.errors import CorruptData
from penstock.storage import ObjectStore
from tests.support.filled_buffers import MANIFEST, Cursors, consume, cursors, queue_up

MANIFESTS = ["opendata"]

BROKEN_ENTRIES: dict[str, Callable[[bytes], bytes]] = {
    "a length too long": lambda data: struct.pack("<I", 10_000) + data[4:],
    "a length too short": lambda data: struct.pack("<I", 1) + data[4:],
    "a sequence not due": lambda data: data[:4] + struct.pack("<Q", 5) + data[12:],
    "a location that is not UTF-8": lambda data: data[:14] + b"\xff\xff" + data[16:],
    "bytes left over": lambda data: data[:-22] + b"left over" + data[-22:],
}


def test_a_manifest_with_the_number_of_version_2_is_corrupt_and_not_overwritten(memory: ObjectStore) -> None:
    queue_up(memory, 3)
    consumer = consume(memory)
    corrupt = memory.get(MANIFEST).data[:-2] + b"\x02\x00"
    memory.put(MANIFEST, corrupt)
    uses: list[Callable[[], object]] = [consumer.next_batch, consumer.flush, consumer.close, lambda: consume(memory)]
    for use in uses:
        with pytest.raises(CorruptData):
            use()
    assert memory.get(MANIFEST).data == corrupt


@pytest.mark.parametrize("broken", BROKEN_ENTRIES)
def test_corrupt_entries_are_not_handed_out(memory: ObjectStore, broken: str) -> None:
    queue_up(memory, 3)
    consumer = consume(memory)
    memory.put(MANIFEST, BROKEN_ENTRIES[broken](memory.get(MANIFEST).data))
    uses: list[Callable[[], object]] = [consumer.next_batch, lambda: consumer.next_descriptors(1), lambda: peek(memory)]
    for use in uses:
        with pytest.raises(CorruptData):
            use()
    assert cursors(consumer) == Cursors(None, None, None)


@pytest.mark.parametrize("broken", BROKEN_ENTRIES)
def test_corrupt_entries_are_kept_byte_for_byte(memory: ObjectStore, broken: str) -> None:
    queue_up(memory, 3)
    corrupt = BROKEN_ENTRIES[broken](memory.get(MANIFEST).data)
    memory.put(MANIFEST, corrupt)
    consumer = consume(memory)
    consumer.flush()
    consumer.close()
    assert memory.get(MANIFEST).data[:-22] == corrupt[:-22]


@pytest.mark.parametrize("broken", ["a length too long", "a length too short", "a sequence not due"])
def test_corrupt_entries_are_not_dequeued(memory: ObjectStore, broken: str) -> None:
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


def test_an_empty_location_is_corrupt(memory: ObjectStore) -> None:
    entry = struct.pack("<QHI", 0, 0, 0)
    memory.put(MANIFEST, struct.pack("<I", len(entry)) + entry + struct.pack("<IQQH", 1, 1, 0, 1))
    with pytest.raises(CorruptData, match="sequence 0 "):
        consume(memory).next_batch()
