"""Compaction: many small files become a few, in this process and in bounded memory.

What is chosen and how files are written is here. How the result becomes visible is of the place: `trees` exchanges the
table's directory, `objects` puts one object. The invariants are in `docs/design/parquet-compaction.md`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Protocol, TypeAlias

import pyarrow as pa
from pyspark.sql.types import StructType

from penstock.core import get_logger
from penstock.errors import InvalidInput, NotFound, StorageError
from penstock.spark.source.schemas import to_arrow
from penstock.spark.tables.column_rules import nullable_columns
from penstock.spark.tables.contract import Compacted
from penstock.spark.tables.destinations import Destination
from penstock.spark.tables.listed_files import fitted
from penstock.spark.tables.parquet.columns import merged_columns
from penstock.spark.tables.parquet.commits import BlockCommit, BlockFile, KeptPosition, query_and_slot
from penstock.spark.tables.parquet.state import TableState
from penstock.spark.tables.parquet.task_files import ParquetWriter, read_description

WriterTo: TypeAlias = Callable[[Destination], ParquetWriter]

_MAX_TRIES = 5

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CommittedFile:
    """A file of a block. `directory` is that of its partition, below the block."""

    block: str
    file: BlockFile
    directory: str


class Attempt(Protocol):
    """One try to compact a table. Leaving it removes what it has written, unless that became visible."""

    def destination(self, directory: str, /) -> Destination:
        """Where the files of a partition go."""
        ...

    def placed(self, directory: str, file: BlockFile, /) -> BlockFile:
        """A file that was written there, with its path as the commit has it."""
        ...

    def kept(self, file: CommittedFile, /) -> BlockFile:
        """A file that stays as it is, with its path as the commit has it."""
        ...

    def commit(self, commit: BlockCommit, kept: Sequence[CommittedFile], /) -> bool:
        """Make it visible, durably, in one step; False if another compaction was faster."""
        ...

    def __enter__(self) -> Attempt: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class CompactableBlocks(Protocol):
    """What a compaction needs of the blocks of a table."""

    url: str

    def state(self) -> TableState:
        """Which blocks there are."""
        ...

    def commits_in(self, state: TableState, /) -> list[BlockCommit]:
        """Their commits: that of the last compaction first. Raises `NotFound` for one that is gone."""
        ...

    def files_of(self, commit: BlockCommit, /) -> list[CommittedFile]:
        """The files that a commit lists."""
        ...

    def rows_of(self, file: CommittedFile, /) -> Iterator[pa.RecordBatch]:
        """The rows of a file, without its partition columns. Raises `NotFound` where it is gone."""
        ...

    def compacting(self, state: TableState, nonce: str, /) -> Attempt:
        """Begin a compaction of what the state has. Raises `InvalidInput` where that is not possible."""
        ...


def compact(blocks: CompactableBlocks, target_bytes: int) -> Compacted:
    """Write the small files of each partition together. Raises `InvalidInput` where the place cannot do that."""
    if target_bytes < 1:
        raise InvalidInput(f"the target must be a number of bytes from 1, not {target_bytes}")
    why = "another compaction was faster"
    for _ in range(_MAX_TRIES):
        try:
            done = _try(blocks, target_bytes)
        except NotFound as error:
            _log.info("compacting %s again, for another process has changed it: %s", blocks.url, error)
            why = str(error)
            continue
        if done is not None:
            return done
    raise StorageError(f"{blocks.url} was not compacted in {_MAX_TRIES} tries: {why}")


def current_commits(blocks: CompactableBlocks) -> list[BlockCommit]:
    """The commits of all blocks, that of the last compaction first.

    Read again where one is gone after a compaction that stands for it: what was compacted away may be removed.
    """
    while True:
        state = blocks.state()
        try:
            return blocks.commits_in(state)
        except NotFound:
            if blocks.state().generation == state.generation:
                raise


def settled_state(blocks: CompactableBlocks) -> TableState:
    """The state without blocks that came while it was looked at.

    A listing that is not of one moment can show a query's slot and miss the one before. What the first listing shows
    was there, with all before it, when the second began.
    """
    first = blocks.state()
    second = blocks.state()
    if second.generation != first.generation:
        return settled_state(blocks)
    last = {query: first.last_slot(query) for query in first.queries()}
    names = [name for name in second.names if (found := query_and_slot(name)) and found[1] <= last.get(found[0], -1)]
    return replace(second, names=tuple(names))


def positions_in(state: TableState, commits: Sequence[BlockCommit]) -> dict[str, KeptPosition]:
    """How far each query is, with its last slot."""
    positions = {} if state.compacted is None else dict(state.compacted.positions)
    for commit in commits:
        found = query_and_slot(commit.block)
        if found is not None and (found[0] not in positions or positions[found[0]].slot < found[1]):
            positions[found[0]] = commit.kept(found[1])
    return positions


def choose(files: Sequence[CommittedFile], target_bytes: int) -> list[list[CommittedFile]]:
    """The files that are to be written together: of each partition those below half of the target, if there are two."""
    groups: dict[tuple[str, tuple[str | None, ...]], list[CommittedFile]] = {}
    for one in files:
        if one.file.size * 2 < target_bytes:
            groups.setdefault((one.directory, one.file.values), []).append(one)
    return [group for group in groups.values() if len(group) > 1]


def _try(blocks: CompactableBlocks, target_bytes: int) -> Compacted | None:
    state = settled_state(blocks)
    commits = blocks.commits_in(state)
    files = [file for commit in commits for file in blocks.files_of(commit)]
    groups = choose(files, target_bytes)
    if not groups:
        return Compacted()
    columns, partition_by = merged_columns(commits), commits[-1].partition_by
    schema = to_arrow(StructType([field for field in nullable_columns(columns) if field.name not in partition_by]))
    replaced = {(one.block, one.file.path) for group in groups for one in group}
    kept = [one for one in files if (one.block, one.file.path) not in replaced]
    nonce = uuid.uuid4().hex

    def writer(destination: Destination) -> ParquetWriter:
        return ParquetWriter(schema, (), destination, nonce, target_bytes)

    with blocks.compacting(state, nonce) as attempt:
        written = [
            file for number, group in enumerate(groups) for file in _write(blocks, attempt, group, writer, number)
        ]
        listed = [*map(attempt.kept, kept), *written]
        commit = BlockCommit.of_compacted(
            state.generation + 1, nonce, columns, partition_by, listed, positions_in(state, commits)
        )
        if not attempt.commit(commit, kept):
            return None
    return Compacted(
        len(replaced),
        len(written),
        sum(one.file.size for group in groups for one in group),
        sum(file.size for file in written),
    )


def _write(
    blocks: CompactableBlocks, attempt: Attempt, group: Sequence[CommittedFile], writer: WriterTo, number: int
) -> Iterator[BlockFile]:
    directory, values = group[0].directory, group[0].file.values
    to = writer(attempt.destination(directory))
    files = to.open(number)
    try:
        for one in group:
            for rows in blocks.rows_of(one):
                files.add(fitted(rows, {}, to.schema))
        described = files.close()
    except BaseException:
        files.abort()
        raise
    for file in map(read_description, described):
        yield attempt.placed(directory, replace(file, values=values))
