"""The blocks of a table in an object store: a block is what its commit object lists. A put-if-absent makes it visible.

```text
block=<query>-<slot>/event=click/part-<task>-<attempt>-<try>.parquet
_commits/<query>-<slot>.json
block=compacted.<generation>-<attempt>/event=click/part-….parquet
_compacted/compacted.<generation>.json       stands for all blocks up to the slots that it names
```

`read_table` obeys the commit objects. Plain readers of the Parquet files (`spark.read.parquet`, `pyarrow.dataset`) do
not: they see files of a block before it is committed, and a losing attempt's until they are swept, which the commit
of that block does. For them, write the table to a file system.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.core import Backoff, call_with_retries, get_logger
from penstock.errors import AlreadyExists, Conflict, InvalidInput, NotFound, OutcomeUnknown, StorageError
from penstock.spark.tables.contract import FileWriter, Vacuumed
from penstock.spark.tables.destinations import InStore, InStoreFromDisk
from penstock.spark.tables.listed_files import ListedFile, ListedFiles
from penstock.spark.tables.parquet.commits import BLOCK, BlockCommit, BlockFile, compacted_name, generation_of
from penstock.spark.tables.parquet.compaction import CommittedFile, current_commits
from penstock.spark.tables.parquet.object_vacuum import COMMITS, COMPACTED, vacuum_objects
from penstock.spark.tables.parquet.partition_names import scalar_of
from penstock.spark.tables.parquet.state import TableState, is_covered, is_last_of
from penstock.spark.tables.parquet.task_files import ParquetWriter
from penstock.spark.tables.rows_in_parquet import TARGET_FILE_BYTES
from penstock.storage import ObjectStore, url_of

_log = get_logger(__name__)

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
        self.store = store
        self._files = ListedFiles(store, "the commit of its block", scalar_of)
        self._compacted: BlockCommit | None = None  # the last that was read: they never change
        self._file_bytes = file_bytes
        self._sleep = sleep

    def writer(self, columns: pa.Schema, name: str, attempt: str, partition_by: Sequence[str]) -> FileWriter:
        """What writes a block's rows into files that no commit lists.

        When it fails, a task that is still being cancelled may put a file after the others are removed. The commit of
        the slot sweeps that.
        """
        return ParquetWriter(
            columns, tuple(partition_by), InStore(self.store, _folder(name)), attempt, self._file_bytes
        )

    def collect(self, commit: BlockCommit) -> BlockCommit:
        """The files are where they belong; the commit has their paths in the store."""
        top = _folder(commit.block)
        return commit.with_files(replace(file, path=f"{top}/{file.path}") for file in commit.files)

    def write(self, _rows: DataFrame, commit: BlockCommit) -> BlockCommit:
        """Tasks write the files."""
        raise InvalidInput(f"the block {commit.block} is written by tasks in {self.url}")

    def make_visible(self, commit: BlockCommit) -> BlockCommit | None:
        """Put the commit object until there is one, this or another attempt's."""
        found = self.put_commit(_commit_path(commit.block), commit)
        # After the put, and before anything is done for it: a slot that was compacted away may have no commit object
        # any more. Then this put has succeeded, no reader looks at it, and files below the block may be in use.
        compacted = self._compaction_after_put(commit.block)
        if not is_covered(commit.block, compacted) or is_last_of(found, compacted):
            return found
        return None

    def put_commit(self, path: str, commit: BlockCommit) -> BlockCommit:
        """Put a commit if there is none; return the one that is there then."""
        is_unclear = False

        def put() -> BlockCommit:
            nonlocal is_unclear
            try:
                self.store.put_if_absent(path, commit.encode())
            except StorageError as error:
                # Any other error says that this put did not happen. One before it still may.
                is_unclear = is_unclear or isinstance(error, AlreadyExists | Conflict | OutcomeUnknown)
                if not is_unclear:
                    raise
                return self._look_up_after(error, path, commit.block)
            return commit

        return call_with_retries(
            put,
            Backoff(0.05, 1.0, sleep=self._sleep),
            tries=_MAX_PUTS_PER_COMMIT,
            on=OutcomeUnknown,
            warn=lambda _: _log.warning("the commit of block %s in %s is put again", commit.block, self.url),
        )

    def make_durable(self, _name: str) -> None:
        """Nothing to do: an object that is there is durable."""

    def sweep(self, commit: BlockCommit) -> None:
        """Delete the block's files that its commit does not list."""
        listed = {file.path for file in commit.files}
        self._delete(commit.block, lambda path: path not in listed)

    def remove(self, name: str, attempt: str) -> None:
        """Delete the attempt's files, which have its name in theirs."""
        self._delete(name, lambda path: f"-{attempt}-" in path.rpartition("/")[2])

    def drop(self, commit: BlockCommit) -> None:
        """Delete the commit object, and then the files that it lists."""
        for paths in ([_commit_path(commit.block)], [file.path for file in commit.files]):
            for result in self.store.delete(paths):
                if result.error:
                    raise result.error

    def look_up(self, name: str) -> BlockCommit | None:
        """The commit object."""
        try:
            return self._read_commit(_commit_path(name))
        except NotFound:
            return None

    def place_of(self, name: str) -> str:
        """The URL of the commit object."""
        return f"{self.url}/{_commit_path(name)}"

    def state(self) -> TableState:
        """Which blocks there are.

        The compactions are listed before and after the commits: a vacuum deletes the commit objects that a compaction
        stands for, and what is not in a listing must not be missed because of that.
        """
        while True:
            compacted = self._last_compaction()
            names = [_name_in(found.path, COMMITS) for found in self.store.list_objects(COMMITS)]
            again = self._last_compaction()
            if (compacted and compacted.block) == (again and again.block):
                return TableState.of(again, names)

    def commits(self) -> list[BlockCommit]:
        """The commits of all blocks, that of the last compaction first."""
        return current_commits(self)

    def commits_in(self, state: TableState) -> list[BlockCommit]:
        """The commits of these blocks."""
        with ThreadPoolExecutor(_PARALLEL_COMMIT_READS) as pool:
            found = list(pool.map(self._read_commit, map(_commit_path, state.names)))
        return found if state.compacted is None else [state.compacted, *found]

    def files_of(self, commit: BlockCommit) -> list[CommittedFile]:
        """The files that a commit lists; those of a compaction may be in the directories of others."""
        return [CommittedFile(commit.block, file, "/".join(file.path.split("/")[1:-1])) for file in commit.files]

    def rows_of(self, file: CommittedFile) -> Iterator[pa.RecordBatch]:
        """The rows of a file, which is in memory meanwhile."""
        return self._files.rows_if_there(file.file.path, file.file.size)

    def compacting(self, state: TableState, nonce: str) -> ObjectAttempt:
        """Begin a compaction."""
        return ObjectAttempt(self, f"{_folder(compacted_name(state.generation + 1))}-{nonce}")

    def vacuum(self, state: TableState, older_than: float, dry_run: bool) -> Vacuumed:
        """Delete what no reader needs, and what was never committed."""
        return vacuum_objects(self.store, self.url, state, older_than, dry_run)

    def read(self, spark: SparkSession, commits: Sequence[BlockCommit], columns: StructType) -> DataFrame:
        """Read the files that the commits list, several small ones in a task."""
        files = [
            ListedFile(file.path, file.size, dict(zip(commit.partition_by, file.values, strict=True)))
            for commit in commits
            for file in commit.files
        ]
        return self._files.read(spark, files, columns, self._file_bytes)

    def _compaction_after_put(self, name: str) -> BlockCommit | None:
        """The last compaction. Where that cannot be found out, the block may be committed, and its files must stay."""
        try:
            return call_with_retries(
                self._last_compaction,
                Backoff(0.05, 1.0, sleep=self._sleep),
                tries=_MAX_PUTS_PER_COMMIT,
                on=StorageError,
            )
        except StorageError as error:
            raise OutcomeUnknown(
                f"the block {name} is put in {self.url}, and whether a compaction stands for its slot could not be "
                f"found out: {error}. Run again: the table is looked at before it is written"
            ) from error

    def _last_compaction(self) -> BlockCommit | None:
        while True:
            names = (_name_in(found.path, COMPACTED) for found in self.store.list_objects(COMPACTED))
            name = max((name for name in names if generation_of(name) is not None), default=None)
            known = self._compacted
            if name is None or (known is not None and known.block == name):
                return None if name is None else known
            with suppress(NotFound):  # a later one is there, and this one was deleted
                self._compacted = self._read_commit(f"{COMPACTED}/{name}.json")

    def _look_up_after(self, error: StorageError, path: str, name: str) -> BlockCommit:
        found: BlockCommit | None = None
        try:
            found = self._read_commit(path)
        except NotFound:
            pass
        except StorageError as second:
            error = second
        if found is None:
            raise OutcomeUnknown(
                f"the block {name} may be committed in {self.url}, and may be later: {error}. Run again: the table is "
                "looked at before it is written"
            ) from error
        return found

    def _read_commit(self, path: str) -> BlockCommit:
        return BlockCommit.decode(self.store.get(path).data, f"{self.url}/{path}")

    def _delete(self, block_name: str, which: Callable[[str], bool]) -> None:
        below = self.store.list_objects(_folder(block_name))
        for result in self.store.delete([found.path for found in below if which(found.path)]):
            if result.error:
                raise result.error


