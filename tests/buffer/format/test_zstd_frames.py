"""A batch's zstd frame, read as untrusted input. The frames are written by hand, from RFC 8878."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.buffer import decode_batch, encode_batch
from penstock.errors import CorruptData
from tests.buffer.format.hexadecimal import by_hand
from tests.support.manifest_trailers import BATCH, ended

MAGIC = "28 b5 2f fd"
CONTENT = "02 00 00 00 68 69"  # the block of one record, "hi": six bytes
RAW = "31 00 00" + CONTENT  # 6 << 3 | raw (0) << 1 | last
ONE_RECORD = by_hand("01 01 00 00 00 01 00")  # the footer: zstd, one record, version 1
NO_RECORDS = by_hand("01 00 00 00 00 01 00")
SIZED = by_hand(f"{MAGIC} 20 06 {RAW}")  # single segment, content size 6 in one byte
UNSIZED = by_hand(f"{MAGIC} 00 00 {RAW}")  # a window of 1 KiB, no content size
SKIPPABLE = by_hand("50 2a 4d 18  04 00 00 00  de ad be ef")


def refuses(frame: bytes, words: str, most: int = 1 << 30, footer: bytes = ONE_RECORD) -> None:
    with pytest.raises(CorruptData, match=words):
        decode_batch(frame + footer, max_batch_bytes=most)


def reads(frame: bytes, most: int = 1 << 30, footer: bytes = ONE_RECORD) -> list[object]:
    values: list[object] = decode_batch(frame + footer, max_batch_bytes=most).column("value").to_pylist()
    return values


@pytest.mark.parametrize("frame", [SIZED, UNSIZED], ids=["sized", "unsized"])
def test_a_block_of_exactly_the_most_is_read_and_of_one_byte_more_is_refused(frame: bytes) -> None:
    assert reads(frame, most=6) == [b"hi"]
    refuses(frame, r"the block would decompress .*beyond max_batch_bytes = 5", most=5)


@pytest.mark.parametrize("shape", ["arrow", "opendata"])
def test_our_own_frames_are_read_up_to_exactly_the_most(shape: str) -> None:
    values = [b"payload"] * 400
    block = encode_batch(values, format=shape)[: -7 if shape == "opendata" else -19]
    packed = encode_batch(values, format=shape, compression="zstd")
    assert decode_batch(packed, max_batch_bytes=len(block)).column("value").to_pylist() == values
    with pytest.raises(CorruptData, match=f"would decompress .*beyond max_batch_bytes = {len(block) - 1}"):
        decode_batch(packed, max_batch_bytes=len(block) - 1)


def test_nothing_is_read_where_nothing_is_allowed() -> None:
    assert reads(by_hand(f"{MAGIC} 20 00  01 00 00"), most=0, footer=NO_RECORDS) == []


def test_many_pieces_are_put_together_up_to_exactly_the_most() -> None:
    """Unpacked a piece at a time: blocks of 128 KiB of zeros, each a record of length 0 every four bytes."""
    block = "02 00 10" + "00"  # 128 KiB << 3 | RLE (1) << 1 | not last
    frame = by_hand(f"{MAGIC} 00 38" + block * 24 + "01 00 00")  # a window of 128 KiB
    size = 24 * (128 << 10)
    footer = by_hand("01") + (size // 4).to_bytes(4, "little") + by_hand("01 00")
    assert decode_batch(frame + footer, max_batch_bytes=size).num_rows == size // 4
    refuses(frame, f"beyond max_batch_bytes = {size - 1}", most=size - 1, footer=footer)


def test_a_small_frame_that_unpacks_to_far_more_is_refused() -> None:
    bomb = pa.compress(bytes(8 << 20), codec="zstd", asbytes=True)
    assert len(bomb) < 1000
    refuses(bomb, "would decompress to 8388608 bytes, beyond max_batch_bytes = 1000000", most=1_000_000)


@pytest.mark.parametrize(
    ("header", "claimed"),
    [
        ("a0 ff ff ff ff", (1 << 32) - 1),  # single segment, content size in four bytes
        ("e0 00 00 00 00 00 01 00 00", 1 << 40),  # single segment, content size in eight
        ("c0 00 ff ff ff ff ff ff ff ff", (1 << 64) - 1),  # a window, content size in eight
    ],
)
def test_a_claimed_size_beyond_the_most_is_refused(header: str, claimed: int) -> None:
    refuses(by_hand(f"{MAGIC} {header} {RAW}"), f"would decompress to {claimed} bytes, beyond max_batch_bytes")


def test_a_claimed_size_that_the_blocks_cannot_reach_is_refused_before_memory_is_allocated() -> None:
    frame = by_hand(f"{MAGIC} a0 00 00 00 20 {RAW}")  # 512 MiB, in six bytes
    refuses(frame, "claims 536870912 bytes, and its blocks hold 6 at most")


@pytest.mark.parametrize(("window", "size"), [("69", 9 << 20), ("88", 128 << 20), ("ff", 15 << 38)])
def test_a_window_beyond_the_most_is_refused(window: str, size: int) -> None:
    refuses(by_hand(f"{MAGIC} 00 {window} {RAW}"), f"asks for a window of {size} bytes", most=size - 1)


def test_a_window_up_to_the_most_is_read_and_so_is_what_every_decoder_has_to_support() -> None:
    assert reads(by_hand(f"{MAGIC} 00 69 {RAW}"), most=9 << 20) == [b"hi"]
    assert reads(by_hand(f"{MAGIC} 00 68 {RAW}"), most=6) == [b"hi"]


def test_a_window_that_the_decoder_does_not_have_is_refused() -> None:
    refuses(by_hand(f"{MAGIC} 00 90 {RAW}"), "does not decompress")  # 256 MiB: allowed by the most, not by zstd


@pytest.mark.parametrize(
    ("frame", "rest"),
    [(SIZED + SIZED, 15), (UNSIZED + SIZED, 15), (SIZED + SKIPPABLE, 12), (SIZED + b"\x00", 1)],
    ids=["two frames", "two kinds of frames", "a skippable frame behind", "a byte behind"],
)
def test_what_comes_after_the_frame_is_refused(frame: bytes, rest: int) -> None:
    refuses(frame, f"{rest} bytes are left over after the zstd frame")


@pytest.mark.parametrize(
    "frame",
    [SKIPPABLE, SKIPPABLE + SIZED, b"", by_hand(CONTENT), b"\x00" + SIZED, by_hand("27 b5 2f fd 20 06" + RAW)],
    ids=["skippable", "skippable before", "nothing", "not compressed", "shifted", "an older magic"],
)
def test_what_does_not_begin_as_a_frame_is_refused(frame: bytes) -> None:
    refuses(frame, "not a zstd frame")


@pytest.mark.parametrize(
    "header",
    ["21 07 06", "22 07 00 06", "23 07 00 00 00 06", "21 00 06", "28 06"],
    ids=["id of one byte", "id of two bytes", "id of four bytes", "id 0", "the reserved bit"],
)
def test_a_frame_that_needs_a_dictionary_is_refused(header: str) -> None:
    refuses(by_hand(f"{MAGIC} {header} {RAW}"), "needs a dictionary")


@pytest.mark.parametrize(
    ("size", "words"),
    [("05", "does not decompress"), ("07", "claims 7 bytes, and its blocks hold 6")],
)
def test_a_frame_of_another_size_than_it_says_is_refused(size: str, words: str) -> None:
    refuses(by_hand(f"{MAGIC} 20 {size} {RAW}"), words)


@pytest.mark.parametrize("wrong", [-1, 1])
def test_a_compressed_frame_of_another_size_than_it_says_is_refused(wrong: int) -> None:
    packed = bytearray(pa.Codec("zstd", 3).compress(bytes(1_000), asbytes=True))
    assert packed[4] == 0x60, "single segment, content size less 256 in two bytes"
    packed[5:7] = (1_000 - 256 + wrong).to_bytes(2, "little")
    footer = by_hand("01 fa 00 00 00 01 00")
    refuses(bytes(packed), r"does not decompress|unpacks to 1000 bytes", footer=footer)


@pytest.mark.parametrize(
    ("blocks", "words"),
    [
        ("37 00 00" + CONTENT, "a block of an unknown kind"),  # 6 << 3 | reserved (3) << 1 | last
        ("25 00 00  ff ff ff ff", "does not decompress"),  # 4 << 3 | compressed (2) << 1 | last, and nonsense
        ("fd ff ff" + "ff" * 40, "truncated"),  # a compressed block of 2 MiB less one
        ("30 00 00" + CONTENT, "truncated"),  # 6 << 3 | raw (0) << 1 | not last
    ],
)
def test_a_frame_that_does_not_decompress_is_refused(blocks: str, words: str) -> None:
    refuses(by_hand(f"{MAGIC} 00 00 {blocks}"), words)


def test_a_checksum_is_checked() -> None:
    assert reads(by_hand(f"{MAGIC} 24 00  01 00 00  99 e9 d8 51"), footer=NO_RECORDS) == []
    refuses(by_hand(f"{MAGIC} 24 00  01 00 00  99 e9 d8 50"), "does not decompress", footer=NO_RECORDS)


@pytest.mark.parametrize("shape", ["arrow", "opendata"])
def test_a_frame_cut_at_any_byte_is_refused(shape: str) -> None:
    whole = encode_batch([b"some words, some words, some words"] * 20, compression="zstd", format=shape)
    behind = 7 if shape == "opendata" else 19
    for cut in range(len(whole) - behind):
        body = whole[:cut] + whole[-behind:][:5]
        data = body + b"\x01\x00" if shape == "opendata" else ended(body, BATCH)
        with pytest.raises(CorruptData, match=r"zstd frame"):
            decode_batch(data)


def test_a_frame_with_a_checksum_cut_at_any_byte_is_truncated() -> None:
    frame = by_hand(f"{MAGIC} 24 00  01 00 00  99 e9 d8 51")
    for cut in range(4, len(frame)):
        refuses(frame[:cut], "truncated", footer=NO_RECORDS)
