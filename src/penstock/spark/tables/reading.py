"""`read_table`: the rows of a table's committed blocks, in the columns that were written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession

from penstock.errors import InvalidInput
from penstock.spark.pipeline.map_in_arrow import map_in_arrow
from penstock.spark.tables.columns import merged_columns, quoted
from penstock.spark.tables.commits import BlockCommit
from penstock.spark.tables.file_table import FileTable
from penstock.spark.tables.object_files import FILE_BYTES, StoredFile, reading
from penstock.spark.tables.object_table import ObjectTable, arrow_columns
from penstock.spark.tables.places import FilePlace, find_place
from penstock.storage import ObjectStore


def read_table(spark: SparkSession, url: str, options: Mapping[str, str] | None = None) -> DataFrame:
    """Read a table that a pipeline writes: its committed blocks, each once.

    The columns are those that were written, with their types, all nullable. A column that came with a later block is
    null in earlier ones. On a file system an empty text in a partition column comes back as null, as from every
    table whose directories are named in Hive's way.

    Raises `InvalidInput` for a place where no table can be, or where no block is yet, and `CorruptData` for a commit
    that cannot be read.
    """
    place = find_place(spark, url, options)
    if isinstance(place, FilePlace):
        return _read_files(spark, place)
    return _read_objects(spark, place)


def _read_files(spark: SparkSession, place: FilePlace) -> DataFrame:
    columns = merged_columns(_in_order(FileTable(place.files, place.root, place.url).commits(), place.url))
    # Spark reads the whole directory: what is in it is committed. It puts partition columns last, and `block` there
    # too. Its paths are patterns unless it is told that they are not.
    reader = spark.read.schema(columns).options(timeZone="UTC", __globPaths__="false")
    return reader.parquet(place.files.spark_path(place.root)).select(*map(quoted, columns.names))


def _read_objects(spark: SparkSession, store: ObjectStore) -> DataFrame:
    table = ObjectTable(store)
    commits = _in_order(table.commits(), table.url)
    columns = merged_columns(commits)
    groups = _grouped(_files_of(commits))
    if not groups:
        return spark.createDataFrame([], columns)
    # A number for each partition; what it stands for travels with the function, where no plan shows it.
    numbers = spark.range(0, len(groups), 1, len(groups))
    return map_in_arrow(numbers, reading(store, groups, arrow_columns(columns)), columns)


def _in_order(commits: Sequence[BlockCommit], url: str) -> list[BlockCommit]:
    if not commits:
        raise InvalidInput(f"there is no block in {url} yet, so nobody knows its columns: read it after the first run")
    return sorted(commits, key=lambda commit: (commit.at, commit.block))


def _files_of(commits: Iterable[BlockCommit]) -> Iterable[StoredFile]:
    for commit in commits:
        for file in commit.files:
            yield StoredFile(file.path, file.size, dict(zip(commit.partition_by, file.values, strict=True)))


def _grouped(files: Iterable[StoredFile]) -> list[list[StoredFile]]:
    groups: list[list[StoredFile]] = []
    size = FILE_BYTES
    for file in files:
        if size + file.size > FILE_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.size
    return groups
