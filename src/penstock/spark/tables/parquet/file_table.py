"""A table on a file system: a block is a directory, and a rename makes it visible.

```text
/data/table/block=<query>-<batch>/event=click/part-….parquet
                                  _commit.json
/data/.table.staging/<query>-<batch>-<attempt>/…          being written, or of a driver that was killed
```

The staging directory is beside the table, where no reader of the table looks. Everything in a block is durable before
it is renamed, and `_commit.json` keeps its directory from being empty: a rename onto it fails.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.core import get_logger
from penstock.errors import CorruptData, StorageError
from penstock.spark.map_in_arrow import quoted
from penstock.spark.tables.contract import BlockId
from penstock.spark.tables.parquet.columns import BLOCK
from penstock.spark.tables.parquet.commits import BlockCommit
from penstock.spark.tables.parquet.hadoop_files import HadoopFiles
from penstock.spark.tables.parquet.local_files import LocalFiles
from penstock.spark.tables.parquet.table import ParquetTable

_log = get_logger(__name__)

_COMMIT = "_commit.json"
_ATTEMPT = "_attempt"
_SWEPT = ".swept-"
_OPTIONS = {
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",  # `_commit.json` is that, and more
    "timeZone": "UTC",  # in which timestamps are written into the names of directories
}


Files: TypeAlias = LocalFiles | HadoopFiles
"""A file system, as a table uses it. Everything raises `StorageError` when it fails."""


class FileTable(ParquetTable):
    """A table in a directory."""

    def __init__(self, files: Files, root: str, url: str, partition_by: Sequence[str] = ()) -> None:
        super().__init__(url, root, partition_by)
        above, _, name = root.rpartition("/")
        self._files = files
        self._root = root
        self._staging = f"{above}/.{name}.staging"

    def write_files(self, rows: DataFrame, block: BlockId, attempt: str) -> BlockCommit:
        """Write a block's rows into a staging directory of its own."""
        path = self._staged(block, attempt)
        # A sweep moves the whole directory away, and a Spark job that goes on writing creates it again, with a part of
        # the rows. Then this file is not in it.
        self._files.write(f"{path}/{_ATTEMPT}", attempt.encode())
        writer = rows.write.mode("append").options(**_OPTIONS)
        if self._partition_by:
            writer = writer.partitionBy(*self._partition_by)
        writer.parquet(self._files.spark_path(path))
        commit = BlockCommit.of(block, attempt, rows.schema, self._partition_by, self._files.finish(path))
        self._files.write(f"{path}/{_COMMIT}", commit.encode())
        if self._files.read(f"{path}/{_ATTEMPT}") is None:
            raise StorageError(f"{path} was swept while it was written: another run has gone past the block")
        self._files.remove(f"{path}/{_ATTEMPT}")
        self._files.sync(path)
        return commit

    def make_visible(self, block: BlockId, commit: BlockCommit) -> BlockCommit:
        """Rename the staging directory into the table."""
        self._files.make_directory(self._root)
        try:
            self._files.move(self._staged(block, commit.nonce), self._directory(block))
        except StorageError:
            # Decided by what is there, not by how the rename failed: a network file system may report a rename that
            # succeeded as failed.
            found = self.look_up(block)
            if found is None:
                raise
            return found
        return commit

    def make_durable(self) -> None:
        """Sync the names of the blocks."""
        self._files.settle(self._root)

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

    def remove_attempt(self, block: BlockId, attempt: str) -> None:
        """Remove the staging directory, if it is there."""
        self._files.remove(self._staged(block, attempt))

    def look_up(self, block: BlockId) -> BlockCommit | None:
        """The commit in the block's directory."""
        place = self._directory(block)
        data = self._files.read(f"{place}/{_COMMIT}")
        if data is None and not self._files.names(place):
            return None
        commit = self._decode(place, data)
        commit.check_is(block, place)
        return commit

    def any_commit(self) -> BlockCommit | None:
        """The commit of the block whose name is last."""
        directories = self._directories()
        return self._read_commit(directories[-1]) if directories else None

    def commits(self) -> list[BlockCommit]:
        """The commits of all blocks."""
        return [self._read_commit(place) for place in self._directories()]

    def read_blocks(self, spark: SparkSession, _commits: Sequence[BlockCommit], columns: StructType) -> DataFrame:
        """Read the whole directory: everything in it is committed.

        Spark puts partition columns last, and `block` too. It takes paths for patterns, unless an option forbids it.
        """
        reader = spark.read.schema(columns).options(timeZone="UTC", __globPaths__="false")
        return reader.parquet(self._files.spark_path(self._root)).select(*map(quoted, columns.names))

    def _read_commit(self, place: str) -> BlockCommit:
        return self._decode(place, self._files.read(f"{place}/{_COMMIT}"))

    def _decode(self, place: str, data: bytes | None) -> BlockCommit:
        if data is None:
            raise CorruptData(f"{place} has no {_COMMIT}: it is no block of Penstock's; move it out of the table")
        return BlockCommit.decode(data, f"{place}/{_COMMIT}")

    def _directories(self) -> list[str]:
        names = sorted(name for name in self._files.names(self._root) if name.startswith(f"{BLOCK}="))
        return [f"{self._root}/{name}" for name in names]

    def _directory(self, block: BlockId) -> str:
        return f"{self._root}/{BLOCK}={block.name}"

    def _staged(self, block: BlockId, attempt: str) -> str:
        return f"{self._staging}/{block.name}-{attempt}"
