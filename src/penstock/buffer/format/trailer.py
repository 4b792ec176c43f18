"""The last bytes of each object of Penstock's own formats: a checksum, a version, and a magic that says what it is.

```text
body
trailer  u64 LE checksum   u16 LE version   4 ASCII bytes of magic
```

The checksum is XXH3 with 64 bits over the body and the two bytes of the version; where an object is bound to its name,
over that name as well. OpenData's formats end in a version, a small u16: no magic ends in one, so that neither side can
take an object of the other for its own.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TypeAlias

import xxhash

from penstock.errors import CorruptData

HEAD_MAGIC = b"PSTM"
SEGMENT_MAGIC = b"PSTS"
BATCH_MAGIC = b"PSTB"

_KINDS = {HEAD_MAGIC: "a manifest's head", SEGMENT_MAGIC: "a segment", BATCH_MAGIC: "a batch"}
_TRAILER = struct.Struct("<QH4s")
_U16 = struct.Struct("<H")

TRAILER_BYTES = _TRAILER.size

Bytes: TypeAlias = bytes | memoryview


def magic_of(data: Bytes) -> bytes | None:
    """The magic that an object ends in; None where it ends in none of ours.

    >>> magic_of(b"body" + trailer(b"body", 2, BATCH_MAGIC)), magic_of(b"body")
    (b'PSTB', None)
    """
    last = bytes(data[-4:])
    return last if last in _KINDS else None


def last_u16(data: Bytes) -> int | None:
    """The last two bytes as a number: the version of an object that ends in no magic. None where they are missing."""
    return None if len(data) < _U16.size else int(_U16.unpack_from(data, len(data) - _U16.size)[0])


def trailer(body: Bytes, version: int, magic: bytes, name: str = "") -> bytes:
    """The bytes that follow a body. With a name, they are right for an object of that name alone."""
    return _TRAILER.pack(_checksum(body, version, name), version, magic)


def with_trailer(parts: Sequence[Bytes], version: int, magic: bytes) -> bytes:
    """The bytes of an object whose body is these parts, one after the other."""
    state = xxhash.xxh3_64()
    for part in parts:
        state.update(part)
    state.update(_U16.pack(version))
    return b"".join((*parts, _TRAILER.pack(state.intdigest(), version, magic)))


def verified_body(data: Bytes, version: int, magic: bytes, name: str = "") -> memoryview:
    """The body of an object that ends in this magic. Raises `CorruptData` unless magic, version and checksum are."""
    content = memoryview(data)
    kind = _KINDS[magic]
    found = magic_of(content)
    if found is None and len(content) >= _U16.size:
        raise unsupported(_U16.unpack_from(content, len(content) - _U16.size)[0], kind)
    if found is not None and found != magic:
        raise CorruptData(f"it is not {kind}: it ends in {_KINDS[found]}")
    if len(content) < TRAILER_BYTES:
        raise CorruptData(f"{kind} of {len(content)} bytes is too small for its last {TRAILER_BYTES}")
    expected, found_version, _ = _TRAILER.unpack_from(content, len(content) - TRAILER_BYTES)
    if found_version != version:
        raise CorruptData(f"unsupported version {found_version} of {kind}; this Penstock reads {version}")
    body = content[:-TRAILER_BYTES]
    if _checksum(body, version, name) != expected:
        raise CorruptData(f"the checksum of {kind} is wrong: its bytes are not those that were written")
    return body


def unsupported(version: int, kind: str) -> CorruptData:
    """What is raised for an object without a magic, whose last two bytes are no version of OpenData's that we read."""
    later = ": it may be a later format of OpenData's" if version == 2 else ""
    return CorruptData(
        f"unsupported version {version} of {kind}{later}; this Penstock reads version 1 of OpenData's, and its own"
    )


def _checksum(body: Bytes, version: int, name: str) -> int:
    state = xxhash.xxh3_64(body)
    state.update(_U16.pack(version))
    if name:
        state.update(name.encode())
    return state.intdigest()
