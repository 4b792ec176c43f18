"""The mark of a durable queue: the totals of the last write that was reported, in a small file beside the database.

It tells events that were acked from events that are lost. See "Damage" in the design note.
"""

from __future__ import annotations

import os
import struct
import time
import weakref
import zlib
from dataclasses import dataclass

from penstock.errors import StorageError
from penstock.queue.damage import damaged, named
from penstock.queue.totals import Totals
from penstock.storage import sync_directory

MARK_NAME = "penstock-mark"

_MAGIC = b"pstkmrk1"
_BODY = struct.Struct(">8s16s?QQQQQQ")  # magic, queue id, is it being made, generation, four totals, oldest id
_CHECKSUM = struct.Struct(">I")  # CRC-32 of the body
_SLOT_BYTES = 4096  # from one slot to the other: a torn write spoils one of them at most
_SYNC_PAUSE = 0.1  # seconds from one sync to the next, at least
_SYNC_SHARE = 0.01  # of the time may go into syncs


@dataclass(frozen=True, slots=True)
class MarkRecord:
    """What a mark says. Every event before the id `oldest` was acked. `is_new`: the queue is being made."""

    queue_id: bytes
    totals: Totals = Totals()  # noqa: RUF009  it is immutable
    oldest: int = 0
    is_new: bool = False


def read_mark(path: str) -> MarkRecord | None:
    """The mark of the queue in this directory; None if there is no such file. Raises `CorruptData`."""
    try:
        with open(os.path.join(path, MARK_NAME), "rb", buffering=0) as file:
            found = _newest(file.fileno())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _failed(path, "read", error) from error
    if found is None:
        raise damaged(path, f"its file {MARK_NAME} cannot be read, so it is not known whether events are missing")
    return found[1]


def create_mark(path: str, record: MarkRecord) -> None:
    """Make a mark, durably, in place of any that is there. The queue's lock is held."""
    where = os.path.join(path, MARK_NAME)
    try:
        with open(f"{where}.tmp", "wb") as file:
            slot = _slot(record.queue_id, record.is_new, 0, record.totals, record.oldest).ljust(_SLOT_BYTES, b"\0")
            file.write(slot + slot)
            file.flush()
            os.fsync(file.fileno())
        os.replace(file.name, where)
        sync_directory(path)
    except OSError as error:
        raise _failed(path, "written", error) from error


class MarkFile:
    """An open mark. One thread at a time uses it."""

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            self._descriptor = os.open(os.path.join(path, MARK_NAME), os.O_RDWR | os.O_CLOEXEC)
            self._closing = weakref.finalize(self, os.close, self._descriptor)
            self._closing.atexit = False  # a thread may write until the process ends
            found = _newest(self._descriptor)
        except OSError as error:
            raise _failed(path, "read", error) from error
        if found is None:
            raise damaged(path, f"its file {MARK_NAME} cannot be read")
        self._generation, self.record = found  # as it was when it was opened
        self.queue_id, self.oldest = self.record.queue_id, self.record.oldest
        self._sync_at = 0.0  # on the monotonic clock

    def write(self, totals: Totals, oldest: int = 0) -> None:
        """Note the totals of a write that is synced. A kill does not lose it; a loss of power may, for a moment.

        Raises `OSError`.
        """
        self.oldest = max(oldest, self.oldest)
        self._generation += 1
        self._put(_slot(self.queue_id, False, self._generation, totals, self.oldest), self._generation % 2)
        if time.monotonic() >= self._sync_at:
            self._sync()

    def write_through(self, totals: Totals, oldest: int = 0) -> None:
        """Note totals in both slots, and sync them: also such as are behind the last ones. Raises `StorageError`."""
        self.oldest = max(oldest, self.oldest)
        self._generation += 1
        slot = _slot(self.queue_id, False, self._generation, totals, self.oldest)
        try:
            for number in (self._generation % 2, 1 - self._generation % 2):
                self._put(slot, number)
                self._sync()
        except OSError as error:
            raise _failed(self._path, "written", error) from error

    def close(self) -> None:
        """Let go of the file."""
        self._closing()

    def _put(self, slot: bytes, number: int) -> None:
        if os.pwrite(self._descriptor, slot, number * _SLOT_BYTES) != len(slot):
            raise OSError(f"{MARK_NAME} was written in part")

    def _sync(self) -> None:
        began = time.monotonic()
        os.fdatasync(self._descriptor)
        ended = time.monotonic()
        self._sync_at = ended + max(_SYNC_PAUSE, (ended - began) / _SYNC_SHARE)


def _newest(descriptor: int) -> tuple[int, MarkRecord] | None:
    slots = [_read(os.pread(descriptor, _BODY.size + _CHECKSUM.size, number * _SLOT_BYTES)) for number in (0, 1)]
    return max((slot for slot in slots if slot is not None), key=lambda slot: slot[0], default=None)


def _slot(queue_id: bytes, is_new: bool, generation: int, totals: Totals, oldest: int) -> bytes:
    body = _BODY.pack(_MAGIC, queue_id, is_new, generation, *totals, oldest)
    return body + _CHECKSUM.pack(zlib.crc32(body))


def _read(data: bytes) -> tuple[int, MarkRecord] | None:
    body = data[: _BODY.size]
    if len(data) != _BODY.size + _CHECKSUM.size or data[_BODY.size :] != _CHECKSUM.pack(zlib.crc32(body)):
        return None
    magic, queue_id, is_new, generation, next_id, count, id_sum, acks, oldest = _BODY.unpack(body)
    if magic != _MAGIC:
        return None
    return generation, MarkRecord(queue_id, Totals(next_id, count, id_sum, acks), oldest, is_new)


def _failed(path: str, verb: str, error: OSError) -> StorageError:
    return StorageError(f"{named(path)}: its file {MARK_NAME} could not be {verb}: {error.strerror or error}")
