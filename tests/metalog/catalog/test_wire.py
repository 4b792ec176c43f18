"""Segment events in bytes: against bytes written by hand from the table, against Kafka's own, and against damage."""

from __future__ import annotations

import itertools
import re
from contextlib import suppress
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptData, InvalidInput
from penstock.metalog.catalog.segment import (
    PartitionDelete,
    PartitionDeleteState,
    SegmentEvent,
    SegmentId,
    SegmentMetadata,
    SegmentState,
    SegmentUpdate,
    TopicIdPartition,
)
from penstock.metalog.catalog.wire import decode_event, encode_event

TOPIC = UUID("00112233-4455-6677-8899-aabbccddeeff")
SEGMENT = UUID("01234567-89ab-cdef-fedc-ba9876543210")
TP = TopicIdPartition(TOPIC, "orders", 3)
ABROAD = TopicIdPartition(TOPIC, "über", -1)
ID, ID_ABROAD = SegmentId(TP, SEGMENT), SegmentId(ABROAD, SEGMENT)

COPYING, COPIED, DELETING, DELETED = SegmentState
MARKED, STARTED, FINISHED = PartitionDeleteState


def by_hand(lines: str) -> bytes:
    """Bytes in hexadecimal, and after a `#` what they are."""
    return bytes.fromhex(re.sub("#.*", "", lines))


TP_BYTES = """
    07 6f7264657273                       # name, 6 bytes
    00112233445566778899aabbccddeeff      # topic id
    00000003                              # partition
    00                                    # tags of tp
"""
ID_BYTES = f"""{TP_BYTES}
    0123456789abcdeffedcba9876543210      # id
    00                                    # tags of segment id
"""
METADATA_NUMBERS = """
    0000000000000064                      # start 100
    00000000000000c7                      # end 199
    00000005                              # broker 5
    0000000000000011                      # max ts 17
    0000000000000012                      # event ts 18
"""
ONE_EPOCH = """
    02                                    # one epoch
    00000000 0000000000000064 00          # epoch 0 from offset 100, tags
"""
PLAIN = SegmentMetadata(ID, 100, 199, 17, 5, 18, 1024, COPYING, {0: 100})
PLAIN_BYTES = f"""
    01 00 00                              # frame, key, version
    {ID_BYTES} {METADATA_NUMBERS} {ONE_EPOCH}
    00000400                              # size 1024
    00                                    # custom: null
    00                                    # state
    00                                    # tags
"""
BY_HAND: dict[str, tuple[SegmentEvent, str]] = {
    "metadata": (PLAIN, PLAIN_BYTES),
    "metadata with everything": (
        SegmentMetadata(ID, 100, 199, 17, 5, 18, 1024, DELETED, {7: 150, 2: 100}, b"\x0a\x0b", txn_index_empty=True),
        f"""
        01 00 00                          # frame, key, version
        {ID_BYTES} {METADATA_NUMBERS}
        03                                # two epochs
        00000002 0000000000000064 00      # epoch 2 from offset 100, tags
        00000007 0000000000000096 00      # epoch 7 from offset 150, tags
        00000400                          # size 1024
        03 0a0b                           # custom, 2 bytes
        03                                # state
        01 00 01 01                       # one tag: 0, of 1 byte, true
        """,
    ),
    "metadata with empty custom metadata": (
        SegmentMetadata(ID, 100, 199, 17, 5, 18, 0, COPIED, {0: 100}, b""),
        f"""
        01 00 00                          # frame, key, version
        {ID_BYTES} {METADATA_NUMBERS} {ONE_EPOCH}
        00000000                          # size 0
        01                                # custom, 0 bytes
        01                                # state
        00                                # tags
        """,
    ),
    "update": (
        SegmentUpdate(ID, 20, COPIED, 6),
        f"""
        01 01 00                          # frame, key, version
        {ID_BYTES}
        00000006                          # broker 6
        0000000000000014                  # event ts 20
        00                                # custom: null
        01                                # state
        00                                # tags
        """,
    ),
    "update with custom metadata": (
        SegmentUpdate(ID, -1, DELETING, -2, b"\x0a\x0b\x0c"),
        f"""
        01 01 00                          # frame, key, version
        {ID_BYTES}
        fffffffe                          # broker -2
        ffffffffffffffff                  # event ts -1
        04 0a0b0c                         # custom, 3 bytes
        02                                # state
        00                                # tags
        """,
    ),
    "delete": (
        PartitionDelete(TP, FINISHED, 20, 6),
        f"""
        01 02 00                          # frame, key, version
        {TP_BYTES}
        00000006                          # broker 6
        0000000000000014                  # event ts 20
        02                                # state
        00                                # tags
        """,
    ),
}
SAMPLES = {name: by_hand(lines) for name, (_, lines) in BY_HAND.items()}

