"""The block of batch format 1: records behind each other, each a u32 LE length and that many bytes.

That is, byte for byte, what Parquet calls a PLAIN page of a BYTE_ARRAY column. Python reads such a block slowly, and
Arrow's Parquet reader quickly; so a large block is read as the only page of a Parquet file that is built around it.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from typing import Any, cast

import pyarrow as pa

from penstock.errors import CorruptData
from penstock.records import bytes_of

_LENGTH = struct.Struct("<I")
_MAX_BYTES_TO_WALK = 16 << 20
_ROWS_PER_PART = 1 << 13  # small enough for a cache, large enough that the cost of a call is small
_MAX_RECORDS_TO_WALK = 300  # up to this many, walking in Python is quicker than opening a Parquet file
_MAX_BYTES_PER_COLUMN = (1 << 31) - 2  # of Arrow
_MAX_BYTES_PER_PAGE = (1 << 31) - 1  # of Parquet

# Parquet's metadata is in Thrift's compact protocol. These are its types, and the values that Parquet gives a meaning.
_I32, _I64, _BINARY, _LIST, _STRUCT, _STOP = 5, 6, 8, 9, 12, b"\x00"
_MAGIC = b"PAR1"
_BYTE_ARRAY, _REQUIRED, _PLAIN, _RLE, _UNCOMPRESSED, _DATA_PAGE = 6, 0, 0, 3, 0, 0


def frame(values: pa.Array[Any], after: bytes = b"", *, max_page_bytes: int = _MAX_BYTES_PER_PAGE) -> pa.Buffer:
    """Write a column of payloads as a block, with some bytes after it.

    It is written part by part, because Arrow needs several times the memory of what it writes. A block of more than
    `max_page_bytes` is joined in Python.
    """
    size = _LENGTH.size * len(values) + bytes_of(values)
    if size > max_page_bytes:
        return pa.py_buffer(b"".join([*_pieces(values), after]))
    written = pa.allocate_buffer(size + len(after))
    with pa.FixedSizeBufferWriter(written) as sink:
        for start in range(0, len(values), _ROWS_PER_PART):
            sink.write(_framed(values.slice(start, _ROWS_PER_PART)))
        sink.write(after)
    return written


def _framed(values: pa.Array[Any]) -> pa.Buffer:
    import pyarrow.compute as pc  # here, because its import is slow

    lengths: Any = pc.binary_length(cast("pa.BinaryArray", values))
    prefixes: Any = pa.Array.from_buffers(
        pa.binary(_LENGTH.size), len(values), [None, lengths.buffers()[1]], offset=lengths.offset
    )
    nothing: Any = pa.scalar(b"", pa.binary())
    framed = pc.binary_join_element_wise(prefixes.cast(pa.binary()), values, nothing)
    return cast("pa.Buffer", framed.buffers()[2]).slice(0, _LENGTH.size * len(values) + bytes_of(values))


def unframe(
    block: pa.Buffer,
    count: int,
    *,
    max_walked: int = _MAX_RECORDS_TO_WALK,
    max_page_bytes: int = _MAX_BYTES_PER_PAGE,
) -> pa.Array[Any]:
    """Read a block of `count` records into a column. Raises `CorruptData` with what is wrong.

    Up to `max_walked` records, and a block of more than `max_page_bytes`, are read record by record in Python.
    """
    if block.size - _LENGTH.size * count > _MAX_BYTES_PER_COLUMN:
        raise CorruptData(
            f"the values of {count} records in {block.size} bytes would pass 2 GiB, which no column holds"
        )
    if count <= max_walked or block.size > max_page_bytes:
        data = block.to_pybytes()
        return pa.array([data[start:end] for start, end in _walk(data, count)], type=pa.binary())
    values = _read_as_parquet(block, count) if _LENGTH.size * count <= block.size else None
    if values is None:
        # The walk finds what is wrong, but is slow: up to a tenth of a microsecond per byte. Not for large blocks.
        if block.size <= _MAX_BYTES_TO_WALK:
            deque(_walk(block.to_pybytes(), count), maxlen=0)
        raise CorruptData(f"truncated data: the {count} records do not fit into their block of {block.size} bytes")
    left = block.size - _LENGTH.size * count - bytes_of(values)
    if left:
        raise CorruptData(f"{left} bytes are left over after {count} records")
    return values


def _walk(data: bytes, count: int) -> Iterator[tuple[int, int]]:
    at = 0
    for number in range(count):
        start = at + _LENGTH.size
        if start > len(data):
            raise CorruptData(f"truncated length: record {number} of {count} begins at byte {at} of {len(data)}")
        (length,) = _LENGTH.unpack_from(data, at)
        at = start + length
        if at > len(data):
            raise CorruptData(
                f"truncated data: record {number} of {count} has {len(data) - start} of its {length} bytes"
            )
        yield start, at
    if at < len(data):
        raise CorruptData(f"{len(data) - at} bytes are left over after {count} records")


def _pieces(values: pa.Array[Any]) -> Iterator[bytes]:
    for value in values:
        payload = value.as_py()
        yield _LENGTH.pack(len(payload))
        yield payload


def _read_as_parquet(block: pa.Buffer, count: int) -> pa.Array[Any] | None:
    import pyarrow.parquet as pq  # here: it takes a tenth of a second, and only readers of format 1 need it

    head, tail = _around(block.size, count)
    image = pa.allocate_buffer(len(head) + block.size + len(tail))
    with pa.FixedSizeBufferWriter(image) as writer:
        for part in (head, block, tail):
            writer.write(part)
    try:
        column = pq.ParquetFile(pa.BufferReader(image)).read(use_threads=False).column(0)
    except MemoryError:
        raise  # Arrow's MemoryError is an ArrowException too, and does not mean that the block is corrupt
    except (pa.ArrowException, OSError):
        return None
    if column.num_chunks != 1 or column.type != pa.binary():
        return None
    return cast("pa.Array[Any]", column.chunk(0))


def _around(size: int, count: int) -> tuple[bytes, bytes]:
    """What stands before and behind the block in a Parquet file with this one page."""
    page = _struct(
        (1, _I32, _integer(_DATA_PAGE)),
        (2, _I32, _integer(size)),
        (3, _I32, _integer(size)),
        (5, _STRUCT, _struct(*((field, _I32, _integer(n)) for field, n in enumerate((count, _PLAIN, _RLE, _RLE), 1)))),
    )
    total = len(page) + size
    chunk = _struct(
        (1, _I32, _integer(_BYTE_ARRAY)),
        (2, _LIST, _list(_I32, _integer(_PLAIN))),
        (3, _LIST, _list(_BINARY, _text("value"))),
        (4, _I32, _integer(_UNCOMPRESSED)),
        (5, _I64, _integer(count)),
        (6, _I64, _integer(total)),
        (7, _I64, _integer(total)),
        (9, _I64, _integer(len(_MAGIC))),
    )
    columns = _list(_STRUCT, _struct((2, _I64, _integer(len(_MAGIC))), (3, _STRUCT, chunk)))
    rows = _struct((1, _LIST, columns), (2, _I64, _integer(total)), (3, _I64, _integer(count)))
    schema = _list(
        _STRUCT,
        _struct((4, _BINARY, _text("schema")), (5, _I32, _integer(1))),
        _struct((1, _I32, _integer(_BYTE_ARRAY)), (3, _I32, _integer(_REQUIRED)), (4, _BINARY, _text("value"))),
    )
    footer = _struct(
        (1, _I32, _integer(1)), (2, _LIST, schema), (3, _I64, _integer(count)), (4, _LIST, _list(_STRUCT, rows))
    )
    return _MAGIC + page, footer + _LENGTH.pack(len(footer)) + _MAGIC


def _struct(*fields: tuple[int, int, bytes]) -> bytes:
    written, last = [], 0
    for number, kind, value in fields:
        written.append(bytes([(number - last) << 4 | kind]) + value)
        last = number
    return b"".join(written) + _STOP


def _list(kind: int, *items: bytes) -> bytes:
    return bytes([len(items) << 4 | kind]) + b"".join(items)


def _text(text: str) -> bytes:
    return _varint(len(text)) + text.encode()


def _integer(number: int) -> bytes:
    return _varint(number << 1)  # zigzag; none of ours is negative


def _varint(number: int) -> bytes:
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*written, number])
