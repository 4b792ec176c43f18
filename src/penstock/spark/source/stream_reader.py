"""A stream read. Spark calls the planning methods in one process on the driver, and `read` in others.

The order of steps, and why an ack is safe where it is made, are in `docs/design/spark.md`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from penstock.engine import ByteBudgetConfig
from penstock.spark.source.admission import Admission
from penstock.spark.source.options import ReadOptions
from penstock.spark.source.partitions import BatchRun, plan_partitions
from penstock.spark.source.planner import Planner
from penstock.spark.source.reading import Rows, read_run

# In the directory that a pipeline shares with its planner.
STOP, STOPPED, DONE, BLOCK = "stop", "stopped", "done", "block.json"


class BufferStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a buffer block by block, and acks what Spark has committed.

    Made in several processes, most of which only `read`. So it does nothing when it is made: the epoch is taken by
    the planning method that comes first.
    """

    def __init__(self, options: ReadOptions, rows: Rows, cores: int, budget: ByteBudgetConfig) -> None:
        self._options = options
        self._rows = rows
        self._cores = cores
        self._budget = budget
        self._planner: Planner | None = None
        self._admission: Admission | None = None
        self._target: int | None = None
        self._control = None if options.control_directory is None else Path(options.control_directory)

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
        at = planner.sequence_of(start)
        planner.ack_before(at)
        if self._admission is not None:
            self._admission.note_call()
        if self._is_stopped():
            self._tell(STOPPED, {"acked_before": at})
            return start
        has_looked = planner.look()
        stop = planner.next_sequence if self._target is None else min(planner.next_sequence, self._target)
        if stop <= at:
            if self._target is not None:
                planner.collect_if_due()  # here, for nothing is called when a query ends; its process is killed
                self._tell(DONE, {"acked_before": at})
            if self._admission is not None and has_looked:
                self._admission.note_idle()
            return start
        budget = None if self._admission is None else self._admission.wait(self._is_stopped)
        if self._is_stopped():
            self._tell(STOPPED, {"acked_before": at})
            return start
        end, size = planner.end_within(at, stop, budget)
        if self._admission is not None:
            self._admission.note_planned(size)
        return planner.offset(end)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where the queue ended at the last look: Spark's progress shows the lag by it."""
        planner = self._plan()
        return planner.offset(planner.next_sequence)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The batches of a block, cut into partitions. After a crash this comes without a `latestOffset` before it."""
        planner = self._plan()
        first, stop = planner.sequence_of(start), planner.sequence_of(end)
        batches = planner.batches(first, stop)
        self._tell(
            BLOCK,
            {
                "start": first,
                "end": stop,
                "bytes": sum(batch.size or 0 for batch in batches),
                "lag": planner.next_sequence - stop,
            },
        )
        options = self._options
        return plan_partitions(batches, options.target_partition_bytes, self._cores, may_cut=options.may_cut_batches)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition."""
        if isinstance(partition, BatchRun):
            yield from read_run(partition, self._options, self._rows)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: it comes with the next block, when `latestOffset` has acked already; for the last block never."""

    def stop(self) -> None:
        """End the collector of a reader that planned. Spark does not ask: it kills that process when a query ends."""
        planner, self._planner = self._planner, None
        if planner is not None:
            planner.close()

    def _plan(self) -> Planner:
        if self._planner is None:
            self._planner = Planner(self._options)
            if self._options.self_regulation:
                self._admission = Admission(config=self._budget)
        return self._planner

    def _is_stopped(self) -> bool:
        return self._control is not None and (self._control / STOP).exists()

    def _tell(self, name: str, what: dict[str, Any]) -> None:
        """Tell the pipeline something, in a file that it sees whole or not at all."""
        if self._control is not None:
            part = self._control / f".{name}.part"
            part.write_text(json.dumps(what))
            os.replace(part, self._control / name)