TIMES = (1_700_000_000_123, 1_700_000_000_456, 1_700_000_000_789, 1_700_000_000_999)
THREE = {7: 150, 2: 100, 9: 199}
_TOPIC_PARTITION_HEX = "00112233445566778899aabbccddeeff"
_SEGMENT_HEX = "0123456789abcdeffedcba9876543210"
OF_KAFKA: dict[str, tuple[SegmentEvent, str]] = {
    "metadata": (
        SegmentMetadata(ID, 100, 199, TIMES[0], 5, TIMES[1], 1 << 20, COPYING, {0: 100}),
        "010000076f7264657273" + _TOPIC_PARTITION_HEX + "0000000300" + _SEGMENT_HEX + "00000000000000006400000000"
        "000000c7000000050000018bcfe5687b0000018bcfe569c8020000000000000000000000640000100000000000",
    ),
    "metadata with everything": (
        SegmentMetadata(ID, 100, 199, TIMES[0], 5, TIMES[1], 1 << 20, COPIED, THREE, b"\x01\x02\x03", True),
        "010000076f7264657273" + _TOPIC_PARTITION_HEX + "0000000300" + _SEGMENT_HEX + "00000000000000006400000000"
        "000000c7000000050000018bcfe5687b0000018bcfe569c80400000002000000000000006400000000070000000000000096000000"
        "000900000000000000c70000100000040102030101000101",
    ),
    "metadata at the limits": (
        SegmentMetadata(ID_ABROAD, 0, (1 << 63) - 1, -1, -1, -2, (1 << 31) - 1, DELETED, THREE, b""),
        "01000006c3bc626572" + _TOPIC_PARTITION_HEX + "ffffffff00" + _SEGMENT_HEX + "0000000000000000007fffffffffff"
        "fffffffffffffffffffffffffffffffffffffffffffe0400000002000000000000006400000000070000000000000096000000000900"
        "000000000000c7007fffffff010300",
    ),
    "metadata whose lengths take two bytes": (
        SegmentMetadata(
            SegmentId(TopicIdPartition(TOPIC, "t" * 130, 0), SEGMENT),
            *(100, 199, TIMES[0], 5, TIMES[1], 0, DELETING, {0: 100}, bytes(200), True),
        ),
        "0100008301" + "74" * 130 + _TOPIC_PARTITION_HEX + "0000000000" + _SEGMENT_HEX + "000000000000000064000000"
        "00000000c7000000050000018bcfe5687b0000018bcfe569c8020000000000000000000000640000000000c901" + "00" * 200 + "02"
        "01000101",
    ),
    "update": (
        SegmentUpdate(ID, TIMES[2], COPIED, 6),
        "010100076f7264657273"
        + _TOPIC_PARTITION_HEX
        + "0000000300"
        + _SEGMENT_HEX
        + "00000000060000018bcfe56b15000100",
    ),
    "update with empty custom metadata": (
        SegmentUpdate(ID, TIMES[2], DELETING, 6, b""),
        "010100076f7264657273"
        + _TOPIC_PARTITION_HEX
        + "0000000300"
        + _SEGMENT_HEX
        + "00000000060000018bcfe56b15010200",
    ),
    "update with custom metadata": (
        SegmentUpdate(ID_ABROAD, -1, DELETED, -2, b"\x01\x02\x03"),
        "01010006c3bc626572" + _TOPIC_PARTITION_HEX + "ffffffff00" + _SEGMENT_HEX + "00fffffffeffffffffffffffff04010203"
        "0300",
    ),
    "delete marked": (
        PartitionDelete(TP, MARKED, TIMES[3], 7),
        "010200076f7264657273" + _TOPIC_PARTITION_HEX + "0000000300000000070000018bcfe56be70000",
    ),
    "delete started": (
        PartitionDelete(ABROAD, STARTED, TIMES[3], 7),
        "01020006c3bc626572" + _TOPIC_PARTITION_HEX + "ffffffff00000000070000018bcfe56be70100",
    ),
    "delete finished": (
        PartitionDelete(TP, FINISHED, TIMES[3], 7),
        "010200076f7264657273" + _TOPIC_PARTITION_HEX + "0000000300000000070000018bcfe56be70200",
    ),
}
"""What `RemoteLogMetadataSerde` of Kafka 4.0.0 wrote for these."""


