"""Where a pipeline's blocks go."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from pyspark.sql import DataFrame, SparkSession

from penstock.engine import Delivery, wait_for_delivery
from penstock.errors import InvalidInput, SinkFailed
from penstock.spark.source.data_source import register
from penstock.spark.tables.contract import BlockId, BlockTable, open_table

SinkFunction: TypeAlias = Callable[[DataFrame, str], Delivery]


@dataclass(frozen=True, slots=True)
class Place:
    """A URL, and the options of its store."""

    url: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


class OpenSink(Protocol):
    """A sink while a pipeline runs."""

    def has(self, block: BlockId, /) -> bool:
        """Whether the block is there already, so that nothing need be done for it."""
        ...

    def write(self, rows: DataFrame, block: BlockId) -> int | None:
        """Write a block, unless it is there; return when it is safe, with how many rows it has, if that is known."""
        ...


class Sink(Protocol):
    """What a pipeline was told about its sink."""

    def open(self, spark: SparkSession, /) -> OpenSink:
        """Make it ready. Raises `InvalidInput` for a place that cannot be right."""
        ...


@dataclass(frozen=True, slots=True)
class TableSink:
    """A table of Parquet, on a file system or an object store."""

    place: Place
    partition_by: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"to_parquet({self.place.url!r})"

    def open(self, spark: SparkSession) -> OpenTable:
        """Open the table."""
        return OpenTable(
            open_table(spark, self.place.url, partition_by=self.partition_by, options=dict(self.place.options))
        )


class OpenTable:
    """A table that blocks are written into."""

    def __init__(self, table: BlockTable) -> None:
        self.table = table

    def check(self, rows: DataFrame) -> None:
        """Raise `InvalidInput` for columns that the table cannot take, before anything is written."""
        self.table.check(rows.schema)

    def has(self, block: BlockId) -> bool:
        """Whether the block is committed. Raises `CorruptData` where it is there and ends elsewhere."""
        return self.table.find(block) is not None

    def write(self, rows: DataFrame, block: BlockId) -> int | None:
        """Stage the block, and commit it."""
        staged = self.table.stage(rows, block)
        staged.commit()
        return staged.rows


@dataclass(frozen=True, slots=True)
class DeltaSink:
    """A Delta table."""

    url: str
    partition_by: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"to_delta({self.url!r})"

    def open(self, _spark: SparkSession) -> DeltaSink:
        """Delta opens its table itself."""
        return self

    def has(self, _block: BlockId) -> bool:
        """Delta finds out when it writes."""
        return False

    def write(self, rows: DataFrame, block: BlockId) -> None:
        """Append, in a transaction that Delta takes once."""
        writer = rows.write.format("delta").mode("append").option("txnAppId", block.query)
        writer = writer.option("txnVersion", block.batch)
        if self.partition_by:
            writer = writer.partitionBy(*self.partition_by)
        writer.save(self.url)


@dataclass(frozen=True, slots=True)
class BufferSink:
    """Another buffer."""

    place: Place

    def __str__(self) -> str:
        return f"to_buffer({self.place.url!r})"

    def open(self, spark: SparkSession) -> BufferSink:
        """Make the data source known."""
        register(spark)
        return self

    def has(self, _block: BlockId) -> bool:
        """The writer finds out when it commits."""
        return False

    def write(self, rows: DataFrame, block: BlockId) -> None:
        """Append, as the writer and transaction that the block is."""
        writer = rows.write.format("penstock").mode("append").options(**self.place.options)
        writer = writer.option("writer", block.query).option("transaction", block.batch).option("blockEnd", block.end)
        writer.save(self.place.url)


@dataclass(frozen=True, slots=True)
class FunctionSink:
    """A function of the user's."""

    fn: SinkFunction

    def __str__(self) -> str:
        return f"to({getattr(self.fn, '__qualname__', self.fn)})"

    def open(self, _spark: SparkSession) -> FunctionSink:
        """A function is ready."""
        return self

    def has(self, _block: BlockId) -> bool:
        """Only the function knows."""
        return False

    def write(self, rows: DataFrame, block: BlockId) -> None:
        """Hand the block over, and wait for what the function returned. Raises `SinkFailed` if that is no delivery."""
        returned = self.fn(rows, block.name)
        try:
            wait_for_delivery(returned)
        except Exception as error:
            raise SinkFailed(
                f"{self}, given the block {block.name}, did not deliver it, and nothing of it is acked: "
                f"{type(error).__name__}: {error}"
            ) from error


def check_delta() -> None:
    """Raise `InvalidInput` where neither Delta's Python package nor its classes in a session are there."""
    if importlib.util.find_spec("delta") is not None:
        return
    session = SparkSession.getActiveSession()
    packages = "" if session is None else session.conf.get("spark.jars.packages", "") or ""
    if "delta" not in packages and "delta" not in ("" if session is None else session.conf.get("spark.jars", "") or ""):
        raise InvalidInput(
            "to_delta needs Delta, which is not here: pip install delta-spark, and start the session with its jars"
        )
