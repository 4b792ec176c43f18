"""A Delta table as a sink, written by Delta's own package: its log keeps the transaction that a block is."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from penstock.errors import InvalidInput
from penstock.spark.tables.contract import AtomicSink, BlockId


class DeltaSink(AtomicSink):
    """A Delta table that rows are appended to."""

    def __init__(self, url: str, partition_by: Sequence[str] = ()) -> None:
        self._url = url
        self._partition_by = tuple(partition_by)

    def write(self, rows: DataFrame, block: BlockId) -> None:
        """Append, in a transaction that Delta applies once."""
        writer = rows.write.format("delta").mode("append").option("txnAppId", block.query)
        writer = writer.option("txnVersion", block.batch)
        if self._partition_by:
            writer = writer.partitionBy(*self._partition_by)
        writer.save(self._url)


def check_delta() -> None:
    """Raise `InvalidInput` where neither Delta's Python package nor its classes in a session are there."""
    if importlib.util.find_spec("delta") is not None:
        return
    session = SparkSession.getActiveSession()
    jars = [] if session is None else [session.conf.get(f"spark.jars{key}", "") or "" for key in (".packages", "")]
    if not any("delta" in names for names in jars):
        raise InvalidInput(
            "to_delta needs Delta, which is not here: pip install delta-spark, and start the session with its jars"
        )
