"""The block of batch version 2, an Arrow stream, read as untrusted input."""

from __future__ import annotations

import mmap
import struct
from typing import Any

import pyarrow as pa
import pytest
import xxhash

from penstock import Record
from penstock.buffer import BatchFormat, Compression, decode_batch
from penstock.buffer.format.batch import encode
from penstock.errors import CorruptData
from penstock.records import bytes_of, records_from_arrow, values_to_arrow
from tests.buffer.format.arrow_bytes import (
    END,
    PAIR,
    Packed,
    as_big_endian,
    batch_of,
    column,
    columns,
    messages,
    places,
    stream,
    tampered,
)

TWO = columns(value=column([b"ab", b"cd"]))
HEADERS = pa.list_(PAIR)


def packed(block: bytes, count: int) -> bytes:
    """The block in one zstd frame, as a batch."""
    return batch_of(pa.Codec("zstd", 3).compress(block, asbytes=True), count, compression=1)


@pytest.mark.parametrize("rows", [0, 1, 7, 1000])
@pytest.mark.parametrize("is_slice", [False, True])
def test_the_block_of_a_small_batch_is_the_stream_that_arrow_writes(rows: int, is_slice: bool) -> None:
    values = [b"%d" % number for number in range(rows + 5)]
    batch = values_to_arrow(values).slice(2, rows) if is_slice else values_to_arrow(values[:rows])
    encoded = encode(batch, Compression.NONE, BatchFormat.ARROW)
    written = stream(batch)
    assert encoded.plain_size == len(encoded.data)
    assert bytes(encoded.data) == batch_of(written, rows)


def refuses(block: bytes, count: int, words: str) -> None:
    for data in (batch_of(block, count), packed(block, count)):
        with pytest.raises(CorruptData, match=words):
            decode_batch(data)


def reads(block: bytes, count: int) -> list[Record]:
    plain, unpacked = decode_batch(batch_of(block, count)), decode_batch(packed(block, count))
    assert plain == unpacked
    return records_from_arrow(plain)


def headers(*pairs: Any) -> pa.RecordBatch:
    return columns(value=column([b"x"]), headers=column([list(pairs)], HEADERS))


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_compressed_buffers_are_refused(compression: Packed) -> None:
    refuses(stream(columns(value=column([bytes(10_000)])), compression=compression), 1, "compressed buffers")


@pytest.mark.parametrize(("compression", "magic"), [("zstd", "28b52ffd"), ("lz4", "04224d18")])
def test_a_compressed_buffer_that_claims_a_tebibyte_is_refused(compression: Packed, magic: str) -> None:
    block = stream(columns(value=column([bytes(10_000)])), compression=compression)
    frame = bytes.fromhex(magic)
    claimed = tampered(block, struct.pack("<q", 10_000) + frame, struct.pack("<q", 1 << 40) + frame)
    refuses(claimed, 1, "compressed buffers")


def test_a_compressed_batch_behind_a_plain_one_is_refused() -> None:
    first, rest = messages(stream(TWO)), messages(stream(TWO, compression="zstd"))
    refuses(b"".join([*first, rest[1], END]), 4, "compressed buffers")


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (columns(value=TWO.column(0).dictionary_encode()), "'value' has the type dictionary<"),
        (columns(key=column([b"k"])), "the column 'value' is missing"),
        (columns(value=column([b"v"]), offset=column([1], pa.int64())), "the column 'offset' is not one of"),
        (columns(value=column([b"v"], pa.large_binary())), "'value' has the type large_binary"),
        (columns(value=column(["v"], pa.string())), "'value' has the type string"),
        (columns(value=column([b"v"]), key=column(["k"], pa.string())), "'key' has the type string"),
        (columns(value=column([b"v"]), timestamp=column([1], pa.int64())), "'timestamp' has the type int64"),
        (columns(value=column([b"v"]), timestamp=column([1], pa.timestamp("ms"))), "'timestamp' has the type"),
        (columns(value=column([b"v"]), timestamp=column([1], pa.timestamp("us", "UTC"))), "'timestamp' has the type"),
        (columns(value=column([b"v"]), headers=column([[b"h"]], pa.list_(pa.binary()))), "'headers' has the type"),
    ],
)
def test_other_columns_than_those_of_the_format_are_refused(batch: pa.RecordBatch, words: str) -> None:
    refuses(stream(batch), batch.num_rows, words)


def test_a_column_that_is_there_twice_is_refused() -> None:
    twice = pa.RecordBatch.from_arrays([column([b"a"]), column([b"b"])], names=["value", "value"])
    refuses(stream(twice), 1, "there twice")


