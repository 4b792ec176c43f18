"""A table of Parquet files: its blocks, each committed once, and its columns. `open_table` opens the one at a URL.

The order of the steps of a block is here. The steps themselves are those of the place where the blocks are: directories
on a file system (`directories`), or objects in a store (`objects`).
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Literal, Protocol
from urllib.parse import quote

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.core import check_seconds, get_logger
from penstock.errors import CorruptData, InvalidInput, OutcomeUnknown, StorageError
from penstock.spark.source.schemas import to_arrow
from penstock.spark.tables.column_rules import nullable_columns
from penstock.spark.tables.contract import (
    BlockId,
    Compacted,
    FileWriter,
    Position,
    StagedBlock,
    Table,
    TableInfo,
    Vacuumed,
    write_rows,
)
from penstock.spark.tables.listed_files import fitted
from penstock.spark.tables.parquet.columns import (
    check_columns,
    check_no_new_columns,
    check_partition_by,
    has_columns,
    merged_columns,
)
from penstock.spark.tables.parquet.commits import BlockCommit, slot_name, slot_of
from penstock.spark.tables.parquet.compaction import CommittedFile, compact
from penstock.spark.tables.parquet.directories import DirectoryBlocks, LocalFiles
from penstock.spark.tables.parquet.hadoop_files import HadoopFiles
from penstock.spark.tables.parquet.objects import ObjectAttempt, ObjectBlocks
from penstock.spark.tables.parquet.partition_names import scalar_of, value_in
from penstock.spark.tables.parquet.state import TableState, is_covered
from penstock.spark.tables.parquet.task_files import read_description
from penstock.spark.tables.parquet.trees import TreeAttempt
from penstock.spark.tables.places import OBJECT_STORES, scheme_of
from penstock.spark.tables.rows_in_parquet import TARGET_FILE_BYTES
from penstock.storage import local_path, open_store, redact

_MAX_LOOKS = 5

_log = get_logger(__name__)


def open_table(
    spark: SparkSession | None,
    url: str,
    *,
    partition_by: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
    schema_evolution: Literal["add", "none"] = "add",
) -> ParquetTable:
    """Open the table at a path or URL. It need not be there yet.

    A path, `file:///dir`, and any file system that Hadoop knows and that is no object store (`hdfs://`) hold
    directories with Spark's own Parquet files. `s3://`, `gs://` and `az://` are reached with `open_store`, which
    `options` are for. `partition_by` names columns whose values become directories. `schema_evolution="none"` refuses
    a block with columns that the table does not have.

    Only a file system of Hadoop's needs a session. Raises `InvalidInput` for a place, an option or a `partition_by`
    that cannot be right.
    """
    columns = check_partition_by(partition_by)
    scheme = scheme_of(url)
    adds = schema_evolution == "add"
    if scheme in OBJECT_STORES:
        return ParquetTable(ObjectBlocks(open_store(url, **(options or {}))), columns, adds_columns=adds)
    if options:
        raise InvalidInput(f"options ({', '.join(sorted(options))}) go with an object store, not with a file system")
    if scheme not in (None, "file"):
        root = url.rstrip("/")
        if spark is None:
            raise InvalidInput(f"{redact(root)} is reached by Spark's Hadoop only, and not without a session")
        return ParquetTable(DirectoryBlocks(HadoopFiles(spark, root), root, redact(root)), columns, adds_columns=adds)
    path = local_path(url)
    shown = "file://" + quote(path, errors="surrogateescape")
    return ParquetTable(DirectoryBlocks(LocalFiles(), _local_root(path), shown), columns, adds_columns=adds)


def read_table(spark: SparkSession, url: str, options: Mapping[str, str] | None = None) -> DataFrame:
    """Read a table that a pipeline writes: its committed blocks, each once.

    The columns are those that were written, with their types, all nullable. A column that came with a later block is
    null in earlier ones. On a file system an empty text in a partition column comes back as null, as from every
    table whose directories are named as Hive's are.

    Raises `InvalidInput` for a place where no table can be, or where no block is yet, and `CorruptData` for a commit
    that cannot be read.
    """
    return open_table(spark, url, options=options).read(spark)


class ParquetTable(Table):
    """A table of Parquet files, whose blocks each have a commit that lists their files. No credential is in its URL."""

    def __init__(self, blocks: Blocks, partition_by: Sequence[str] = (), *, adds_columns: bool = True) -> None:
        self.url = blocks.url
        self.blocks = blocks
        self._adds_columns = adds_columns
        self._partition_by = tuple(partition_by)
        self._checked: StructType | None = None
        self._last_slots: dict[str, int] = {}  # of queries, as far as this driver has seen
        self._ends: dict[str, int] = {}  # where those blocks end
        self._being_staged: BlockCommit | None = None

    @property
    def place(self) -> str:
        """Where the table really is."""
        return self.blocks.root

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url})"

    def exists(self) -> bool:
        """Whether it has a block."""
        state = self.blocks.state()
        return bool(state.names) or state.compacted is not None

    def position(self, query: str) -> Position | None:
        """How far a query is in it, durably."""
        for _ in range(_MAX_LOOKS):
            state = self.blocks.state()
            slot = state.last_slot(query)
            name = slot_name(query, slot)
            found = self.blocks.look_up(name) if name in state.names else None
            if found is not None or name not in state.names:
                break  # else it was compacted, and its commit removed, since the state was read
        else:
            raise CorruptData(f"{self.blocks.place_of(name)} has no commit: it is no block of Penstock's; remove it")
        self._last_slots[query] = slot
        position: Position | None = None
        if found is not None:
            self.settle(found)
            position = found.position()
        elif slot >= 0:
            self.blocks.make_durable(name)
            position = state.kept_position(query)
        if position is not None:
            self._ends[query] = position.end
        return position

    def is_past(self, block: BlockId) -> bool:
        """Whether it has the first events of a block, as far as this driver has seen: slots do not tell that."""
        return block.number is None and self._ends.get(block.query, 0) > block.first

    def has(self, block: BlockId) -> bool:
        """Whether it has the first events of a block. Raises `CorruptData` for a numbered block with another end."""
        if block.number is None:
            position = self.position(block.query)
            return position is not None and position.end > block.first
        if is_covered(block.name, self.blocks.state().compacted):
            self.blocks.make_durable(block.name)
            return True
        found = self.blocks.look_up(block.name)
        if found is not None:
            found.check_is(block, self.blocks.place_of(block.name))
            self.settle(found)
        return found is not None

    def check(self, schema: StructType) -> None:
        """Raise `InvalidInput` for columns that the table cannot take, alone or beside those of the blocks it has."""
        if self._checked != schema:
            state = self.blocks.state()
            last = state.compacted or (self.blocks.look_up(state.names[-1]) if state.names else None)
            # A block that has all these columns fits all others of the table; otherwise one of those may have them.
            committed = [] if last is None else [last] if has_columns(last, schema) else self.blocks.commits()
            check_columns(schema, self._partition_by, committed, self.url)
            if not self._adds_columns:
                check_no_new_columns(schema, committed, self.url)
            self._checked = schema

    def writer(self, columns: StructType, block: BlockId) -> FileWriter | None:
        """What writes the files of the query's next slot. Raises `InvalidInput` as `check` does."""
        self.check(columns)
        self._being_staged = commit = self._new_commit(columns, block)
        schema = to_arrow(nullable_columns(columns))
        return self.blocks.writer(schema, commit.block, commit.nonce, self._partition_by)

    def staged(self, block: BlockId, files: Sequence[bytes]) -> StagedFiles:
        """A block of files that tasks have written."""
        commit = self._being_staged
        assert commit is not None  # noqa: S101  its writer was made
        commit = commit.with_files(map(read_description, files))
        return self._staged_by(lambda: self.blocks.collect(commit), commit, block)

    def stage(self, rows: DataFrame, block: BlockId) -> StagedBlock:
        """Write a block's rows into files that no reader of the table sees. Runs a Spark job."""
        writer = self.writer(rows.schema, block)
        commit = self._being_staged
        assert commit is not None  # noqa: S101  `writer` has set it
        if writer is None:
            return self._staged_by(lambda: self.blocks.write(rows, commit), commit, block)
        try:
            files = write_rows(rows, writer)
        except BaseException:
            self._remove(commit)
            raise
        return self.staged(block, files)

    def note_committed(self, commit: BlockCommit) -> None:
        """Note that a slot is used: a commit goes into the one behind the last that this driver knows of."""
        query, _, slot = commit.block.rpartition("-")
        if int(slot) > self._last_slots.get(query, -1):
            self._last_slots[query] = int(slot)
            self._ends[query] = commit.position().end

    def settle(self, commit: BlockCommit) -> None:
        """Before a block counts as committed, make it durable. Then remove the files of attempts that lost."""
        self.blocks.make_durable(commit.block)
        try:
            self.blocks.sweep(commit)
        except StorageError as error:
            # Done again when the block comes again, and with later blocks.
            _log.warning("files of attempts that lost stay in %s, and use space: %s", self.url, error)

    def read(self, spark: SparkSession) -> DataFrame:
        """The rows of all committed blocks. Raises `InvalidInput` where there is none."""
        commits = self._commits()
        return self.blocks.read(spark, commits, merged_columns(commits))

    def rows(self) -> Iterator[pa.RecordBatch]:
        """The rows of all committed blocks, in the order of their commits, without Spark, in bounded memory.

        Raises `InvalidInput` where there is no block, and `NotFound` where the table is compacted meanwhile on a file
        system: then begin again.
        """
        commits = self._commits()
        columns = to_arrow(merged_columns(commits))
        for commit in commits:
            for file in self.blocks.files_of(commit):
                values = _values(file, commit.partition_by)
                for rows in self.blocks.rows_of(file):
                    yield fitted(rows, values, columns, scalar_of)

    def info(self) -> TableInfo:
        """Rows, files, sizes and positions. Raises `InvalidInput` where there is no block."""
        commits = self._commits()
        counts = [commit.rows for commit in commits]
        queries = TableState.of(None, [commit.block for commit in commits])
        kept = (query for commit in commits for query in commit.positions)
        positions = {query: self._look_at(query, commits) for query in sorted({*queries.queries(), *kept})}
        return TableInfo(
            kind="parquet",
            url=self.url,
            rows=None if None in counts else sum(count or 0 for count in counts),
            files=sum(len(commit.files) for commit in commits),
            bytes=sum(file.size for commit in commits for file in commit.files),
            columns=tuple((field.name, field.dataType.simpleString()) for field in merged_columns(commits)),
            partition_by=commits[-1].partition_by,
            positions={query: position for query, position in positions.items() if position is not None},
            last_commit_at=max(datetime.fromisoformat(commit.at) for commit in commits),
        )

    def compact(self, target_bytes: int = TARGET_FILE_BYTES) -> Compacted:
        """Write small files together. On a file system of Hadoop's, and where directories cannot be exchanged: refused.

        On a local file system plain readers see the old files, or the new ones; one that has listed the table before,
        and opens a file after, does not find it and has to begin again. In an object store readers that obey the
        commits go on, and plain ones see both until the vacuum.
        """
        return compact(self.blocks, target_bytes)

    def vacuum(self, older_than: float, *, dry_run: bool = False) -> Vacuumed:
        """Remove what was replaced, and what was never committed, if it is old enough."""
        check_seconds("older_than", older_than, zero=True)
        return self.blocks.vacuum(self.blocks.state(), older_than, dry_run)

    @staticmethod
    def _look_at(query: str, commits: Sequence[BlockCommit]) -> Position | None:
        """How far a query is in these commits."""
        positions = [commit.position() for commit in commits if slot_of(commit.block, query) is not None]
        kept = [found for commit in commits if (found := commit.positions.get(query))]
        return max([*positions, *(one.position() for one in kept)], key=lambda one: one.end, default=None)

    def _commits(self) -> list[BlockCommit]:
        """All commits, in their order: a compaction stands for those before the others. Raises `InvalidInput`."""
        commits = sorted(self.blocks.commits(), key=lambda one: (not one.positions, one.at, one.block))
        if not commits:
            raise InvalidInput(
                f"there is no block in {self.url} yet, and its columns come with the first: read it after the first run"
            )
        return commits

    def drop_blocks_before(self, time: datetime) -> None:
        """Remove the blocks that were committed before a time, but for the last one of a query. Raises `StorageError`.

        For a table that only its own writer reads.
        """
        for name in self.blocks.state().names:
            query, _, slot = name.rpartition("-")
            if int(slot) >= self._last_slots.get(query, -1):
                continue
            commit = self.blocks.look_up(name)
            if commit is None or datetime.fromisoformat(commit.at) >= time:
                return  # those behind it are younger
            self.blocks.drop(commit)

    def _staged_by(self, finish: Callable[[], BlockCommit], commit: BlockCommit, block: BlockId) -> StagedFiles:
        try:
            commit = finish()
        except StorageError:
            self._remove(commit)
            is_compacted = is_covered(commit.block, self.blocks.state().compacted)
            if self.blocks.look_up(commit.block) is None and not is_compacted:
                raise
            # Another driver has committed the slot, and has swept the files of this attempt: its commit returns False.
        except BaseException:
            self._remove(commit)
            raise
        return StagedFiles(self, block, commit)

    def _remove(self, commit: BlockCommit) -> None:
        with suppress(StorageError):
            self.blocks.remove(commit.block, commit.nonce)

    def _new_commit(self, columns: StructType, block: BlockId) -> BlockCommit:
        if block.number is not None:
            name = block.name
        else:
            if block.query not in self._last_slots:
                self.position(block.query)
            name = slot_name(block.query, self._last_slots[block.query] + 1)
        return BlockCommit.of(name, block, uuid.uuid4().hex, columns, self._partition_by)


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
        if self._table.is_past(self._block):
            self._lose()
            return False
        self._may_be_visible = True
        try:
            found = self._table.blocks.make_visible(self._commit)
            if found is None:
                # The slot was compacted away: another driver has used it. A vacuum removes the files; not this attempt,
                # for if the block was its own after all, the compaction may list them.
                return False
            if self._block.number is not None:
                found.check_is(self._block, self._table.blocks.place_of(found.block))
        except CorruptData:
            self._lose()
            raise
        except StorageError as error:
            self._may_be_visible = isinstance(error, OutcomeUnknown)
            raise
        self._table.settle(found)
        is_ours = found.nonce == self._commit.nonce
        if is_ours:
            self._table.note_committed(found)
        else:
            self._lose()
        return is_ours

    def discard(self) -> None:
        """Remove the files. Those of a commit that may be visible stay: it would list files that are gone."""
        if not self._may_be_visible:
            self._table.blocks.remove(self._commit.block, self._commit.nonce)

    def _lose(self) -> None:
        self._may_be_visible = False
        try:
            self.discard()
        except StorageError as error:
            _log.warning("files of an attempt that lost stay in %s, and use space: %s", self._table.url, error)


