"""A stream read. Spark calls the planning methods in one process on the driver, and `read` in others.

The order of steps, and why an ack is safe at that point, are in `docs/design/spark.md`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from penstock.buffer import BatchDescriptor, Consumer
from penstock.engine import ByteBudgetConfig
from penstock.errors import InvalidInput
from penstock.spark.pipeline.control_files import ControlFiles, PlannedBlock, Sign
from penstock.spark.source.admission import Admission
from penstock.spark.source.options import ReadOptions
from penstock.spark.source.partitions import PARALLEL_SIZE_REQUESTS, BatchRun, measured, plan_partitions
from penstock.spark.source.reading import Rows, read_run
from penstock.storage import url_of

_MAX_ENTRIES_PER_READ = 1000
_MAX_BATCHES_PER_SIZING = 4 * PARALLEL_SIZE_REQUESTS


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
        self._control = None if options.control_directory is None else ControlFiles(Path(options.control_directory))

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
        if self._has_stopped():
            return start
        has_looked = planner.look()
        stop = planner.next_sequence if self._target is None else min(planner.next_sequence, self._target)
        if stop <= at:
            if self._target is not None:
                planner.collect_if_due()  # here: Spark calls nothing when a query ends, it kills the process
                if self._control is not None:
                    self._control.give(Sign.DONE)
            if self._admission is not None and has_looked:
                self._admission.note_idle()
            return start
        budget = None if self._admission is None else self._admission.wait(self._is_stop_asked)
        if self._has_stopped():
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
        if self._control is not None:
            size = sum(batch.size or 0 for batch in batches)
            self._control.note_block(PlannedBlock(first, stop, size, planner.next_sequence - stop))
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

    def _is_stop_asked(self) -> bool:
        return self._control is not None and self._control.has(Sign.STOP)

    def _has_stopped(self) -> bool:
        """Whether a stop is asked, after which nothing more is admitted. What is committed is acked already."""
        if self._control is None or not self._control.has(Sign.STOP):
            return False
        self._control.give(Sign.STOPPED)
        return True


class Planner:
    """A consumer of the buffer, and the batches it knows of, by their sequences.

    It is in one Python process on the driver, the only one that may take an epoch.
    """

    def __init__(self, options: ReadOptions, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._clock = clock
        self._store = options.store
        self._consumer = Consumer(self._store, options.consumer_config(gc=True))
        self._known: dict[int, BatchDescriptor] = {}
        self.first_sequence = self._consumer.first_sequence  # that is not acked
        self._looked = clock()
        self._counts_records = options.max_records is not None
        self._has_collected = False

    @cached_property
    def buffer_id(self) -> str:
        """Which buffer it is: an offset of another one is refused."""
        return str(self._consumer.buffer_id)

    def sequence_of(self, offset: Mapping[str, Any]) -> int:
        """The sequence in an offset of Spark's. Raises `InvalidInput` where it is of another buffer."""
        found = offset.get("buffer")
        if found != self.buffer_id:
            which = "no buffer, as an earlier Penstock wrote it" if found is None else f"the buffer {found}"
            raise InvalidInput(
                f"the checkpoint is of {which}, and {self._where} is the buffer {self.buffer_id}: another one, or one "
                "that was deleted and created again. Nothing is read or acked; use a new checkpoint for this buffer"
            )
        return int(offset["sequence"])

    def offset(self, sequence: int) -> dict[str, Any]:
        """An offset for Spark to keep: where reading goes on, and in which buffer."""
        return {"buffer": self.buffer_id, "sequence": sequence}

    @property
    def next_sequence(self) -> int:
        """The sequence that the next batch will get, as of the last look at the manifest."""
        return self._consumer.next_sequence

    def look(self, *, fresh: bool = False) -> bool:
        """Look at the manifest again, if the last look is older than the poll interval. Raises `Fenced`."""
        if not fresh and self._clock() - self._looked < self._options.poll_interval:
            return False
        self._read_more()
        return True

    def ack_before(self, start: int) -> None:
        """Ack everything before a sequence. Raises `InvalidInput` if its checkpoint is not one of this queue."""
        self._check_start(start)
        if start > self.first_sequence:
            self._read_through(start - 1)
            self._consumer.ack_through(start - 1)
            for sequence in range(self.first_sequence, start):
                self._known.pop(sequence, None)
            self.first_sequence = start

    def _check_start(self, start: int) -> None:
        first = self.first_sequence
        if start < first:
            raise InvalidInput(
                f"the checkpoint goes on at sequence {start}, and {self._where} is acked up to {first - 1} "
                f"(its first entry is {first}): the checkpoint is older than the acks, and what is between "
                "is gone; was it restored, or did another query read this group?"
            )

    def collect_if_due(self) -> None:
        """Collect, if no process did for a while: a run that ends never comes to the collector's first interval."""
        if not self._has_collected:
            self._has_collected = True
            self._consumer.collect_if_due()

    def close(self) -> None:
        """Close the consumer, which ends its collector. Raises `StorageError`."""
        self._consumer.close()

    def end_within(self, start: int, stop: int, budget: int | None) -> tuple[int, int]:
        """How far a block from `start` may reach, at most to `stop`; and how many bytes that are.

        The caps and the budget are for the sum of the batches; the first passes whatever it has.
        """
        options = self._options
        most_bytes = min((most for most in (options.max_bytes, budget) if most is not None), default=None)
        if options.max_batches is not None:
            stop = min(stop, start + options.max_batches)
        end, size, records = start, 0, 0
        while end < stop:
            part_end = min(stop, end + _MAX_BATCHES_PER_SIZING)
            self._read_through(part_end - 1)
            for batch in self._sized(end, part_end):
                size_then, records_then = size + (batch.size or 0), records + (batch.records or 0)
                is_full = (most_bytes is not None and size_then > most_bytes) or (
                    options.max_records is not None and records_then > options.max_records
                )
                if is_full and end > start:
                    return end, size
                end, size, records = batch.sequence + 1, size_then, records_then
        return end, size

    def batches(self, start: int, end: int) -> list[BatchDescriptor]:
        """Ack everything before `start`, and return the batches from there up to `end`, with their sizes."""
        self._check_start(start)
        self._read_through(end - 1)  # before the ack: a block that is not of this queue acks nothing of it
        self.ack_before(start)
        return self._sized(start, end)

    @property
    def _where(self) -> str:
        return f"{url_of(self._store)}/{self._options.manifest_path}"

    def _read_through(self, last: int) -> None:
        """Learn of everything up to a sequence. Raises `InvalidInput` if the queue does not reach that far."""
        if last < self.first_sequence:
            return  # a block without events: Spark plans the first one even so
        while self._consumer.last_handed_out_sequence is None or self._consumer.last_handed_out_sequence < last:
            if not self._read_more():
                raise InvalidInput(
                    f"the checkpoint knows of sequence {last}, and the next sequence of {self._where} is "
                    f"{self.next_sequence}: it is not the buffer of the checkpoint"
                )

    def _read_more(self) -> bool:
        batches = self._consumer.next_descriptors(_MAX_ENTRIES_PER_READ)
        self._known.update((batch.sequence, batch) for batch in batches)
        self._looked = self._clock()
        return bool(batches)

    def _sized(self, start: int, end: int) -> list[BatchDescriptor]:
        """Batches that it has learned of, with their sizes."""
        batches = [self._known[sequence] for sequence in range(start, end)]
        if any(batch.size is None or (self._counts_records and batch.records is None) for batch in batches):
            batches = measured(self._store, batches, count_records=self._counts_records)
            self._known.update((batch.sequence, batch) for batch in batches)
        return batches