def name_of(event: SegmentEvent) -> str:
    tp = event.topic_id_partition if isinstance(event, PartitionDelete) else event.id.topic_id_partition
    return tp.topic


@pytest.mark.parametrize(("event", "lines"), [*BY_HAND.values(), *OF_KAFKA.values()], ids=[*BY_HAND, *OF_KAFKA])
def test_an_event_is_written_and_read_as_in_the_table_and_as_kafka_does(event: SegmentEvent, lines: str) -> None:
    assert encode_event(event).hex(" ") == by_hand(lines).hex(" ")
    read = decode_event(by_hand(lines))
    assert read == event
    assert type(read) is type(event)
    assert name_of(read) == name_of(event)


@pytest.mark.parametrize(
    ("size", "length"),
    [(126, "7f"), (127, "8001"), (128, "8101"), (16_382, "ff7f"), (16_383, "808001"), (2_097_151, "80808001")],
)
def test_a_length_takes_as_many_bytes_as_it_needs(size: int, length: str) -> None:
    event = SegmentUpdate(ID, 20, COPIED, 6, bytes(size))
    data = SAMPLES["update"][:-3] + by_hand(length) + bytes(size) + by_hand("01 00")
    assert encode_event(event) == data
    assert decode_event(data) == event


def test_bytes_of_any_sort_can_be_read() -> None:
    data = SAMPLES["update"]
    assert decode_event(bytearray(data)) == decode_event(memoryview(data)) == decode_event(data)


@pytest.mark.parametrize("data", [None, "01", 5])
def test_what_are_no_bytes_is_refused(data: object) -> None:
    with pytest.raises(InvalidInput, match="data must be bytes, a bytearray or a memoryview, not"):
        decode_event(data)  # type: ignore[arg-type]


@pytest.mark.parametrize("event", [None, TP, ID, b"", COPYING])
def test_what_is_no_event_is_refused(event: object) -> None:
    with pytest.raises(InvalidInput, match="event must be a SegmentMetadata"):
        encode_event(event)  # type: ignore[arg-type]


@pytest.mark.parametrize("data", SAMPLES.values(), ids=SAMPLES)
def test_an_event_that_is_cut_anywhere_or_too_long_is_corrupt(data: bytes) -> None:
    for size in range(len(data)):
        with pytest.raises(CorruptData):
            decode_event(data[:size])
    with pytest.raises(CorruptData, match="2 bytes behind its end"):
        decode_event(data + b"\x00\x00")


