"""Arrow IPC streams as bytes: written by pyarrow, split into messages, and changed."""

from __future__ import annotations

import struct
from typing import Any, Literal

import pyarrow as pa

from tests.support.manifest_trailers import BATCH, ended

Packed = Literal["lz4", "zstd"] | None

PAIR = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
END = bytes.fromhex("ffffffff 00000000")


def column(values: list[Any], kind: Any = None) -> Any:
    """A column; of `binary` by default."""
    return pa.array(values, type=kind or pa.binary())


def columns(**named: Any) -> pa.RecordBatch:
    """A record batch with these columns."""
    return pa.RecordBatch.from_arrays(list(named.values()), names=list(named))


def stream(*batches: pa.RecordBatch, compression: Packed = None, schema: pa.Schema | None = None) -> bytes:
    """A whole stream of some record batches."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, schema or batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def messages(whole: bytes) -> list[bytes]:
    """The messages of a stream, without its end."""
    reader = pa.ipc.MessageReader.open_stream(whole)
    return [message.serialize().to_pybytes() for message in reader]


def batch_of(block: bytes, count: int, compression: int = 0) -> bytes:
    """A version 2 batch around a block, with the checksum of what it is."""
    return ended(block + struct.pack("<BI", compression, count), BATCH)


def tampered(whole: bytes, old: bytes, new: bytes) -> bytes:
    """The same bytes but for one place, which has to be there exactly once."""
    assert len(old) == len(new)
    assert whole.count(old) == 1, f"{old.hex(' ')} is there {whole.count(old)} times"
    return whole.replace(old, new)


def places(whole: bytes, wanted: bytes) -> list[int]:
    """Every place where some bytes are."""
    return [at for at in range(len(whole)) if whole.startswith(wanted, at)]


def as_big_endian(whole: bytes) -> bytes:
    """The same stream, whose schema says that its writer was big-endian. What it holds stays as it was."""
    length = struct.unpack_from("<i", whole, 4)[0]
    root = 8 + struct.unpack_from("<I", whole, 8)[0]
    schema = _follow(whole, _field(whole, root, number=2))
    for offset in range(4, 8 + length - schema, 2):
        if whole[schema + offset : schema + offset + 2] == b"\x01\x00" and (schema + offset - 8) % 2 == 0:
            entry = schema - struct.unpack_from("<i", whole, schema)[0] + 4  # Schema.endianness is its field 0
            return whole[:entry] + struct.pack("<H", offset) + whole[entry + 2 :]
    raise AssertionError("no place in the schema holds a 1 to point at")


def _field(data: bytes, table: int, number: int) -> int:
    fields = table - struct.unpack_from("<i", data, table)[0]
    return table + int(struct.unpack_from("<H", data, fields + 4 + 2 * number)[0])


def _follow(data: bytes, at: int) -> int:
    return at + int(struct.unpack_from("<I", data, at)[0])
