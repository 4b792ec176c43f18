"""RocksDB's log files (its write-ahead log, its MANIFEST): whether RocksDB can read one, and what is intact in it.

A file is a row of blocks of 32 KiB, and a record lies within one block: checksum (4 bytes), length (2), kind (1), and
so many bytes. What does not fit in a block is divided into several. RocksDB is not given a file to read that has a kind
which no queue writes: it takes some of them for the rest of an older log, and then reads the same record for ever. And
where a record is damaged, RocksDB gives up the rest of its block, though the records behind it are intact.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable, Iterator

from penstock.errors import StorageError
from penstock.queue.damage import damaged, named
from penstock.queue.rocks import is_database_file

_BLOCK_BYTES = 32 << 10
_HEADER = struct.Struct("<IHB")
_NONE, _FULL, _FIRST, _MIDDLE, _LAST = range(5)  # kinds; nothing but zeros comes after _NONE
_MASK_DELTA = 0xA282EAD8  # checksums are stored rotated, and with this added


def check_log_files(path: str) -> None:
    """Raise `CorruptData` if a log file of the queue in this directory has records that are not a queue's."""
    for name in os.listdir(path):
        if is_database_file(name) and (name.endswith(".log") or name.startswith("MANIFEST-")):
            try:
                is_right = _has_right_kinds(os.path.join(path, name))
            except OSError as error:
                raise StorageError(f"{named(path)}: {name} cannot be read: {error.strerror or error}") from error
            if not is_right:
                raise damaged(path, f"its file {name} has a damaged record")


def _has_right_kinds(file: str) -> bool:
    with open(file, "rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        if not size:
            return True
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return all(_has_block_right_kinds(data[at : at + _BLOCK_BYTES]) for at in range(0, size, _BLOCK_BYTES))


def _has_block_right_kinds(block: bytes) -> bool:
    at, last = 0, len(block) - _HEADER.size
    while at <= last:
        kind = block[at + 6]
        if kind > _LAST:
            return False
        if kind == _NONE:
            return True
        at += _HEADER.size + block[at + 4] + (block[at + 5] << 8)
    return True


def intact_records(data: bytes) -> Iterator[bytes]:
    """The records of a log file that are whole, in their order, also those behind damage."""
    parts: list[bytes] = []
    for start in range(0, len(data), _BLOCK_BYTES):
        for kind, part in _intact_parts(data[start : start + _BLOCK_BYTES]):
            if kind in {_FULL, _FIRST}:
                parts = []
            elif not parts:
                continue  # its beginning is damaged
            if kind is None:
                parts = []
                continue
            parts.append(part)
            if kind in {_FULL, _LAST}:
                yield b"".join(parts)
                parts = []


def _intact_parts(block: bytes) -> Iterator[tuple[int | None, bytes]]:
    """The parts of records in a block; None, and nothing, where damage is between two of them."""
    at = 0
    while at + _HEADER.size <= len(block):
        if _is_intact(block, at):
            _, length, kind = _HEADER.unpack_from(block, at)
            yield kind, block[at + _HEADER.size : at + _HEADER.size + length]
            at += _HEADER.size + length
            continue
        if not any(block[at:]):
            return
        yield None, b""
        at = next((one for one in range(at + 1, len(block) - _HEADER.size + 1) if _is_intact(block, one)), len(block))


def _is_intact(block: bytes, at: int) -> bool:
    checksum, length, kind = _HEADER.unpack_from(block, at)
    end = at + _HEADER.size + length
    return bool(_FULL <= kind <= _LAST and end <= len(block) and checksum == _masked_crc(block[at + 6 : end]))


def framed(records: Iterable[bytes]) -> bytes:
    """Records as a log file."""
    file = bytearray()
    for record in records:
        rest, is_first = record, True
        while is_first or rest:
            free = _BLOCK_BYTES - len(file) % _BLOCK_BYTES
            if free < _HEADER.size:
                file += bytes(free)
                free = _BLOCK_BYTES
            part, rest = rest[: free - _HEADER.size], rest[free - _HEADER.size :]
            kind = (_FIRST if rest else _FULL) if is_first else (_MIDDLE if rest else _LAST)
            file += _HEADER.pack(_masked_crc(bytes([kind]) + part), len(part), kind) + part
            is_first = False
    return bytes(file)


def _masked_crc(data: bytes) -> int:
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """The CRC-32C (Castagnoli) of some bytes. It is for repairs alone: 10 MB a second are enough there.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    crc = 0xFFFFFFFF
    table = _TABLE
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _table() -> list[int]:
    table = []
    for number in range(256):
        for _ in range(8):
            number = number >> 1 ^ (0x82F63B78 if number & 1 else 0)
        table.append(number)
    return table


_TABLE = _table()
