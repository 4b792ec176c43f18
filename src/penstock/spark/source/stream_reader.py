"""A stream read. Spark calls the planning methods in one process on the driver, and `read` in others.

The order of steps, and why an ack is safe at that point, are in `docs/design/spark.md`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from penstock.engine import ByteBudgetConfig
from penstock.spark.source.admission import Admission
from penstock.spark.source.options import ReadOptions
from penstock.spark.source.partitions import BatchRun, plan_partitions
from penstock.spark.source.planner import Planner
from penstock.spark.source.reading import Rows, read_run
from penstock.spark.source.source_metrics import source_metrics
from penstock.spark.versions import (
    DataSourceStreamReader,
    InputPartition,
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)


class BufferStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a buffer block by block, and acks what Spark has committed.

    Spark creates one in several processes, most of which only `read`. So the constructor does no work: the planning
    method that is called first takes the epoch.
    """

    def __init__(self, options: ReadOptions, rows: Rows, cores: int, budget: ByteBudgetConfig) -> None:
        self._options = options
        self._rows = rows
        self._cores = cores
        self._budget = budget
        self._planner: Planner | None = None
        self._admission: Admission | None = None
        self._target: int | None = None
        self._end: int | None = None  # of the last block

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's names, here and below
        """No limit of Spark's: ours are applied in `latestOffset`, whatever it passes."""
        self._plan()
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """End where the queue ends now."""
        planner = self._plan()
        planner.look(fresh=True)
        self._target = planner.next_sequence

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """The first entry that is not acked: it stays so until block 0 is committed."""
        planner = self._plan()
        return planner.offset(planner.first_sequence)

    def latestOffset(self, start: dict[str, Any], _limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Ack everything before `start`, which is committed, and choose where the next block ends.

        Raises `Fenced`, `InvalidInput` where the checkpoint is not of this buffer, and `StorageError`.
        """
        planner = self._plan()
        self._end = at = planner.sequence_of(start)
        planner.ack_before(at)
        if self._admission is not None:
            self._admission.note_call()
        has_looked = planner.look()
        stop = planner.next_sequence if self._target is None else min(planner.next_sequence, self._target)
        if stop <= at:
            if self._target is not None:
                planner.collect_if_due()  # here: Spark calls nothing when a query ends, it kills the process
            if self._admission is not None and has_looked:
                self._admission.note_idle()
            return start
        budget = None if self._admission is None else self._admission.wait(lambda: False)
        end, size = planner.end_within(at, stop, budget)
        if self._admission is not None:
            self._admission.note_planned(size)
        self._end = end
        return planner.offset(end)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where the queue ended at the last look, and metrics: Spark's progress shows both."""
        planner, admission = self._plan(), self._admission
        end = planner.first_sequence if self._end is None else self._end
        metrics = source_metrics(
            planner.known_from(end),
            planner.next_sequence - end,
            byte_budget=None if admission is None else admission.byte_budget,
            held_seconds=0.0 if admission is None else admission.held_seconds,
        )
        return {**planner.offset(planner.next_sequence), "metrics": metrics}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The batches of a block, cut into partitions. After a crash this comes without a `latestOffset` before it."""
        planner = self._plan()
        first, stop = planner.sequence_of(start), planner.sequence_of(end)
        batches = planner.batches(first, stop)
        options = self._options
        return plan_partitions(batches, options.target_partition_bytes, self._cores, may_cut=options.may_cut_batches)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition."""
        if isinstance(partition, BatchRun):
            yield from read_run(partition, self._options, self._rows)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: Spark calls it with the next block, after `latestOffset` has acked; for the last block never."""

    def stop(self) -> None:
        """End the collector of a reader that planned. Spark does not call it: it kills the process at a query's end."""
        planner, self._planner = self._planner, None
        if planner is not None:
            planner.close()

    def _plan(self) -> Planner:
        if self._planner is None:
            self._planner = Planner(self._options)
            if self._options.self_regulation:
                self._admission = Admission(config=self._budget)
        return self._planner
