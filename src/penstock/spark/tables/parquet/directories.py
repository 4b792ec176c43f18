"""The blocks of a table on a file system: a block is a directory, and a rename makes it visible.

```text
/data/table/block=<query>-<batch>/event=click/part-….parquet
                                  _commit.json
/data/.table.staging/<query>-<batch>-<attempt>/…          being written, or of a driver that was killed
```

The staging directory is beside the table, where no reader of the table looks. Everything in a block is durable before
it is renamed, and `_commit.json` keeps its directory from being empty: a rename onto it fails.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

import pyarrow.parquet as pq
from pyarrow import ArrowException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.core import get_logger
from penstock.errors import CorruptData, OutcomeUnknown, StorageError
from penstock.spark.map_in_arrow import quoted
from penstock.spark.tables.contract import BlockId
from penstock.spark.tables.parquet.commits import BLOCK, BlockCommit, BlockFile
from penstock.spark.tables.parquet.hadoop_files import HadoopFiles
from penstock.storage import sync_upwards

_COMMIT = "_commit.json"
_ATTEMPT = "_attempt"
_SWEPT = ".swept-"
_OPTIONS = {
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",  # `_commit.json` is that, and more
    "timeZone": "UTC",  # in which timestamps are written into the names of directories
}
_PARALLEL_SYNCS = 8  # a disk answers fsyncs that wait at the same time together

_log = get_logger(__name__)


class DirectoryBlocks:
    """Blocks as directories of a file system."""

    def __init__(self, files: Files, root: str, url: str) -> None:
        above, _, name = root.rpartition("/")
        self.url = url
        self.root = root
        self._files = files
        self._staging = f"{above}/.{name}.staging"

    def write(self, rows: DataFrame, block: BlockId, attempt: str, partition_by: Sequence[str]) -> BlockCommit:
        """Write a block's rows into a staging directory of its own."""
        path = self._staged(block, attempt)
        # A sweep moves the whole directory away, and a Spark job that goes on writing creates it again, with a part of
        # the rows. Then this file is not in it.
        self._files.write(f"{path}/{_ATTEMPT}", attempt.encode())
        writer = rows.write.mode("append").options(**_OPTIONS)
        if partition_by:
            writer = writer.partitionBy(*partition_by)
        writer.parquet(self._files.spark_scheme + path)
        commit = BlockCommit.of(block, attempt, rows.schema, partition_by, self._files.finish(path))
        self._files.write(f"{path}/{_COMMIT}", commit.encode())
        if self._files.read(f"{path}/{_ATTEMPT}") is None:
            raise StorageError(f"{path} was swept while it was written: another run has gone past the block")
        self._files.remove(f"{path}/{_ATTEMPT}")
        self._files.sync(path)
        return commit

    def make_visible(self, block: BlockId, commit: BlockCommit) -> BlockCommit:
        """Rename the staging directory into the table."""
        try:
            self._files.move(self._staged(block, commit.nonce), self.place_of(block))
        except StorageError:
            # Decided by what is there, not by how the rename failed: a network file system may report a rename that
            # succeeded as failed.
            found = self.look_up(block)
            if found is None:
                raise
            return found
        return commit

    def make_durable(self, block: BlockId) -> None:
        """Sync the names of the blocks."""
        try:
            self._files.settle(self.root)
        except StorageError as error:
            raise OutcomeUnknown(
                f"the block {block.name} is in {self.url}, and may not be durable: {error}. Run again: it is synced "
                "before it counts"
            ) from error

    def sweep(self, block: BlockId, _commit: BlockCommit) -> None:
        """Remove what drivers of the query staged for this block and earlier ones: a driver still writing has lost."""
        attempt = re.compile(re.escape(block.query) + r"-(\d{12,})-[0-9a-f]{32}")
        for name in self._files.names(self._staging):
            found = attempt.fullmatch(name)
            if found and int(found[1]) <= block.batch:
                # Renamed in one step first: a part of it must not become a block.
                self._files.move(f"{self._staging}/{name}", f"{self._staging}/{_SWEPT}{name}")
                name = _SWEPT + name
                _log.info("removing %s/%s, of an attempt that was not committed", self._staging, name)
            if name.startswith(_SWEPT):
                self._files.remove(f"{self._staging}/{name}")

    def remove(self, block: BlockId, attempt: str) -> None:
        """Remove the staging directory, if it is there."""
        self._files.remove(self._staged(block, attempt))

    def look_up(self, block: BlockId) -> BlockCommit | None:
        """The commit in the block's directory."""
        place = self.place_of(block)
        return self._read_commit(place) if self._files.names(place) else None

    def place_of(self, block: BlockId) -> str:
        """The block's directory."""
        return f"{self.root}/{BLOCK}={block.name}"

    def last_commit(self) -> BlockCommit | None:
        """The commit of the block whose name is last."""
        places = self._places()
        return self._read_commit(places[-1]) if places else None

    def commits(self) -> list[BlockCommit]:
        """The commits of all blocks."""
        return [self._read_commit(place) for place in self._places()]

    def read(self, spark: SparkSession, _commits: Sequence[BlockCommit], columns: StructType) -> DataFrame:
        """Read the whole directory: everything in it is committed.

        Spark puts partition columns last, and `block` too. It takes paths for patterns, unless an option forbids it.
        """
        reader = spark.read.schema(columns).options(timeZone="UTC", __globPaths__="false")
        return reader.parquet(self._files.spark_scheme + self.root).select(*map(quoted, columns.names))

    def _places(self) -> list[str]:
        return sorted(f"{self.root}/{name}" for name in self._files.names(self.root) if name.startswith(f"{BLOCK}="))

    def _read_commit(self, place: str) -> BlockCommit:
        data = self._files.read(f"{place}/{_COMMIT}")
        if data is None:
            raise CorruptData(f"{place} has no {_COMMIT}: it is no block of Penstock's; move it out of the table")
        return BlockCommit.decode(data, f"{place}/{_COMMIT}")

    def _staged(self, block: BlockId, attempt: str) -> str:
        return f"{self._staging}/{block.name}-{attempt}"


