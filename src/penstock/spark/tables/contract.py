"""The contract of every place that a pipeline's blocks are committed to, each exactly once.

A block is either staged where no reader sees it and then committed in one step, or written in one step that is atomic
by itself: see `docs/design/spark.md`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from penstock.errors import InvalidInput
from penstock.spark.source.schemas import UNPARSED

_QUERY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class BlockId:
    """A block of a query: its name, and where it ends.

    The name alone identifies the block. The end is stored beside it and compared when the block comes again: a
    checkpoint that lost its last writes plans another block under the same name.

    >>> BlockId("8f1c", 17, '{"sequence": 40}').name
    '8f1c-000000000017'
    """

    query: str
    batch: int
    end: str

    def __post_init__(self) -> None:
        if not _QUERY.fullmatch(self.query):
            raise InvalidInput(f"query must be the id of a query, such as a UUID, not {self.query!r}")
        if self.batch < 0:
            raise InvalidInput(f"batch must be a whole number from 0, not {self.batch!r}")

    @property
    def name(self) -> str:
        """The query's id and the batch's number, which sort as text."""
        return f"{self.query}-{self.batch:012d}"


class StagedBlock(Protocol):
    """A block that is ready to be committed, and that no reader sees yet."""

    @property
    def rows(self) -> int | None:
        """How many rows it has, where that is known without another Spark job."""
        ...

    def commit(self) -> bool:
        """Make it the block of its name; False if the sink has that block already: then this one is removed.

        Raises `CorruptData` if the sink's block has another end, `OutcomeUnknown` if it may have become the block and
        that could not be found out, or is not durable: `Sink.has` finds out later.
        """
        ...

    def discard(self) -> None:
        """Remove it. A block that is committed, or may be, stays."""
        ...


class Sink(ABC):
    """A place that takes each block once, however often and by however many drivers at once it is written."""

    stages_rows: ClassVar[bool] = True
    """Whether `stage` writes the rows, so that they can still be discarded; otherwise `commit` writes them."""

    unparsed: ClassVar[StructType] = UNPARSED
    """The columns that it gets from a pipeline that neither parses nor processes."""

    @property
    def place(self) -> str | None:
        """Where it really is: two sinks are one if their places are. None where that cannot be known."""
        return None

    @abstractmethod
    def has(self, block: BlockId, /) -> bool:
        """Whether the block is committed, durably. Raises `CorruptData` if it is, and has another end."""

    def rows_of(self, _block: BlockId, /) -> int | None:
        """How many rows a block that it has got, where that is known."""
        return None

    def check(self, _schema: StructType, /) -> None:  # noqa: B027  not every sink has something to check
        """Raise `InvalidInput` for columns that it cannot take, before anything is written."""

    @abstractmethod
    def stage(self, rows: DataFrame, block: BlockId) -> StagedBlock:
        """Write a block's rows where no reader sees them. Raises what `check` raises, and leaves nothing then."""


class AtomicSink(Sink):
    """A sink whose write is atomic by itself, and finds out by itself whether it has the block already."""

    stages_rows = False

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
