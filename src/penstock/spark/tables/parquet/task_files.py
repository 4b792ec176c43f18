"""The files that a task writes of a block of a Parquet table: their names, and what the driver gets to know of them."""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass

import pyarrow as pa

from penstock.spark.tables.contract import OpenFiles
from penstock.spark.tables.destinations import Destination, InDirectory
from penstock.spark.tables.parquet.commits import BlockFile
from penstock.spark.tables.parquet.partition_names import check_directory, directory_of, partition_text
from penstock.spark.tables.rows_by_partition import Values
from penstock.spark.tables.rows_in_parquet import TARGET_FILE_BYTES, RowsInParquet


@dataclass(frozen=True, slots=True)
class ParquetWriter:
    """Writes rows into Parquet files below a destination; `name` is in the name of each file."""

    schema: pa.Schema
    partition_by: tuple[str, ...]
    destination: Destination
    name: str
    file_bytes: int = TARGET_FILE_BYTES

    def open(self, task: int) -> OpenFiles:
        """Begin the files of a task."""
        return TaskFiles(self, task)


class TaskFiles:
    """The files of one try of a task."""

    def __init__(self, writer: ParquetWriter, task: int) -> None:
        self._writer = writer
        self._task = task
        self._files = RowsInParquet(
            writer.destination,
            self._place,
            writer.partition_by,
            to_text=partition_text,
            file_bytes=writer.file_bytes,
        )

    def add(self, rows: pa.RecordBatch) -> None:
        """Write rows into the files of their partitions."""
        self._files.add(rows)

    def close(self) -> list[bytes]:
        """Finish all files, and describe them."""
        files = [BlockFile(file.path, file.size, file.rows, file.values) for file in self._files.close()]
        return [json.dumps(asdict(file)).encode() for file in files]

    def abort(self) -> None:
        """Remove the files."""
        self._files.abort()

    def _place(self, values: Values) -> str:
        # The writer's name is that of the attempt, so that its files can be found; the rest is this try of the task.
        name = f"part-{self._task:05d}-{self._writer.name}-{uuid.uuid4().hex}.parquet"
        directories = list(map(directory_of, self._writer.partition_by, values))
        if isinstance(self._writer.destination, InDirectory):
            for column, directory in zip(self._writer.partition_by, directories, strict=True):
                check_directory(column, directory)
        return "/".join([*directories, name])


def read_description(data: bytes) -> BlockFile:
    """The file that a task described."""
    fields = json.loads(data)
    return BlockFile(fields["path"], fields["size"], fields["rows"], tuple(fields["values"]))
