"""Manifests of version 1 against bytes that were written down by hand from the table of the format, both ways."""

from __future__ import annotations

import pytest

from penstock.buffer import BatchDescriptor, Manifest, Metadata
from penstock.buffer.manifest.v1.codec import OpenDataManifest, next_epoch
from penstock.errors import InvalidInput
from tests.buffer.format.hexadecimal import by_hand

EMPTY = by_hand("""
    00 00 00 00                # entry count: 0
    00 00 00 00 00 00 00 00    # next sequence: 0
    00 00 00 00 00 00 00 00    # epoch: 0
    01 00                      # version: 1
""")
FIRST_ENTRY = by_hand("""
    15 00 00 00                # length of the rest: 8 + 2 + 7 + 4 = 21
    00 00 00 00 00 00 00 00    # sequence: 0
    07 00                      # location length: 7
    61 2e 62 61 74 63 68       # location: "a.batch"
    00 00 00 00                # metadata count: 0
""")
SECOND_ENTRY = by_hand("""
    2e 00 00 00                # length of the rest: 8 + 2 + 3 + 4 + 16 + 13 = 46
    01 00 00 00 00 00 00 00    # sequence: 1
    03 00                      # location length: 3
    70 2f 62                   # location: "p/b"
    01 00 00 00                # metadata count: 1
    00 00 00 00                #   start index: 0
    15 cd 5b 07 00 00 00 00    #   ingestion time: 123456789
    0d 00 00 00                #   payload length: 13
    00 61 6e 79 20 62 79 74 65 73 20 61 74   # payload: a zero, then "any bytes at"
""")
THIRD_ENTRY = by_hand("""
    44 00 00 00                # length of the rest: 8 + 2 + 5 + 4 + 3 * 16 + 1 = 68
    02 00 00 00 00 00 00 00    # sequence: 2
    05 00                      # location length, in bytes: 5
    c3 a9 e2 82 ac             # location: "é€" in UTF-8
    03 00 00 00                # metadata count: 3
    00 00 00 00                #   start index: 0
    ff ff ff ff ff ff ff ff    #   ingestion time: -1
    00 00 00 00                #   payload length: 0
    02 01 00 00                #   start index: 258
    00 00 00 00 00 00 00 80    #   ingestion time: the least, -2^63
    01 00 00 00                #   payload length: 1
    7a                         #   payload: "z"
    ff ff ff ff                #   start index: the most, 2^32 - 1
    ff ff ff ff ff ff ff 7f    #   ingestion time: the most, 2^63 - 1
    00 00 00 00                #   payload length: 0
""")


def footer(count: int, next_sequence: int, epoch: str = "00 00 00 00 00 00 00 00") -> bytes:
    """For counts and sequences below 256."""
    return by_hand(f"{count:02x} 00 00 00  {next_sequence:02x} 00 00 00 00 00 00 00  {epoch}  01 00")


FIRST = ("a.batch", ())
SECOND = ("p/b", (Metadata(0, 123456789, b"\x00any bytes at"),))
THIRD = (
    "é€",
    (Metadata(0, -1), Metadata(258, -(1 << 63), b"z"), Metadata((1 << 32) - 1, (1 << 63) - 1)),
)
DESCRIBED = tuple(BatchDescriptor(at, *entry) for at, entry in enumerate([FIRST, SECOND, THIRD]))
ALL = FIRST_ENTRY + SECOND_ENTRY + THIRD_ENTRY + footer(3, 3)


def test_a_manifest_that_is_not_there_yet_is_an_empty_one_at_epoch_0() -> None:
    assert OpenDataManifest.empty().data == EMPTY
    assert Manifest.decode(EMPTY) == Manifest(version=1, epoch=0, next_sequence=0, entries=())


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (FIRST_ENTRY + footer(1, 1), Manifest(1, 0, 1, DESCRIBED[:1])),
        (FIRST_ENTRY + SECOND_ENTRY + footer(2, 2), Manifest(1, 0, 2, DESCRIBED[:2])),
        (ALL, Manifest(1, 0, 3, DESCRIBED)),
        (THIRD_ENTRY + footer(1, 3), Manifest(1, 0, 3, DESCRIBED[2:])),
        (footer(0, 3), Manifest(1, 0, 3, ())),
        (THIRD_ENTRY + footer(1, 3, "08 07 06 05 04 03 02 01"), Manifest(1, 0x0102030405060708, 3, DESCRIBED[2:])),
        (footer(0, 0, "ff ff ff ff ff ff ff ff"), Manifest(1, (1 << 64) - 1, 0, ())),
    ],
    ids=[
        "one entry",
        "with metadata",
        "three entries",
        "dequeued",
        "all dequeued",
        "a later epoch",
        "the unused epoch",
    ],
)
def test_a_manifest_by_hand_is_read(data: bytes, expected: Manifest) -> None:
    assert Manifest.decode(data) == expected


