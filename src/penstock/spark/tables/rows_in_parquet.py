"""Writes rows into Parquet files, on executors: batches come in, files of one partition each come out.

Memory is bounded: rows that wait, and files that a destination keeps in memory until they are finished. A file is begun
with its first row group, so that rows of many partitions wait for more of their own, and become few files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.core import get_logger
from penstock.spark.tables.column_statistics import ColumnStatistics, columns_with_nan, statistics_in
from penstock.spark.tables.destinations import Destination
from penstock.spark.tables.rows_by_partition import ToText, Values, plain_text, split

TARGET_FILE_BYTES = 128 << 20
MAX_HELD_BYTES = 64 << 20
_ROW_GROUP_BYTES = 32 << 20  # of rows in memory; encoded they are a fraction of that
_MAX_OPEN_FILES = 100
_BYTES_PER_BATCH = 1024  # of a batch itself, however few rows it has

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A Parquet file that is finished."""

    path: str
    size: int
    rows: int
    values: Values
    """Of the partition columns, which are not in the file."""
    bytes_in_memory: int
    statistics: dict[str, ColumnStatistics] = field(default_factory=dict)
    """Of the columns that are no lists, maps or structs, if they were asked for."""


class RowsInParquet:
    """Parquet files that one task writes, split by the values of some columns.

    `place` gives each file a path of its own. Rows of one partition stay in the order in which they came, over all
    files of it. `to_text` says how the value of a partition column is written.

    A file is finished when it has `file_bytes`. At most `max_held_bytes` are in memory, and at most `max_open_files`
    files are begun: what is beyond that is written or finished, the largest first.
    """

    def __init__(
        self,
        destination: Destination,
        place: Callable[[Values], str],
        partition_by: Sequence[str] = (),
        *,
        to_text: ToText = plain_text,
        with_statistics: bool = False,
        file_bytes: int = TARGET_FILE_BYTES,
        row_group_bytes: int = _ROW_GROUP_BYTES,
        max_held_bytes: int = MAX_HELD_BYTES,
        max_open_files: int = _MAX_OPEN_FILES,
    ) -> None:
        self._destination = destination
        self._place = place
        self._partition_by = tuple(partition_by)
        self._to_text = to_text
        self._with_statistics = with_statistics
        self._file_bytes = file_bytes
        self._row_group_bytes = min(row_group_bytes, file_bytes)
        self._max_held_bytes = max_held_bytes
        self._max_open_files = max_open_files
        self._open: dict[Values, _OpenFile] = {}
        self._finished: list[WrittenFile] = []
        self._held = 0  # bytes of memory, of all of them

    def add(self, rows: pa.RecordBatch) -> None:
        """Write rows. All batches have the same columns."""
        for values, part in split(rows, self._partition_by, self._to_text):
            file = self._open.get(values)
            if file is None:
                file = _OpenFile(self._place(values), values, part.schema, self._destination, self._with_statistics)
                self._open[values] = file
            self._held += file.add(part)
            if file.waiting_bytes >= self._row_group_bytes:
                self._write_row_group(file)
        while self._held > self._max_held_bytes:
            largest = max(self._open.values(), key=lambda one: one.held)
            if largest.waiting_bytes:
                self._write_row_group(largest)
            else:
                self._finish(largest)  # it is in memory until then

    def close(self) -> list[WrittenFile]:
        """Finish the files, durably, and describe them."""
        for file in list(self._open.values()):
            self._finish(file)
        return self._finished

    def abort(self) -> None:
        """Remove the files, as far as that is possible: the task has failed, and why is what matters."""
        paths = [*(file.path for file in self._finished), *(file.path for file in self._open.values())]
        for file in self._open.values():
            file.abandon()
        try:
            self._destination.remove(paths)
        except Exception as error:  # noqa: BLE001  a vacuum or the next sweep removes them
            _log.warning("files of a task that failed stay, and use space: %s", error)

    def _write_row_group(self, file: _OpenFile) -> None:
        begun = [one for one in self._open.values() if one.is_begun]
        if not file.is_begun and len(begun) >= self._max_open_files:
            self._finish(max(begun, key=lambda one: one.size))
        before = file.held
        file.write_row_group()
        self._held += file.held - before
        if file.size >= self._file_bytes:
            self._finish(file)

    def _finish(self, file: _OpenFile) -> None:
        self._held -= file.held
        self._finished.append(file.finish())
        del self._open[file.values]


class _OpenFile:
    """A file whose rows come, and that is begun with the first row group."""

    def __init__(
        self, path: str, values: Values, schema: pa.Schema, destination: Destination, with_statistics: bool
    ) -> None:
        self.path = path
        self.values = values
        self.waiting_bytes = 0
        self._schema = schema
        self._destination = destination
        self._with_statistics = with_statistics
        self._with_nan: set[str] = set()
        self._waiting: list[pa.RecordBatch] = []
        self._footers: list[pq.FileMetaData] = []
        self._begun: tuple[BinaryIO, pq.ParquetWriter] | None = None
        self._rows = self._bytes = 0

    @property
    def is_begun(self) -> bool:
        return self._begun is not None

    @property
    def size(self) -> int:
        """Of what is written."""
        return 0 if self._begun is None else self._begun[0].tell()

    @property
    def held(self) -> int:
        """How many bytes of memory it takes."""
        return self.waiting_bytes + (self.size if self._destination.keeps_in_memory else 0)

    def add(self, rows: pa.RecordBatch) -> int:
        """Keep rows for the next row group, and return how many bytes they take."""
        self._waiting.append(rows)
        self._rows += rows.num_rows
        self._bytes += rows.nbytes
        size = rows.nbytes + _BYTES_PER_BATCH
        self.waiting_bytes += size
        if self._with_statistics:
            self._with_nan |= columns_with_nan(rows)
        return size

    def write_row_group(self) -> None:
        """Write the rows that wait."""
        if self._waiting:
            self._started()[1].write_table(pa.Table.from_batches(self._waiting))
        self._waiting, self.waiting_bytes = [], 0

    def finish(self) -> WrittenFile:
        """Write all of it, durably."""
        self.write_row_group()
        content, writer = self._started()
        writer.close()
        size = self.size
        self._destination.finish(self.path, content)
        statistics = {}
        if self._with_statistics:
            statistics = statistics_in(self._footers[0], self._schema, self._with_nan)
        return WrittenFile(self.path, size, self._rows, self.values, self._bytes, statistics)

    def abandon(self) -> None:
        """Close what is open. The file may be cut."""
        if self._begun is None:
            return
        content, writer = self._begun
        with suppress(Exception):  # a full disk, say: it is removed
            writer.close()
        with suppress(Exception):  # a put that failed may still hold on to its content
            content.close()

    def _started(self) -> tuple[BinaryIO, pq.ParquetWriter]:
        if self._begun is None:
            content = self._destination.begin(self.path)
            writer = pq.ParquetWriter(content, self._schema, compression="zstd", metadata_collector=self._footers)
            self._begun = content, writer
        return self._begun
