"""Bytes that are not a batch raise `CorruptData` with what is wrong; every batch is read back as it was written."""

from __future__ import annotations

import mmap
import random
import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Record
from penstock.buffer import BatchFormat, Compression, decode_batch, encode_batch
from penstock.buffer.format import framing
from penstock.buffer.format.batch import record_count
from penstock.errors import CorruptData, InvalidInput
from penstock.records import Entry, records_from_arrow
from tests.buffer.format.hexadecimal import by_hand
from tests.support.manifest_trailers import BATCH, HEAD, SEGMENT, ended

MANY = 1_000  # records; from 301 on a block is read through Parquet
RECORDS = st.builds(
    Record,
    st.binary(max_size=20),
    key=st.none() | st.binary(max_size=8),
    headers=st.none() | st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), max_size=3),
    timestamp_ms=st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
)


def record(payload: bytes) -> bytes:
    return struct.pack("<I", len(payload)) + payload


def version_1(block: bytes, count: int) -> bytes:
    return block + struct.pack("<BIH", 0, count, 1)


def values(data: bytes) -> list[object]:
    found: list[object] = decode_batch(data).column("value").to_pylist()
    return found


def refusal(data: bytes) -> str:
    with pytest.raises(CorruptData) as refused:
        decode_batch(data)
    return str(refused.value)


def unframed(block: bytes, count: int, max_walked: int) -> list[object] | str:
    """The payloads of a block, or the message of the refusal. More than `max_walked` records are read as Parquet."""
    try:
        return framing.unframe(pa.py_buffer(block), count, max_walked=max_walked).to_pylist()
    except CorruptData as refused:
        return str(refused)


def by_the_format(block: bytes, count: int) -> list[bytes] | str:
    """The payloads of a block of version 1, or how the message of its refusal begins."""
    found: list[bytes] = []
    rest = block
    for number in range(count):
        if len(rest) < 4:
            return f"truncated length: record {number} of {count} "
        length = int.from_bytes(rest[:4], "little")
        rest = rest[4:]
        if len(rest) < length:
            return f"truncated data: record {number} of {count} has {len(rest)} of its {length} bytes"
        found.append(rest[:length])
        rest = rest[length:]
    return f"{len(rest)} bytes are left over after {count} records" if rest else found


def check(block: bytes, count: int) -> None:
    """Read a block in both ways, and compare with its format."""
    expected = by_the_format(block, count)
    for max_walked in (0, MANY):
        found = unframed(block, count, max_walked)
        assert found == expected if isinstance(expected, list) else str(found).startswith(expected)


@pytest.mark.parametrize("size", range(7))
def test_bytes_too_few_for_a_footer_are_refused(size: int) -> None:
    assert refusal(by_hand("00 00 00 00 00 01 00")[7 - size :]) == (
        f"a batch of {size} bytes is too small for its footer of 7"
    )


@pytest.mark.parametrize(("version", "number"), [("00 00", 0), ("03 00", 3), ("01 01", 257), ("ff ff", 65535)])
@pytest.mark.parametrize("block", ["", "00 00 00 00"])
def test_a_version_that_is_not_supported_is_refused(version: str, number: int, block: str) -> None:
    assert f"unsupported version {number} " in refusal(by_hand(f"{block} 00 01 00 00 00 {version}"))


@pytest.mark.parametrize(("code", "number"), [("02", 2), ("03", 3), ("80", 128), ("ff", 255)])
def test_a_compression_that_is_not_supported_is_refused(code: str, number: int) -> None:
    for data in (by_hand(f"{code} 00 00 00 00 01 00"), ended(by_hand(f"{code} 00 00 00 00"), BATCH)):
        assert f"unsupported compression {number} " in refusal(data)


