"""Manifests of version 2 that are not valid: every read of the buffer raises `CorruptData`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import peek
from penstock.buffer import Manifest
from penstock.buffer.groups import Groups
from penstock.buffer.manifest.queue import BufferQueue
from penstock.buffer.manifest.v2.head import version_of
from penstock.errors import CorruptData, PenstockError
from penstock.storage import MemoryStore
from tests.buffer.format.test_native_golden import EMPTY, ENTRIES, FULL, ID, NAME
from tests.support.manifest_trailers import BATCH, HEAD, SEGMENT, body_of, ended

MANIFEST = "ingest/manifest"
BODY = body_of(FULL)


def changed(old: bytes, new: bytes) -> bytes:
    """The full head with other bytes in one place, and the checksum of those."""
    assert BODY.count(old) == 1
    return ended(BODY.replace(old, new), HEAD)


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
        (ended(BODY, HEAD, 3), "unsupported version 3 of a manifest's head; this Penstock reads 2"),
        (ended(BODY, HEAD, 0), "unsupported version 0 of a manifest's head"),
        (BODY + b"\x02\x00", "unsupported version 2 of a manifest.*: it may be a later format of OpenData's"),
        (BODY + b"\x03\x00", "unsupported version 3 of a manifest[^:]*;"),
        (ended(BODY, SEGMENT), "unsupported version|it ends in a segment"),
        (ended(BODY, BATCH), "unsupported version|it ends in a batch"),
        (ended(BODY, HEAD)[-13:], "too small for its last 14"),
        (ended(BODY, HEAD, name=NAME), "checksum"),
        (ended(BODY[:-1], HEAD), "cannot be read"),
        (ended(BODY + b"\x00", HEAD), "cannot be read"),
        (ended(b"", HEAD), "cannot be read"),
        (changed(b"\x8b\xa2id", b"\x8c\xa5lease\x01\xa2id"), "unknown field `lease`"),
        (changed(b"\xadnext_sequence\x04", b"\xadnext_sequence\x05"), "next_sequence"),
        (changed(b"\xa8revision\x05", b"\xa8revision\xff"), "revision"),
        (changed(b"\x95\x02\xa3p/b", b"\x95\x01\xa3p/b"), "tail"),
        (changed(b"\x95\x02\xa3p/b\x07", b"\x96\x02\xa3p/b\x07\x07"), "tail"),
        (changed(b".seg\x00\x01\x04", b".seg\x00\x02\x04"), "tail"),
        (changed(b"\xc4\x10" + ID, b"\xc4\x10" + bytes(16)), "id: .* is no id of a buffer"),
        (changed(b"\xc4\x10" + ID, b"\xc4\x0f" + ID[1:]), "id: .* is no id of a buffer"),
        (changed(b"\xc4\x10" + ID, b"\xa0"), "id"),
    ],
)
def test_every_read_reports_what_is_wrong_and_changes_nothing(
    read: Callable[[MemoryStore], object], data: bytes, complaint: str, fresh_name: str
) -> None:
    store = MemoryStore(fresh_name)
    store.put(MANIFEST, data)
    with pytest.raises(CorruptData, match=complaint):
        read(store)
    assert store.get(MANIFEST).data == data


def test_the_version_is_known_by_the_magic_or_by_the_last_two_bytes() -> None:
    found = [version_of(data) for data in (EMPTY, b"PSTM", b"\x01\x00", b"", b"\x02", b"\x02\x00", b"PSTS")]
    assert found == [2, 2, 1, None, None, None, None]


@pytest.mark.parametrize("magic", [HEAD, SEGMENT, BATCH])
def test_no_magic_of_ours_ends_in_a_version_that_opendata_may_ever_give(magic: bytes) -> None:
    assert int.from_bytes(magic[-2:], "little") > 10_000


@given(st.binary(max_size=80))
def test_any_bytes_are_a_manifest_or_corrupt(data: bytes) -> None:
    for whole in (data, data + b"\x02\x00", data + b"\x01\x00", data + b"PSTM", ended(data, HEAD)):
        with suppress(CorruptData):
            assert isinstance(Manifest.decode(whole), Manifest)


@settings(max_examples=200)
@given(st.data())
def test_a_manifest_with_any_bytes_changed_is_read_changed_or_refused_and_never_crashes(data: st.DataObject) -> None:
    head, segment = bytearray(BODY), bytearray(body_of(ENTRIES))
    for spoilt in (head, segment):
        for _ in range(data.draw(st.integers(0, 3))):
            spoilt[data.draw(st.integers(0, len(spoilt) - 1))] = data.draw(st.integers(0, 255))
    store = MemoryStore("native-decoding-fuzz")
    for read in READERS:
        store.put(MANIFEST, ended(bytes(head), HEAD))
        store.put(f"{MANIFEST}.d/{NAME}", ended(bytes(segment), SEGMENT, name=NAME))
        with suppress(PenstockError):
            read(store)


def test_a_reference_whose_name_is_no_segments_never_crashes_an_ack(fresh_name: str) -> None:
    store = MemoryStore(fresh_name)
    odd = NAME.replace("FAV", "FAv")
    head = msgspec.msgpack.decode(BODY)
    head["segments"][0][0] = odd
    store.put(MANIFEST, ended(msgspec.msgpack.encode(head), HEAD))
    store.put(f"{MANIFEST}.d/{odd}", ended(body_of(ENTRIES), SEGMENT, name=odd))
    with suppress(PenstockError):
        take_over_and_ack(store)
