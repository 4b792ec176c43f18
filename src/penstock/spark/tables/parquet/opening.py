"""Open the table at a URL: on a file system (`file_table`) or in an object store (`object_table`)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from pyspark.sql import DataFrame, SparkSession

from penstock.errors import InvalidInput
from penstock.spark.tables.parquet.columns import check_partition_by
from penstock.spark.tables.parquet.file_table import FileTable
from penstock.spark.tables.parquet.hadoop_files import HadoopFiles
from penstock.spark.tables.parquet.local_files import LocalFiles
from penstock.spark.tables.parquet.object_table import ObjectTable
from penstock.spark.tables.parquet.table import ParquetTable
from penstock.storage import local_path, open_store, redact

_OBJECT_STORES = ("s3", "gs", "az")
# Hadoop's names of object stores, and ours. None of them renames a directory in one step.
_OTHER_NAMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"} | dict.fromkeys(
    ("abfs", "abfss", "wasb", "wasbs", "azure"), "az"
)


def open_table(
    spark: SparkSession, url: str, *, partition_by: Sequence[str] = (), options: Mapping[str, str] | None = None
) -> ParquetTable:
    """Open the table at a path or URL. It need not be there yet.

    A path, `file:///dir`, and any file system that Hadoop knows and that is no object store (`hdfs://`) hold
    directories with Spark's own Parquet files. `s3://`, `gs://` and `az://` are reached with `open_store`, which
    `options` are for. `partition_by` names columns whose values become directories.

    Raises `InvalidInput` for a place, an option or a `partition_by` that cannot be right.
    """
    columns = check_partition_by(partition_by)
    url = _as_text(url)
    scheme, separator, _ = url.partition("://")
    if separator and scheme in _OTHER_NAMES:
        raise InvalidInput(f"write {_OTHER_NAMES[scheme]}:// for {scheme}://: Penstock reaches object stores by itself")
    if separator and scheme == "memory":
        raise InvalidInput("memory:// lives in one process, and a table is written by many: give a path or another URL")
    if separator and scheme in _OBJECT_STORES:
        return ObjectTable(open_store(url, **(options or {})), columns)
    if options:
        raise InvalidInput(f"options ({', '.join(sorted(options))}) go with an object store, not with a file system")
    if separator and scheme != "file":
        root = url.rstrip("/")
        return FileTable(HadoopFiles(spark, root), root, redact(root), columns)
    path = local_path(url)
    return FileTable(LocalFiles(), _local_root(path), "file://" + quote(path, errors="surrogateescape"), columns)


def read_table(spark: SparkSession, url: str, options: Mapping[str, str] | None = None) -> DataFrame:
    """Read a table that a pipeline writes: its committed blocks, each once.

    The columns are those that were written, with their types, all nullable. A column that came with a later block is
    null in earlier ones. On a file system an empty text in a partition column comes back as null, as from every
    table whose directories are named as Hive's are.

    Raises `InvalidInput` for a place where no table can be, or where no block is yet, and `CorruptData` for a commit
    that cannot be read.
    """
    return open_table(spark, url, options=options).read(spark)


def _as_text(url: object) -> str:
    text = os.fspath(url) if isinstance(url, os.PathLike) else url
    if not isinstance(text, str) or not text:
        raise InvalidInput(f"a table's place is a path or a URL, not {text!r}")
    return text


def _local_root(path: str) -> str:
    # Links are followed: the directory beside a link may be on another disk, and no rename leads from there.
    root = os.path.realpath(path)
    if os.path.ismount(root):
        raise InvalidInput(
            f"{path} is where a disk is mounted, and a table needs a place beside it: use a directory below"
        )
    if os.path.exists(root) and not os.path.isdir(root):
        raise InvalidInput(f"{path} is a file, and a table is a directory")
    return root
