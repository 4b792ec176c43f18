"""One zstd frame, and what it unpacks to: never more than a limit, whatever the frame claims."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa

from penstock.errors import CorruptData

LEVEL = 3

_MAGIC = b"\x28\xb5\x2f\xfd"
_LEAST_WINDOW = 8 << 20  # what every decoder has to support, by the frame's specification
_LARGEST_BLOCK = 128 << 10
_STEP = 1 << 20
_SIZE_BYTES = {0: 0, 1: 2, 2: 4, 3: 8}
_DICTIONARY_BYTES = {0: 0, 1: 1, 2: 2, 3: 4}


def compress(block: pa.Buffer) -> pa.Buffer:
    """Pack a block into one frame."""
    return pa.Codec("zstd", compression_level=LEVEL).compress(block)


def decompress(frame: pa.Buffer, most: int) -> pa.Buffer:
    """Unpack exactly one frame of at most `most` bytes.

    Raises `CorruptData` where it is no whole frame, has bytes after it, or would unpack to more. Memory is used for
    what really comes out, never for what a header says will.
    """
    claimed = _check_frame(memoryview(frame).cast("B"), most)
    # A stream grows by doubling, and keeps that. Memory of the right size is used only as far as it is written to.
    exact = None if claimed is None else pa.allocate_buffer(claimed)
    growing = pa.BufferOutputStream()
    sink: pa.NativeFile = growing if exact is None else pa.FixedSizeBufferWriter(exact)
    size = 0
    try:
        for piece in _pieces(frame):
            size += piece.size
            if size > most:
                raise CorruptData(f"the block would decompress beyond max_batch_bytes = {most}")
            if claimed is None or size <= claimed:
                sink.write(piece)
    except MemoryError:
        raise  # Arrow's MemoryError is an ArrowException too, and does not mean that the frame is corrupt
    except (OSError, pa.ArrowException) as error:
        raise CorruptData(f"the zstd frame does not decompress: {error}") from error
    if claimed is not None and size != claimed:
        raise CorruptData(f"the zstd frame unpacks to {size} bytes, and says {claimed}")
    return growing.getvalue() if exact is None else exact


def _pieces(frame: pa.Buffer) -> Iterator[pa.Buffer]:
    stream = pa.CompressedInputStream(pa.BufferReader(frame), "zstd")
    while True:
        piece = stream.read_buffer(_STEP)
        if not piece.size:
            return
        yield piece


def _check_frame(frame: memoryview, most: int) -> int | None:
    """Walk over the frame's blocks without unpacking them; return the size it claims to have, if it does."""
    try:
        return _walk(frame, most)
    except (struct.error, IndexError) as error:
        raise CorruptData("the zstd frame is truncated") from error


def _walk(frame: memoryview, most: int) -> int | None:
    if bytes(frame[:4]) != _MAGIC:
        raise CorruptData("the block is not a zstd frame")
    descriptor = frame[4]
    single = bool(descriptor & 0x20)
    if descriptor & 0x08 or _DICTIONARY_BYTES[descriptor & 3]:
        raise CorruptData("the zstd frame needs a dictionary, or a newer decoder")
    at = 5
    window = 0
    if not single:
        window = _window(frame[at])
        at += 1
    width = _SIZE_BYTES[descriptor >> 6] or int(single)
    claimed = int.from_bytes(frame[at : at + width], "little") + (256 if width == 2 else 0) if width else None
    at += width
    if claimed is not None and claimed > most:
        raise CorruptData(f"the block would decompress to {claimed} bytes, beyond max_batch_bytes = {most}")
    if window > max(most, _LEAST_WINDOW):
        raise CorruptData(f"the zstd frame asks for a window of {window} bytes, beyond max_batch_bytes = {most}")
    at, reach = _walk_blocks(frame, at)
    if claimed is not None and claimed > reach:
        raise CorruptData(f"the zstd frame claims {claimed} bytes, and its blocks hold {reach} at most")
    end = at + (4 if descriptor & 0x04 else 0)
    if end > len(frame):
        raise CorruptData("the zstd frame is truncated")
    if end < len(frame):
        raise CorruptData(f"{len(frame) - end} bytes are left over after the zstd frame")
    return claimed


def _walk_blocks(frame: memoryview, at: int) -> tuple[int, int]:
    """Where the last block ends, and how much all of them can unpack to at most."""
    reach = 0
    last = False
    while not last:
        if at + 3 > len(frame):
            raise CorruptData("the zstd frame is truncated")
        header = int.from_bytes(frame[at : at + 3], "little")
        last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        if kind == 3:
            raise CorruptData("the zstd frame has a block of an unknown kind")
        reach += _LARGEST_BLOCK if kind == 2 else size
        at += 3 + (1 if kind == 1 else size)
    return at, reach


def _window(byte: int) -> int:
    base = 1 << (10 + (byte >> 3))
    return base + base // 8 * (byte & 7)
