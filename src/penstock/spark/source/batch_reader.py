"""A batch read: the backlog as it is, without an ack and without an epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from penstock.buffer import BufferQueue
from penstock.spark.source.options import ReadOptions
from penstock.spark.source.partitions import BatchRun, measured, plan_partitions
from penstock.spark.source.reading import Rows, read_run
from penstock.spark.versions import DataSourceReader, InputPartition


class BufferReader(DataSourceReader):
    """Reads what is queued when the read is planned. It acks nothing, and fences no consumer."""

    def __init__(self, options: ReadOptions, rows: Rows, cores: int) -> None:
        self._options = options
        self._rows = rows
        self._cores = cores

    def partitions(self) -> Sequence[InputPartition]:
        """What is queued now, cut into partitions."""
        options = self._options
        config = options.consumer_config(gc=False)  # checks the group's name and the paths
        store = options.store
        view = BufferQueue(store, options.manifest_path, "consumer", group=config.group).peek()
        start = view.first_sequence
        if options.starting_sequence is not None:
            start = view.next_sequence if config.start == "latest" else max(start, int(config.start))
        batches = measured(store, view.entries(start, view.next_sequence), count_records=False)
        return plan_partitions(batches, options.target_partition_bytes, self._cores, may_cut=options.may_cut_batches)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition. Where there are none, Spark plans an empty one."""
        if isinstance(partition, BatchRun):
            yield from read_run(partition, self._options, self._rows)