def test_a_version_2_without_our_magic_may_be_a_later_one_of_opendatas() -> None:
    assert refusal(by_hand("00 01 00 00 00 02 00")) == (
        "unsupported version 2 of a batch: it may be a later format of OpenData's; this Penstock reads version 1 of "
        "OpenData's, and its own"
    )


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (ended(bytes(5), BATCH, 3), "unsupported version 3 of a batch; this Penstock reads 2"),
        (ended(bytes(5), HEAD), "it is not a batch: it ends in a manifest's head"),
        (ended(bytes(5), SEGMENT), "it is not a batch: it ends in a segment"),
        (ended(bytes(5), BATCH)[-13:], "a batch of 13 bytes is too small for its last 14"),
        (ended(bytes(4), BATCH), "a batch of 18 bytes is too small for its footer of 19"),
        (ended(bytes(5), BATCH, name="x"), "the checksum of a batch is wrong"),
        (b"\x00" + ended(bytes(5), BATCH), "the checksum of a batch is wrong"),
    ],
)
def test_a_batch_of_ours_whose_last_bytes_are_not_right_is_refused(data: bytes, says: str) -> None:
    assert refusal(data).startswith(says)
    with pytest.raises(CorruptData) as refused:
        record_count(data)
    assert str(refused.value).startswith(says)


@pytest.mark.parametrize(
    ("block", "count", "says"),
    [
        ("", "01", "truncated length: record 0 of 1 "),
        ("00 00 00", "01", "truncated length: record 0 of 1 "),
        ("00 00 00 00", "02", "truncated length: record 1 of 2 "),
        ("01 00 00 00 61  00 00", "02", "truncated length: record 1 of 2 "),
        ("01 00 00 00", "01", "truncated data: record 0 of 1 has 0 of its 1 bytes"),
        ("03 00 00 00 61 62", "01", "truncated data: record 0 of 1 has 2 of its 3 bytes"),
        ("ff ff ff ff 61", "01", "truncated data: record 0 of 1 has 1 of its 4294967295 bytes"),
        ("00 00 00 00  00 00 00 80", "02", "truncated data: record 1 of 2 has 0 of its 2147483648 bytes"),
        ("00", "00", "1 bytes are left over after 0 records"),
        ("01 00 00 00 61  00 00 00 00", "01", "4 bytes are left over after 1 records"),
    ],
)
@pytest.mark.parametrize("code", ["00", "01"], ids=["plain", "zstd"])
def test_a_block_that_is_not_right_is_refused(block: str, count: str, says: str, code: str) -> None:
    content = by_hand(block)
    if code == "01":  # one raw block in one frame
        content = by_hand("28 b5 2f fd 20") + bytes([len(content), len(content) << 3 | 1, 0, 0]) + content
    assert refusal(content + by_hand(f"{code} {count} 00 00 00 01 00")).startswith(says)


def test_a_count_that_no_block_could_hold_is_refused() -> None:
    assert refusal(by_hand("00 00 00 00  00 ff ff ff ff 01 00")).startswith("truncated length: record 1 of 4294967295 ")


@pytest.mark.parametrize("count", [299, 300, 301, MANY])
def test_few_records_and_many_are_read_alike(count: int) -> None:
    payloads = [bytes(number % 7) for number in range(count)]
    data = version_1(b"".join(map(record, payloads)), count)
    assert values(data) == payloads
    assert encode_batch(payloads, format="opendata") == data


@pytest.mark.parametrize("seed", range(40))
def test_a_wrong_length_among_many_records_is_reported_as_among_few(seed: int) -> None:
    chance = random.Random(seed)
    payloads = [chance.randbytes(chance.choice([0, 1, 5, 40])) for _ in range(MANY)]
    victim = chance.randrange(1, MANY - 1)
    at = sum(4 + len(payload) for payload in payloads[:victim])
    wrong = chance.choice([len(payloads[victim]) + chance.randint(1, 9), chance.getrandbits(32), 1 << 31, 2**32 - 1])
    block = b"".join(map(record, payloads))
    block = block[:at] + struct.pack("<I", wrong) + block[at + 4 :]
    check(block, MANY)
    assert refusal(version_1(block, MANY)) == unframed(block, MANY, max_walked=MANY)


