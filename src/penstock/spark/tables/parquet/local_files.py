"""This host's disk under a table."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pyarrow.parquet as pq
from pyarrow import ArrowException

from penstock.errors import CorruptData, StorageError
from penstock.spark.tables.parquet.commits import BlockFile
from penstock.storage import sync_directory, sync_upwards

_PARALLEL_SYNCS = 8  # a disk answers fsyncs that wait at the same time together


class LocalFiles:
    """Local paths, synced to disk. Mounted network file systems count as local: their servers rename in one step."""

    def spark_path(self, path: str) -> str:
        """A path as Spark writes it: it does not decode what follows `file://`."""
        return f"file://{path}"

    def read(self, path: str) -> bytes | None:
        """A file's content; None if there is no such file."""
        with _failing_to(f"read {path}"):
            try:
                with open(path, "rb") as file:
                    return file.read()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def write(self, path: str, data: bytes) -> None:
        """Write a new file, in a new directory if need be. `sync` makes it durable."""
        with _failing_to(f"write {path}"):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "xb") as file:
                file.write(data)

    def names(self, path: str) -> list[str]:
        """What is in a directory: nothing, if there is none."""
        with _failing_to(f"list {path}"):
            try:
                return os.listdir(path)
            except (FileNotFoundError, NotADirectoryError):
                return []

    def finish(self, path: str) -> list[BlockFile]:
        """Remove Hadoop's checksum files, and describe the data files.

        A checksum is one more file to sync for each data file, and only Hadoop reads it.
        """
        found = []
        with _failing_to(f"look through {path}"):
            for directory, _, names in os.walk(path, onerror=_raise):
                for name in sorted(names):
                    file = os.path.join(directory, name)
                    if name.startswith(".") and name.endswith(".crc"):
                        os.unlink(file)
                    elif name.endswith(".parquet"):
                        found.append(BlockFile(os.path.relpath(file, path), os.path.getsize(file), _rows(file)))
        return found

    def make_directory(self, path: str) -> None:
        """Make a directory, and those above it, if it is not there."""
        with _failing_to(f"make {path}"):
            os.makedirs(path, exist_ok=True)

    def move(self, path: str, to: str) -> None:
        """Rename a directory, in one step. Fails if there is one of that name with anything in it."""
        with _failing_to(f"rename {path} to {to}"):
            os.rename(path, to)

    def remove(self, path: str) -> None:
        """Remove a file, or a directory and what is in it; nothing happens if it is not there."""
        # Another process may have removed it, or be doing so.
        with _failing_to(f"remove {path}"), suppress(FileNotFoundError):
            (shutil.rmtree if os.path.isdir(path) else os.unlink)(path)

    def sync(self, path: str) -> None:
        """Make a directory and all that is below it durable."""
        with _failing_to(f"sync {path}"), ThreadPoolExecutor(_PARALLEL_SYNCS) as pool:
            directories, files = [], []
            for directory, _, names in os.walk(path, onerror=_raise):
                directories.append(directory)
                files += [os.path.join(directory, name) for name in names]
            list(pool.map(_sync_file, files))
            list(pool.map(sync_directory, directories))

    def settle(self, path: str) -> None:
        """Make the entries of a directory durable, and those of the directories above it on the same disk.

        Those above every time: the process that created them may have been killed before it synced them.
        """
        with _failing_to(f"sync {path}"):
            sync_upwards(path)


@contextmanager
def _failing_to(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"could not {what}: {error.strerror or error}") from error


def _raise(error: OSError) -> None:
    raise error


def _rows(file: str) -> int:
    try:
        return pq.read_metadata(file).num_rows
    except ArrowException as error:
        raise CorruptData(f"{file} was just written, and is no Parquet file: {error}") from error


def _sync_file(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
