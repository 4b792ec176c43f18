"""What the stream readers of all Spark versions share: where a block ends, its partitions, and its rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa

from penstock.core import get_logger
from penstock.engine import ByteBudgetConfig
from penstock.errors import Fenced
from penstock.spark.source.admission import Admission
from penstock.spark.source.options import ReadOptions
from penstock.spark.source.partitions import BatchRun, plan_partitions
from penstock.spark.source.planner import Planner
from penstock.spark.source.reading import Rows, read_run
from penstock.spark.versions import InputPartition

_log = get_logger(__name__)


class StreamBlocks:
    """The blocks of one stream read, planned within a budget if one is given.

    Spark creates a reader in several processes, most of which only `read`. So the constructor does no work: the first
    use of `planner` takes the epoch.
    """

    def __init__(self, options: ReadOptions, rows: Rows, cores: int, budget: ByteBudgetConfig | None) -> None:
        self._options = options
        self._rows = rows
        self._cores = cores
        self._budget = budget
        self._planner: Planner | None = None

    @property
    def planner(self) -> Planner:
        """What blocks are planned from, opened when it is first needed. Raises what opening a consumer raises."""
        if self._planner is None:
            self._planner = Planner(self._options)
        return self._planner

    @cached_property
    def admission(self) -> Admission | None:
        """The budget and the gate of this query, if it has them."""
        return None if self._budget is None else Admission(config=self._budget)

    def first_offset(self) -> dict[str, Any]:
        """The first entry that is not acked: it stays so until block 0 is committed."""
        return self.planner.offset(self.planner.first_sequence)

    def end_from(self, start: int, target: int | None = None) -> int:
        """Choose where the next block ends, at most at `target`. It is `start` where nothing waits.

        The block before is done when this is called. While memory is short it waits.
        """
        planner, admission = self.planner, self.admission
        if admission is not None:
            admission.note_call()
        has_looked = planner.look()
        stop = planner.next_sequence if target is None else min(planner.next_sequence, target)
        if stop <= start:
            if admission is not None and has_looked:
                admission.note_idle()
            return start
        budget = None if admission is None else admission.wait(lambda: False)
        end, size = planner.end_within(start, stop, budget)
        if admission is not None:
            admission.note_planned(size)
        return end

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """The batches of a block, cut into partitions. Everything before a block that has batches is acked."""
        planner, options = self.planner, self._options
        batches = planner.batches(planner.sequence_of(start), planner.sequence_of(end))
        return plan_partitions(batches, options.target_partition_bytes, self._cores, may_cut=options.may_cut_batches)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition. Where there are none, Spark plans an empty one."""
        if isinstance(partition, BatchRun):
            yield from read_run(partition, self._options, self._rows)

    def close(self) -> None:
        """End the collector, if anything was planned here."""
        planner, self._planner = self._planner, None
        if planner is not None:
            try:
                planner.close()
            except Fenced as error:  # Spark stops a query that has ended: nothing hears what is raised here
                _log.warning("stopping a query that lost its group: %s", error)
