"""The last bytes of an object of version 2, written from the table of the format and not by the product."""

from __future__ import annotations

import struct

import xxhash

HEAD, SEGMENT, BATCH = b"PSTM", b"PSTS", b"PSTB"
SIZE = 14


def ended(body: bytes, magic: bytes, version: int = 2, name: str = "") -> bytes:
    """A body with its trailer: the checksum is right, whatever the body is.

    >>> ended(b"", HEAD)[8:]
    b'\\x02\\x00PSTM'
    """
    last = struct.pack("<H", version)
    return body + struct.pack("<Q", xxhash.xxh3_64_intdigest(body + last + name.encode())) + last + magic


def body_of(data: bytes) -> bytes:
    """The bytes before the trailer."""
    return data[:-SIZE]