@pytest.mark.parametrize(
    ("change", "count", "says"),
    [
        (-1, MANY, f"truncated data: record {MANY - 1} of {MANY} has 4 of its 5 bytes"),
        (-5, MANY, f"truncated data: record {MANY - 1} of {MANY} has 0 of its 5 bytes"),
        (-6, MANY, f"truncated length: record {MANY - 1} of {MANY} "),
        (-9, MANY, f"truncated length: record {MANY - 1} of {MANY} "),
        (0, MANY + 1, f"truncated length: record {MANY} of {MANY + 1} "),
        (0, MANY - 1, f"9 bytes are left over after {MANY - 1} records"),
        (3, MANY, f"3 bytes are left over after {MANY} records"),
        (4, MANY, f"4 bytes are left over after {MANY} records"),
    ],
)
def test_many_records_cut_or_with_more_behind_them_are_refused(change: int, count: int, says: str) -> None:
    block = record(b"abcde") * MANY
    assert refusal(version_1(block[:change] if change < 0 else block + bytes(change), count)).startswith(says)


@pytest.mark.parametrize("count", [3, MANY])
def test_values_that_pass_2_gib_together_are_refused(count: int) -> None:
    """In memory that is never read: a long record, then empty ones."""
    size = (1 << 31) - 1  # one byte more than a column of Arrow holds
    whole = mmap.mmap(-1, 4 * count + size + 7)
    whole.write(struct.pack("<I", size))
    whole.seek(-7, 2)
    whole.write(struct.pack("<BIH", 0, count, 1))
    with pytest.raises(CorruptData, match="2 GiB"):
        decode_batch(memoryview(whole))


@given(st.lists(st.binary(max_size=6), max_size=12), st.integers(-2, 2), st.binary(max_size=5))
def test_any_block_is_read_or_refused_as_its_format_says(payloads: list[bytes], more: int, after: bytes) -> None:
    check(b"".join(map(record, payloads)) + after, max(len(payloads) + more, 0))


@given(st.binary(max_size=40), st.integers(0, 12))
def test_any_bytes_are_read_or_refused_as_their_format_says(block: bytes, count: int) -> None:
    check(block, count)


@given(st.lists(st.binary(max_size=30), max_size=30), st.sampled_from(Compression))
def test_payloads_of_version_1_are_read_back_in_every_way(payloads: list[bytes], compression: Compression) -> None:
    data = encode_batch(payloads, compression=compression, format="opendata")
    assert values(data) == payloads
    block = framing.frame(pa.array(payloads, pa.binary()))
    assert block == framing.frame(pa.array(payloads, pa.binary()), max_page_bytes=0)  # as for a block above 2 GiB
    for max_walked, max_page_bytes in ((0, 1 << 20), (300, 1 << 20), (0, 0)):
        found = framing.unframe(block, len(payloads), max_walked=max_walked, max_page_bytes=max_page_bytes)
        assert found.to_pylist() == payloads


@given(st.lists(RECORDS | st.binary(max_size=20), max_size=20), st.sampled_from(Compression))
def test_records_are_read_back_in_version_2_with_all_their_fields(
    entries: list[Entry], compression: Compression
) -> None:
    batch = decode_batch(encode_batch(entries, compression=compression))
    assert records_from_arrow(batch) == [entry if isinstance(entry, Record) else Record(entry) for entry in entries]


@pytest.mark.parametrize("shape", BatchFormat)
@pytest.mark.parametrize("compression", Compression)
def test_many_large_and_small_payloads_are_read_back(shape: BatchFormat, compression: Compression) -> None:
    chance = random.Random(7)
    payloads = [chance.randbytes(chance.choice([0, 0, 3, 100, 100_000])) for _ in range(500)]
    assert values(encode_batch(payloads, compression=compression, format=shape)) == payloads


@pytest.mark.parametrize("count", [(1 << 13) - 1, 1 << 13, (1 << 13) + 1, (2 << 13) + 7])
def test_a_column_that_is_written_in_several_parts_is_one_block(count: int) -> None:
    payloads = [b"%d" % number * (number % 3) for number in range(count + 5)]
    expected = b"".join(len(payload).to_bytes(4, "little") + payload for payload in payloads[5:])
    column = pa.array(payloads, pa.binary()).slice(5)  # one that does not begin with its buffers
    assert framing.frame(column, b"after").to_pybytes() == expected + b"after"


def test_the_maximum_cannot_be_negative() -> None:
    with pytest.raises(InvalidInput, match="max_batch_bytes must be 0 or more, not -1"):
        decode_batch(encode_batch([]), max_batch_bytes=-1)