@pytest.mark.parametrize("bits", [range(0, 256, 37), pytest.param(range(256), marks=pytest.mark.slow)], ids=str)
def test_an_event_with_any_byte_changed_is_another_event_or_corrupt(bits: range) -> None:
    for data in SAMPLES.values():
        for at, change in itertools.product(range(len(data)), bits):
            with suppress(CorruptData):
                event = decode_event(data[:at] + bytes([data[at] ^ change]) + data[at + 1 :])
                assert decode_event(encode_event(event)) == event


def changed(old: str, new: str, lines: str = PLAIN_BYTES) -> bytes:
    data, was, becomes = by_hand(lines), by_hand(old), by_hand(new)
    assert data.count(was) == 1, "the part to change is there, once"
    return data.replace(was, becomes)


ANY_TAGS = "02  05 02 aabb  ffffffff0f 00"
"""Two unknown tags: 5 of two bytes, and the largest of none."""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (TP_BYTES, TP_BYTES.replace("00                                    # tags", f"{ANY_TAGS} # tags")),
        ("fedcba9876543210 00", f"fedcba9876543210 {ANY_TAGS}"),
        (ONE_EPOCH, f"02 00000000 0000000000000064 {ANY_TAGS}"),
        ("00000400 00 00 00", f"00000400 00 00 {ANY_TAGS}"),
    ],
    ids=["tp", "segment id", "epoch", "metadata"],
)
def test_tags_that_are_not_known_are_skipped_in_every_structure(old: str, new: str) -> None:
    assert decode_event(changed(old, new)) == PLAIN


@pytest.mark.parametrize("name", ["update", "delete"])
def test_tags_that_are_not_known_are_skipped_at_the_end_of_every_event(name: str) -> None:
    event, lines = BY_HAND[name]
    for tags in (ANY_TAGS, "01 00 01 01"):
        assert decode_event(by_hand(lines)[:-1] + by_hand(tags)) == event


@pytest.mark.parametrize(
    ("tags", "is_empty"),
    [
        ("00", False),
        ("01 00 01 01", True),
        ("01 00 01 00", False),
        ("01 00 01 02", True),
        ("02 05 02 aabb 00 01 01", True),
        ("02 00 01 01 05 02 aabb", True),
        ("02 00 01 01 00 01 00", False),
        ("02 00 01 00 00 01 01", True),
    ],
)
def test_the_flag_of_the_transaction_index_is_read_as_kafka_reads_it(tags: str, is_empty: bool) -> None:
    event = decode_event(by_hand(PLAIN_BYTES)[:-1] + by_hand(tags))
    assert isinstance(event, SegmentMetadata)
    assert event.txn_index_empty is is_empty


def test_of_an_epoch_that_is_there_twice_the_last_counts_as_with_kafka() -> None:
    event = decode_event(changed(ONE_EPOCH, "03 00000000 0000000000000064 00 00000000 0000000000000065 00"))
    assert isinstance(event, SegmentMetadata)
    assert event.segment_leader_epochs == {0: 101}


@pytest.mark.parametrize("frame", ["81 00", "81 80 80 80 00"])
def test_a_varint_may_be_longer_than_it_must_be(frame: str) -> None:
    assert decode_event(by_hand(frame) + by_hand(PLAIN_BYTES)[1:]) == PLAIN


