"""A table of Parquet files: its blocks, each committed once, and its columns. `open_table` opens the one at a URL.

The order of the steps of a block is here. The steps themselves are those of the place where the blocks are: directories
on a file system (`directories`), or objects in a store (`objects`).
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Protocol
from urllib.parse import quote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.core import get_logger
from penstock.errors import CorruptData, InvalidInput, OutcomeUnknown, StorageError
from penstock.spark.tables.contract import BlockId, Sink
from penstock.spark.tables.parquet.columns import check_columns, check_partition_by, has_columns, merged_columns
from penstock.spark.tables.parquet.commits import BlockCommit
from penstock.spark.tables.parquet.directories import DirectoryBlocks, LocalFiles
from penstock.spark.tables.parquet.hadoop_files import HadoopFiles
from penstock.spark.tables.parquet.objects import ObjectBlocks
from penstock.storage import local_path, open_store, redact

_OBJECT_STORES = ("s3", "gs", "az")
# Hadoop's names of object stores, and ours. None of them renames a directory in one step.
_OTHER_NAMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"} | dict.fromkeys(
    ("abfs", "abfss", "wasb", "wasbs", "azure"), "az"
)

_log = get_logger(__name__)


def open_table(
    spark: SparkSession, url: str, *, partition_by: Sequence[str] = (), options: Mapping[str, str] | None = None
) -> ParquetTable:
    """Open the table at a path or URL. It need not be there yet.

    A path, `file:///dir`, and any file system that Hadoop knows and that is no object store (`hdfs://`) hold
    directories with Spark's own Parquet files. `s3://`, `gs://` and `az://` are reached with `open_store`, which
    `options` are for. `partition_by` names columns whose values become directories.

    Raises `InvalidInput` for a place, an option or a `partition_by` that cannot be right.
    """
    columns = check_partition_by(partition_by)
    scheme, separator, _ = url.partition("://")
    if separator and scheme in _OTHER_NAMES:
        raise InvalidInput(f"write {_OTHER_NAMES[scheme]}:// for {scheme}://: Penstock reaches object stores by itself")
    if separator and scheme in _OBJECT_STORES:
        return ParquetTable(ObjectBlocks(open_store(url, **(options or {}))), columns)
    if options:
        raise InvalidInput(f"options ({', '.join(sorted(options))}) go with an object store, not with a file system")
    if separator and scheme != "file":
        root = url.rstrip("/")
        return ParquetTable(DirectoryBlocks(HadoopFiles(spark, root), root, redact(root)), columns)
    path = local_path(url)
    shown = "file://" + quote(path, errors="surrogateescape")
    return ParquetTable(DirectoryBlocks(LocalFiles(), _local_root(path), shown), columns)


def read_table(spark: SparkSession, url: str, options: Mapping[str, str] | None = None) -> DataFrame:
    """Read a table that a pipeline writes: its committed blocks, each once.

    The columns are those that were written, with their types, all nullable. A column that came with a later block is
    null in earlier ones. On a file system an empty text in a partition column comes back as null, as from every
    table whose directories are named as Hive's are.

    Raises `InvalidInput` for a place where no table can be, or where no block is yet, and `CorruptData` for a commit
    that cannot be read.
    """
    return open_table(spark, url, options=options).read(spark)


class ParquetTable(Sink):
    """A table of Parquet files, whose blocks each have a commit that lists their files. No credential is in its URL."""

    def __init__(self, blocks: Blocks, partition_by: Sequence[str] = ()) -> None:
        self.url = blocks.url
        self.blocks = blocks
        self._partition_by = tuple(partition_by)
        self._checked: StructType | None = None

    @property
    def place(self) -> str:
        """Where the table really is."""
        return self.blocks.root

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url})"

    def has(self, block: BlockId) -> bool:
        """Whether the block is committed, durably. Raises `CorruptData` if it is, and has another end."""
        found = self.blocks.look_up(block)
        if found is not None:
            found.check_is(block, self.blocks.place_of(block))
            self.settle(block, found)
        return found is not None

    def rows_of(self, block: BlockId) -> int | None:
        """How many rows a block that it has got, where the table counts them while it writes."""
        found = self.blocks.look_up(block)
        return None if found is None else found.rows

    def check(self, schema: StructType) -> None:
        """Raise `InvalidInput` for columns that the table cannot take, alone or beside those of the blocks it has."""
        if self._checked != schema:
            last = self.blocks.last_commit()
            # A block that has all these columns fits all others of the table; otherwise one of those may have them.
            committed = [] if last is None else [last] if has_columns(last, schema) else self.blocks.commits()
            check_columns(schema, self._partition_by, committed, self.url)
            self._checked = schema

    def stage(self, rows: DataFrame, block: BlockId) -> StagedFiles:
        """Write a block's rows into files that no reader of the table sees. Runs a Spark job."""
        self.check(rows.schema)
        attempt = uuid.uuid4().hex
        try:
            commit = self.blocks.write(rows, block, attempt, self._partition_by)
        except BaseException:
            with suppress(StorageError):
                self.blocks.remove(block, attempt)
            raise
        return StagedFiles(self, block, commit)

    def settle(self, block: BlockId, commit: BlockCommit) -> None:
        """Before a block counts as committed, make it durable. Then remove the files of attempts that lost."""
        self.blocks.make_durable(block)
        try:
            self.blocks.sweep(block, commit)
        except StorageError as error:
            # Done again when the block comes again, and with later blocks.
            _log.warning("files of attempts that lost stay in %s, and use space: %s", self.url, error)

    def read(self, spark: SparkSession) -> DataFrame:
        """The rows of all committed blocks. Raises `InvalidInput` where there is none."""
        commits = sorted(self.blocks.commits(), key=lambda commit: (commit.at, commit.block))
        if not commits:
            raise InvalidInput(
                f"there is no block in {self.url} yet, and its columns come with the first: read it after the first run"
            )
        return self.blocks.read(spark, commits, merged_columns(commits))