def test_the_sequences_of_the_whole_range_are_read() -> None:
    last = by_hand("""
        0f 00 00 00                # length of the rest: 8 + 2 + 1 + 4 = 15
        fe ff ff ff ff ff ff ff    # sequence: 2^64 - 2
        01 00                      # location length: 1
        78                         # location: "x"
        00 00 00 00                # metadata count: 0
        01 00 00 00                # entry count: 1
        ff ff ff ff ff ff ff ff    # next sequence: 2^64 - 1
        00 00 00 00 00 00 00 00    # epoch: 0
        01 00                      # version: 1
    """)
    before = by_hand("00 00 00 00  fe ff ff ff ff ff ff ff  00 00 00 00 00 00 00 00  01 00")
    assert Manifest.decode(last).entries == (BatchDescriptor((1 << 64) - 2, "x"),)
    assert OpenDataManifest(before).append([("x", ())]).data == last


def test_appending_writes_the_bytes_by_hand_one_entry_at_a_time() -> None:
    manifest = OpenDataManifest.empty().append([FIRST])
    assert manifest.data == FIRST_ENTRY + footer(1, 1)
    manifest = manifest.append([SECOND])
    assert manifest.data == FIRST_ENTRY + SECOND_ENTRY + footer(2, 2)
    assert manifest.append([THIRD]).data == ALL


def test_appending_writes_the_bytes_by_hand_all_entries_at_once() -> None:
    assert OpenDataManifest.empty().append([FIRST, SECOND, THIRD]).data == ALL
    assert OpenDataManifest(ALL).append([]).data == ALL


@pytest.mark.parametrize(
    ("through", "expected"),
    [
        (-1, ALL),
        (0, SECOND_ENTRY + THIRD_ENTRY + footer(2, 3)),
        (1, THIRD_ENTRY + footer(1, 3)),
        (2, footer(0, 3)),
        (3, footer(0, 3)),
        ((1 << 64) - 1, footer(0, 3)),
    ],
)
def test_dequeuing_leaves_the_bytes_by_hand(through: int, expected: bytes) -> None:
    assert OpenDataManifest(ALL).remove_through(through).data == expected


def test_sequences_go_on_after_everything_was_dequeued() -> None:
    manifest = OpenDataManifest.empty().append([FIRST]).remove_through(0)
    assert manifest.data == footer(0, 1)
    assert manifest.append([SECOND]).data == SECOND_ENTRY + footer(1, 2)


@pytest.mark.parametrize("through", [0, 1])
def test_dequeuing_what_was_dequeued_changes_nothing(through: int) -> None:
    data = THIRD_ENTRY + footer(1, 3, "05 00 00 00 00 00 00 00")
    assert OpenDataManifest(data).remove_through(through).data == data


def test_an_epoch_is_the_only_thing_that_a_bump_changes() -> None:
    bumped = OpenDataManifest(ALL).with_epoch(0x0102030405060708)
    assert bumped.data == FIRST_ENTRY + SECOND_ENTRY + THIRD_ENTRY + footer(3, 3, "08 07 06 05 04 03 02 01")


def test_an_epoch_survives_what_is_enqueued_and_dequeued() -> None:
    manifest = OpenDataManifest.empty().with_epoch(7).append([FIRST, SECOND]).remove_through(0)
    assert manifest.data == SECOND_ENTRY + footer(1, 2, "07 00 00 00 00 00 00 00")


@pytest.mark.parametrize(
    ("epoch", "following"),
    [(0, 1), (41, 42), ((1 << 64) - 3, (1 << 64) - 2), ((1 << 64) - 2, 0), ((1 << 64) - 1, 0)],
)
def test_the_last_number_is_never_an_epoch(epoch: int, following: int) -> None:
    assert next_epoch(epoch) == following


def test_appending_does_not_decode_what_is_there() -> None:
    garbage = by_hand("ff ff ff ff") + b"no entry at all"
    manifest = OpenDataManifest(garbage + footer(1, 1)).append([SECOND])
    assert manifest.data == garbage + SECOND_ENTRY + footer(2, 2)


