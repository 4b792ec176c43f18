"""The blocks of a table in an object store: a block is what its commit object lists. A put-if-absent makes it visible.

```text
block=<query>-<batch>/event=click/part-<task>-<attempt>-<try>.parquet
_commits/<query>-<batch>.json
```

`read_table` obeys the commit objects. Plain readers of the Parquet files (`spark.read.parquet`, `pyarrow.dataset`) do
not: they see files of a block before it is committed, and a losing attempt's until they are swept, which the commit
of that block does. For them, write the table to a file system.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.core import Backoff, call_with_retries, get_logger
from penstock.errors import AlreadyExists, Conflict, NotFound, OutcomeUnknown, StorageError
from penstock.spark.map_in_arrow import map_in_arrow, quoted
from penstock.spark.source.schemas import to_arrow
from penstock.spark.tables.contract import BlockId
from penstock.spark.tables.parquet.columns import nullable_columns
from penstock.spark.tables.parquet.commits import BLOCK, BlockCommit, BlockFile
from penstock.spark.tables.parquet.object_files import (
    DESCRIBED,
    TARGET_FILE_BYTES,
    StoredFile,
    group_files,
    reading,
    writing,
)
from penstock.storage import ObjectStore, url_of

_log = get_logger(__name__)

_COMMITS = "_commits"
_MAX_PUTS_PER_COMMIT = 5
_PARALLEL_COMMIT_READS = 16


class ObjectBlocks:
    """Blocks as objects of a store. Executors reach it with the store that is pickled to them.

    `file_bytes` is about how large a file becomes, and how much of the table one task reads.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        file_bytes: int = TARGET_FILE_BYTES,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.url = self.root = url_of(store)
        self._store = store
        self._file_bytes = file_bytes
        self._sleep = sleep

    def write(self, rows: DataFrame, block: BlockId, attempt: str, partition_by: Sequence[str]) -> BlockCommit:
        """Write a block's rows into files that no commit lists.

        When it fails, a task that is still being cancelled may put a file after the others are removed. The block's
        commit sweeps that.
        """
        if partition_by:
            rows = rows.sortWithinPartitions(*map(quoted, partition_by))
        columns = to_arrow(nullable_columns(rows.schema))
        task = writing(self._store, _folder(block.name), attempt, columns, partition_by, self._file_bytes)
        described = map_in_arrow(rows, task, DESCRIBED).collect()
        files = [BlockFile(row["path"], row["size"], row["rows"], tuple(row["values"])) for row in described]
        return BlockCommit.of(block, attempt, rows.schema, partition_by, files)

    def make_visible(self, block: BlockId, commit: BlockCommit) -> BlockCommit:
        """Put the commit object until there is one, this or another attempt's."""
        is_unclear = False

        def put() -> BlockCommit:
            nonlocal is_unclear
            try:
                self._store.put_if_absent(_commit_path(block), commit.encode())
            except StorageError as error:
                # Any other error says that this put did not happen. One before it still may.
                is_unclear = is_unclear or isinstance(error, AlreadyExists | Conflict | OutcomeUnknown)
                if not is_unclear:
                    raise
                return self._look_up_after(error, block)
            return commit

        return call_with_retries(
            put,
            Backoff(0.05, 1.0, sleep=self._sleep),
            tries=_MAX_PUTS_PER_COMMIT,
            on=OutcomeUnknown,
            warn=lambda _: _log.warning("the commit of block %s in %s is put again", block.name, self.url),
        )

    def make_durable(self, _block: BlockId) -> None:
        """Nothing to do: an object that is there is durable."""

    def sweep(self, _block: BlockId, commit: BlockCommit) -> None:
        """Delete the block's files that its commit does not list."""
        listed = {file.path for file in commit.files}
        self._delete(commit.block, lambda path: path not in listed)

    def remove(self, block: BlockId, attempt: str) -> None:
        """Delete the attempt's files, which have its name in theirs."""
        self._delete(block.name, lambda path: f"-{attempt}-" in path.rpartition("/")[2])

    def look_up(self, block: BlockId) -> BlockCommit | None:
        """The commit object."""
        try:
            return self._read_commit(_commit_path(block))
        except NotFound:
            return None

    def place_of(self, block: BlockId) -> str:
        """The URL of the commit object."""
        return f"{self.url}/{_commit_path(block)}"

    def last_commit(self) -> BlockCommit | None:
        """The commit object whose name is last."""
        last = max((found.path for found in self._store.list_objects(_COMMITS)), default=None)
        return None if last is None else self._read_commit(last)

    def commits(self) -> list[BlockCommit]:
        """The commits of all blocks."""
        paths = sorted(found.path for found in self._store.list_objects(_COMMITS))
        with ThreadPoolExecutor(_PARALLEL_COMMIT_READS) as pool:
            return list(pool.map(self._read_commit, paths))

    def read(self, spark: SparkSession, commits: Sequence[BlockCommit], columns: StructType) -> DataFrame:
        """Read the files that the commits list, several small ones in a task."""
        files = [
            StoredFile(file.path, file.size, dict(zip(commit.partition_by, file.values, strict=True)))
            for commit in commits
            for file in commit.files
        ]
        groups = group_files(files, self._file_bytes)
        if not groups:
            return spark.createDataFrame([], columns)
        # A number for each partition; the files it stands for travel with the function, where no plan shows them.
        numbers = spark.range(0, len(groups), 1, len(groups))
        return map_in_arrow(numbers, reading(self._store, groups, to_arrow(columns)), columns)

    def _look_up_after(self, error: StorageError, block: BlockId) -> BlockCommit:
        try:
            found = self.look_up(block)
        except StorageError as second:
            found, error = None, second
        if found is None:
            raise OutcomeUnknown(
                f"the block {block.name} may be committed in {self.url}, and may be later: {error}. Run again: the "
                "block is looked for before it is written"
            ) from error
        return found

    def _read_commit(self, path: str) -> BlockCommit:
        return BlockCommit.decode(self._store.get(path).data, f"{self.url}/{path}")

    def _delete(self, block_name: str, which: Callable[[str], bool]) -> None:
        below = self._store.list_objects(_folder(block_name))
        for result in self._store.delete([found.path for found in below if which(found.path)]):
            if result.error:
                raise result.error


def _folder(block_name: str) -> str:
    return f"{BLOCK}={block_name}"


def _commit_path(block: BlockId) -> str:
    return f"{_COMMITS}/{block.name}.json"
