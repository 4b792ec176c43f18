"""A stream read. Spark calls the planning methods in one process on the driver, and `read` in others.

The order of steps, and why an ack is safe at that point, are in `docs/design/spark.md`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from penstock.engine import ByteBudgetConfig
from penstock.spark.source.options import ReadOptions
from penstock.spark.source.reading import Rows
from penstock.spark.source.source_metrics import source_metrics
from penstock.spark.source.stream_blocks import StreamBlocks
from penstock.spark.versions import (
    DataSourceStreamReader,
    InputPartition,
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)


class BufferStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a buffer block by block, and acks what Spark has committed."""

    def __init__(self, options: ReadOptions, rows: Rows, cores: int, budget: ByteBudgetConfig) -> None:
        self._blocks = StreamBlocks(options, rows, cores, budget if options.self_regulation else None)
        self._target: int | None = None
        self._end: int | None = None  # of the last block

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's names, here and below
        """No limit of Spark's: ours are applied in `latestOffset`, whatever it passes."""
        _ = self._blocks.planner  # Spark asks this first, and what cannot be opened is said at once
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """End where the queue ends now."""
        planner = self._blocks.planner
        planner.look(fresh=True)
        self._target = planner.next_sequence

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """The first entry that is not acked."""
        return self._blocks.first_offset()

    def latestOffset(self, start: dict[str, Any], _limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Ack everything before `start`, which is committed, and choose where the next block ends.

        Raises `Fenced`, `InvalidInput` where the checkpoint is not of this buffer, and `StorageError`.
        """
        planner = self._blocks.planner
        self._end = at = planner.sequence_of(start)
        planner.ack_before(at)
        self._end = self._blocks.end_from(at, self._target)
        if self._end > at:
            return planner.offset(self._end)
        if self._target is not None:
            planner.collect_if_due()  # here: Spark calls nothing when a query ends, it kills the process
        return start

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where the queue ended at the last look, and metrics: Spark's progress shows both."""
        planner = self._blocks.planner
        waiting, age = planner.waiting_from(planner.first_sequence if self._end is None else self._end)
        metrics = source_metrics(waiting, age, self._blocks.admission)
        return {**planner.offset(planner.next_sequence), "metrics": metrics}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The batches of a block, cut into partitions. After a crash this comes without a `latestOffset` before it."""
        return self._blocks.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition."""
        return self._blocks.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: Spark calls it with the next block, after `latestOffset` has acked; for the last block never."""

    def stop(self) -> None:
        """End the collector of a reader that planned. Spark does not call it: it kills the process at a query's end."""
        self._blocks.close()