def test_a_null_in_value_is_refused() -> None:
    refuses(stream(columns(value=column([b"a", None]))), 2, "'value' holds a null")


@pytest.mark.parametrize("pair", [None, {"key": None, "value": b"v"}, {"key": "k", "value": None}])
def test_a_header_without_key_or_value_is_refused(pair: object) -> None:
    refuses(stream(headers({"key": "k", "value": b"v"}, pair)), 1, "'headers' holds a pair without key or value")


def test_a_null_within_a_list_that_is_itself_null_does_not_count() -> None:
    pairs = column([{"key": "k", "value": b"v"}, None], PAIR)
    lists: Any = pa.ListArray.from_arrays(column([0, 1, 2], pa.int32()), pairs, mask=column([False, True], pa.bool_()))
    block = stream(columns(value=column([b"a", b"b"]), headers=lists))
    assert reads(block, 2) == [Record(b"a", headers=[("k", b"v")]), Record(b"b")]


def test_a_header_key_that_is_not_text_is_refused() -> None:
    refuses(tampered(stream(headers({"key": "zqzq", "value": b""})), b"zqzq", b"zq\xff\xfe"), 1, "UTF8")


@pytest.mark.parametrize(
    "offsets",
    [(0, 4, 2), (0, 2, 5), (0, 2, (1 << 31) - 1), (0, -1, 4), (-2, 2, 4), (1, 0, 4)],
    ids=["decreasing", "beyond the data", "far beyond", "negative", "negative at first", "decreasing at first"],
)
def test_offsets_that_cannot_be_are_refused(offsets: tuple[int, int, int]) -> None:
    block = tampered(stream(TWO), struct.pack("<3i", 0, 2, 4), struct.pack("<3i", *offsets))
    refuses(block, 2, "not an Arrow IPC stream")


@pytest.mark.parametrize("count", [0, 1, 3, (1 << 32) - 1])
def test_another_count_of_rows_than_the_footer_says_is_refused(count: int) -> None:
    refuses(stream(TWO), count, f"record count: the footer says {count}, and the block holds 2")


def test_a_count_of_rows_that_the_columns_do_not_have_is_refused() -> None:
    block = stream(columns(value=column([b"xy"] * 77)))
    counts = places(block, struct.pack("<q", 77))
    assert len(counts) == 2, "rows of the batch, and rows of its column"
    for rows in (-1, 0, 76, 78, 1 << 40):
        for at in counts:
            wrong = block[:at] + struct.pack("<q", rows) + block[at + 8 :]
            refuses(wrong, 77, "length did not match")


def test_rows_without_bytes_to_hold_them_are_refused() -> None:
    block = stream(columns(value=column([b""] * 77)))
    count = struct.pack("<q", 77)
    assert len(places(block, count)) == 2, "rows of the batch, and rows of its column"
    many = 1 << 31
    refuses(block.replace(count, struct.pack("<q", many)), many, "not an Arrow IPC stream")


def test_several_record_batches_are_joined() -> None:
    first = columns(value=column([b"a", b""]), key=column([None, b"k"]), headers=column([None, []], HEADERS))
    second = columns(value=column([b"b"]), key=column([b""]), headers=column([[("h", b"i")]], HEADERS))
    expected = [Record(b"a"), Record(b"", key=b"k", headers=[]), Record(b"b", key=b"", headers=[("h", b"i")])]
    assert reads(stream(first, second), 3) == expected
    assert reads(stream(first, first.slice(0, 0), second), 3) == expected
    refuses(stream(first, second), 2, "record count")


def test_an_error_in_a_later_record_batch_is_found() -> None:
    refuses(stream(TWO, columns(value=column([None]))), 3, "'value' holds a null")


def test_a_stream_without_its_end_marker_is_read_where_every_row_is_there() -> None:
    assert reads(stream(TWO).removesuffix(END), 2) == [Record(b"ab"), Record(b"cd")]


def test_a_stream_of_a_schema_alone_is_an_empty_batch() -> None:
    block = stream(schema=TWO.schema)
    assert reads(block, 0) == []
    assert decode_batch(batch_of(block, 0)).schema == TWO.schema
    refuses(block, 1, "record count: the footer says 1, and the block holds 0")


def test_what_a_stream_says_about_itself_is_left_behind() -> None:
    block = stream(TWO.replace_schema_metadata({"pandas": "{}"}))
    assert decode_batch(batch_of(block, 2)).schema.metadata is None


