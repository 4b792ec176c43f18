"""Data batches: what a data object holds. A block of records, then a footer with how to read it.

```text
opendata  block   u8 compression (0 none, 1 zstd)   u32 LE record count   u16 LE version = 1
arrow     block   u8 compression (0 none, 1 zstd)   u32 LE record count   trailer (see `trailer.py`): version 2, PSTB
```
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from penstock.buffer.format import arrow_stream, framing, zstd
from penstock.buffer.format.trailer import (
    BATCH_MAGIC,
    TRAILER_BYTES,
    last_u16,
    magic_of,
    trailer,
    unsupported,
    verified_body,
    with_trailer,
)
from penstock.core import as_word
from penstock.errors import CorruptData, InvalidInput
from penstock.records import VALUES_SCHEMA, Entry, Record, records_to_arrow

MAX_BATCH_BYTES = 1 << 30

_INFO = struct.Struct("<BI")  # compression and record count, in both formats
_FOOTER = struct.Struct("<BIH")  # of OpenData's
_OPENDATA, _ARROW = 1, 2
_NO_TRAILER = bytes(TRAILER_BYTES)
_MAX_RECORDS = (1 << 32) - 1


class BatchFormat(StrEnum):
    """How a batch's block is written: `arrow` is version 2, `opendata` version 1, shared with OpenData's crate."""

    ARROW = "arrow"
    OPENDATA = "opendata"


class Compression(StrEnum):
    """What is around a batch's block."""

    NONE = "none"
    ZSTD = "zstd"


_CODES = {Compression.NONE: 0, Compression.ZSTD: 1}


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """A batch as it is written, and how long it would be without compression."""

    data: bytes | memoryview
    plain_size: int


def encode_batch(
    entries: Iterable[Entry],
    *,
    compression: str = Compression.NONE,
    format: str = BatchFormat.ARROW,  # noqa: A002  the name is part of the contract
) -> bytes:
    """Write entries, payloads or records, as a data batch.

    Raises `InvalidInput` for a word that is no compression or format, for an entry of another type, and for a record
    with more than a value where the format keeps values only (`opendata`).

    >>> encode_batch([b"hi"], format="opendata").hex(" ")
    '02 00 00 00 68 69 00 01 00 00 00 01 00'
    """
    compressed, shape = as_word("compression", Compression, compression), as_word("format", BatchFormat, format)
    if isinstance(entries, bytes | bytearray | memoryview | str | Record) or not isinstance(entries, Iterable):
        raise InvalidInput(f"entries must be a list of bytes or Records, not {type(entries).__name__}")
    return bytes(encode(records_to_arrow(entries), compressed, shape).data)


def decode_batch(data: bytes | bytearray | memoryview, *, max_batch_bytes: int = MAX_BATCH_BYTES) -> pa.RecordBatch:
    """Read a data batch of either format into a record batch with a `value` column, validated in full.

    Raises `CorruptData` for bytes that are none, saying what is wrong: in our own format a checksum that is not theirs,
    in both a block that would decompress beyond `max_batch_bytes`. The record batch may share memory with `data`.

    >>> decode_batch(encode_batch([b"hi"])).column("value").to_pylist()
    [b'hi']
    """
    if max_batch_bytes < 0:
        raise InvalidInput(f"max_batch_bytes must be 0 or more, not {max_batch_bytes}")
    try:
        content = pa.py_buffer(data)
    except TypeError as error:
        raise InvalidInput(f"data must be bytes, not {type(data).__name__}") from error
    version, size = _version_and_size(memoryview(content).cast("B"))
    code, count = _INFO.unpack_from(content, size)
    if code not in _CODES.values():
        raise CorruptData(f"unsupported compression {code} of a batch; there are 0 (none) and 1 (zstd)")
    block = content.slice(0, size)
    if code == _CODES[Compression.ZSTD]:
        block = zstd.decompress(block, max_batch_bytes)
    if version == _OPENDATA:
        return pa.RecordBatch.from_arrays([framing.unframe(block, count)], schema=VALUES_SCHEMA)
    batch = arrow_stream.read_stream(block)
    if batch.num_rows != count:
        raise CorruptData(f"record count: the footer says {count}, and the block holds {batch.num_rows}")
    return batch