class Blocks(Protocol):
    """The blocks of a table in their place: how the files of one become visible together, by one step.

    Each call raises `StorageError` when it fails. A block is known by its name.
    """

    url: str
    """As it is shown."""
    root: str
    """Where the blocks really are."""

    def writer(self, columns: pa.Schema, name: str, attempt: str, partition_by: Sequence[str], /) -> FileWriter | None:
        """What writes a block's files where no reader sees them, on the executors; None where `write` does."""
        ...

    def collect(self, commit: BlockCommit, /) -> BlockCommit:
        """Make what tasks have written ready to become visible, durably; return the commit that lists it."""
        ...

    def write(self, rows: DataFrame, commit: BlockCommit, /) -> BlockCommit:
        """Write a block's files where no reader sees them, durably, and return the commit that lists them."""
        ...

    def make_visible(self, commit: BlockCommit, /) -> BlockCommit | None:
        """Commit in one step; return the commit that is there then, this one or another attempt's.

        None if the slot was compacted away: no reader looks at it, whatever is put there.

        Raises `OutcomeUnknown` if this one may be there, or come late; any other `StorageError` if it is not.
        """
        ...

    def make_durable(self, name: str, /) -> None:
        """Make a block that is visible durable. Raises `OutcomeUnknown` where it may not be."""
        ...

    def sweep(self, commit: BlockCommit, /) -> None:
        """Remove the files of attempts that lost to this commit."""
        ...

    def remove(self, name: str, attempt: str, /) -> None:
        """Remove the files of one attempt, if there are any."""
        ...

    def drop(self, commit: BlockCommit, /) -> None:
        """Remove a block that is committed."""
        ...

    def look_up(self, name: str, /) -> BlockCommit | None:
        """The commit of a block, durable or not; None if there is none. Raises `CorruptData` for what is no commit."""
        ...

    def place_of(self, name: str, /) -> str:
        """What an operator removes so that the block is not there."""
        ...

    def state(self) -> TableState:
        """Which blocks there are: the last compaction, and the blocks that came after those it stands for."""
        ...

    def commits_in(self, state: TableState, /) -> list[BlockCommit]:
        """The commits of these blocks, that of the last compaction first. Raises `NotFound` for one that is gone."""
        ...

    def files_of(self, commit: BlockCommit, /) -> list[CommittedFile]:
        """The files that a commit lists."""
        ...

    def rows_of(self, file: CommittedFile, /) -> Iterator[pa.RecordBatch]:
        """The rows of a file, without its partition columns."""
        ...

    def compacting(self, state: TableState, nonce: str, /) -> ObjectAttempt | TreeAttempt:
        """Begin a compaction of what the state has. Raises `InvalidInput` where that is not possible."""
        ...

    def vacuum(self, state: TableState, older_than: float, dry_run: bool, /) -> Vacuumed:
        """Remove what no reader needs, and what was never committed."""
        ...

    def commits(self) -> list[BlockCommit]:
        """The commits of all blocks."""
        ...

    def read(self, spark: SparkSession, commits: Sequence[BlockCommit], columns: StructType, /) -> DataFrame:
        """The rows of these blocks, which are all there are, in these columns."""
        ...


def _values(file: CommittedFile, partition_by: Sequence[str]) -> dict[str, str | None]:
    """The values of the partition columns: as the commit keeps them, or as the names of the directories say."""
    values = file.file.values
    if len(values) != len(partition_by):
        values = tuple(map(value_in, file.directory.split("/")))
    return dict(zip(partition_by, values, strict=True))


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
