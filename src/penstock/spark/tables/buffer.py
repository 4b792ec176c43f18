"""Another buffer as a sink: its manifest keeps the writer and transaction that a block is."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.spark.source.data_source import register
from penstock.spark.source.schemas import RECORD_FIELDS
from penstock.spark.tables.contract import AtomicSink, BlockId


class BufferSink(AtomicSink):
    """A buffer that rows are appended to, as the data source's writer does."""

    unparsed = StructType(list(RECORD_FIELDS))  # as records, and not as JSON of every column

    def __init__(self, spark: SparkSession, url: str, options: Mapping[str, str]) -> None:
        register(spark)
        self._url = url
        self._options = options

    def write(self, rows: DataFrame, block: BlockId) -> None:
        """Append, as the writer and transaction that the block is."""
        writer = rows.write.format("penstock").mode("append").options(**self._options)
        writer = writer.option("writer", block.query).option("transaction", block.batch).option("blockEnd", block.end)
        writer.save(self._url)
