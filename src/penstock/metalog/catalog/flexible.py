"""Kafka's flexible encoding: varints, compact strings and bytes, and the tagged fields that end every structure.

A reading function takes the bytes and a position in them, and returns the value and the position after it. Beyond the
end of the bytes it raises `IndexError` here and `struct.error` elsewhere: one handler around all of it costs less than
a check of the length before each byte. Everything else that is wrong is `CorruptData`.
"""

from __future__ import annotations

from penstock.errors import CorruptData

NO_TAGS = b"\x00"


def varint(number: int) -> bytes:
    """An unsigned varint: seven bits a byte, the low ones first.

    >>> varint(300).hex(" ")
    'ac 02'
    """
    if number < 0x80:
        return number.to_bytes(1, "big")
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def compact(content: bytes | None) -> bytes:
    """A compact string or compact bytes: the length plus one, then the content; null is 0."""
    return b"\x00" if content is None else varint(len(content) + 1) + content


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Read an unsigned varint of at most 32 bits. As with Kafka, it may be longer than needed, up to 5 bytes."""
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    number = byte & 0x7F
    for shift in (7, 14, 21, 28):
        at += 1
        byte = data[at]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    else:
        raise CorruptData("a varint has more than 5 bytes")
    if number >> 32:  # Kafka drops the bits beyond; no writer sets them, so they were damaged
        raise CorruptData("a varint has more than 32 bits")
    return number, at + 1


def read_compact(data: bytes, at: int) -> tuple[bytes | None, int]:
    """Read compact bytes, or the bytes of a compact string; None for null."""
    length, at = read_varint(data, at)
    if not length:
        return None, at
    return _slice(data, at, length - 1)


def skip_tags(data: bytes, at: int) -> int:
    """The position after the tagged fields."""
    return at + 1 if data[at] == 0 else find_tag(data, at, -1)[1]


def find_tag(data: bytes, at: int, wanted: int) -> tuple[bytes | None, int]:
    """Read the tagged fields; return the content of one of them, None where it is missing.

    Their order does not matter, and of a repeated one the last counts: as Kafka reads them, because two readers of one
    log must agree.
    """
    found = None
    count, at = read_varint(data, at)
    for _ in range(count):  # too large a count ends with the bytes: each field takes at least two
        tag, at = read_varint(data, at)
        size, at = read_varint(data, at)
        content, at = _slice(data, at, size)
        if tag == wanted:
            found = content
    return found, at


def _slice(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    end = at + size
    if end > len(data):
        raise CorruptData(f"a length says {size} bytes, and {len(data) - at} follow")
    return data[at:end], end
