"""A table as a DataFrame, without JVM jars: pyiceberg plans the files, and tasks read them with Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.table import FileScanTask, Table
from pyspark.sql import DataFrame, SparkSession

from penstock.spark.map_in_arrow import map_in_arrow
from penstock.spark.source.schemas import to_arrow
from penstock.spark.tables.iceberg.columns import spark_columns
from penstock.spark.tables.iceberg.files import Layout, read_file

_SPLIT_BYTES = 128 << 20


def read_table(spark: SparkSession, table: Table) -> DataFrame:
    """The rows of a table's current snapshot. All of them are of that one, however long the reading takes."""
    columns = spark_columns(table.schema())
    groups = _grouped(list(table.scan().plan_files()))
    if not groups:
        return spark.createDataFrame([], columns)
    read = _ReadFiles(Layout.of(table), groups, to_arrow(columns))
    return map_in_arrow(spark.range(0, len(groups), 1, len(groups)), read, columns)


def _grouped(tasks: Sequence[FileScanTask]) -> list[list[tuple[FileScanTask, int]]]:
    """Files for each task of Spark: a few large ones, or many small ones."""
    groups: list[list[tuple[FileScanTask, int]]] = []
    size = _SPLIT_BYTES
    for task in tasks:
        if size + task.file.file_size_in_bytes > _SPLIT_BYTES:
            groups.append([])
            size = 0
        groups[-1].append((task, task.file.spec_id))
        size += task.file.file_size_in_bytes
    return groups


@dataclass(frozen=True, slots=True)
class _ReadFiles:
    """Reads a group of files for each number that it gets."""

    layout: Layout
    groups: list[list[tuple[FileScanTask, int]]]
    """Files, each with the id of its partitioning, which does not go through pickle with the file."""
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for numbers in batches:
            for number in numbers.column(0):
                for task, spec_id in self.groups[int(number.as_py())]:
                    task.file.spec_id = spec_id
                    for rows in read_file(self.layout, task):
                        yield rows.cast(self.schema)
