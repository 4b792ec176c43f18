"""An object of the object log, as bytes: a header, and the payloads of some offsets in a row."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from penstock.errors import CorruptData

# magic, version, first offset, number in the chain, count, bytes of the body, nonce; then the checksum of all else
_HEADER = struct.Struct(">4sBQQIQ16s")
_CHECKSUM = struct.Struct(">I")
_LENGTH = struct.Struct(">I")
_MAGIC = b"PSML"
_VERSION = 1
_OVERHEAD = _HEADER.size + _CHECKSUM.size

MAX_PAYLOAD_BYTES = 2**32 - 1
MAX_OFFSET = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LogObject:
    """The records from offset `first` on. `number` counts the objects before it; its writer knows it by the `nonce`."""

    first: int
    number: int
    nonce: bytes
    payloads: Sequence[bytes] = field(repr=False)
    size: int = 0

    @property
    def end(self) -> int:
        """The offset after its last one, which names the next object."""
        return self.first + len(self.payloads)


def size_of(payload: bytes) -> int:
    """How many bytes a payload takes of an object."""
    return _LENGTH.size + len(payload)


def encode(first: int, number: int, nonce: bytes, payloads: Sequence[bytes]) -> bytes:
    """The bytes of an object."""
    body = b"".join([*(_LENGTH.pack(len(payload)) for payload in payloads), *payloads])
    header = _HEADER.pack(_MAGIC, _VERSION, first, number, len(payloads), len(body), nonce)
    return b"".join([header, _CHECKSUM.pack(zlib.crc32(body, zlib.crc32(header))), body])


def decode(data: bytes) -> LogObject:
    """The object that some bytes are. Raises `CorruptData`."""
    found, end = _decode_at(data, 0)
    if end != len(data):
        raise CorruptData(f"{len(data) - end} bytes follow the end of an object of the metadata log")
    return found


def decode_many(data: bytes) -> Iterator[LogObject]:
    """The objects that lie one after another in some bytes. Raises `CorruptData`."""
    at = 0
    while at < len(data):
        found, at = _decode_at(data, at)
        yield found


def _decode_at(data: bytes, start: int) -> tuple[LogObject, int]:
    if len(data) - start < _OVERHEAD:
        raise CorruptData(f"an object of the metadata log has a header of {_OVERHEAD} bytes, not {len(data) - start}")
    magic, version, first, number, count, size, nonce = _HEADER.unpack_from(data, start)
    if magic != _MAGIC:
        raise CorruptData(f"no object of a metadata log: it begins with {magic!r}, not {_MAGIC!r}")
    if version != _VERSION:
        raise CorruptData(f"an object of the metadata log of version {version}: this release reads version {_VERSION}")
    body = start + _OVERHEAD
    end = body + size
    if end > len(data):
        raise CorruptData(f"an object of the metadata log lacks {end - len(data)} bytes at its end")
    view = memoryview(data)
    checksum = zlib.crc32(view[body:end], zlib.crc32(view[start : start + _HEADER.size]))
    if _CHECKSUM.unpack_from(data, start + _HEADER.size)[0] != checksum:
        raise CorruptData("the checksum of an object of the metadata log is wrong")
    # The checksum is right: what is wrong from here on was written so, by another program.
    if not count or count * _LENGTH.size > size or first + count - 1 > MAX_OFFSET:
        raise CorruptData(f"an object of the metadata log with {count} records from {first} in {size} bytes")
    if number > first:  # each before it has at least one record
        raise CorruptData(f"an object of the metadata log from {first} cannot be the one with the number {number}")
    payloads = []
    at = body + count * _LENGTH.size
    for (length,) in _LENGTH.iter_unpack(view[body:at]):
        payloads.append(data[at : at + length])
        at += length
    if at != end:
        raise CorruptData("the lengths of an object of the metadata log do not add up")
    return LogObject(first, number, nonce, payloads, end - start), end