class ObjectAttempt:
    """One try to compact a table in an object store: files that nothing lists, until one object does."""

    def __init__(self, blocks: ObjectBlocks, folder: str) -> None:
        self._blocks = blocks
        self._folder = folder
        self._may_be_visible = False

    def destination(self, directory: str) -> InStoreFromDisk:
        """Objects below the folder of this attempt."""
        return InStoreFromDisk(self._blocks.store, "/".join(filter(None, [self._folder, directory])))

    def placed(self, directory: str, file: BlockFile) -> BlockFile:
        """With its path in the store."""
        return replace(file, path="/".join(filter(None, [self._folder, directory, file.path])))

    def kept(self, file: CommittedFile) -> BlockFile:
        """It stays where it is."""
        return file.file

    def commit(self, commit: BlockCommit, _kept: Sequence[CommittedFile]) -> bool:
        """Put the object that stands for all blocks which were compacted."""
        self._may_be_visible = True
        found = self._blocks.put_commit(f"{COMPACTED}/{commit.block}.json", commit)
        self._may_be_visible = found.nonce == commit.nonce
        return self._may_be_visible

    def __enter__(self) -> ObjectAttempt:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._may_be_visible:
            with suppress(StorageError):  # the vacuum finds them
                self._blocks.store.delete([found.path for found in self._blocks.store.list_objects(self._folder)])


def _folder(block_name: str) -> str:
    return f"{BLOCK}={block_name}"


def _commit_path(block_name: str) -> str:
    return f"{COMMITS}/{block_name}.json"


def _name_in(path: str, folder: str) -> str:
    return path.removeprefix(f"{folder}/").removesuffix(".json")
