"""The bytes of an object: written by hand, broken in every place, under a wrong name."""

from __future__ import annotations

import logging
import struct
import zlib
from collections.abc import Callable

import pytest

from penstock.errors import CorruptData
from penstock.metalog import ObjectMetadataLog, PartitionStart
from penstock.metalog.object.chain import Chain
from penstock.metalog.object.format import decode, decode_many, encode
from penstock.metalog.object.recent_objects import RecentObjects
from penstock.storage import MemoryStore
from tests.metalog.object.stores import plant, read_all

NONCE = bytes(range(16))
BODY = bytes.fromhex("00000005 00000000 00000002") + b"helloyo"
HEADER = b"PSML\x01" + bytes.fromhex("0000000000000007 0000000000000003 00000003 0000000000000013") + NONCE
BY_HAND = HEADER + zlib.crc32(HEADER + BODY).to_bytes(4, "big") + BODY


def forged(first: int = 7, number: int = 3, count: int = 3, body: bytes = BODY) -> bytes:
    """Bytes with a checksum that is right."""
    header = struct.pack(">4sBQQIQ16s", b"PSML", 1, first, number, count, len(body), NONCE)
    return header + zlib.crc32(header + body).to_bytes(4, "big") + body


def test_an_object_is_written_as_its_format_says() -> None:
    assert encode(7, 3, NONCE, [b"hello", b"", b"yo"]) == BY_HAND == forged()


def test_bytes_written_by_hand_are_read() -> None:
    found = decode(BY_HAND)

    assert (found.first, found.number, found.nonce, found.end) == (7, 3, NONCE, 10)
    assert list(found.payloads) == [b"hello", b"", b"yo"]
    assert found.size == len(BY_HAND)


def test_an_object_that_ends_early_or_has_a_wrong_byte_is_corrupt() -> None:
    for at in range(len(BY_HAND)):
        with pytest.raises(CorruptData):
            decode(BY_HAND[:at])
        for mask in (0x01, 0x80, 0xFF):
            with pytest.raises(CorruptData):
                decode(BY_HAND[:at] + bytes([BY_HAND[at] ^ mask]) + BY_HAND[at + 1 :])


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(BY_HAND + b"x", id="a byte more"),
        pytest.param(BY_HAND + BY_HAND, id="two"),
        pytest.param(forged(count=0), id="no records"),
        pytest.param(forged(count=0, body=b""), id="nothing"),
        pytest.param(forged(count=2**32 - 1), id="more records than there are bytes"),
        pytest.param(forged(count=2), id="lengths that do not add up"),
        pytest.param(forged(body=b"\xff" * 12 + b"helloyo"), id="lengths beyond the end"),
        pytest.param(forged(first=2**63), id="an offset that there is not"),
        pytest.param(forged(first=2, number=3), id="more objects before it than records"),
    ],
)
def test_what_has_a_right_checksum_and_is_wrong_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptData):
        decode(data)


@pytest.mark.parametrize("length", [1, len(BY_HAND) - 1, len(BY_HAND) + 1, 2 * len(BY_HAND) - 1])
def test_objects_in_a_row_that_end_early_are_corrupt(length: int) -> None:
    with pytest.raises(CorruptData):
        list(decode_many((BY_HAND + BY_HAND)[:length]))


def test_an_object_under_another_name_is_corrupt_for_readers_and_writers(fresh_name: str) -> None:
    store = MemoryStore(fresh_name)
    with ObjectMetadataLog(store, 1) as log:
        plant(store, 0, 2)
        store.put(f"0/{2:020d}", store.get(f"0/{1:020d}").data)

        with pytest.raises(CorruptData, match=rf"{2:020d} is a copy of the object that begins at 1"):
            log.publish(0, b"x")
        with pytest.raises(CorruptData, match="is a copy"):
            log.high_water_marks()
        with log.subscribe([PartitionStart(0)]) as records:
            assert [next(records).offset for _ in range(2)] == [0, 1]
            with pytest.raises(CorruptData, match="is a copy"):
                next(records)


def test_a_corrupt_object_is_named(fresh_name: str) -> None:
    store = MemoryStore(fresh_name)
    with ObjectMetadataLog(store, 1) as log:
        store.put(f"0/{0:020d}", b"rubbish")

        with log.subscribe([PartitionStart(0)]) as records, pytest.raises(CorruptData, match=f"{store.url}/0/{0:020d}"):
            next(records)
        with pytest.raises(CorruptData, match=f"{store.url}/0/{0:020d}"):
            log.publish(0, b"x")


def _good(store: MemoryStore, first: int, end: int) -> bytes:
    return b"".join(store.get(f"0/{name:020d}").data for name in range(first, end))


ROLL_UPS: dict[str, tuple[str, Callable[[MemoryStore], bytes]]] = {
    "rubbish": (f"{0:020d}-40", lambda store: b"rubbish"),
    "empty": (f"{0:020d}-40", lambda store: b""),
    "of nothing": (f"{0:020d}-0", lambda store: b""),
    "cut": (f"{0:020d}-40", lambda store: _good(store, 0, 40)[:-1]),
    "one too few": (f"{0:020d}-40", lambda store: _good(store, 0, 39)),
    "one too many": (f"{0:020d}-40", lambda store: _good(store, 0, 41)),
    "a gap": (f"{0:020d}-40", lambda store: _good(store, 0, 20) + _good(store, 21, 40)),
    "others": (f"{0:020d}-40", lambda store: _good(store, 1, 41)),
    "no name": ("rubbish", lambda store: b""),
}


@pytest.mark.parametrize("which", ROLL_UPS)
@pytest.mark.parametrize("start", [0, 20, 45])
def test_a_roll_up_that_is_wrong_is_not_used(
    which: str, start: int, fresh_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore(fresh_name)
    name, make = ROLL_UPS[which]
    with ObjectMetadataLog(store, 1) as log:
        plant(store, 0, 50)
        store.put(f"0/rollups/{name}", make(store))
        with caplog.at_level(logging.WARNING):
            assert read_all(log, start=start, end=50) == [b"%d" % at for at in range(start, 50)]
    assert ("a roll-up cannot be used" in caplog.text) == (start in {0, 20} and which not in {"no name", "of nothing"})


def test_a_roll_up_whose_name_is_inside_an_object_is_not_used(fresh_name: str) -> None:
    store = MemoryStore(fresh_name)
    with ObjectMetadataLog(store, 1) as log:
        store.put_if_absent(f"0/{0:020d}", encode(0, 0, NONCE, [b"%d" % at for at in range(10)]))
        store.put(f"0/rollups/{5:020d}-3", b"rubbish")

        assert read_all(log, start=6, end=10) == [b"6", b"7", b"8", b"9"]


def test_a_roll_up_has_its_offsets_in_a_row(fresh_name: str) -> None:
    store = MemoryStore(fresh_name)
    plant(store, 0, 3)
    store.put(f"0/rollups/{0:020d}-3", _good(store, 0, 3))
    chain = Chain(store, 0, RecentObjects())

    assert [found.first for found in chain.read_roll_up(chain.roll_ups()[0])] == [0, 1, 2]
