"""Files of a table on this host's disk: each is there after a power cut once it is closed.

pyiceberg writes data files, manifests and metadata with Arrow, which does not sync them. A catalog that survives a
power cut would name files that did not.
"""

from __future__ import annotations

import os
from urllib.parse import urlparse

from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from penstock.spark.tables.named_files import NamedFile
from penstock.storage import sync_directory

IMPLEMENTATION = f"{__name__}.DurableFileIO"
"""The value of pyiceberg's property `py-io-impl` that names the class below."""

_durable_directories: set[tuple[str, int]] = set()
"""Directories whose names are durable, each with its inode: one that is removed and created again is another."""


def is_local(location: str) -> bool:
    """Whether a location is on this host's disk.

    >>> is_local("/data/warehouse"), is_local("file:///data/warehouse"), is_local("s3://bucket/warehouse")
    (True, True, False)
    """
    return urlparse(location).scheme in ("", "file")


def make_durable_directory(path: str) -> None:
    """Create a directory with those above it, and make their names durable, unless this process has done so.

    A directory that another process has just created counts as not durable: that process may not have synced it.
    """
    os.makedirs(path, exist_ok=True)
    while path != os.path.dirname(path):
        known = (path, os.stat(path).st_ino)
        if known in _durable_directories:
            return
        above = os.path.dirname(path)
        try:
            sync_directory(above)
        except PermissionError:
            # Not ours to read, and so not ours to have created anything in.
            return
        _durable_directories.add(known)
        path = above


class _DurableStream(NamedFile):
    """A file that is synced when it is closed, and its name with it."""

    def close(self) -> None:
        if self.closed:
            return
        try:
            self.flush()
            os.fsync(self.fileno())
        finally:
            super().close()
        sync_directory(os.path.dirname(self.path))


class DurableFile(PyArrowFile):
    """A file on this host's disk that is durable once it is closed."""

    def create(self, overwrite: bool = False) -> OutputStream:
        """Open the file for writing. Raises `FileExistsError` if it is there, unless `overwrite`."""
        make_durable_directory(os.path.dirname(self._path))
        return _DurableStream(self._path, "w" if overwrite else "x")


class DurableFileIO(PyArrowFileIO):
    """Arrow's files, and durable ones on this host's disk."""

    def new_output(self, location: str) -> PyArrowFile:
        """A file to write."""
        scheme, netloc, path = self.parse_location(location, self.properties)
        if scheme != "file":
            return super().new_output(location)
        return DurableFile(fs=self.fs_by_scheme(scheme, netloc), location=location, path=path)