class LocalFiles:
    """Local paths, synced to disk. Mounted network file systems count as local: their servers rename in one step."""

    spark_scheme = "file://"
    """What Spark has before a path. It does not decode what follows."""

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
        with _failing_to(f"look through {path}"):
            for checksum in list(Path(path).rglob(".*.crc")):
                checksum.unlink()
            data = sorted(Path(path).rglob("*.parquet"))
            return [BlockFile(str(file.relative_to(path)), file.stat().st_size, _rows(file)) for file in data]

    def move(self, path: str, to: str) -> None:
        """Rename a directory, in one step, into one that is made if need be. Fails if there is one with that name."""
        with _failing_to(f"rename {path} to {to}"):
            os.makedirs(os.path.dirname(to), exist_ok=True)
            os.rename(path, to)  # also onto an empty directory, and no block is empty

    def remove(self, path: str) -> None:
        """Remove a file, or a directory and what is in it; nothing happens if it is not there."""
        # Another process may have removed it, or be doing so.
        with _failing_to(f"remove {path}"), suppress(FileNotFoundError):
            (shutil.rmtree if os.path.isdir(path) else os.unlink)(path)

    def sync(self, path: str) -> None:
        """Make a directory and all that is below it durable."""
        with _failing_to(f"sync {path}"), ThreadPoolExecutor(_PARALLEL_SYNCS) as pool:
            found = list(os.walk(path, onerror=_raise))
            list(pool.map(_sync, [os.path.join(directory, name) for directory, _, names in found for name in names]))
            list(pool.map(_sync, [directory for directory, _, _ in found]))

    def settle(self, path: str) -> None:
        """Make the entries of a directory durable, and those of the directories above it on the same disk.

        Those above every time: the process that created them may have been killed before it synced them.
        """
        with _failing_to(f"sync {path}"):
            sync_upwards(path)


Files: TypeAlias = LocalFiles | HadoopFiles
"""A file system, as a table uses it. Everything raises `StorageError` when it fails."""


@contextmanager
def _failing_to(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"could not {what}: {error.strerror or error}") from error


def _raise(error: OSError) -> None:
    raise error


def _rows(file: Path) -> int:
    try:
        return pq.read_metadata(file).num_rows
    except ArrowException as error:
        raise CorruptData(f"{file} was just written, and is no Parquet file: {error}") from error


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
