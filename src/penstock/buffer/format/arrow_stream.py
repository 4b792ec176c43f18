"""The block of batch format 2: an Arrow IPC stream, read as untrusted input."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa

from penstock.errors import CorruptData
from penstock.records import VALUES_SCHEMA, bytes_of, check_no_nulls, check_record_columns

_U16, _I32, _U32 = struct.Struct("<H"), struct.Struct("<i"), struct.Struct("<I")
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # of every stream
_MAX_SMALL_BYTES = 1 << 20  # up to this size, to copy a batch once more is quicker than to set up a writer, twice
_OFFSET_BYTES = 4
_OPTIONS = pa.ipc.IpcWriteOptions()
# Places of fields in Arrow's flatbuffers: Message.header, Schema.endianness, and RecordBatch.compression.
_HEADER, _ENDIANNESS, _COMPRESSION = 2, 0, 3


def write_stream(batch: pa.RecordBatch, closing: bytes = b"") -> pa.Buffer:
    """Write a batch as a stream of one record batch, with some more bytes behind it.

    Measured first, so that it is written once into memory of the right size and not into memory that grows.
    """
    measure = pa.MockOutputStream()
    _write(batch, closing, measure)
    written = pa.allocate_buffer(measure.size())
    with pa.FixedSizeBufferWriter(written) as sink:
        _write(batch, closing, sink)
    return written


def small_stream(batch: pa.RecordBatch) -> tuple[bytes, memoryview, bytes] | None:
    """The parts of a stream that `write_stream` would write, for a small batch of payloads; None for any other."""
    if not batch.schema.equals(VALUES_SCHEMA, check_metadata=True):
        return None
    # Not `nbytes`: it releases the interpreter lock, which takes longer to get back in a busy process than all of this.
    if bytes_of(batch.column(0)) + _OFFSET_BYTES * batch.num_rows > _MAX_SMALL_BYTES:
        return None
    return _VALUES_OPENING, memoryview(batch.serialize()), _END


def _write(batch: pa.RecordBatch, closing: bytes, sink: pa.NativeFile) -> None:
    with pa.ipc.new_stream(sink, batch.schema, options=_OPTIONS) as writer:
        writer.write_batch(batch)
    sink.write(closing)


def _opening_of(schema: pa.Schema) -> bytes:
    """What every stream of a schema begins with."""
    with pa.BufferOutputStream() as sink:
        with pa.ipc.new_stream(sink, schema, options=_OPTIONS):
            pass
        return sink.getvalue().to_pybytes().removesuffix(_END)


_VALUES_OPENING = _opening_of(VALUES_SCHEMA)


def read_stream(block: pa.Buffer) -> pa.RecordBatch:
    """Read all of a stream into one batch, validated in full. Raises `CorruptData` for anything else."""
    try:
        plain = _read_values(block)
        return _read_any(block) if plain is None else plain
    except MemoryError:
        raise  # Arrow's MemoryError is an ArrowException too, and does not mean that the block is corrupt
    except (pa.ArrowException, OSError, struct.error, ValueError, KeyError, OverflowError) as error:
        raise CorruptData(f"the block is not an Arrow IPC stream: {error}") from error


def _read_values(block: pa.Buffer) -> pa.RecordBatch | None:
    """Read the commonest stream: one batch of payloads, as `write_stream` writes it. None for any other."""
    opening = len(_VALUES_OPENING)
    if memoryview(block).cast("B")[:opening] != _VALUES_OPENING:
        return None
    source = pa.BufferReader(block)
    source.seek(opening)
    try:
        message = pa.ipc.read_message(source)
    except (pa.ArrowException, OSError, EOFError):
        return None  # the general reader reports what is wrong
    if message.type != "record batch" or source.read(len(_END) + 1) != _END:
        return None
    return _read_batch(message, VALUES_SCHEMA)


def _read_any(block: pa.Buffer) -> pa.RecordBatch:
    source = pa.BufferReader(block)
    batches = list(_batches(source))
    batch = batches[1] if len(batches) == 2 else _as_one(batches)
    if source.tell() < block.size:
        raise CorruptData(f"{block.size - source.tell()} bytes are left over after the Arrow IPC stream")
    return batch


def _batches(source: pa.BufferReader) -> Iterator[pa.RecordBatch]:
    """An empty batch of the stream's schema, then its batches."""
    messages = pa.ipc.MessageReader.open_stream(source)
    schema: pa.Schema | None = None
    while True:
        try:
            message = messages.read_next_message()
        except StopIteration:
            break
        if schema is None:
            if message.type != "schema":
                raise CorruptData(f"the Arrow IPC stream begins with a {message.type}, not with a schema")
            if _is_foreign(message.metadata):
                raise CorruptData("the Arrow IPC stream is big-endian")
            schema = pa.ipc.read_schema(message).remove_metadata()
            check_record_columns(schema)
            yield pa.RecordBatch.from_pylist([], schema=schema)
            continue
        if message.type != "record batch":
            raise CorruptData(f"the Arrow IPC stream holds a {message.type}")
        yield _read_batch(message, schema)
    if schema is None:
        raise CorruptData("the Arrow IPC stream has no schema")


def _read_batch(message: pa.Message, schema: pa.Schema) -> pa.RecordBatch:
    _check_not_compressed(message.metadata)
    batch = pa.ipc.read_record_batch(message, schema)
    batch.validate(full=True)
    check_no_nulls(batch)
    return batch


def _as_one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    places = range(batches[0].num_columns)
    try:
        columns = [pa.concat_arrays([batch.column(place) for batch in batches]) for place in places]
    except pa.ArrowInvalid as error:
        raise CorruptData("a column of the Arrow IPC stream passes 2 GiB when its batches are joined") from error
    return pa.RecordBatch.from_arrays(columns, schema=batches[0].schema)


# Arrow verifies a message before it returns it, but does not expose all its fields.


def _check_not_compressed(message: pa.Buffer) -> None:
    # Arrow allocates whatever the length in front of a compressed buffer claims. We compress around the stream.
    data = memoryview(message).cast("B")
    if _field(data, _header(data), _COMPRESSION) is not None:
        raise CorruptData("the Arrow IPC stream has compressed buffers")


def _is_foreign(message: pa.Buffer) -> bool:
    """Whether the header of a message, a schema, says that its numbers are big-endian."""
    data = memoryview(message).cast("B")
    place = _field(data, _header(data), _ENDIANNESS)
    return place is not None and bool(_U16.unpack_from(data, place)[0])


def _header(data: memoryview) -> int:
    place = _field(data, _U32.unpack_from(data, 0)[0], _HEADER)
    if place is None:
        raise CorruptData("a message of the Arrow IPC stream has no header")
    return int(place + _U32.unpack_from(data, place)[0])


def _field(data: memoryview, table: int, number: int) -> int | None:
    """Where a field of a flatbuffers table is, if it is there."""
    fields, place = table - _I32.unpack_from(data, table)[0], 4 + 2 * number
    is_known = place < _U16.unpack_from(data, fields)[0]
    offset = _U16.unpack_from(data, fields + place)[0] if is_known else 0
    return table + offset if offset else None
