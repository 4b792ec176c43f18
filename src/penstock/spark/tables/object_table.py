"""A table in an object store: a block is what its commit object lists, and a put-if-absent makes it visible.

```text
block=<query>-<batch>/event=click/part-<task>-<attempt>-<try>.parquet
_commits/<query>-<batch>.json
```

`read_table` obeys the commit objects. Plain readers of the Parquet files (`spark.read.parquet`, `pyarrow.dataset`) do
not: they see files of a block before it is committed, and a losing attempt's until they are swept, which the commit
of that block does. For them, write the table to a file system.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.core import get_logger
from penstock.errors import AlreadyExists, Conflict, CorruptData, NotFound, OutcomeUnknown, StorageError
from penstock.spark.pipeline.map_in_arrow import map_in_arrow
from penstock.spark.tables.blocks import BlockId, StagedBlock
from penstock.spark.tables.columns import BLOCK, Layout, nullable_columns, quoted
from penstock.spark.tables.commits import BlockCommit, BlockFile
from penstock.spark.tables.object_files import DESCRIBED, FILE_BYTES, writing
from penstock.storage import ObjectStore, url_of

log = get_logger(__name__)

_COMMITS = "_commits"
_TRIES = 5
_AT_ONCE = 16


class ObjectTable:
    """A table in an object store. Executors reach it with the store that is pickled to them."""

    def __init__(self, store: ObjectStore, partition_by: Sequence[str] = (), *, file_bytes: int = FILE_BYTES) -> None:
        self._store = store
        self._layout = Layout(partition_by, self.url)
        self._file_bytes = file_bytes

    @property
    def url(self) -> str:
        """Where the table is, without credentials."""
        return url_of(self._store)

    @property
    def place(self) -> str:
        """Where the table really is."""
        return self.url

    def __repr__(self) -> str:
        return f"ObjectTable({self.url})"

    def find(self, block: BlockId) -> BlockCommit | None:
        """The commit of a block; None if there is none. Raises `CorruptData` for another end."""
        found = self._find(block)
        if found is not None:
            self._sweep(found)
        return found

    def check(self, schema: StructType) -> None:
        """Raise `InvalidInput` for columns that the table cannot take, alone or beside those it has."""
        self._layout.check(schema, self._any_commit)

    def stage(self, df: DataFrame, block: BlockId) -> StagedBlock:
        """Write a block's rows into files that no commit lists."""
        self.check(df.schema)
        nonce = uuid.uuid4().hex
        try:
            files = self._write(df, block, nonce)
        except BaseException:
            # A task that is still being cancelled may put a file after this. The block's commit sweeps that.
            with suppress(StorageError):
                self._remove_attempt(block.name, nonce)
            raise
        return StagedObjects(self, block, BlockCommit.of(block, nonce, df.schema, self._layout.partition_by, files))

    def commits(self) -> list[BlockCommit]:
        """All blocks of the table."""
        paths = sorted(found.path for found in self._store.list_objects(_COMMITS))
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(self._read_commit, paths))

    def _write(self, df: DataFrame, block: BlockId, nonce: str) -> list[BlockFile]:
        columns = arrow_columns(nullable_columns(df.schema))
        if self._layout.partition_by:
            df = df.sortWithinPartitions(*map(quoted, self._layout.partition_by))
        task = writing(self._store, _folder(block.name), nonce, columns, self._layout.partition_by, self._file_bytes)
        described = map_in_arrow(df, task, DESCRIBED).collect()
        return [BlockFile(row["path"], row["size"], row["rows"], tuple(row["values"])) for row in described]

    def _find(self, block: BlockId) -> BlockCommit | None:
        path = _commit_path(block)
        try:
            commit = self._read_commit(path)
        except NotFound:
            return None
        commit.check_is(block, f"{self.url}/{path}")
        return commit

    def _read_commit(self, path: str) -> BlockCommit:
        return BlockCommit.decode(self._store.get(path).data, f"{self.url}/{path}")

    def _any_commit(self) -> BlockCommit | None:
        first = next(iter(self._store.list_objects(_COMMITS)), None)
        return None if first is None else self._read_commit(first.path)

    def _sweep(self, commit: BlockCommit) -> None:
        """Delete the files of attempts that lost. It is done again when the block comes again."""
        listed = {file.path for file in commit.files}
        try:
            self._delete(commit.block, lambda path: path not in listed)
        except StorageError as error:
            log.warning("files of attempts that lost stay below %s in %s: %s", _folder(commit.block), self.url, error)

    def _remove_attempt(self, block_name: str, nonce: str) -> None:
        self._delete(block_name, lambda path: f"-{nonce}-" in path.rpartition("/")[2])

    def _delete(self, block_name: str, which: Callable[[str], bool]) -> None:
        below = self._store.list_objects(_folder(block_name))
        for result in self._store.delete([found.path for found in below if which(found.path)]):
            if result.error:
                raise result.error


class StagedObjects:
    """A block whose files are in the store, and in no commit yet."""

    def __init__(self, table: ObjectTable, block: BlockId, commit: BlockCommit) -> None:
        self._table = table
        self._block = block
        self._commit = commit
        self._may_be_committed = False

    @property
    def rows(self) -> int | None:
        """How many rows it has."""
        return self._commit.rows

    def commit(self) -> bool:
        """Put the commit object; False if another's was there first."""
        try:
            found = self._put()
        except CorruptData:
            self._lose()
            raise
        if found.nonce != self._commit.nonce:
            self._lose()
            return False
        self._table._sweep(found)
        return True

    def discard(self) -> None:
        """Delete the files. Those of a commit that may have happened stay: it would list files that are gone."""
        if self._may_be_committed:
            return
        self._table._remove_attempt(self._block.name, self._commit.nonce)

    def _put(self) -> BlockCommit:
        """Put the commit object until one is there, ours or another's, and return that."""
        unclear: StorageError | None = None
        for _ in range(_TRIES):
            self._may_be_committed = True
            try:
                self._table._store.put_if_absent(_commit_path(self._block), self._commit.encode())
            except (AlreadyExists, Conflict, OutcomeUnknown) as error:
                unclear = error
            except StorageError:
                # Refused, so this one did not happen. One before it still may.
                self._may_be_committed = unclear is not None
                raise
            else:
                return self._commit
            found = self._table._find(self._block)
            if found is not None:
                return found
        raise OutcomeUnknown(
            f"the block {self._block.name} may be committed in {self._table.url}, and may be later: {unclear}. Run "
            "again: the block is looked for before it is written"
        )

    def _lose(self) -> None:
        self._may_be_committed = False
        try:
            self.discard()
        except StorageError as error:
            log.warning("files that lost stay below %s in %s: %s", _folder(self._block.name), self._table.url, error)


def arrow_columns(schema: StructType) -> pa.Schema:
    """The Arrow columns in which rows travel, and lie in files: timestamps are instants, in UTC."""
    return to_arrow_schema(schema, timezone="UTC")


def _folder(block_name: str) -> str:
    return f"{BLOCK}={block_name}"


def _commit_path(block: BlockId) -> str:
    return f"{_COMMITS}/{block.name}.json"
