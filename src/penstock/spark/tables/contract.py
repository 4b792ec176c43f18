"""The tables that a pipeline writes its blocks into, each exactly once.

A table is a directory on a file system (`file_table`), or a prefix in an object store (`object_table`). Either way a
block is staged first, where `read_table` does not see it, and one step makes it visible: see `docs/design/spark.md`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import SparkSession

from penstock.spark.tables.blocks import BlockId, BlockTable, StagedBlock
from penstock.spark.tables.columns import check_partition_by
from penstock.spark.tables.file_table import FileTable
from penstock.spark.tables.object_table import ObjectTable
from penstock.spark.tables.places import FilePlace, find_place
from penstock.spark.tables.reading import read_table

__all__ = ["BlockId", "BlockTable", "StagedBlock", "open_table", "read_table"]


def open_table(
    spark: SparkSession, url: str, *, partition_by: Sequence[str] = (), options: Mapping[str, str] | None = None
) -> BlockTable:
    """Open the table at a path or URL, to write blocks into it. It need not be there yet.

    A path, `file:///dir`, and any file system that Hadoop knows and that is no object store (`hdfs://`) hold
    directories with Spark's own Parquet files. `s3://`, `gs://` and `az://` are reached with `open_store`, which
    `options` are for. `partition_by` names columns whose values become directories.

    Raises `InvalidInput` for a place, an option or a `partition_by` that cannot be right.
    """
    columns = check_partition_by(partition_by)
    place = find_place(spark, url, options)
    if isinstance(place, FilePlace):
        return FileTable(place.files, place.root, place.url, columns)
    return ObjectTable(place, columns)
