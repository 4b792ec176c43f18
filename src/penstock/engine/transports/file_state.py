"""What a `FileReceiver` remembers: the files that it knows, and how far each was committed, in one small file."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from io import FileIO

import xxhash

from penstock.core import decode_fields, encode_fields
from penstock.errors import CorruptData, StorageError
from penstock.storage import InternalDirectory, locked_if_free, sync_directory

_VERSION = 1
HEAD_BYTES = 256
TAIL_BYTES = 64


@dataclass(frozen=True, slots=True)
class KnownFile:
    """A file, and how far it was committed. A file that was truncated, or replaced, is another one, with another id.

    `head` and `tail` are hashes of the first bytes of the file and of those before `offset`: an inode is given to
    another file when its own was deleted, and a file that was truncated may have grown past the offset again.
    """

    id: int
    path: str
    device: int
    inode: int
    format: str
    offset: int = 0
    head_bytes: int = 0
    head: str = ""
    tail_bytes: int = 0
    tail: str = ""

    @property
    def key(self) -> tuple[int, int]:
        """What a file keeps when it is renamed."""
        return self.device, self.inode


def digest(data: bytes) -> str:
    """A hash of some bytes of a file."""
    return xxhash.xxh3_64_hexdigest(data)


class FileState:
    """The durable state, locked: one receiver at a time has it.

    Raises `StorageError` where another receiver has it or it cannot be read, and `CorruptData` for other bytes.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._folder, self._name = os.path.split(path)
        try:
            internal = InternalDirectory(os.path.realpath(self._folder))
            try:
                lock = locked_if_free(internal, f"{self._name}.lock", FileIO)
            finally:
                os.close(internal.descriptor)
        except OSError as error:
            raise StorageError(f"the state {path} cannot be locked: {error.strerror or error}") from error
        if lock is None:
            raise StorageError(
                f"the state {path} is in use by another FileReceiver: one at a time reads these files; close it, or "
                "give this one another state= (then it reads every file from the start)"
            )
        self._lock = lock
        self._partial = f"{path}.tmp"
        self.paths = path, self._partial, f"{path}.lock"
        """The files of its own, which are no files to read."""
        try:
            self.next_id, self.files = self._load()
        except BaseException:
            lock.close()
            raise

    def save(self, files: dict[int, KnownFile], next_id: int) -> None:
        """Replace the state durably: it is the old one or the new one, whatever happens on the way."""
        text = json.dumps([asdict(file) for file in files.values()], separators=(",", ":"))
        data = encode_fields({"version": _VERSION, "next_id": next_id, "files": text})
        try:
            with open(self._partial, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(self._partial, self.path)
            sync_directory(self._folder)
        except OSError as error:
            raise StorageError(f"the state {self.path} cannot be written: {error.strerror or error}") from error
        self.files, self.next_id = files, next_id

    def close(self) -> None:
        """Let another receiver have it."""
        self._lock.close()

    def _load(self) -> tuple[int, dict[int, KnownFile]]:
        try:
            with open(self.path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return 1, {}
        except OSError as error:
            raise StorageError(f"the state {self.path} cannot be read: {error.strerror or error}") from error
        try:
            fields = decode_fields(data, {"next_id": int, "files": str}, _VERSION)
            known = [KnownFile(**one) for one in json.loads(str(fields["files"]))]
        except (CorruptData, ValueError, TypeError) as error:
            raise CorruptData(
                f"{self.path} is no state of a FileReceiver: {error}; restore it, or delete it to read every file again"
            ) from error
        return int(fields["next_id"]), {file.id: file for file in known}
