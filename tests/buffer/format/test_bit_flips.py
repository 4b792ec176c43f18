"""Every single bit of each kind of object that Penstock writes in a format of its own: turned, it is noticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import UUID

import pytest

from penstock import Record
from penstock.buffer import Manifest, decode_batch, encode_batch
from penstock.buffer.format.batch import record_count
from penstock.buffer.manifest.ownership import Owner, id_path, read_id, write_id
from penstock.buffer.manifest.state import Group, Writer
from penstock.buffer.manifest.v2.head import (
    Entry,
    Item,
    Reference,
    decode_head,
    encode_head,
    unborn_head,
)
from penstock.buffer.manifest.v2.segments import Segment, decode_segment, encode_segment
from penstock.errors import CorruptData
from penstock.metalog import ObjectMetadataLog, PartitionStart
from penstock.storage import MemoryStore

NAME = "00000000000000000000-01ARZ3NDEKTSV4RRFFQ69G5FAV.seg"
OTHER_NAME = NAME.replace("5FAV", "5FAW")
ENTRIES = (Entry(0, "p/a", 7, 256, (Item(0, 123456789, b"hi"),)), Entry(1, "p/b", None, None, ()))
REFERENCES = (Reference(NAME, 0, 1, 4, 20, 1469922850259, 0),)
HEAD = unborn_head(UUID(int=1 << 100)).changed(
    next_sequence=2,
    epoch=3,
    tail=ENTRIES,
    groups={"default": Group(3, 0, "host:1", 8), "audit": Group(1, 1)},
    writers={"w": Writer(0, 1, 1, 9, False), "q": Writer(7, 0, 1, 10, True)},
    forgotten_through=1,
    floor=5,
    floor_set_at=6,
)
PAYLOADS: list[bytes | Record] = [b"one", Record(b"two", key=b"k", headers=[("h", b"1")], timestamp_ms=5)]

KINDS: dict[str, tuple[bytes, Callable[[bytes], object]]] = {
    "head": (encode_head(HEAD), decode_head),
    "head, as a manifest": (encode_head(HEAD), Manifest.decode),
    "segment": (encode_segment(Segment(0, entries=ENTRIES), NAME), lambda data: decode_segment(data, NAME)),
    "index segment": (
        encode_segment(Segment(1, references=REFERENCES), OTHER_NAME),
        lambda data: decode_segment(data, OTHER_NAME),
    ),
    "batch": (encode_batch(PAYLOADS), decode_batch),
    "batch of values": (encode_batch([b"one", b"two"]), decode_batch),
    "empty batch": (encode_batch([]), decode_batch),
    "packed batch": (encode_batch(PAYLOADS, compression="zstd"), decode_batch),
    "batch, counted": (encode_batch([b"one"] * 9), record_count),
    "owner": (Owner(UUID(int=7), "ingest/manifest", "ingest").encode(), Owner.decode),
}


def flipped(data: bytes) -> Iterator[bytes]:
    """The same bytes with one bit flipped, for each bit."""
    for place in range(len(data)):
        for bit in range(8):
            yield data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]


@pytest.mark.parametrize("kind", KINDS)
def test_every_flipped_bit_is_corrupt_data(kind: str) -> None:
    data, decode = KINDS[kind]
    decode(data)
    for changed in flipped(data):
        with pytest.raises(CorruptData):
            decode(changed)


# A batch that is cut may end as one of OpenData, which has no checksum: reading only its count does not notice.
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "batch, counted"])
def test_every_object_that_is_cut_or_longer_is_corrupt_data(kind: str) -> None:
    data, decode = KINDS[kind]
    for changed in (*(data[:size] for size in range(len(data))), *(data[size:] for size in range(1, len(data)))):
        with pytest.raises(CorruptData):
            decode(changed)
    for changed in (data + b"\x00", b"\x00" + data, data + data):
        with pytest.raises(CorruptData):
            decode(changed)


def test_a_segment_under_the_name_of_another_is_corrupt_data() -> None:
    data = encode_segment(Segment(0, entries=ENTRIES), NAME)
    with pytest.raises(CorruptData, match="checksum"):
        decode_segment(data, OTHER_NAME)


def test_every_flipped_bit_of_the_id_of_version_1_is_corrupt_data(fresh_name: str) -> None:
    store = MemoryStore(fresh_name)
    write_id(store, "ingest/manifest")
    data = store.get(id_path("ingest/manifest")).data
    for changed in flipped(data):
        store.put(id_path("ingest/manifest"), changed)
        with pytest.raises(CorruptData, match=r"ingest/manifest\.id"):
            read_id(store, "ingest/manifest")


def test_every_flipped_bit_of_a_metadata_log_is_corrupt_data_or_harmless(fresh_name: str) -> None:
    store = MemoryStore(fresh_name)
    with ObjectMetadataLog(store, 1) as log:
        for number in range(3):
            log.publish(0, b"payload %d" % number)
    objects = {meta.path: store.get(meta.path).data for meta in store.list_objects()}
    assert {"log.json", f"0/{0:020d}", f"0/{2:020d}"} <= objects.keys()
    for path, data in objects.items():
        for changed in flipped(data):
            store.put(path, changed)
            found = payloads(store)
            assert found is None or found == [b"payload 0", b"payload 1", b"payload 2"], f"{path}: {changed!r}"
            assert found is not None or not path.endswith("hint"), "a hint may be wrong, and nothing depends on it"
        store.put(path, data)


def payloads(store: MemoryStore) -> list[bytes] | None:
    """The payloads of a log; None where it raises `CorruptData`."""
    try:
        with ObjectMetadataLog(store) as log:
            (end,) = log.high_water_marks()
            with log.subscribe([PartitionStart(0, 0)]) as records:
                return [records.poll(10).payload for _ in range(end)]  # type: ignore[union-attr]  # there is one
    except CorruptData:
        return None
