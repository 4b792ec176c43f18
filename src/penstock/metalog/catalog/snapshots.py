"""Snapshots of a catalog's views on disk: one file for each metadata partition, replaced atomically.

The layout, and what a kill leaves behind at each step, is in `docs/design/catalog.md`.
"""

from __future__ import annotations

import hashlib
import os
import struct
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from penstock import metrics
from penstock.core import get_logger
from penstock.errors import CorruptData, StorageError
from penstock.metalog.catalog.segment import SegmentEvent
from penstock.metalog.catalog.wire import decode_event, encode_event
from penstock.storage import sync_directory

_MAGIC = b"PENSTCAT"
_VERSION = 1
_HEAD = struct.Struct(">8sHIIQQ")  # magic, version, partition, partitions, next offset, events
_LENGTH = struct.Struct(">I")
_DIGEST = 16
_TEMPORARY = ".tmp"
_BYTES_PER_WRITE = 1 << 20

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state after all events below `next_offset` of a metadata partition, as events that can be read once."""

    partition: int
    partition_count: int
    next_offset: int
    events: Iterable[SegmentEvent]


class SnapshotFiles:
    """The snapshots in a directory. One thread uses it at a time."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        bytes_per_write: int = _BYTES_PER_WRITE,
        step: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._directory = os.path.abspath(os.fspath(directory))
        self._bytes_per_write = bytes_per_write
        self._step = step
        try:
            os.makedirs(self._directory, exist_ok=True)
            names = os.listdir(self._directory)
        except (OSError, ValueError) as error:  # ValueError: no file can have that name
            raise StorageError(f"the snapshot directory {self._directory!r} cannot be used: {error}") from error
        for name in names:
            if ".snapshot." in name and name.endswith(_TEMPORARY):
                self._remove(os.path.join(self._directory, name))

    def load(self, partition: int, partition_count: int) -> Snapshot | None:
        """The snapshot of a partition; None if there is none. One that cannot be used is set aside."""
        try:
            with open(self._path(partition), "rb") as source:
                return _decoded(source.read(), partition, partition_count)
        except FileNotFoundError:
            return None
        except OSError as error:
            self.set_aside(partition, f"it cannot be read: {error}")
        except CorruptData as error:
            self.set_aside(partition, str(error))
        return None

    def set_aside(self, partition: int, why: str) -> None:
        """Rename a snapshot that cannot be used: it is not read again, and is kept for a person to look at."""
        path = self._path(partition)
        number = 1
        while os.path.lexists(aside := f"{path}.set-aside-{number}"):
            number += 1
        metrics.catalog_snapshots_set_aside.inc()
        _log.error("the snapshot %s is set aside as %s, and the log is read from its beginning: %s", path, aside, why)
        try:
            os.rename(path, aside)
        except FileNotFoundError:
            pass
        except OSError as error:
            _log.error("%s could not be renamed: %s", path, error)  # the next snapshot replaces it

    def save(self, snapshot: Snapshot) -> bool:
        """Write a snapshot, and return whether it is on disk. A failure is logged and counted; the last one stays."""
        path = self._path(snapshot.partition)
        temporary = f"{path}.{uuid.uuid4().hex}{_TEMPORARY}"
        try:
            self._write(temporary, snapshot)
            os.rename(temporary, path)
            self._step("renamed")
            sync_directory(self._directory)
            self._step("directory synced")
        except OSError as error:
            metrics.catalog_snapshots_failed.inc()
            _log.error("the snapshot %s could not be written, and is tried again: %s", path, error)
            self._remove(temporary)
            return False
        metrics.catalog_snapshots_written.inc()
        return True

    def _write(self, path: str, snapshot: Snapshot) -> None:
        with open(path, "xb") as target:
            self._step("created")
            target.writelines(_encoded(snapshot, self._bytes_per_write))
            target.flush()
            self._step("written")
            os.fsync(target.fileno())
            self._step("synced")

    def _path(self, partition: int) -> str:
        return os.path.join(self._directory, f"{partition}.snapshot")

    def _remove(self, path: str) -> None:
        with suppress(OSError):
            os.unlink(path)


def _encoded(snapshot: Snapshot, bytes_per_write: int) -> Iterator[bytes]:
    events = [encode_event(event) for event in snapshot.events]
    digest = hashlib.blake2b(digest_size=_DIGEST)
    gathered = bytearray(
        _HEAD.pack(_MAGIC, _VERSION, snapshot.partition, snapshot.partition_count, snapshot.next_offset, len(events))
    )
    for event in events:
        gathered += _LENGTH.pack(len(event)) + event
        if len(gathered) >= bytes_per_write:
            digest.update(gathered)
            yield bytes(gathered)
            gathered.clear()
    digest.update(gathered)
    yield bytes(gathered) + digest.digest()


def _decoded(content: bytes, partition: int, partition_count: int) -> Snapshot:
    end = len(content) - _DIGEST
    if end < _HEAD.size:
        raise CorruptData(f"it has {len(content)} bytes: too few")
    magic, version, number, count, next_offset, events = _HEAD.unpack_from(content)
    if (magic, version) != (_MAGIC, _VERSION):
        raise CorruptData(f"it begins with {magic!r} and has the version {version}; this Penstock reads {_VERSION}")
    body = memoryview(content)[:end]
    if hashlib.blake2b(body, digest_size=_DIGEST).digest() != content[end:]:
        raise CorruptData("its checksum is wrong: it is torn or damaged")
    if (number, count) != (partition, partition_count):
        raise CorruptData(f"it is of partition {number} of {count}, not of partition {partition} of {partition_count}")
    return Snapshot(partition, partition_count, next_offset, list(_decoded_events(content, end, events)))


def _decoded_events(content: bytes, end: int, count: int) -> Iterator[SegmentEvent]:
    at = _HEAD.size
    for _ in range(count):
        if at + _LENGTH.size > end:
            raise CorruptData("it has fewer events than its header has")
        (length,) = _LENGTH.unpack_from(content, at)
        at += _LENGTH.size
        yield decode_event(content[at : at + length])
        at += length
    if at != end:
        raise CorruptData("its events do not end where they should")
