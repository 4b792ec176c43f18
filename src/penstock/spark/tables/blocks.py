"""What a table is to a pipeline: blocks by name, each put there once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from penstock.errors import InvalidInput

if TYPE_CHECKING:
    from penstock.spark.tables.commits import BlockCommit

_QUERY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class BlockId:
    """A block of a query: its name, and where it ends.

    The name alone says which block it is. The end is kept beside it, and compared when the block comes again: a
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
        """The query's id and the batch's, which sort as text."""
        return f"{self.query}-{self.batch:012d}"


class StagedBlock(Protocol):
    """A block that is written, and that no reader sees yet."""

    @property
    def rows(self) -> int | None:
        """How many rows it has, where that is known without asking Spark again."""
        ...

    def commit(self) -> bool:
        """Make it the block of its name; False if another's is that already, with the same end: then ours is removed.

        Raises `CorruptData` if another's has another end, `OutcomeUnknown` if it may have become the block and that
        could not be found out, or is not durable: `BlockTable.find` tells, later.
        """
        ...

    def discard(self) -> None:
        """Remove it. What is committed, or may be, stays."""
        ...


class BlockTable(Protocol):
    """A table that takes each block once, however often and by however many drivers at once it is written."""

    @property
    def url(self) -> str:
        """Where the table is, without credentials."""
        ...

    @property
    def place(self) -> str:
        """Where the table really is: two tables are one if their places are."""
        ...

    def find(self, block: BlockId) -> BlockCommit | None:
        """The commit of a block, which is durable then; None if there is none. Raises `CorruptData` for another end."""
        ...

    def check(self, schema: StructType) -> None:
        """Raise `InvalidInput` for columns that the table cannot take, alone or beside those it has."""
        ...

    def stage(self, df: DataFrame, block: BlockId) -> StagedBlock:
        """Write a block's rows where no reader of the table sees them. Runs a Spark job.

        What was written is removed again when it fails. Raises `InvalidInput` for columns that the table cannot
        take, before anything is written.
        """
        ...