def test_dequeuing_copies_what_remains_as_bytes() -> None:
    garbage = by_hand("ff ff ff ff") + b"no entry at all"
    manifest = OpenDataManifest(FIRST_ENTRY + garbage + footer(2, 2)).remove_through(0)
    assert manifest.data == garbage + footer(1, 2)


def test_dequeuing_does_not_decode_the_location_or_metadata_of_what_it_removes() -> None:
    odd = by_hand("0f 00 00 00  00 00 00 00 00 00 00 00  ff ff  ff ff ff ff ff")  # a location that does not fit
    assert OpenDataManifest(odd + SECOND_ENTRY + footer(2, 2)).remove_through(0).data == SECOND_ENTRY + footer(1, 2)


def test_bumping_an_epoch_copies_all_entries_as_bytes() -> None:
    manifest = OpenDataManifest(b"garbage" + footer(1, 1)).with_epoch(1)
    assert manifest.data == b"garbage" + footer(1, 1, "01 00 00 00 00 00 00 00")


def test_a_location_of_65535_bytes_is_written_and_read() -> None:
    long = "é" * 32_767 + "x"
    data = OpenDataManifest.empty().append([(long, ())]).data
    assert data[:14] == by_hand("0d 00 01 00  00 00 00 00 00 00 00 00  ff ff")
    assert Manifest.decode(data).entries == (BatchDescriptor(0, long),)


@pytest.mark.parametrize("location", ["x" * 65_536, "é" * 32_768, ""])
def test_a_location_that_does_not_fit_is_refused(location: str) -> None:
    with pytest.raises(InvalidInput, match=f"location must have 1 to 65535 bytes, not {len(location.encode())}"):
        OpenDataManifest.empty().append([FIRST, (location, ())])


def test_a_location_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(InvalidInput, match="location"):
        OpenDataManifest.empty().append([("\ud800", ())])


class Claimed(bytes):
    """Bytes that claim a length too large to allocate in a test."""

    claimed = 1 << 32

    def __len__(self) -> int:
        return self.claimed


class OneLess(Claimed):
    claimed = (1 << 32) - 1


def test_a_payload_over_4_gib_is_refused() -> None:
    with pytest.raises(InvalidInput, match="payload cannot have more than 4294967295 bytes, and has 4294967296"):
        OpenDataManifest.empty().append([("x", [Metadata(0, 0, Claimed())])])


def test_the_longest_payload_has_its_length_written() -> None:
    data = OpenDataManifest.empty().append([("x", [Metadata(0, 0, OneLess(b"p"))])]).data
    assert data[31:36] == by_hand("ff ff ff ff") + b"p"


class Encoded(Claimed):
    """A payload whose encoded item claims the same length."""

    claimed = (1 << 32) - 1 - 15  # the sequence, the location "x" and two lengths take 15

    def __radd__(self, before: bytes) -> Encoded:
        return self


class OneTooLong(Encoded):
    claimed = Encoded.claimed + 1


def test_an_entry_over_4_gib_is_refused() -> None:
    assert OpenDataManifest.empty().append([("x", [Metadata(0, 0, Encoded())])]).count == 1
    with pytest.raises(InvalidInput, match="have 4294967296 bytes, and an entry cannot have more than 4294967295"):
        OpenDataManifest.empty().append([("x", [Metadata(0, 0, OneTooLong())])])


@pytest.mark.parametrize(
    ("item", "field"),
    [
        (Metadata(-1, 0), "start_index"),
        (Metadata(1 << 32, 0), "start_index"),
        (Metadata(0, 1 << 63), "ingestion_time_ms"),
        (Metadata(0, -(1 << 63) - 1), "ingestion_time_ms"),
    ],
)
def test_a_number_that_does_not_fit_is_refused(item: Metadata, field: str) -> None:
    with pytest.raises(InvalidInput, match=field):
        OpenDataManifest.empty().append([("x", [item])])


@pytest.mark.parametrize(
    "full",
    [
        "00 00 00 00  ff ff ff ff ff ff ff ff  00 00 00 00 00 00 00 00  01 00",  # the last sequence was given
        "ff ff ff ff  00 00 00 00 01 00 00 00  00 00 00 00 00 00 00 00  01 00",  # the most entries are there
    ],
)
def test_a_manifest_that_is_full_refuses_another_entry(full: str) -> None:
    with pytest.raises(InvalidInput, match="1 more entries do not fit"):
        OpenDataManifest(by_hand(full)).append([FIRST])
