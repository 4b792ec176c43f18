"""Manifests of version 2 that are not what they should be, as whoever reads a buffer meets them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import peek
from penstock.buffer import Manifest
from penstock.buffer.buffer_queue import BufferQueue
from penstock.buffer.groups import Groups
from penstock.buffer.native_head import version_of
from penstock.errors import CorruptData, PenstockError
from penstock.storage import MemoryStore
from tests.buffer.formats.test_native_golden import EMPTY, ENTRIES, FULL, NAME

MANIFEST = "ingest/manifest"


def take_over_and_ack(store: MemoryStore) -> None:
    queue = BufferQueue(store, MANIFEST, "consumer", sleep=lambda _: None)
    epoch = queue.claim("earliest", None, allow_gap=False).epoch
    queue.dequeue(epoch, 0)


READERS: list[Callable[[MemoryStore], object]] = [
    Manifest.read,
    peek,
    lambda store: Groups(store).list(),
    take_over_and_ack,
]


@pytest.mark.parametrize("read", READERS, ids=["Manifest", "peek", "Groups", "Consumer"])
@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (FULL[:-2] + b"\x03\x00", "version 3"),
        (FULL[:-2] + b"\x00\x00", "version 0"),
        (FULL[:-3] + b"\x02\x00", "cannot be read"),
        (FULL[:-2] + b"\x00\x02\x00", "cannot be read"),
        (b"\x02\x00", "cannot be read"),
        (FULL.replace(b"\x8a\xa8revision\x05", b"\x8b\xa8revision\x05\xa5lease\x01"), "unknown field `lease`"),
        (FULL.replace(b"\xadnext_sequence\x04", b"\xadnext_sequence\x05"), "next_sequence"),
        (FULL.replace(b"\xa8revision\x05", b"\xa8revision\xff"), "revision"),
        (FULL.replace(b"\x95\x02\xa3p/b", b"\x95\x01\xa3p/b"), "tail"),
        (FULL.replace(b"\x95\x02\xa3p/b\x07", b"\x96\x02\xa3p/b\x07\x07"), "tail"),
        (FULL.replace(b".seg\x00\x01\x04", b".seg\x00\x02\x04"), "tail"),
    ],
)
def test_whoever_reads_it_is_told_what_is_wrong_and_changes_nothing(
    read: Callable[[MemoryStore], object], data: bytes, complaint: str, fresh_name: str
) -> None:
    store = MemoryStore(fresh_name)
    store.put(MANIFEST, data)
    with pytest.raises(CorruptData, match=complaint):
        read(store)
    assert store.get(MANIFEST).data == data


def test_the_version_is_in_the_last_two_bytes() -> None:
    assert [version_of(data) for data in (EMPTY, b"", b"\x02", b"\x01\x00", b"x\x01\x02")] == [2, None, None, 1, 513]


@given(st.binary(max_size=80))
def test_any_bytes_are_a_manifest_or_corrupt(data: bytes) -> None:
    for whole in (data, data + b"\x02\x00", data + b"\x01\x00"):
        with suppress(CorruptData):
            assert isinstance(Manifest.decode(whole), Manifest)


@settings(max_examples=200)
@given(st.data())
def test_a_manifest_with_any_bytes_changed_is_read_changed_or_refused_and_never_crashes(data: st.DataObject) -> None:
    head, segment = bytearray(FULL), bytearray(ENTRIES)
    for spoilt in (head, segment):
        for _ in range(data.draw(st.integers(0, 3))):
            spoilt[data.draw(st.integers(0, len(spoilt) - 3))] = data.draw(st.integers(0, 255))
    store = MemoryStore("native-decoding-fuzz")
    for read in READERS:
        store.put(MANIFEST, bytes(head))
        store.put(f"{MANIFEST}.d/{NAME}", bytes(segment))
        with suppress(PenstockError):
            read(store)


def test_a_reference_whose_name_is_no_segments_never_crashes_an_ack(fresh_name: str) -> None:
    store = MemoryStore(fresh_name)
    odd = NAME.replace("FAV", "FAv")
    head = msgspec.msgpack.decode(FULL[:-2])
    head["segments"][0][0] = odd
    store.put(MANIFEST, msgspec.msgpack.encode(head) + b"\x02\x00")
    store.put(f"{MANIFEST}.d/{odd}", ENTRIES)
    with suppress(PenstockError):
        take_over_and_ack(store)
