"""Manifests of version 2 against bytes that were written down by hand from the table of the format, both ways."""

from __future__ import annotations

import msgspec
import pytest

from penstock.buffer import BatchDescriptor, Manifest, Metadata
from penstock.buffer.locations import Names
from penstock.buffer.manifest.state import Group, Limits, Writer
from penstock.buffer.manifest.v2.head import (
    NEW,
    Entry,
    Head,
    Item,
    Reference,
    decode_head,
    encode_head,
)
from penstock.buffer.manifest.v2.segments import Segments, folded, sealed
from penstock.storage import MemoryStore
from tests.support.manifest_trailers import HEAD as HEAD_MAGIC
from tests.support.manifest_trailers import SEGMENT as SEGMENT_MAGIC
from tests.support.manifest_trailers import body_of, ended

NAME = "00000000000000000000-01ARZ3NDEKTSV4RRFFQ69G5FAV.seg"
UPPER = "00000000000000000000-01ARZ3NDEKTSV4RRFFQ69G5FAW.seg"

ID = bytes(range(16))
EMPTY = (
    b"\x8b"  # a map of eleven keys
    b"\xa2id\xc4\x10\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f"
    b"\xa8revision\x00"
    b"\xadnext_sequence\x00"
    b"\xa5epoch\x00"
    b"\xa4tail\x90"
    b"\xa8segments\x90"
    b"\xa6groups\x81\xa7default"  # one group, and of it a map of four keys
    b"\x84\xa5epoch\x00\xadacked_through\xff\xa5owner\xa0\xa8taken_at\x00"
    b"\xa7writers\x80"
    b"\xb1forgotten_through\x00"
    b"\xa5floor\x00"
    b"\xacfloor_set_at\x00"
    b"\xbc\x8a\xab\x69\xea\x4a\x29\xb1"  # checksum
    b"\x02\x00PSTM"  # version: 2, and the magic
)
FULL = (
    b"\x8b"
    b"\xa2id\xc4\x10\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f"
    b"\xa8revision\x05"
    b"\xadnext_sequence\x04"
    b"\xa5epoch\x02"
    b"\xa4tail\x92"  # two entries of five elements
    b"\x95\x02\xa3p/b\x07\xcd\x01\x00"  # sequence 2, location "p/b", 7 records, 256 bytes
    b"\x91\x93\x00\xce\x07\x5b\xcd\x15\xc4\x02hi"  # start index 0, ingestion time 123456789, payload "hi"
    b"\x95\x03\xa2\xc3\xa9\xc0\xc0\x90"  # sequence 3, location "\u00e9", from version 1: no counts; no metadata
    b"\xa8segments\x91"  # one reference of seven elements
    b"\x97\xd9\x3300000000000000000000-01ARZ3NDEKTSV4RRFFQ69G5FAV.seg"
    b"\x00\x01\x04\x14"  # first 0, last 1, 4 records, 20 bytes
    b"\xcf\x00\x00\x01\x56\x3e\x3a\xb5\xd3\x00"  # oldest time: 1469922850259; level 0
    b"\xa6groups\x82"
    b"\xa7default\x84\xa5epoch\x02\xadacked_through\xff\xa5owner\xa2vm\xa8taken_at\x08"
    b"\xa5audit\x84\xa5epoch\x01\xadacked_through\x03\xa5owner\xa0\xa8taken_at\x00"
    b"\xa7writers\x82"  # of five elements: transaction, first sequence, revision, time, whether it is named
    b"\xa1w\x95\x00\x02\x04\x09\xc2"
    b"\xa1q\x95\x07\x03\x05\x0a\xc3"
    b"\xb1forgotten_through\x01"
    b"\xa5floor\x02"
    b"\xacfloor_set_at\x03"
    b"\x3e\x58\xbb\xe4\xe9\x81\x02\xc4"
    b"\x02\x00PSTM"
)
HEAD = Head(
    id=ID,
    revision=5,
    next_sequence=4,
    epoch=2,
    tail=(Entry(2, "p/b", 7, 256, (Item(0, 123456789, b"hi"),)), Entry(3, "\u00e9", None, None, ())),
    segments=(Reference(NAME, 0, 1, 4, 20, 1469922850259, 0),),
    groups={"default": Group(2, -1, "vm", 8), "audit": Group(1, 3)},
    writers={"w": Writer(0, 2, 4, 9, False), "q": Writer(7, 3, 5, 10, True)},
    forgotten_through=1,
    floor=2,
    floor_set_at=3,
)
ENTRIES = (
    b"\x82\xa5level\x00\xa7entries\x92"
    b"\x95\x00\xa1a\x01\x0a\x90"  # sequence 0, location "a", 1 record, 10 bytes, no metadata
    b"\x95\x01\xa1b\x03\x0a\x91\x93\x00\xff\xc4\x00"  # start index 0, ingestion time -1, no payload
    b"\xa2\x4b\x3b\x1b\x10\x23\xed\x80"  # of its file name too, which is NAME
    b"\x02\x00PSTS"
)
INDEX = (
    b"\x82\xa5level\x01\xaareferences\x91"
    b"\x97\xd9\x3300000000000000000000-01ARZ3NDEKTSV4RRFFQ69G5FAV.seg"
    b"\x00\x01\x04\x14\x05\x00"
    b"\xa9\x41\xf6\x7b\x6c\xb6\xaa\x38"  # of its file name too, which is UPPER
    b"\x02\x00PSTS"
)
BORN = msgspec.structs.replace(NEW, id=ID)
HELD = (Entry(0, "a", 1, 10, ()), Entry(1, "b", 3, 10, (Item(0, -1, b""),)))


