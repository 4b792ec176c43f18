"""The contract of every place that a pipeline's blocks are committed to, each exactly once.

A block is staged where no reader sees it, and committed in one step that also moves the sink's *position* in the
pipeline's events: see `docs/design/pipeline.md`.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.errors import InvalidInput
from penstock.spark.map_in_arrow import map_in_arrow
from penstock.spark.source.schemas import UNPARSED
from penstock.spark.tables.task_number import task_number

_QUERY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class BlockId:
    """A block: the events of a query (a buffer's group) with the sequences from `first` up to `end`, without it.

    `last` is the object of its last batch: where a buffer has lost its last writes, other events get the same
    sequences, and their objects have other names. `number` is the batch id that Spark gave the block, for one that
    an earlier Penstock planned in a checkpoint of Spark's; such a block keeps the name it had.

    >>> block = BlockId("8f1c.default", 17, 40, "ingest/01ABC.arrow")
    >>> block.name, block.version
    ('8f1c.default-000000000017', 39)
    """

    query: str
    first: int
    end: int
    last: str = ""
    number: int | None = None

    def __post_init__(self) -> None:
        if not _QUERY.fullmatch(self.query):
            raise InvalidInput(f"query must be the id of a query, such as a UUID, not {self.query!r}")
        if self.first < 0 or (self.number is not None and self.number < 0):
            raise InvalidInput(f"a block begins at a whole number from 0, not at {self.first!r}")

    @property
    def name(self) -> str:
        """The query and where the block begins, which sort as text."""
        return f"{self.query}-{self.first if self.number is None else self.number:012d}"

    @property
    def version(self) -> int:
        """What a table keeps for the query in the same step as the rows: the last sequence it has. It only grows."""
        return self.end - 1 if self.number is None else self.number

    @property
    def begins(self) -> int:
        """The first version of which a table has some of this block: one with that version, or a later, has it."""
        return self.first if self.number is None else self.number

    @property
    def end_text(self) -> str:
        """Where the block ends, as a table keeps it beside its rows.

        >>> BlockId("8f1c", 17, 40, "ingest/01ABC.arrow").end_text
        '{"sequence": 40, "last": "ingest/01ABC.arrow"}'
        """
        return json.dumps({"sequence": self.end} | ({"last": self.last} if self.last else {}))


@dataclass(frozen=True, slots=True)
class Position:
    """How far a query's events are in a sink: everything before the sequence `end`.

    What else is known of the last block: where it began, the object of its last batch, and how many rows it has.
    `restored` is set where the rows of the last blocks are gone again, because the table was restored.
    """

    end: int
    first: int | None = None
    last: str | None = None
    rows: int | None = None
    restored: Restored | None = None


@dataclass(frozen=True, slots=True)
class Restored:
    """A table was restored to an older version or snapshot: a query's events from a sequence on are gone from it.

    `is_accepted` if the table's property `accepted_restore` says that they may be.
    """

    gone_from: int
    is_accepted: bool = False


def accepted_restore(query: str) -> str:
    """The table's property whose value is the end of a position, if what a restore took away below it may be gone.

    >>> accepted_restore("8f1c.default")
    'penstock.8f1c.default:restored'
    """
    return f"penstock.{query}:restored"


class StagedBlock(Protocol):
    """A block that is ready to be committed, and that no reader sees yet."""

    @property
    def rows(self) -> int | None:
        """How many rows it has, where that is known without another Spark job."""
        ...

    def commit(self) -> bool:
        """Make it visible, durably, in one step that moves the sink's position to the block's end.

        False if that was not possible: the position is past the block's first sequence, so another driver was
        faster; or the table has changed since the block was staged. What was staged is removed then, and the caller
        looks at the position again. Raises `OutcomeUnknown` if the block may be committed and that could not be found
        out, or may not be durable: `position` tells later.
        """
        ...

    def discard(self) -> None:
        """Remove it. A block that is committed, or may be, stays."""
        ...


class Sink(ABC):
    """A place that takes each block once, however often and by however many drivers at once it is written."""

    keeps_position: ClassVar[bool] = True
    """Whether the sink itself knows how far it is. Where not, a block that comes again must be the same block: the
    pipeline writes down what it has planned first."""

    unparsed: ClassVar[StructType] = UNPARSED
    """The columns that it gets from a pipeline that neither parses nor processes."""

    @property
    def place(self) -> str | None:
        """Where it really is: two sinks are one if their places are. None where that cannot be known."""
        return None

    @abstractmethod
    def position(self, query: str, /) -> Position | None:
        """How far a query's events are in it, durably; None if there are none, or it does not know."""

    def move_back(self, query: str, end: int, /) -> None:
        """Where its position says that it was restored: move that back to `end`, so that later events come again."""
        raise InvalidInput(f"{type(self).__name__} cannot move {query} back to {end}: it is never restored")

    @abstractmethod
    def has(self, block: BlockId, /) -> bool:
        """Whether it has the first events of a block, durably, and so must not get the block."""

    def check(self, _schema: StructType, /) -> None:  # noqa: B027  not every sink has something to check
        """Raise `InvalidInput` for columns that it cannot take, before anything is written."""

    def writer(self, _columns: StructType, _block: BlockId, /) -> FileWriter | None:
        """What writes a block's files on the executors; None where rows can only be written from a DataFrame."""
        return None

    def staged(self, block: BlockId, files: Sequence[bytes], /) -> StagedBlock:
        """A block of files that tasks have written with the writer that was made last: their descriptions, in order."""
        raise InvalidInput(f"{type(self).__name__} takes no files of tasks, and got {len(files)} of {block.name}")

    @abstractmethod
    def stage(self, rows: DataFrame, block: BlockId) -> StagedBlock:
        """Write a block's rows where no reader sees them. Raises what `check` raises, and leaves nothing then."""


class OpenFiles(Protocol):
    """The files that one task writes."""

    def add(self, rows: pa.RecordBatch, /) -> None:
        """Write rows. They have the columns of the writer's schema."""
        ...

    def close(self) -> list[bytes]:
        """Finish the files, durably, and return a description of each, which `FileSink.staged` reads."""
        ...

    def abort(self) -> None:
        """Remove what was written, as far as that is possible: the task has failed."""
        ...


class FileWriter(Protocol):
    """Writes rows into files that no reader sees. It is pickled, and works on the executors."""

    @property
    def schema(self) -> pa.Schema:
        """The columns that it gets."""
        ...

    def open(self, task: int) -> OpenFiles:
        """Begin the files of a task. Of two tries of one task each has its own files."""
        ...


class FileSink(Sink):
    """A sink whose blocks are files: tasks write them, and the driver commits them.

    A pipeline calls `writer` before the block's one job, gives it to the tasks, and calls `staged` with what they
    returned. `stage` does the same for the rows of a DataFrame.
    """

    @abstractmethod
    def writer(self, columns: StructType, block: BlockId, /) -> FileWriter | None:
        """What writes a block's files, on the executors; None where they cannot, and `stage` does it in another way.

        Creates the table if it is not there, and adds columns that it does not have. Raises what `check` raises.
        """

    @abstractmethod
    def staged(self, block: BlockId, files: Sequence[bytes], /) -> StagedBlock:
        """A block of files that tasks have written with the writer that was made last: their descriptions, in order."""

    def stage(self, rows: DataFrame, block: BlockId) -> StagedBlock:
        """Write the rows of a DataFrame, in one Spark job."""
        writer = self.writer(rows.schema, block)
        if writer is None:
            raise InvalidInput(f"{self} cannot be written by tasks")
        return self.staged(block, write_rows(rows, writer))


@dataclass(frozen=True, slots=True)
class TableInfo:
    """What `penstock table show` shows of a table."""

    kind: str
    url: str
    rows: int | None
    files: int
    bytes: int
    columns: tuple[tuple[str, str], ...]
    """Names and types, as Spark writes them."""
    partition_by: tuple[str, ...]
    positions: Mapping[str, Position]
    """How far each query is."""
    last_commit_at: datetime | None


@dataclass(frozen=True, slots=True)
class Compacted:
    """What `compact` did: the small files that it read, and the files that it wrote in their place."""

    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """What `vacuum` removed, or would remove."""

    files: int = 0
    bytes: int = 0


class Table(FileSink):
    """A table that others read: one of the formats in this package."""

    @abstractmethod
    def exists(self) -> bool:
        """Whether there is a table: the first block creates it."""

    @abstractmethod
    def read(self, spark: SparkSession) -> DataFrame:
        """The rows of all committed blocks. Raises `InvalidInput` where there is no table yet."""

    @abstractmethod
    def rows(self) -> Iterator[pa.RecordBatch]:
        """The rows of all committed blocks, without Spark, in bounded memory.

        Raises `InvalidInput` where there is no table yet, and `NotFound` where it is compacted meanwhile in a way that
        takes its files away: then begin again.
        """

    @abstractmethod
    def info(self) -> TableInfo:
        """Rows, files, sizes and positions. Raises `InvalidInput` where there is no table yet."""

    @abstractmethod
    def compact(self, target_bytes: int = 128 << 20) -> Compacted:
        """Write small files together into files of about that size, in this process, with bounded memory.

        A pipeline that runs and a reader that reads go on: positions stay, each row stays once. What lost a race with
        a commit of another process is tried again.
        """

    @abstractmethod
    def vacuum(self, older_than: float, *, dry_run: bool = False) -> Vacuumed:
        """Remove files that no reader needs who began at most `older_than` seconds ago.

        Those are files that were replaced, and files of attempts that were never committed.
        """


def write_rows(rows: DataFrame, writer: FileWriter) -> list[bytes]:
    """Write the rows of a DataFrame in one Spark job, and return the descriptions of the files, in order."""
    return [bytes(row[0]) for row in map_in_arrow(rows, _Written(writer), "file binary").collect()]


@dataclass(frozen=True, slots=True)
class _Written:
    """Runs a writer over the rows of a partition of a DataFrame."""

    writer: FileWriter

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files: OpenFiles | None = None
        try:
            for batch in batches:
                if batch.num_rows:
                    files = files or self.writer.open(task_number())
                    files.add(batch.cast(self.writer.schema))
            described = [] if files is None else files.close()
        except BaseException:
            if files is not None:
                files.abort()
            raise
        yield pa.RecordBatch.from_arrays([pa.array(described, pa.binary())], names=["file"])


class AtomicSink(Sink):
    """A sink whose write is atomic by itself, and finds out by itself whether it has the block already."""

    keeps_position = False

    def position(self, _query: str) -> Position | None:
        """Not known."""
        return None

    def has(self, _block: BlockId) -> bool:
        """Not known before the write."""
        return False

    def stage(self, rows: DataFrame, block: BlockId) -> StagedBlock:
        """Remember the rows until `commit` writes them."""
        return _Unwritten(self, rows, block)

    @abstractmethod
    def write(self, rows: DataFrame, block: BlockId) -> None:
        """Write a block, unless it is there; return when it is safe."""


@dataclass(frozen=True, slots=True)
class _Unwritten:
    sink: AtomicSink
    block_rows: DataFrame
    block: BlockId
    rows: int | None = None

    def commit(self) -> bool:
        self.sink.write(self.block_rows, self.block)
        return True

    def discard(self) -> None:
        pass
