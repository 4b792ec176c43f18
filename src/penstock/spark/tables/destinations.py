"""Where the files of a task go: objects of a store, or files below a local directory."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from typing import BinaryIO, Protocol, cast

from penstock.core import get_logger
from penstock.spark.tables.named_files import NamedFile
from penstock.storage import ObjectStore

_log = get_logger(__name__)


class Destination(Protocol):
    """A place for files. Their paths are below it."""

    @property
    def keeps_in_memory(self) -> bool:
        """Whether a file is in memory until it is finished."""
        ...

    def begin(self, path: str, /) -> BinaryIO:
        """Begin a file at a path."""
        ...

    def finish(self, path: str, content: BinaryIO, /) -> None:
        """Make a file durable that is written."""
        ...

    def remove(self, paths: Sequence[str], /) -> None:
        """Remove files, as far as that is possible."""
        ...


@dataclass(frozen=True, slots=True)
class InStore:
    """Objects below a prefix of a store. Each is in memory until it is finished."""

    store: ObjectStore
    top: str = ""

    @property
    def keeps_in_memory(self) -> bool:
        """A store takes whole objects."""
        return True

    def begin(self, _path: str) -> BinaryIO:
        """A file in memory."""
        return BytesIO()

    def finish(self, path: str, content: BinaryIO) -> None:
        """Put the object."""
        self.store.put(_below(self.top, path), cast("BytesIO", content).getbuffer())

    def remove(self, paths: Sequence[str]) -> None:
        """Delete the objects."""
        _delete(self.store, self.top, paths)


@dataclass(frozen=True, slots=True)
class InStoreFromDisk:
    """Objects below a prefix of a store. Each is a file without a name on this host's disk until it is finished."""

    store: ObjectStore
    top: str = ""

    @property
    def keeps_in_memory(self) -> bool:
        """No: it is on disk."""
        return False

    def begin(self, _path: str) -> BinaryIO:
        """A temporary file."""
        return tempfile.TemporaryFile()

    def finish(self, path: str, content: BinaryIO) -> None:
        """Put the object."""
        content.flush()
        with content, mmap.mmap(content.fileno(), os.fstat(content.fileno()).st_size, access=mmap.ACCESS_READ) as data:
            view = memoryview(data)
            try:
                self.store.put(_below(self.top, path), view)
            finally:
                view.release()

    def remove(self, paths: Sequence[str]) -> None:
        """Delete the objects."""
        _delete(self.store, self.top, paths)


@dataclass(frozen=True, slots=True)
class InDirectory:
    """Files below a local directory."""

    top: str

    @property
    def keeps_in_memory(self) -> bool:
        """No: it is on disk."""
        return False

    def begin(self, path: str) -> BinaryIO:
        """A new file."""
        at = f"{self.top}/{path}"
        os.makedirs(os.path.dirname(at), exist_ok=True)
        return NamedFile(at, "x")

    def finish(self, _path: str, content: BinaryIO) -> None:
        """Sync it to the disk."""
        content.flush()
        os.fsync(content.fileno())
        content.close()

    def remove(self, paths: Sequence[str]) -> None:
        """Remove the files."""
        for path in paths:
            with suppress(FileNotFoundError):
                os.unlink(f"{self.top}/{path}")


def _below(top: str, path: str) -> str:
    return f"{top}/{path}" if top else path


def _delete(store: ObjectStore, top: str, paths: Sequence[str]) -> None:
    for result in store.delete([_below(top, path) for path in paths]):
        if result.error:
            _log.warning("a file of a task that failed stays in %s: %s", store.url, result.error)