@pytest.mark.parametrize(("data", "head"), [(EMPTY, BORN), (FULL, HEAD)], ids=["new", "full"])
def test_a_head_by_hand_is_read_and_written(data: bytes, head: Head) -> None:
    assert decode_head(data) == head
    assert encode_head(head) == data


def test_the_keys_of_a_head_may_come_in_any_order() -> None:
    first, rest = FULL[1:22], body_of(FULL)[22:]
    assert decode_head(ended(b"\x8b" + rest + first, HEAD_MAGIC)) == HEAD


def test_a_head_by_hand_is_what_a_manifest_shows() -> None:
    found = Manifest.decode(FULL)
    assert (found.version, found.epoch, found.next_sequence) == (2, 2, 4)
    assert found.entries == (
        BatchDescriptor(2, "p/b", (Metadata(0, 123456789, b"hi"),), 256, 7),
        BatchDescriptor(3, "\u00e9"),
    )
    assert (dict(found.groups), found.head) == (HEAD.groups, HEAD)


def test_a_manifest_by_hand_is_read_with_its_segments() -> None:
    store = MemoryStore("native-golden")
    store.put("ingest/manifest", FULL)
    store.put(f"ingest/manifest.d/{NAME}", ENTRIES)
    found = Manifest.read(store)
    assert [(one.sequence, one.location, one.records) for one in found.entries] == [
        (0, "a", 1),
        (1, "b", 3),
        (2, "p/b", 7),
        (3, "\u00e9", None),
    ]


def test_an_index_by_hand_is_read() -> None:
    store = MemoryStore("native-golden-index")
    store.put(f"ingest/manifest.d/{UPPER}", INDEX)
    store.put(f"ingest/manifest.d/{NAME}", ENTRIES)
    segments = Segments(store, "ingest/manifest")
    assert tuple(segments.entries([Reference(UPPER, 0, 1, 4, 20, 5, 1)], 0, 9)) == HELD


def test_a_sealed_segment_is_the_bytes_by_hand() -> None:
    store = MemoryStore("native-golden-sealed")
    (new,) = sealed(HELD, Names(), 0, Limits())
    Segments(store, "ingest/manifest").write([new])
    name = new.reference.name
    assert store.get(f"ingest/manifest.d/{name}").data == ended(body_of(ENTRIES), SEGMENT_MAGIC, name=name)


def test_a_folded_segment_is_the_bytes_by_hand() -> None:
    store = MemoryStore("native-golden-folded")
    one = Reference(NAME, 0, 1, 4, 20, 5, 0)
    other = Reference(NAME.replace("00-", "02-"), 2, 2, 0, 0, 6, 0)
    (reference,), new = folded([one, other], Names(), 0, Limits(references=1))
    Segments(store, "ingest/manifest").write(new)
    second = b"\x97\xd9\x3300000000000000000002-01ARZ3NDEKTSV4RRFFQ69G5FAV.seg\x02\x02\x00\x00\x06\x00"
    body = body_of(INDEX).replace(b"references\x91", b"references\x92") + second
    data = store.get(f"ingest/manifest.d/{reference.name}").data
    assert data == ended(body, SEGMENT_MAGIC, name=reference.name)