def record_count(data: bytes | memoryview) -> int:
    """The number of records in the footer of a batch. Raises `CorruptData` where that is not a footer.

    >>> record_count(encode_batch([b"a", b"b"]))
    2
    """
    _, size = _version_and_size(memoryview(data).cast("B"))
    return int(_INFO.unpack_from(data, size)[1])


def _version_and_size(data: memoryview) -> tuple[int, int]:
    """The version of a batch, and the size of its block. Raises `CorruptData`; the checksum is verified."""
    if magic_of(data) is None:
        version = last_u16(data)
        if version is not None and version != _OPENDATA:
            raise unsupported(version, "a batch")
        if len(data) < _FOOTER.size:
            raise CorruptData(f"a batch of {len(data)} bytes is too small for its footer of {_FOOTER.size}")
        return _OPENDATA, len(data) - _FOOTER.size
    body = verified_body(data, _ARROW, BATCH_MAGIC)
    if len(body) < _INFO.size:
        raise CorruptData(f"a batch of {len(data)} bytes is too small for its footer of {_INFO.size + TRAILER_BYTES}")
    return _ARROW, len(body) - _INFO.size


def encode(
    batch: pa.RecordBatch, compression: Compression, shape: BatchFormat, most: int | None = None
) -> EncodedBatch:
    """Write a record batch as a data batch. A block above `most` bytes is not compressed: readers would refuse it."""
    if batch.num_rows > _MAX_RECORDS:
        raise InvalidInput(f"a batch of {batch.num_rows} records is too large; the most is {_MAX_RECORDS}")
    is_opendata = shape is BatchFormat.OPENDATA
    if is_opendata:
        check_values_only(batch.schema)

    def footer(compression: Compression) -> bytes:
        if is_opendata:
            return _FOOTER.pack(_CODES[compression], batch.num_rows, _OPENDATA)
        return _INFO.pack(_CODES[compression], batch.num_rows) + _NO_TRAILER

    def block(after: bytes = b"") -> pa.Buffer:
        return framing.frame(batch.column("value"), after) if is_opendata else arrow_stream.write_stream(batch, after)

    if compression is Compression.NONE:
        small = None if is_opendata else arrow_stream.small_stream(batch)
        if small is not None:
            data = with_trailer((*small, _INFO.pack(0, batch.num_rows)), _ARROW, BATCH_MAGIC)
            return EncodedBatch(data, len(data))
        written = block(footer(compression))
        plain_size = written.size
    else:
        plain = block()
        plain_size = plain.size + len(footer(compression))
        if most is None or plain.size <= most:
            written = _joined(zstd.compress(plain), footer(compression))
        else:
            written = _joined(plain, footer(Compression.NONE))
    whole = memoryview(written).cast("B")
    if not is_opendata:
        whole[-TRAILER_BYTES:] = trailer(whole[:-TRAILER_BYTES], _ARROW, BATCH_MAGIC)
    return EncodedBatch(whole, plain_size)


def _joined(block: pa.Buffer, after: bytes) -> pa.Buffer:
    written = pa.allocate_buffer(block.size + len(after))
    with pa.FixedSizeBufferWriter(written) as sink:
        sink.write(block)
        sink.write(after)
    return written


def check_values_only(schema: pa.Schema) -> None:
    """Raise `InvalidInput` where records have more than values: format 1 would drop it."""
    more = [name for name in schema.names if name != "value"]
    if more:
        raise InvalidInput(
            f"the batch format 'opendata' keeps values only, and a record has {' and '.join(more)}; it is the default "
            "on a manifest of version 1. Use 'arrow', which OpenData's consumers cannot read"
        )
