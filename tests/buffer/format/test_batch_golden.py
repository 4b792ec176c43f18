"""Batches against bytes that were written down by hand from the tables of the format, in both directions."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock import Record
from penstock.buffer import BatchFormat, Compression, decode_batch, encode_batch
from penstock.buffer.format.batch import encode
from penstock.errors import InvalidInput
from penstock.records import Entry, records_from_arrow, values_to_arrow
from tests.buffer.format.hexadecimal import by_hand
from tests.support.manifest_trailers import BATCH, body_of, ended

FOOTERS = {"opendata": 7, "arrow": 19}  # bytes behind the block

EMPTY = by_hand("""
    00            # compression: none
    00 00 00 00   # record count: 0
    01 00         # version: 1
""")
ONE_EMPTY_RECORD = by_hand("""
    00 00 00 00   # record 0: length 0
    00            # compression: none
    01 00 00 00   # record count: 1
    01 00         # version: 1
""")
THREE_RECORDS = by_hand("""
    02 00 00 00   # record 0: length 2
    68 69         #           "hi"
    00 00 00 00   # record 1: length 0
    03 00 00 00   # record 2: length 3
    00 ff 0a      #           three bytes that are no text
    00            # compression: none
    03 00 00 00   # record count: 3
    01 00         # version: 1
""")
A_LONG_RECORD = by_hand(f"""
    2c 01 00 00   # record 0: length 300
    {"61" * 300}  #           "a" 300 times
    00            # compression: none
    01 00 00 00   # record count: 1
    01 00         # version: 1
""")
GOLDEN = [
    pytest.param([], EMPTY, id="empty"),
    pytest.param([b""], ONE_EMPTY_RECORD, id="one empty record"),
    pytest.param([b"hi", b"", b"\x00\xff\n"], THREE_RECORDS, id="three records"),
    pytest.param([b"a" * 300], A_LONG_RECORD, id="a long record"),
]

# RFC 8878: magic, frame header, blocks. A block's header is 24 bits LE: size << 3 | kind << 1 | last.
RAW_BLOCK = by_hand("""
    28 b5 2f fd   # magic
    20            # frame header: single segment, content size in one byte, no checksum, no dictionary
    06            # content size: 6
    31 00 00      # block: 6 << 3 | raw (0) << 1 | last
    02 00 00 00   # record 0: length 2
    68 69         #           "hi"
    01            # compression: zstd
    01 00 00 00   # record count: 1
    01 00         # version: 1
""")
RLE_BLOCK = by_hand("""
    28 b5 2f fd   # magic
    20            # frame header: single segment, content size in one byte
    08            # content size: 8
    43 00 00      # block: 8 << 3 | RLE (1) << 1 | last
    00            # the byte that comes 8 times: two records of length 0
    01            # compression: zstd
    02 00 00 00   # record count: 2
    01 00         # version: 1
""")
TWO_BLOCKS_AND_A_WINDOW = by_hand("""
    28 b5 2f fd   # magic
    00            # frame header: a window follows, no content size
    00            # window: 1 KiB
    20 00 00      # block: 4 << 3 | raw (0) << 1 | not last
    04 00 00 00   # record 0: length 4
    23 00 00      # block: 4 << 3 | RLE (1) << 1 | last
    7a            #           "z", 4 times
    01            # compression: zstd
    01 00 00 00   # record count: 1
    01 00         # version: 1
""")
A_CHECKSUM = by_hand("""
    28 b5 2f fd   # magic
    24            # frame header: single segment, with a checksum
    00            # content size: 0
    01 00 00      # block: 0 << 3 | raw (0) << 1 | last
    99 e9 d8 51   # the low half of XXH64 of nothing, ef46db3751d8e999
    01            # compression: zstd
    00 00 00 00   # record count: 0
    01 00         # version: 1
""")
A_SIZE_OF_TWO_BYTES = by_hand("""
    28 b5 2f fd   # magic
    60            # frame header: content size in two bytes, single segment
    04 00         # content size less 256: 4
    23 08 00      # block: 260 << 3 | RLE (1) << 1 | last
    00            # the byte that comes 260 times: 65 records of length 0
    01            # compression: zstd
    41 00 00 00   # record count: 65
    01 00         # version: 1