BODY = by_hand(PLAIN_BYTES)[3:]
FLAGLESS = by_hand(PLAIN_BYTES)[:-1]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "of 0 bytes ends too early"),
        (by_hand("00 00 00") + BODY, "the frame 0"),
        (by_hand("02 00 00") + BODY, "the frame 2"),
        (by_hand("01 03 00") + BODY, "the key 3"),
        (by_hand("01 ffffffff0f 00") + BODY, "the key 4294967295"),
        (by_hand("01 00 01") + BODY, "the version 1"),
        (by_hand("81 80 80 80 80 00 00 00") + BODY, "more than 5 bytes"),
        (by_hand("81 80 80 80 10 00 00") + BODY, "more than 32 bits"),
        (changed("07 6f7264657273", "00"), "no name"),
        (changed("07 6f7264657273", "07 6f72ff657273"), "not UTF-8"),
        (changed("07 6f7264657273", "07 6fed a080 7273"), "not UTF-8"),
        (changed("07 6f7264657273", "818002" + "78" * 32_768), "topic must have at most 32767 bytes"),
        (changed("07 6f7264657273", "ffffffff0f 6f7264657273"), "says 4294967294 bytes"),
        (changed(ONE_EPOCH, "00"), "null for its epochs"),
        (changed(ONE_EPOCH, "01"), "segment_leader_epochs must"),
        (changed(ONE_EPOCH, ONE_EPOCH.replace("02", "ffffffff0f", 1)), "ends too early"),
        (changed("00000400 00 00 00", "ffffffff 00 00 00"), "segment_size_in_bytes must"),
        (changed("00000400 00 00 00", "00000400 ffffffff07 00 00"), "says 2147483646 bytes"),
        (changed("00000400 00 00 00", "00000400 00 04 00"), "the state 4"),
        (changed("00000400 00 00 00", "00000400 00 ff 00"), "the state 255"),
        (changed("00000000000000c7", "0000000000000063"), "end_offset must"),
        (FLAGLESS + by_hand("01 00 00"), "a bool of 0 bytes"),
        (FLAGLESS + by_hand("01 00 02 01 00"), "a bool of 2 bytes"),
        (FLAGLESS + by_hand("01 05 ffffffff0f"), "says 4294967295 bytes, and 0 follow"),
        (FLAGLESS + by_hand("ffffffff0f 05 00"), "ends too early"),
        (SAMPLES["delete"][:-2] + by_hand("03 00"), "the state 3"),
        (SAMPLES["update"][:-2] + by_hand("04 00"), "the state 4"),
    ],
)
def test_what_is_wrong_is_named(data: bytes, complaint: str) -> None:
    with pytest.raises(CorruptData, match=re.escape(complaint)):
        decode_event(data)


I32 = st.integers(-(1 << 31), (1 << 31) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
TPS = st.builds(TopicIdPartition, st.uuids(), st.text(max_size=200), I32)
IDS = st.builds(SegmentId, TPS, st.uuids())
CUSTOM = st.none() | st.binary(max_size=300)
SEGMENT_STATES = st.sampled_from(SegmentState)


@st.composite
def all_metadata(draw: st.DrawFn) -> SegmentMetadata:
    start, end = sorted((draw(I64), draw(I64)))
    return SegmentMetadata(
        draw(IDS),
        start,
        end,
        draw(I64),
        draw(I32),
        draw(I64),
        draw(st.integers(0, (1 << 31) - 1)),
        draw(SEGMENT_STATES),
        draw(st.dictionaries(I32, I64, min_size=1, max_size=9)),
        draw(CUSTOM),
        draw(st.booleans()),
    )


EVENTS = st.one_of(
    all_metadata(),
    st.builds(SegmentUpdate, IDS, I64, SEGMENT_STATES, I32, CUSTOM),
    st.builds(PartitionDelete, TPS, st.sampled_from(PartitionDeleteState), I64, I32),
)


@given(EVENTS)
def test_every_event_comes_back_as_it_was(event: SegmentEvent) -> None:
    data = encode_event(event)
    read = decode_event(data)
    assert read == event
    assert name_of(read) == name_of(event)
    assert encode_event(read) == data


@given(st.sampled_from([b"", b"\x01\x00\x00", b"\x01\x01\x00", b"\x01\x02\x00"]), st.binary(max_size=150))
def test_any_bytes_are_an_event_or_corrupt(head: bytes, rest: bytes) -> None:
    with suppress(CorruptData):
        assert decode_event(encode_event(event := decode_event(head + rest))) == event