class StagedFiles:
    """A block whose files are written, and that no reader sees yet."""

    def __init__(self, table: ParquetTable, block: BlockId, commit: BlockCommit) -> None:
        self._table = table
        self._block = block
        self._commit = commit
        self._may_be_visible = False
        self.rows = commit.rows
        """How many rows it has, where the table counts them while it writes."""

    def commit(self) -> bool:
        """Make it visible; False if another attempt's block was there first."""
        self._may_be_visible = True
        try:
            found = self._table.blocks.make_visible(self._block, self._commit)
            found.check_is(self._block, self._table.blocks.place_of(self._block))
        except CorruptData:
            self._lose()
            raise
        except StorageError as error:
            self._may_be_visible = isinstance(error, OutcomeUnknown)
            raise
        self._table.settle(self._block, found)
        is_ours = found.nonce == self._commit.nonce
        if not is_ours:
            self._lose()
        return is_ours

    def discard(self) -> None:
        """Remove the files. Those of a commit that may be visible stay: it would list files that are gone."""
        if not self._may_be_visible:
            self._table.blocks.remove(self._block, self._commit.nonce)

    def _lose(self) -> None:
        self._may_be_visible = False
        try:
            self.discard()
        except StorageError as error:
            _log.warning("files of an attempt that lost stay in %s, and use space: %s", self._table.url, error)


class Blocks(Protocol):
    """The blocks of a table in their place: how the files of one become visible together, by one step.

    Each call raises `StorageError` when it fails.
    """

    url: str
    """As it is shown."""
    root: str
    """Where the blocks really are."""

    def write(self, rows: DataFrame, block: BlockId, attempt: str, partition_by: Sequence[str], /) -> BlockCommit:
        """Write a block's files where no reader sees them, durably, and return the commit that lists them."""
        ...

    def make_visible(self, block: BlockId, commit: BlockCommit, /) -> BlockCommit:
        """Commit in one step; return the commit that is there then, this one or another attempt's.

        Raises `OutcomeUnknown` if this one may be there, or come late; any other `StorageError` if it is not.
        """
        ...

    def make_durable(self, block: BlockId, /) -> None:
        """Make a block that is visible durable. Raises `OutcomeUnknown` where it may not be."""
        ...

    def sweep(self, block: BlockId, commit: BlockCommit, /) -> None:
        """Remove the files of attempts that lost to this commit."""
        ...

    def remove(self, block: BlockId, attempt: str, /) -> None:
        """Remove the files of one attempt, if there are any."""
        ...

    def look_up(self, block: BlockId, /) -> BlockCommit | None:
        """The commit of a block, durable or not; None if there is none. Raises `CorruptData` for what is no commit."""
        ...

    def place_of(self, block: BlockId, /) -> str:
        """What an operator removes so that the block is not there."""
        ...

    def last_commit(self) -> BlockCommit | None:
        """The commit of the block whose name is last; None if there is none."""
        ...

    def commits(self) -> list[BlockCommit]:
        """The commits of all blocks."""
        ...

    def read(self, spark: SparkSession, commits: Sequence[BlockCommit], columns: StructType, /) -> DataFrame:
        """The rows of these blocks, which are all there are, in these columns."""
        ...


def _local_root(path: str) -> str:
    # Links are followed: the directory beside a link may be on another disk, and no rename leads from there.
    root = os.path.realpath(path)
    if os.path.ismount(root):
        raise InvalidInput(
            f"{path} is where a disk is mounted, and a table needs a place beside it: use a directory below"
        )
    if os.path.exists(root) and not os.path.isdir(root):
        raise InvalidInput(f"{path} is a file, and a table is a directory")
    return root
