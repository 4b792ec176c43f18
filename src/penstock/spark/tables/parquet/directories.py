"""The blocks of a table on a file system: a block is a directory, and a rename makes it visible.

```text
/data/table/block=<query>-<slot>/event=click/part-….parquet
                                 _commit.json
/data/.table.staging/<query>-<slot>-<attempt>/…           ready to be renamed, or of a driver that was killed
/data/.table.staging/<query>-<slot>-<attempt>.tasks/…     being written
/data/table/block=compacted.<generation>/event=click/part-….parquet
                                         _commit.json     stands for all blocks up to the slots that it names
/data/table/_compacted                                    the name of that block; no reader of the table looks at it
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

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import ArrowException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.core import get_logger
from penstock.errors import CorruptData, InvalidInput, NotFound, OutcomeUnknown, StorageError
from penstock.spark.map_in_arrow import quoted
from penstock.spark.tables.contract import FileWriter, Vacuumed
from penstock.spark.tables.destinations import InDirectory
from penstock.spark.tables.listed_files import MAX_ROWS_PER_BATCH
from penstock.spark.tables.parquet.commits import BLOCK, BlockCommit, BlockFile, generation_of
from penstock.spark.tables.parquet.compaction import CommittedFile, current_commits
from penstock.spark.tables.parquet.exchange import DirectoryLock
from penstock.spark.tables.parquet.hadoop_files import HadoopFiles
from penstock.spark.tables.parquet.state import TableState, is_covered
from penstock.spark.tables.parquet.task_files import ParquetWriter
from penstock.spark.tables.parquet.trees import COMMIT, POINTER, TreeAttempt, vacuum_staging
from penstock.storage import sync_upwards

_ATTEMPT = "_attempt"
_TASKS = ".tasks"
_SWEPT = ".swept-"
_OPTIONS = {
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",  # `_commit.json` is that, and more
    "timeZone": "UTC",  # in which timestamps are written into the names of directories
}
_TIMESTAMPS = "spark.sql.parquet.outputTimestampType"
_PARALLEL_SYNCS = 8  # a disk answers fsyncs that wait at the same time together

_log = get_logger(__name__)


class DirectoryBlocks:
    """Blocks as directories of a file system."""

    def __init__(self, files: Files, root: str, url: str) -> None:
        above, _, name = root.rpartition("/")
        self.url = url
        self.root = root
        self._files = files
        self._compacted: BlockCommit | None = None  # the last that was read: they never change
        self._staging = f"{above}/.{name}.staging"

    def writer(self, columns: pa.Schema, name: str, attempt: str, partition_by: Sequence[str]) -> FileWriter | None:
        """What writes files into a directory of the attempt's tasks; None where executors have no such directory."""
        if not self._files.tasks_write:
            return None
        # Not into the directory that is renamed: a task that is still running then could add to a block that is there.
        tasks = InDirectory(f"{self._staged(name, attempt)}{_TASKS}")
        return ParquetWriter(columns, tuple(partition_by), tasks, attempt)

    def collect(self, commit: BlockCommit) -> BlockCommit:
        """Move the files that tasks have written into the staging directory of the block, with its commit."""
        path = self._staged(commit.block, commit.nonce)
        if commit.files and not self._files.names(f"{path}{_TASKS}") and self.look_up(commit.block) is None:
            raise StorageError(
                f"tasks wrote {len(commit.files)} files below {path}{_TASKS}, and the driver does not find them: "
                "on a cluster a table needs a directory that all hosts share, or an object store"
            )
        for file in commit.files:
            self._files.move(f"{path}{_TASKS}/{file.path}", f"{path}/{file.path}")
        self._files.write(f"{path}/{COMMIT}", commit.encode())
        self._files.remove(f"{path}{_TASKS}")
        self._files.sync(path, but=[f"{path}/{file.path}" for file in commit.files])
        return commit

    def write(self, rows: DataFrame, commit: BlockCommit) -> BlockCommit:
        """Write a block's rows into a staging directory of its own, with Spark's own writer."""
        path = self._staged(commit.block, commit.nonce)
        # A sweep moves the whole directory away, and a Spark job that goes on writing creates it again, with a part of
        # the rows. Then this file is not in it.
        self._files.write(f"{path}/{_ATTEMPT}", commit.nonce.encode())
        writer = rows.write.mode("append").options(**_OPTIONS)
        if commit.partition_by:
            writer = writer.partitionBy(*commit.partition_by)
        with _timestamps_for_all(rows.sparkSession):
            writer.parquet(self._files.spark_scheme + path)
        commit = commit.with_files(self._files.finish(path))
        self._files.write(f"{path}/{COMMIT}", commit.encode())
        if self._files.read(f"{path}/{_ATTEMPT}") is None:
            raise StorageError(f"{path} was swept while it was written: another run has gone past the block")
        self._files.remove(f"{path}/{_ATTEMPT}")
        self._files.sync(path)
        return commit

    def make_visible(self, commit: BlockCommit) -> BlockCommit | None:
        """Rename the staging directory into the table, unless the slot was compacted away.

        Under a lock: a compaction exchanges the table's directory, and a block must not be renamed into the one that is
        being replaced, nor into a slot that is not free although its directory is gone.
        """
        with self._files.committing(self._staging):
            return None if is_covered(commit.block, self._last_compaction()) else self._rename(commit)

    def _rename(self, commit: BlockCommit) -> BlockCommit:
        try:
            self._files.move(self._staged(commit.block, commit.nonce), self.place_of(commit.block))
        except StorageError:
            # Decided by what is there, not by how the rename failed: a network file system may report a rename that
            # succeeded as failed.
            found = self.look_up(commit.block)
            if found is None:
                raise
            return found
        return commit

    def make_durable(self, name: str) -> None:
        """Sync the names of the blocks."""
        try:
            self._files.settle(self.root)
        except StorageError as error:
            raise OutcomeUnknown(
                f"the block {name} is in {self.url}, and may not be durable: {error}. Run again: it is synced before "
                "it counts"
            ) from error

    def sweep(self, commit: BlockCommit) -> None:
        """Remove what drivers of the query staged for this block and earlier ones: a driver still writing has lost."""
        query, _, number = commit.block.rpartition("-")
        attempt = re.compile(re.escape(query) + r"-(\d{12,})-[0-9a-f]{32}(" + re.escape(_TASKS) + ")?")
        for name in self._files.names(self._staging):
            found = attempt.fullmatch(name)
            if found and int(found[1]) <= int(number):
                # Renamed in one step first: a part of it must not become a block.
                self._files.move(f"{self._staging}/{name}", f"{self._staging}/{_SWEPT}{name}")
                name = _SWEPT + name
                _log.info("removing %s/%s, of an attempt that was not committed", self._staging, name)
            if name.startswith(_SWEPT):
                self._files.remove(f"{self._staging}/{name}")

    def remove(self, name: str, attempt: str) -> None:
        """Remove the staging directories, if they are there."""
        for end in ("", _TASKS):
            self._files.remove(self._staged(name, attempt) + end)

    def drop(self, commit: BlockCommit) -> None:
        """Move the block's directory out of the table, and remove it."""
        away = f"{self._staging}/{_SWEPT}{commit.block}-{commit.nonce}"
        self._files.move(self.place_of(commit.block), away)
        self._files.remove(away)

    def look_up(self, name: str) -> BlockCommit | None:
        """The commit in the block's directory."""
        place = self.place_of(name)
        data = self._files.read(f"{place}/{COMMIT}")
        if data is None and self._files.names(place):
            raise CorruptData(f"{place} has no {COMMIT}: it is no block of Penstock's; move it out of the table")
        return None if data is None else BlockCommit.decode(data, f"{place}/{COMMIT}")

    def place_of(self, name: str) -> str:
        """The block's directory."""
        return f"{self.root}/{BLOCK}={name}"

    def state(self) -> TableState:
        """Which blocks there are. One listing is of one directory: of that before an exchange, or of that after it."""
        while True:
            start = f"{BLOCK}="
            found = self._files.names(self.root)
            names = [name.removeprefix(start) for name in found if name.startswith(start)]
            last = max((name for name in names if generation_of(name) is not None), default=None)
            compacted = None if last is None else self.look_up(last)
            if (compacted is None) == (last is None):
                return TableState.of(compacted, names)

    def commits(self) -> list[BlockCommit]:
        """The commits of all blocks, that of the last compaction first."""
        return current_commits(self)

    def commits_in(self, state: TableState) -> list[BlockCommit]:
        """The commits of these blocks."""
        return [*([] if state.compacted is None else [state.compacted]), *map(self._read_commit, state.names)]

    def files_of(self, commit: BlockCommit) -> list[CommittedFile]:
        """The files in the block's directory."""
        return [CommittedFile(commit.block, file, os.path.dirname(file.path)) for file in commit.files]

    def rows_of(self, file: CommittedFile) -> Iterator[pa.RecordBatch]:
        """The rows of a file."""
        return self._files.rows(f"{self.place_of(file.block)}/{file.file.path}")

    def compacting(self, state: TableState, nonce: str) -> TreeAttempt:
        """Begin a compaction. Raises `InvalidInput` where directories cannot be exchanged, or another is under way."""
        if not isinstance(self._files, LocalFiles):
            raise InvalidInput(
                f"{self.url} cannot be compacted: a file system of Hadoop's cannot exchange two directories in one "
                "step, and readers would see rows twice, or miss some, meanwhile"
            )
        return TreeAttempt(self.root, self._staging, self.url, state, nonce)

    def vacuum(self, state: TableState, older_than: float, dry_run: bool) -> Vacuumed:
        """Remove trees that were replaced, and what killed drivers and compactions have left."""
        if not isinstance(self._files, LocalFiles):
            raise InvalidInput(f"{self.url} cannot be vacuumed: on a file system of Hadoop's nothing is replaced")
        return vacuum_staging(self._staging, state, older_than, dry_run)

    def read(self, spark: SparkSession, _commits: Sequence[BlockCommit], columns: StructType) -> DataFrame:
        """Read the whole directory: everything in it is committed.

        Spark puts partition columns last, and `block` too. It takes paths for patterns, unless an option forbids it.
        """
        reader = spark.read.schema(columns).options(timeZone="UTC", __globPaths__="false")
        return reader.parquet(self._files.spark_scheme + self.root).select(*map(quoted, columns.names))

    def _last_compaction(self) -> BlockCommit | None:
        pointer = self._files.read(f"{self.root}/{POINTER}")
        if pointer is None:
            return None
        name = pointer.decode(errors="replace")
        if self._compacted is None or self._compacted.block != name:
            self._compacted = self._read_commit(name)
        return self._compacted

    def _read_commit(self, name: str) -> BlockCommit:
        found = self.look_up(name)
        if found is None and f"{BLOCK}={name}" in self._files.names(self.root):
            raise CorruptData(f"{self.place_of(name)} is empty: it is no block of Penstock's; remove it")
        if found is None:
            raise NotFound(f"the block {name} is gone from {self.url}")
        return found

    def _staged(self, name: str, attempt: str) -> str:
        return f"{self._staging}/{name}-{attempt}"


