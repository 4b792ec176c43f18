"""A table on a file system: a block is a directory, and a rename makes it visible.

```text
/data/table/block=<query>-<batch>/event=click/part-….parquet
                                  _commit.json
/data/.table.staging/<query>-<batch>-<attempt>/…          being written, or left by a driver that was killed
```

The staging directory lies beside the table, where nobody who reads the table looks. Everything in a block is durable
before it is renamed, and `_commit.json` keeps its directory from being empty: a rename onto it fails.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from penstock.core import get_logger
from penstock.errors import CorruptData, OutcomeUnknown, StorageError
from penstock.spark.tables.blocks import BlockId, StagedBlock
from penstock.spark.tables.columns import BLOCK, Layout
from penstock.spark.tables.commits import BlockCommit, BlockFile

log = get_logger(__name__)

COMMIT = "_commit.json"
_ATTEMPT = "_attempt"
_SWEPT = ".swept-"
_OPTIONS = {
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",  # `_commit.json` says so, and more
    "timeZone": "UTC",  # in which timestamps are written into the names of directories
}


class Files(Protocol):
    """A file system, as a table uses it. Everything raises `StorageError` when it fails."""

    def spark_path(self, path: str) -> str:
        """How Spark calls a path."""
        ...

    def read(self, path: str) -> bytes | None:
        """A file's content; None if there is no such file."""
        ...

    def write(self, path: str, data: bytes) -> None:
        """Write a new file, in a new directory if need be."""
        ...

    def names(self, path: str) -> list[str]:
        """What is in a directory: nothing, if there is none."""
        ...

    def finish(self, path: str) -> list[BlockFile]:
        """Remove what Spark leaves beside the data files below a directory, and describe those."""
        ...

    def make_directory(self, path: str) -> None:
        """Make a directory, and those above it, if it is not there."""
        ...

    def move(self, path: str, to: str) -> None:
        """Rename a directory, in one step. Fails if there is one of that name with anything in it."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file, or a directory and what is in it; nothing happens if it is not there."""
        ...

    def sync(self, path: str) -> None:
        """Make a directory and all that is below it durable."""
        ...

    def settle(self, path: str) -> None:
        """Make the entries of a directory durable, and those of the directories above it."""
        ...