""")
ZSTD = [
    pytest.param([b"hi"], RAW_BLOCK, id="a raw block"),
    pytest.param([b"", b""], RLE_BLOCK, id="an RLE block"),
    pytest.param([b"zzzz"], TWO_BLOCKS_AND_A_WINDOW, id="two blocks and a window"),
    pytest.param([], A_CHECKSUM, id="a checksum"),
    pytest.param([b""] * 65, A_SIZE_OF_TWO_BYTES, id="a size of two bytes"),
]

FULL = Record(b"v", key=b"k", headers=[("a", b"1"), ("a", b"2")], timestamp_ms=-5)
FIELDS = {
    "value": pa.field("value", pa.binary()),
    "key": pa.field("key", pa.binary()),
    "headers": pa.field("headers", pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))),
    "timestamp": pa.field("timestamp", pa.timestamp("ms", tz="UTC")),
}
ARROW: list[tuple[list[Entry], list[str], str]] = [
    ([], ["value"], "00 00 00 00"),
    ([b""], ["value"], "01 00 00 00"),
    ([b"a", Record(b"b")], ["value"], "02 00 00 00"),
    ([b"a", Record(b"b", key=b"")], ["value", "key"], "02 00 00 00"),
    ([Record(b"a", headers=[])], ["value", "headers"], "01 00 00 00"),
    ([Record(b"a", timestamp_ms=0)], ["value", "timestamp"], "01 00 00 00"),
    ([Record(b"a", key=b"k"), Record(b"b", timestamp_ms=1)], ["value", "key", "timestamp"], "02 00 00 00"),
    ([FULL, b"x", FULL], ["value", "key", "headers", "timestamp"], "03 00 00 00"),
    ([b"x"] * 257, ["value"], "01 01 00 00"),
]


def rows(entries: list[Entry]) -> list[Record]:
    return [entry if isinstance(entry, Record) else Record(entry) for entry in entries]


@pytest.mark.parametrize(("values", "written"), GOLDEN)
def test_version_1_is_written_byte_for_byte(values: list[bytes], written: bytes) -> None:
    assert encode_batch(values, format="opendata") == written


@pytest.mark.parametrize(("values", "written"), [*GOLDEN, *ZSTD])
def test_version_1_is_read_from_bytes_by_hand(values: list[bytes], written: bytes) -> None:
    batch = decode_batch(written)
    assert batch.schema == pa.schema([FIELDS["value"]])
    assert batch.column("value").to_pylist() == values


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_may_come_in_any_buffer(kind: type) -> None:
    assert decode_batch(kind(THREE_RECORDS)).column("value").to_pylist() == [b"hi", b"", b"\x00\xff\n"]


@pytest.mark.parametrize(("values", "written"), GOLDEN)
def test_version_1_with_zstd_is_one_frame_around_the_block_and_a_plain_footer(
    values: list[bytes], written: bytes
) -> None:
    block, count = written[:-7], written[-6:-2]
    data = encode_batch(values, compression="zstd", format="opendata")
    assert data[-7:] == by_hand("01") + count + by_hand("01 00")
    assert data[:4] == by_hand("28 b5 2f fd")
    assert pa.decompress(data[:-7], decompressed_size=len(block), codec="zstd", asbytes=True) == block
    assert decode_batch(data).column("value").to_pylist() == values


@pytest.mark.parametrize("shape", BatchFormat)
def test_zstd_packs_at_level_3(shape: BatchFormat) -> None:
    words = [f"{number * number} words in {number} rows".encode() for number in range(2_000)]
    size = -FOOTERS[shape]
    block = encode_batch(words, format=shape)[:size]
    at_level = {level: pa.Codec("zstd", level).compress(block, asbytes=True) for level in (1, 3)}
    assert at_level[1] != at_level[3]
    assert encode_batch(words, compression="zstd", format=shape)[:size] == at_level[3]


@pytest.mark.parametrize(("entries", "names", "count"), ARROW)
def test_version_2_is_a_plain_arrow_stream_and_a_footer(entries: list[Entry], names: list[str], count: str) -> None:
    data = encode_batch(entries)
    assert data[-19:-14] == by_hand(f"00 {count}")
    assert data == ended(body_of(data), BATCH)
    assert data[:4] == by_hand("ff ff ff ff")
    assert data[-27:-19] == by_hand("ff ff ff ff 00 00 00 00"), "the end-of-stream marker"
    stream = pa.ipc.open_stream(data[:-19])
    assert stream.schema == pa.schema([FIELDS[name] for name in names])
    assert not stream.schema.metadata
    (batch,) = list(stream)
    assert records_from_arrow(batch) == rows(entries)
    assert decode_batch(data) == batch


@pytest.mark.parametrize(("entries", "names", "count"), ARROW)
def test_version_2_with_zstd_is_one_frame_around_the_same_stream(
    entries: list[Entry], names: list[str], count: str
) -> None:
    plain = encode_batch(entries)[:-19]
    data = encode_batch(entries, compression="zstd")
    assert data[-19:-14] == by_hand(f"01 {count}")
    assert data == ended(body_of(data), BATCH)
    assert data[:4] == by_hand("28 b5 2f fd")
    unpacked = pa.decompress(data[:-19], decompressed_size=len(plain), codec="zstd", asbytes=True)
    assert unpacked == plain
    stream = pa.ipc.open_stream(unpacked)
    assert stream.schema == pa.schema([FIELDS[name] for name in names])
    assert records_from_arrow(decode_batch(data)) == records_from_arrow(stream.read_next_batch()) == rows(entries)


def test_version_2_holds_all_fields_of_a_record() -> None:
    columns = pa.ipc.open_stream(encode_batch([FULL, b"x"])[:-19]).read_next_batch()
    assert columns.column("value").to_pylist() == [b"v", b"x"]
    assert columns.column("key").to_pylist() == [b"k", None]
    assert columns.column("headers").to_pylist() == [[{"key": "a", "value": b"1"}, {"key": "a", "value": b"2"}], None]
    assert columns.column("timestamp").cast(pa.int64()).to_pylist() == [-5, None]


def test_arrow_without_compression_is_the_default() -> None:
    assert encode_batch([b"x"]) == encode_batch([b"x"], compression=Compression.NONE, format=BatchFormat.ARROW)


@pytest.mark.parametrize("shape", BatchFormat)
@pytest.mark.parametrize("compression", Compression)
def test_a_plain_word_does_what_its_enum_does(shape: BatchFormat, compression: Compression) -> None:
    by_word = encode_batch([b"x"], compression=str(compression.value), format=str(shape.value))
    assert by_word == encode_batch([b"x"], compression=compression, format=shape)


def test_the_words_are_those_of_the_format() -> None:
    assert [*BatchFormat, *Compression] == ["arrow", "opendata", "none", "zstd"]


@pytest.mark.parametrize("word", ["gzip", "ZSTD", "", "1", 1, None, b"zstd"])
def test_a_word_that_is_no_compression_is_refused(word: str) -> None:
    with pytest.raises(InvalidInput, match=r"compression must be one of none, zstd, not "):
        encode_batch([b"x"], compression=word)


@pytest.mark.parametrize("word", ["parquet", "Arrow", "", "2", 2, None, b"arrow"])
def test_a_word_that_is_no_format_is_refused(word: str) -> None:
    with pytest.raises(InvalidInput, match=r"format must be one of arrow, opendata, not "):
        encode_batch([b"x"], format=word)


@pytest.mark.parametrize(
    ("record", "more"),
    [
        (Record(b"x", key=b""), "key"),
        (Record(b"x", headers=[]), "headers"),
        (Record(b"x", timestamp_ms=0), "timestamp"),
        (Record(b"x", key=b"k", headers=[("a", b"1")], timestamp_ms=0), "key and headers and timestamp"),
    ],
)
def test_version_1_refuses_what_it_would_drop(record: Record, more: str) -> None:
    with pytest.raises(InvalidInput, match=f"'opendata' keeps values only, and a record has {more};"):
        encode_batch([b"plain", record], format="opendata")


def test_version_1_takes_a_record_that_is_a_value_alone() -> None:
    assert encode_batch([Record(b"hi"), b"", Record(b"\x00\xff\n")], format="opendata") == THREE_RECORDS


@pytest.mark.parametrize("entry", [b"hi", bytearray(b"hi"), memoryview(b"hi"), "hi", Record(b"hi")])
def test_a_single_entry_is_not_mistaken_for_a_list(entry: list[Entry]) -> None:
    with pytest.raises(InvalidInput, match=f"entries must be a list of bytes or Records, not {type(entry).__name__}"):
        encode_batch(entry)


@pytest.mark.parametrize("entry", ["text", 7, None, [b"nested"]])
def test_an_entry_of_another_type_is_refused(entry: bytes) -> None:
    with pytest.raises(InvalidInput, match=f"must be bytes, not {type(entry).__name__}"):
        encode_batch([b"x", entry])


def test_any_iterable_of_entries_is_accepted() -> None:
    assert encode_batch(iter([b"hi", b"", b"\x00\xff\n"]), format="opendata") == THREE_RECORDS


@pytest.mark.parametrize("shape", BatchFormat)
def test_a_part_of_a_larger_batch_is_written_as_if_it_were_alone(shape: BatchFormat) -> None:
    part = values_to_arrow([b"before", b"hi", b"", b"\x00\xff\n", b"and after"]).slice(1, 3)
    encoded = encode(part, Compression.NONE, shape)
    assert decode_batch(encoded.data).column("value").to_pylist() == [b"hi", b"", b"\x00\xff\n"]
    if shape is BatchFormat.OPENDATA:
        assert bytes(encoded.data) == THREE_RECORDS


@pytest.mark.parametrize(("most", "code"), [(6, "01"), (5, "00")])
def test_a_block_that_readers_would_refuse_unpacked_is_not_packed(most: int, code: str) -> None:
    encoded = encode(values_to_arrow([b"hi"]), Compression.ZSTD, BatchFormat.OPENDATA, most)
    assert bytes(encoded.data)[-7:] == by_hand(f"{code} 01 00 00 00 01 00")
    assert encoded.plain_size == 6 + 7
    assert decode_batch(encoded.data).column("value").to_pylist() == [b"hi"]
