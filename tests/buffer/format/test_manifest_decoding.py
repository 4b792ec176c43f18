"""Bytes that are no manifest are `CorruptData` naming the field; a series of changes is what a list would hold."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.buffer import BatchDescriptor, Manifest, Metadata
from penstock.buffer.manifest.v1.codec import OpenDataManifest
from penstock.errors import CorruptData
from tests.buffer.format.hexadecimal import by_hand

Entry = tuple[str, tuple[Metadata, ...]]

LENGTH = "20 00 00 00"  # 8 + 2 + 1 + 4 + 16 + 1 = 32
SEQUENCE = "00 00 00 00 00 00 00 00"
LOCATION = "01 00  78"
COUNT = "01 00 00 00"
ITEM = "00 00 00 00  05 00 00 00 00 00 00 00  01 00 00 00  70"
FOOTER = "01 00 00 00  01 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00  01 00"
GOOD = by_hand(LENGTH + SEQUENCE + LOCATION + COUNT + ITEM + FOOTER)


def refusal(data: bytes) -> str:
    with pytest.raises(CorruptData) as refused:
        Manifest.decode(data)
    return str(refused.value)


def test_the_manifest_that_is_spoiled_here_is_a_good_one() -> None:
    assert Manifest.decode(GOOD).entries == (BatchDescriptor(0, "x", (Metadata(0, 5, b"p"),)),)


@pytest.mark.parametrize("size", range(22))
def test_bytes_too_few_for_a_footer_are_refused(size: int) -> None:
    end = by_hand(FOOTER)[22 - size :]
    assert refusal(end) == f"a manifest of {size} bytes is too small for its footer of 22"


@pytest.mark.parametrize(("version", "number"), [("00 00", 0), ("03 00", 3), ("01 01", 257), ("ff ff", 65535)])
def test_a_version_that_is_not_supported_is_refused(version: str, number: int) -> None:
    message = f"unsupported version {number} of a manifest"
    assert refusal(by_hand(f"00 00 00 00  {SEQUENCE} {SEQUENCE} {version}")).startswith(message)
    assert refusal(by_hand(version)).startswith(message)


def footer(count: str = "01 00 00 00", next_sequence: str = "01 00 00 00 00 00 00 00") -> str:
    return f"{count} {next_sequence} 00 00 00 00 00 00 00 00 01 00"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (footer(count="02 00 00 00"), "entry count: a manifest cannot hold 2 entries when 1 were ever given"),
        ("61 62" + footer(count="00 00 00 00"), "entry count: it is 0, and 2 bytes of entries are there"),
        (footer(), "entry length: entry 0 of 1 is truncated"),
        ("20 00 00" + footer(), "entry length: entry 0 of 1 is truncated"),
        ("20 00 00 00" + footer(), "entry length: entry 0 of 1 says 32, which cannot be"),
        ("ff ff ff ff" + footer(), "entry length: entry 0 of 1 says 4294967295, which cannot be"),
        ("0d 00 00 00" + "00" * 13 + footer(), "entry length: entry 0 of 1 says 13, which cannot be"),
        (
            "21 00 00 00" + SEQUENCE + LOCATION + COUNT + ITEM + footer(),
            "entry length: entry 0 of 1 says 33, which cannot be",
        ),
        (
            "1f 00 00 00" + SEQUENCE + LOCATION + COUNT + ITEM + footer(),
            "entry count: 1 bytes are left over after 1 entries of a manifest",
        ),
        (
            "21 00 00 00" + SEQUENCE + LOCATION + COUNT + ITEM + "00" + footer(),
            "entry length: 1 bytes are left over in the entry of sequence 0",
        ),
        (
            LENGTH + "01 00 00 00 00 00 00 00" + LOCATION + COUNT + ITEM + footer(),
            "sequence: entry 0 of 1 has 1, and 0 is due",
        ),
        (
            LENGTH + SEQUENCE + LOCATION + COUNT + ITEM + footer(next_sequence="02 00 00 00 00 00 00 00"),
            "sequence: entry 0 of 1 has 0, and 1 is due",
        ),
        (
            "0e 00 00 00" + SEQUENCE + "01 00" + "00 00 00 00" + footer(),
            "location length: 1 does not fit into the entry of sequence 0",
        ),
        (
            LENGTH + SEQUENCE + "13 00 78" + COUNT + ITEM + footer(),
            "location length: 19 does not fit into the entry of sequence 0",
        ),
        (
            LENGTH + SEQUENCE + "ff ff 78" + COUNT + ITEM + footer(),
            "location length: 65535 does not fit into the entry of sequence 0",
        ),
        (LENGTH + SEQUENCE + "01 00 ff" + COUNT + ITEM + footer(), "location: that of sequence 0 is not UTF-8"),
        (
            LENGTH + SEQUENCE + LOCATION + "02 00 00 00" + ITEM + footer(),
            "metadata count: sequence 0 says 2, and has 1 items",
        ),
        (
            LENGTH + SEQUENCE + LOCATION + "ff ff ff ff" + ITEM + footer(),
            "metadata count: sequence 0 says 4294967295, and has 1 items",
        ),
        (
            "1e 00 00 00" + SEQUENCE + LOCATION + COUNT + "00" * 15 + footer(),
            "metadata count: sequence 0 says 1, and has 0 items",
        ),
        (
            LENGTH + SEQUENCE + LOCATION + "00 00 00 00" + ITEM + footer(),
            "entry length: 17 bytes are left over in the entry of sequence 0",
        ),
        (
            LENGTH + SEQUENCE + LOCATION + COUNT + ITEM.replace("01 00 00 00  70", "02 00 00 00  70") + footer(),
            "payload length: 2, in item 0 of sequence 0, does not fit",
        ),
        (
            LENGTH + SEQUENCE + LOCATION + COUNT + ITEM.replace("01 00 00 00  70", "ff ff ff ff  70") + footer(),
            "payload length: 4294967295, in item 0 of sequence 0, does not fit",
        ),
        (
            LENGTH + SEQUENCE + LOCATION + COUNT + ITEM.replace("01 00 00 00  70", "00 00 00 00  70") + footer(),
            "entry length: 1 bytes are left over in the entry of sequence 0",
        ),
    ],
)
def test_a_field_that_is_wrong_is_named(data: str, says: str) -> None:
    assert refusal(by_hand(data)) == says


def test_a_wrong_sequence_in_the_middle_is_named() -> None:
    data = OpenDataManifest.empty().append([("a", ()), ("b", ()), ("c", ())]).data
    middle = data.index(struct.pack("<Q", 1) + b"\x01\x00b")
    assert refusal(data[:middle] + struct.pack("<Q", 2) + data[middle + 8 :]) == (
        "sequence: entry 1 of 3 has 2, and 1 is due"
    )


@pytest.mark.parametrize("cut", range(36))
def test_an_entry_that_is_cut_is_refused(cut: int) -> None:
    assert refusal(GOOD[:cut] + GOOD[-22:]).startswith("entry length: ")


def test_dequeuing_refuses_to_remove_what_cannot_be_skipped() -> None:
    with pytest.raises(CorruptData, match="entry length: entry 0 of 1 says 4294967295"):
        OpenDataManifest(by_hand("ff ff ff ff" + footer())).remove_through(0)
    with pytest.raises(CorruptData, match="sequence: entry 0 of 1 has 7, and 0 is due"):
        OpenDataManifest(by_hand(LENGTH + "07" + SEQUENCE[2:] + LOCATION + COUNT + ITEM + footer())).remove_through(0)
    with pytest.raises(CorruptData, match="entry count: it is 0, and 3 bytes of entries are there"):
        OpenDataManifest(GOOD[:-22] + b"???" + GOOD[-22:]).remove_through(0)


METADATA = st.builds(
    Metadata, st.integers(0, (1 << 32) - 1), st.integers(-(1 << 63), (1 << 63) - 1), st.binary(max_size=12)
)
NEW_ENTRIES = st.lists(
    st.tuples(st.text(min_size=1, max_size=8), st.lists(METADATA, max_size=3).map(tuple)), max_size=3
)
STEPS = st.one_of(
    st.tuples(st.just("append"), NEW_ENTRIES),
    st.tuples(st.just("remove_through"), st.integers(-2, 12)),
    st.tuples(st.just("with_epoch"), st.integers(0, (1 << 64) - 1)),
)


def written(first: int, entries: list[Entry], epoch: int) -> bytes:
    """The format once more, in a few lines of its own."""
    parts = []
    for sequence, (location, metadata) in enumerate(entries, first):
        place = location.encode()
        rest = struct.pack("<QH", sequence, len(place)) + place + struct.pack("<I", len(metadata))
        for item in metadata:
            rest += struct.pack("<IqI", item.start_index, item.ingestion_time_ms, len(item.payload)) + item.payload
        parts.append(struct.pack("<I", len(rest)) + rest)
    return b"".join(parts) + struct.pack("<IQQH", len(entries), first + len(entries), epoch, 1)


@given(st.lists(STEPS, max_size=12))
def test_any_series_of_changes_leaves_what_a_list_would_hold(steps: list[tuple[str, object]]) -> None:
    manifest, first, entries, epoch = OpenDataManifest.empty(), 0, list[Entry](), 0
    for step in steps:
        before = manifest.data
        match step:
            case ("append", list(new)):
                changed, entries = manifest.append(new), [*entries, *new]
            case ("remove_through", int(last)):
                changed, gone = manifest.remove_through(last), min(max(last + 1 - first, 0), len(entries))
                first, entries = first + gone, entries[gone:]
            case ("with_epoch", int(epoch)):
                changed = manifest.with_epoch(epoch)
            case _:
                raise AssertionError(step)
        assert manifest.data == before, "a manifest never changes"
        manifest = changed
        described = tuple(BatchDescriptor(at, *entry) for at, entry in enumerate(entries, first))
        assert manifest.data == written(first, entries, epoch)
        assert Manifest.decode(manifest.data) == Manifest(1, epoch, first + len(entries), described)
        assert (manifest.first_sequence, manifest.count) == (first, len(entries))


@given(st.lists(st.text(min_size=1, max_size=4), max_size=6), st.integers(0, 6), st.integers(-2, 9), st.integers(-2, 9))
def test_a_part_of_the_entries_is_that_part_of_a_list(
    locations: list[str], dequeued: int, start: int, stop: int
) -> None:
    manifest = OpenDataManifest.empty().append([(location, ()) for location in locations]).remove_through(dequeued - 1)
    kept = [(sequence, location) for sequence, location in enumerate(locations) if sequence >= dequeued]
    assert [(found.sequence, found.location) for found in manifest.entries(start, stop)] == [
        (sequence, location) for sequence, location in kept if start <= sequence < stop
    ]