@pytest.mark.parametrize("block", [b"", END], ids=["nothing", "an end alone"])
def test_a_stream_without_a_schema_is_refused(block: bytes) -> None:
    refuses(block, 0, "no schema")


def test_a_stream_that_begins_with_a_record_batch_is_refused() -> None:
    refuses(messages(stream(TWO))[1] + END, 2, "begins with a record batch, not with a schema")


def test_a_second_schema_is_refused() -> None:
    schema, batch = messages(stream(TWO))
    refuses(schema + batch + schema + END, 2, "holds a schema")


def test_a_dictionary_in_the_stream_is_refused() -> None:
    schema, batch = messages(stream(TWO))
    dictionary = messages(stream(columns(value=TWO.column(0).dictionary_encode())))[1]
    refuses(schema + dictionary + batch + END, 2, "holds a dictionary")


@pytest.mark.parametrize("more", [b"\x00", END, stream(TWO)], ids=["a byte", "another end", "another stream"])
def test_bytes_after_the_stream_are_refused(more: bytes) -> None:
    refuses(stream(TWO) + more, 2, f"{len(more)} bytes are left over after the Arrow IPC stream")


def test_a_stream_cut_at_any_byte_is_refused() -> None:
    whole = stream(TWO, TWO)
    for cut in range(len(whole) - len(END)):
        refuses(whole[:cut], 4, r"not an Arrow IPC stream|record count|no schema")
    for cut in range(len(whole) - len(END) + 1, len(whole)):
        refuses(whole[:cut], 4, "not an Arrow IPC stream")


def test_a_message_that_claims_more_than_there_is_is_refused() -> None:
    block = stream(TWO)
    for length in (-1, 1 << 30, (1 << 31) - 1):
        refuses(block[:4] + struct.pack("<i", length) + block[8:], 2, "not an Arrow IPC stream")


def test_a_stream_of_another_byte_order_is_not_read_as_if_it_were_ours() -> None:
    """Arrow's own reader swaps the bytes, and then these are no offsets any more."""
    block = as_big_endian(stream(TWO))
    with pytest.raises(pa.ArrowInvalid):
        pa.ipc.open_stream(block).read_next_batch().validate(full=True)
    refuses(block, 2, r"endian|byte order|not an Arrow IPC stream")


def with_offsets_of(size: int, *batches: pa.RecordBatch) -> bytes:
    """A stream whose columns say that the buffer of their offsets, of three numbers, is larger. The bytes are there."""
    return stream(*batches).replace(struct.pack("<qq", 0, 12), struct.pack("<qq", 0, size))


@pytest.mark.parametrize("size", [13, 14, 15, 16])
def test_a_buffer_of_offsets_may_be_larger_than_it_need_be(size: int) -> None:
    batch = decode_batch(batch_of(with_offsets_of(size, TWO), 2))
    assert batch.column("value").to_pylist() == [b"ab", b"cd"]
    assert bytes_of(batch.column("value")) == 4


@pytest.mark.parametrize("size", [13, 14, 15, 16])
def test_buffers_of_offsets_may_be_larger_than_they_need_be_in_batches_that_are_joined(size: int) -> None:
    assert reads(with_offsets_of(size, TWO, TWO), 4) == [Record(b"ab"), Record(b"cd")] * 2


@pytest.mark.slow
def test_keys_that_pass_2_gib_together_are_refused() -> None:
    """In memory that is never read: the offsets are enough."""
    size = 1100 << 20
    schema, batch = messages(stream(columns(value=column([b"v"]), key=column([b"k" * 64]))))
    batch = tampered(batch, struct.pack("<qq", 24, 64), struct.pack("<qq", 24, size))  # where the keys' bytes are
    batch = tampered(batch, struct.pack("<q", 88), struct.pack("<q", 24 + size))  # how long the message's body is
    batch = tampered(batch, struct.pack("<ii", 0, 64), struct.pack("<ii", 0, size))  # the offsets
    batch = batch.removesuffix(b"k" * 64)
    whole = mmap.mmap(-1, len(schema) + 2 * (len(batch) + size) + 19)
    whole.write(schema + batch)
    whole.seek(size, 1)
    whole.write(batch)
    whole.seek(size, 1)
    info, version = struct.pack("<BI", 0, 2), struct.pack("<H", 2)
    whole.write(info)
    checksum = xxhash.xxh3_64(memoryview(whole)[:-14])
    checksum.update(version)
    whole.write(struct.pack("<Q", checksum.intdigest()) + version + b"PSTB")
    with pytest.raises(CorruptData, match="2 GiB"):
        decode_batch(memoryview(whole))