class LocalFiles:
    """Local paths, synced to disk. Mounted network file systems count as local: their servers rename in one step."""

    spark_scheme = "file://"
    """What Spark has before a path. It does not decode what follows."""
    tasks_write = True
    """Whether a task on an executor can write files by itself; else Spark's own writer does."""

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
        """Rename, in one step, into a directory that is made if need be. Fails if a block's has that name."""
        with _failing_to(f"rename {path} to {to}"):
            os.makedirs(os.path.dirname(to), exist_ok=True)
            os.rename(path, to)  # also onto an empty directory, and no block is empty

    def remove(self, path: str) -> None:
        """Remove a file, or a directory and what is in it; nothing happens if it is not there."""
        # Another process may have removed it, or be doing so.
        with _failing_to(f"remove {path}"), suppress(FileNotFoundError):
            (shutil.rmtree if os.path.isdir(path) else os.unlink)(path)

    def sync(self, path: str, but: Sequence[str] = ()) -> None:
        """Make a directory and all that is below it durable; `but` are files that are."""
        with _failing_to(f"sync {path}"), ThreadPoolExecutor(_PARALLEL_SYNCS) as pool:
            found = list(os.walk(path, onerror=_raise))
            files = {os.path.join(directory, name) for directory, _, names in found for name in names}
            list(pool.map(_sync, sorted(files - set(but))))
            list(pool.map(_sync, [directory for directory, _, _ in found]))

    def committing(self, staging: str) -> DirectoryLock:
        """Keep a compaction from exchanging the table until what this returns is closed."""
        with _failing_to(f"lock {staging}"):
            return DirectoryLock(staging, shared=True)

    def rows(self, path: str) -> Iterator[pa.RecordBatch]:
        """The rows of a Parquet file, without the columns in its path. Raises `NotFound` and `CorruptData`."""
        try:
            with pq.ParquetFile(path) as file:
                yield from file.iter_batches(MAX_ROWS_PER_BATCH, use_threads=False)
        except FileNotFoundError as error:
            raise NotFound(
                f"{path} is gone: the table was compacted since it was looked at, or the file lost"
            ) from error
        except (OSError, ArrowException) as error:
            raise CorruptData(f"{path} cannot be read: {error}") from error

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


@contextmanager
def _timestamps_for_all(spark: SparkSession) -> Iterator[None]:
    """Spark's default is a type of which other readers cannot tell the time zone."""
    before = spark.conf.get(_TIMESTAMPS, None)
    if spark.sparkContext.getConf().contains(_TIMESTAMPS):
        yield  # it was chosen
        return
    spark.conf.set(_TIMESTAMPS, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        spark.conf.unset(_TIMESTAMPS) if before is None else spark.conf.set(_TIMESTAMPS, before)


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
