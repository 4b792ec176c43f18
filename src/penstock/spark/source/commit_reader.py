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
from penstock.spark.source.admission import Admission
from penstock.spark.source.options import ReadOptions
from penstock.spark.source.partitions import BatchRun, plan_partitions
from penstock.spark.source.planner import Planner
from penstock.spark.source.reading import Rows, read_run
from penstock.spark.versions import DataSourceStreamReader, InputPartition


class CommitStreamReader(DataSourceStreamReader):
    """Reads a buffer block by block, and acks what Spark says is committed.

    A block has all that is queued, or what the caps of the options allow. There is no budget unless `selfRegulation`
    is `on`: these versions run `availableNow` as a single block, and a budget would end it with a backlog left.
    """

    def __init__(self, options: ReadOptions, rows: Rows, cores: int, budget: ByteBudgetConfig) -> None:
        self._options = options
        self._rows = rows
        self._cores = cores
        self._budget = budget
        self._planner: Planner | None = None
        self._admission: Admission | None = None
        self._end: int | None = None  # of the last block that Spark knows of
        self._planned: int | None = None  # the end of the last block that was planned here, until it is acked

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's names, here and below
        """The first entry that is not acked: it stays so until block 0 is committed."""
        planner = self._plan()
        return planner.offset(planner.first_sequence)

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802  as these versions have it
        """Choose where the next block ends. It starts where the last one ended, which is committed by now.

        Where none was planned, and Spark has not said where an earlier run was, the query is new.
        """
        planner = self._plan()
        if self._planned is not None:
            planner.ack_before(self._planned)
            self._planned = None
        if self._admission is not None:
            self._admission.note_call()
        start = planner.first_sequence if self._end is None else self._end
        has_looked = planner.look()
        if planner.next_sequence <= start:
            if self._admission is not None and has_looked:
                self._admission.note_idle()
            return planner.offset(start)
        budget = None if self._admission is None else self._admission.wait(lambda: False)
        self._end, size = planner.end_within(start, planner.next_sequence, budget)
        if self._admission is not None:
            self._admission.note_planned(size)
        return planner.offset(self._end)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The batches of a block, cut into partitions; of none, where Spark says where the query was."""
        planner = self._plan()
        first, self._end = planner.sequence_of(start), planner.sequence_of(end)
        batches = planner.batches(first, self._end)
        if first < self._end:
            self._planned = self._end
        options = self._options
        return plan_partitions(batches, options.target_partition_bytes, self._cores, may_cut=options.may_cut_batches)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition."""
        if isinstance(partition, BatchRun):
            yield from read_run(partition, self._options, self._rows)

    def commit(self, end: dict[str, Any]) -> None:
        """Ack everything before `end`: its block is in Spark's commit log."""
        planner = self._plan()
        sequence = planner.sequence_of(end)
        if sequence > planner.first_sequence:
            planner.ack_before(sequence)
        planner.collect_if_due()  # here: Spark calls nothing when a query ends, it kills the process

    def stop(self) -> None:
        """End the collector of a reader that planned. Spark does not call it: it kills the process at a query's end."""
        planner, self._planner = self._planner, None
        if planner is not None:
            planner.close()

    def _plan(self) -> Planner:
        if self._planner is None:
            self._planner = Planner(self._options)
            if self._options.self_regulation_is_asked:
                self._admission = Admission(config=self._budget)
        return self._planner
