"""A stream read on Spark 4.0 and 4.1, which do not tell a reader where the next block starts.

What those versions call, in this order (each tried):

| | |
|---|---|
| a new query | `latestOffset()`, `initialOffset()`, `partitions(start, end)` |
| its next block | `latestOffset()`, `commit(end of the block before)`, `partitions(start, end)` |
| a restart after a block that is in the commit log | `partitions(last, last)`, `latestOffset()`, `commit(last)`, … |
| a restart after one that is not | `partitions(last, last)`, `partitions(start, last)`, and then as above |

So `partitions(last, last)` says where the query's last planned block ended, **and not that it is committed**: nothing
is acked there. What is before the start of a block that has batches is committed, and so is what `commit` is given, and
a block whose partitions were planned here, when `latestOffset` is called after it. The last block of a run that ends is
acked when the next run plans a block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from penstock.engine import ByteBudgetConfig
from penstock.spark.source.options import ReadOptions
from penstock.spark.source.reading import Rows
from penstock.spark.source.stream_blocks import StreamBlocks
from penstock.spark.versions import DataSourceStreamReader, InputPartition


class CommitStreamReader(DataSourceStreamReader):
    """Reads a buffer block by block, and acks what Spark says is committed.

    A block has all that is queued, or what the caps of the options allow. There is no budget unless `selfRegulation`
    is `on`: these versions run `availableNow` as a single block, and a budget would end it with a backlog left.
    """

    def __init__(self, options: ReadOptions, rows: Rows, cores: int, budget: ByteBudgetConfig) -> None:
        self._blocks = StreamBlocks(options, rows, cores, budget if options.self_regulation_is_asked else None)
        self._end: int | None = None  # of the last block that Spark knows of
        self._planned: int | None = None  # the end of the last block that was planned here, until it is acked

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's names, here and below
        """The first entry that is not acked."""
        return self._blocks.first_offset()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802  as these versions have it
        """Choose where the next block ends. It starts where the last one ended, which is committed by now.

        Where none was planned, and Spark has not said where an earlier run was, the query is new.
        """
        planner = self._blocks.planner
        if self._planned is not None:
            planner.ack_before(self._planned)
            self._planned = None
        start = planner.first_sequence if self._end is None else self._end
        end = self._blocks.end_from(start)
        if end > start:
            self._end = end
        return planner.offset(end)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The batches of a block, cut into partitions; of none, where Spark says where the query was."""
        planner = self._blocks.planner
        first, self._end = planner.sequence_of(start), planner.sequence_of(end)
        partitions = self._blocks.partitions(start, end)
        if first < self._end:
            self._planned = self._end
        return partitions

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition."""
        return self._blocks.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Ack everything before `end`: its block is in Spark's commit log."""
        planner = self._blocks.planner
        sequence = planner.sequence_of(end)
        if sequence > planner.first_sequence:
            planner.ack_before(sequence)
        planner.collect_if_due()  # here: Spark calls nothing when a query ends, it kills the process

    def stop(self) -> None:
        """End the collector of a reader that planned. Spark does not call it: it kills the process at a query's end."""
        self._blocks.close()
