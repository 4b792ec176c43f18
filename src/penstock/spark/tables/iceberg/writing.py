"""Data files that tasks write: rows come in batches, and go into files by the partition that they belong to."""

from __future__ import annotations

import pickle
import uuid
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record

from penstock.spark.tables.iceberg.files import DataFileWriter, Layout, remove_files
from penstock.spark.tables.iceberg.partitioning import split

_MAX_PENDING_BYTES = 64 << 20
_MAX_OPEN_FILES = 32
_PARALLEL_CLOSES = 8


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file that a task has written, as the driver gets to know of it."""

    file: DataFile
    arrow_bytes: int

    def encode(self) -> bytes:
        """As a task returns it."""
        return pickle.dumps((self.file, self.file.spec_id, self.arrow_bytes))

    @staticmethod
    def decode(data: bytes) -> StagedFile:
        """Read what a task of the same job has returned."""
        file, spec_id, arrow_bytes = pickle.loads(data)  # noqa: S301  our own task's
        file.spec_id = spec_id  # which does not go through pickle with the file
        return StagedFile(file, arrow_bytes)


class PartitionedFiles:
    """Data files of rows of any partitions. At most `_MAX_PENDING_BYTES` of them are in memory, and a copy."""

    def __init__(self, layout: Layout, columns: Schema, name: str, *, by_partition: bool = True) -> None:
        """`columns` are those of the rows, with the table's ids. Without `by_partition` rows keep their order."""
        self._layout = layout
        self._columns = columns
        self._name = name
        self._by_partition = by_partition
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._open: OrderedDict[Record, DataFileWriter] = OrderedDict()
        self._closed: list[StagedFile] = []
        self._count = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Write rows, now or later."""
        if not rows.num_rows:
            return
        converted = self._layout.file_rows(rows, self._columns)
        self._pending.append(converted)
        self._pending_bytes += converted.nbytes
        if self._pending_bytes >= _MAX_PENDING_BYTES:
            self._flush()

    def finish(self) -> list[StagedFile]:
        """Finish the files."""
        self._flush()
        if len(self._open) > 1:
            # A disk answers syncs that wait at the same time together, and a store answers requests so.
            with ThreadPoolExecutor(_PARALLEL_CLOSES) as pool:
                for partition, staged in zip(list(self._open), pool.map(_closed, self._open.values()), strict=True):
                    self._closed.append(staged)
                    del self._open[partition]
        while self._open:
            self._close_oldest()
        return self._closed

    def abort(self) -> None:
        """Remove the files, as far as that is possible."""
        for writer in self._open.values():
            writer.abort()
        remove_files(self._layout.io, [staged.file.file_path for staged in self._closed])

    def _flush(self) -> None:
        if not self._pending:
            return
        rows = pa.Table.from_batches(self._pending)
        self._pending, self._pending_bytes = [], 0
        if not self._by_partition:
            self._write(Record(), rows)
            return
        for partition, part in split(rows, self._layout.spec, self._layout.file_schema):
            self._write(partition, part)

    def _write(self, partition: Record, rows: pa.Table) -> None:
        writer = self._open.get(partition)
        if writer is None:
            if len(self._open) >= _MAX_OPEN_FILES:
                self._close_oldest()
            name = f"{self._name}-{self._count:05d}.parquet"
            self._count += 1
            writer = DataFileWriter(self._layout, name, partition if self._by_partition else None)
            self._open[partition] = writer
        self._open.move_to_end(partition)
        writer.write(rows)
        if writer.arrow_bytes >= self._layout.target_file_bytes:
            self._open.move_to_end(partition, last=False)
            self._close_oldest()

    def _close_oldest(self) -> None:
        partition, writer = next(iter(self._open.items()))
        self._closed.append(_closed(writer))
        del self._open[partition]


def _closed(writer: DataFileWriter) -> StagedFile:
    return StagedFile(writer.close(), writer.arrow_bytes)


@dataclass(frozen=True, slots=True)
class IcebergWriter:
    """Writes the files of a block's tasks. It is pickled, with the credentials of the table's files."""

    layout: Layout
    columns: Schema
    schema: pa.Schema
    by_partition: bool

    def open(self, task: int) -> IcebergFiles:
        """Begin the files of a task; each try of a task has its own."""
        # Rows that are to be merged are read again by the driver, in their order: such a file is never of the table.
        kind = "" if self.by_partition else "staged-"
        name = f"{kind}{task:05d}-{uuid.uuid4().hex}"
        return IcebergFiles(PartitionedFiles(self.layout, self.columns, name, by_partition=self.by_partition))


class IcebergFiles:
    """The files of one task."""

    def __init__(self, files: PartitionedFiles) -> None:
        self._files = files

    def add(self, rows: pa.RecordBatch) -> None:
        """Write rows."""
        self._files.add(rows)

    def close(self) -> list[bytes]:
        """Finish the files, durably, and return a description of each."""
        return [staged.encode() for staged in self._files.finish()]

    def abort(self) -> None:
        """Remove the files: the task has failed."""
        self._files.abort()
