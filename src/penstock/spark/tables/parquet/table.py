"""What tables on file systems and in object stores share: the order of steps of a block, and what its columns may be.

A subclass has the steps. Every one of them raises `StorageError` when it fails.
"""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.core import get_logger
from penstock.errors import CorruptData, InvalidInput, OutcomeUnknown, StorageError
from penstock.spark.tables.contract import BlockId, Sink
from penstock.spark.tables.parquet.columns import check_columns, check_fits, merged_columns
from penstock.spark.tables.parquet.commits import BlockCommit

_log = get_logger(__name__)


class ParquetTable(Sink):
    """A table of Parquet files, whose blocks each have a commit that lists their files. No credential is in its URL."""

    def __init__(self, url: str, place: str, partition_by: Sequence[str]) -> None:
        self.url = url
        self._place = place
        self._partition_by = tuple(partition_by)
        self._checked: StructType | None = None

    @property
    def place(self) -> str:
        """Where the table really is."""
        return self._place

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url})"

    def has(self, block: BlockId) -> bool:
        """Whether the block is committed, durably. Raises `CorruptData` if it is, and has another end."""
        return self.find(block) is not None

    def rows_of(self, block: BlockId) -> int | None:
        """How many rows a block that it has got, where the table counts them while it writes."""
        found = self.look_up(block)
        return None if found is None else found.rows

    def find(self, block: BlockId) -> BlockCommit | None:
        """The commit of a block, which is durable then; None if there is none. Raises `CorruptData` for another end."""
        found = self.look_up(block)
        if found is not None:
            self.settle(block, found)
        return found

    def check(self, schema: StructType) -> None:
        """Raise `InvalidInput` for columns that the table cannot take, alone or beside those of a block it has."""
        check_columns(schema, self._partition_by)
        if self._checked == schema:
            return
        found = self.any_commit()
        if found is not None:
            found.check_layout(self._partition_by, self.url)
            check_fits(found.columns(), schema, self.url)
        self._checked = schema

    def stage(self, rows: DataFrame, block: BlockId) -> StagedFiles:
        """Write a block's rows into files that no reader of the table sees. Runs a Spark job."""
        self.check(rows.schema)
        attempt = uuid.uuid4().hex
        try:
            commit = self.write_files(rows, block, attempt)
        except BaseException:
            with suppress(StorageError):
                self.remove_attempt(block, attempt)
            raise
        return StagedFiles(self, block, commit)

    def read(self, spark: SparkSession) -> DataFrame:
        """The rows of all committed blocks. Raises `InvalidInput` where there is none."""
        commits = sorted(self.commits(), key=lambda commit: (commit.at, commit.block))
        if not commits:
            raise InvalidInput(
                f"there is no block in {self.url} yet, and its columns come with the first: read it after the first run"
            )
        return self.read_blocks(spark, commits, merged_columns(commits))

    def settle(self, block: BlockId, commit: BlockCommit) -> None:
        """Before a block counts as committed, make it durable. Then remove the files of attempts that lost."""
        try:
            self.make_durable()
        except StorageError as error:
            raise OutcomeUnknown(
                f"the block {block.name} is in {self.url}, and may not be durable: {error}. Run again: it is synced "
                "before it counts"
            ) from error
        try:
            self.sweep(block, commit)
        except StorageError as error:
            # Done again when the block comes again, and with later blocks.
            _log.warning("files of attempts that lost stay in %s, and use space: %s", self.url, error)

    @abstractmethod
    def write_files(self, rows: DataFrame, block: BlockId, attempt: str) -> BlockCommit:
        """Write a block's files where no reader sees them, durably, and return the commit that lists them."""

    @abstractmethod
    def make_visible(self, block: BlockId, commit: BlockCommit) -> BlockCommit:
        """Commit in one step; return the commit that is there then, this one or another attempt's.

        Raises `OutcomeUnknown` if this one may be there, or come late; any other `StorageError` if it is not.
        """

    @abstractmethod
    def make_durable(self) -> None:
        """Make the commits that are visible durable."""

    @abstractmethod
    def sweep(self, block: BlockId, commit: BlockCommit, /) -> None:
        """Remove the files of attempts that lost to this commit."""

    @abstractmethod
    def remove_attempt(self, block: BlockId, attempt: str) -> None:
        """Remove the files of one attempt, if there are any."""

    @abstractmethod
    def look_up(self, block: BlockId) -> BlockCommit | None:
        """The commit of a block, durable or not. Raises `CorruptData` for another end."""

    @abstractmethod
    def any_commit(self) -> BlockCommit | None:
        """The commit of some block; None if there is none."""

    @abstractmethod
    def commits(self) -> list[BlockCommit]:
        """The commits of all blocks."""

    @abstractmethod
    def read_blocks(self, spark: SparkSession, commits: Sequence[BlockCommit], columns: StructType, /) -> DataFrame:
        """The rows of these blocks, which are all there are, in these columns."""


class StagedFiles:
    """A block whose files are written, and that no reader sees yet."""

    def __init__(self, table: ParquetTable, block: BlockId, commit: BlockCommit) -> None:
        self._table = table
        self._block = block
        self._commit = commit
        self._may_be_visible = False

    @property
    def rows(self) -> int | None:
        """How many rows it has, where the table counts them while it writes."""
        return self._commit.rows

    def commit(self) -> bool:
        """Make it visible; False if another attempt's block was there first."""
        self._may_be_visible = True
        try:
            found = self._table.make_visible(self._block, self._commit)
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
            self._table.remove_attempt(self._block, self._commit.nonce)

    def _lose(self) -> None:
        self._may_be_visible = False
        try:
            self.discard()
        except StorageError as error:
            _log.warning("files of an attempt that lost stay in %s, and use space: %s", self._table.url, error)