class FileTable:
    """A table in a directory."""

    def __init__(self, files: Files, root: str, url: str, partition_by: Sequence[str] = ()) -> None:
        above, _, name = root.rpartition("/")
        self._files = files
        self._root = root
        self._staging = f"{above}/.{name}.staging"
        self._layout = Layout(partition_by, url)
        self._url = url

    @property
    def url(self) -> str:
        """Where the table is, without credentials."""
        return self._url

    @property
    def place(self) -> str:
        """Where the table really is."""
        return self._root

    def __repr__(self) -> str:
        return f"FileTable({self._url})"

    def find(self, block: BlockId) -> BlockCommit | None:
        """The commit of a block, which is durable then; None if there is none. Raises `CorruptData` for another end."""
        found = self._find(block)
        if found is not None:
            self._settle(block)
        return found

    def check(self, schema: StructType) -> None:
        """Raise `InvalidInput` for columns that the table cannot take, alone or beside those it has."""
        self._layout.check(schema, self._any_commit)

    def stage(self, df: DataFrame, block: BlockId) -> StagedBlock:
        """Write a block's rows into a staging directory of its own."""
        self.check(df.schema)
        nonce = uuid.uuid4().hex
        path = f"{self._staging}/{block.name}-{nonce}"
        try:
            commit = self._write(df, block, path, nonce)
        except BaseException:
            with suppress(StorageError):
                self._files.remove(path)
            raise
        return StagedDirectory(self, block, path, commit)

    def commits(self) -> list[BlockCommit]:
        """All blocks of the table."""
        directories = [f"{self._root}/{name}" for name in self._directories()]
        found = [(place, self._files.read(f"{place}/{COMMIT}")) for place in directories]
        return [self._decode(place, data) for place, data in found]

    def _write(self, df: DataFrame, block: BlockId, path: str, nonce: str) -> BlockCommit:
        # A sweep moves the whole directory away, and a Spark job that goes on writing makes it again, with a part of
        # the rows. Then this file is not in it.
        self._files.write(f"{path}/{_ATTEMPT}", nonce.encode())
        writer = df.write.mode("append").options(**_OPTIONS)
        if self._layout.partition_by:
            writer = writer.partitionBy(*self._layout.partition_by)
        writer.parquet(self._files.spark_path(path))
        commit = BlockCommit.of(block, nonce, df.schema, self._layout.partition_by, self._files.finish(path))
        self._files.write(f"{path}/{COMMIT}", commit.encode())
        if self._files.read(f"{path}/{_ATTEMPT}") is None:
            raise StorageError(f"{path} was swept while it was written: another run has gone past the block")
        self._files.remove(f"{path}/{_ATTEMPT}")
        self._files.sync(path)
        return commit

    def _commit(self, block: BlockId, path: str, nonce: str) -> bool:
        self._files.make_directory(self._root)
        failure: StorageError | None = None
        try:
            self._files.move(path, self._directory(block))
        except StorageError as error:
            failure = error
        # By what is there, not by how the rename failed: a network's file system may report one's own as failed.
        found = self._find(block) if failure else None
        if failure and found is None:
            raise failure
        self._settle(block)
        return found is None or found.nonce == nonce

    def _find(self, block: BlockId) -> BlockCommit | None:
        place = self._directory(block)
        data = self._files.read(f"{place}/{COMMIT}")
        if data is None and not self._files.names(place):
            return None
        commit = self._decode(place, data)
        commit.check_is(block, place)
        return commit

    def _decode(self, place: str, data: bytes | None) -> BlockCommit:
        if data is None:
            raise CorruptData(f"{place} has no {COMMIT}: it is no block of Penstock's; move it out of the table")
        return BlockCommit.decode(data, f"{place}/{COMMIT}")

    def _settle(self, block: BlockId) -> None:
        """Before a block counts as committed: its name is durable. Then clear away what had no part in it."""
        try:
            self._files.settle(self._root)
        except StorageError as error:
            raise OutcomeUnknown(
                f"the block {block.name} is in {self._url}, and may not be durable: {error}. Run again: it is synced "
                "before it counts"
            ) from error
        try:
            self._sweep(block)
        except StorageError as error:
            log.warning(
                "what a killed driver left in %s could not be removed, and stays there: %s", self._staging, error
            )

    def _sweep(self, block: BlockId) -> None:
        """Remove what drivers of the query left of this block and earlier ones: whoever still writes there has lost."""
        attempt = re.compile(re.escape(block.query) + r"-(\d{12,})-[0-9a-f]{32}")
        for name in self._files.names(self._staging):
            found = attempt.fullmatch(name)
            if found and int(found[1]) <= block.batch:
                # Away in one step first: half of it must not become a block.
                self._files.move(f"{self._staging}/{name}", f"{self._staging}/{_SWEPT}{name}")
                name = _SWEPT + name
                log.info("removing %s/%s, which an attempt that was not committed left", self._staging, name)
            if name.startswith(_SWEPT):
                self._files.remove(f"{self._staging}/{name}")

    def _any_commit(self) -> BlockCommit | None:
        directories = self._directories()
        if not directories:
            return None
        place = f"{self._root}/{directories[-1]}"
        return self._decode(place, self._files.read(f"{place}/{COMMIT}"))

    def _directories(self) -> list[str]:
        return sorted(name for name in self._files.names(self._root) if name.startswith(f"{BLOCK}="))

    def _directory(self, block: BlockId) -> str:
        return f"{self._root}/{BLOCK}={block.name}"


class StagedDirectory:
    """A block in its staging directory."""

    def __init__(self, table: FileTable, block: BlockId, path: str, commit: BlockCommit) -> None:
        self._table = table
        self._block = block
        self._path = path
        self._commit = commit

    @property
    def rows(self) -> int | None:
        """How many rows it has, where the file system lets that be counted cheaply."""
        return self._commit.rows

    def commit(self) -> bool:
        """Rename it into the table; False if another's block was there first."""
        try:
            ours = self._table._commit(self._block, self._path, self._commit.nonce)
        except CorruptData:
            self.discard()
            raise
        if not ours:
            self.discard()
        return ours

    def discard(self) -> None:
        """Remove the staging directory, if it is still there."""
        self._table._files.remove(self._path)
