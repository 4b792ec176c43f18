"""Reads the Parquet files that a table's log or its commits list, on executors. No jars are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.errors import CorruptData, NotFound
from penstock.spark.map_in_arrow import BatchFunction, map_in_arrow
from penstock.spark.source.schemas import to_arrow
from penstock.storage import LocalStore, ObjectStore, local_path

MAX_ROWS_PER_BATCH = 65_536

ToScalar: TypeAlias = Callable[[Any, pa.DataType], Any]
"""The value of a partition column as it is listed, as Arrow's scalar of the column's type."""


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file of a table: where it is, and the values of its partition columns as they are listed."""

    path: str
    size: int
    values: Mapping[str, Any]
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class ListedFiles:
    """Reads files in a store. `listed_by` says in errors what lists them, such as "the table's log"."""

    store: ObjectStore
    listed_by: str
    to_scalar: ToScalar = pa.scalar

    def read(
        self, spark: SparkSession, files: Iterable[ListedFile], columns: StructType, group_bytes: int
    ) -> DataFrame:
        """The rows of files in the table's columns; one task reads about `group_bytes`."""
        groups = group_files(files, group_bytes)
        if not groups:
            return spark.createDataFrame([], columns)
        # A number for each partition; the files it stands for travel with the function, where no plan shows them.
        numbers = spark.range(0, len(groups), 1, len(groups))
        return map_in_arrow(numbers, self._reading(groups, to_arrow(columns)), columns)

    def rows_of(self, path: str, size: int) -> Iterator[pa.RecordBatch]:
        """The rows of a file. Raises `CorruptData` if it is gone, or is not as it is listed."""
        try:
            yield from self.rows_if_there(path, size)
        except NotFound as error:
            raise CorruptData(str(error)) from error

    def rows_if_there(self, path: str, size: int) -> Iterator[pa.RecordBatch]:
        """As `rows_of`, but raises `NotFound` if the file is gone: for a caller that looks again at what is listed."""
        place = f"{path} in {self.store.url}"
        try:
            if isinstance(self.store, LocalStore):
                # Not through the store, which reads files whole: those of other writers may be large.
                source: Any = pa.memory_map(f"{local_path(self.store.url)}/{path}")
            else:
                source = pa.BufferReader(self.store.get(path).data)
        except (NotFound, FileNotFoundError) as error:
            raise NotFound(
                f"{place} is gone, and {self.listed_by} lists it: it was removed by a vacuum that began later, so read "
                "again, or by another program"
            ) from error
        if source.size() != size:
            raise CorruptData(f"{place} has {source.size()} bytes, and {self.listed_by} says {size}")
        try:
            file = pq.ParquetFile(source, coerce_int96_timestamp_unit="us")
            yield from file.iter_batches(MAX_ROWS_PER_BATCH, use_threads=False)
        except pa.ArrowException as error:
            raise CorruptData(f"{place} cannot be read: {error}") from error

    def _reading(self, groups: Sequence[Sequence[ListedFile]], columns: pa.Schema) -> BatchFunction:
        """A task: numbers of groups to the rows of their files."""

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                numbers: list[Any] = batch.column(0).to_pylist()
                for file in chain.from_iterable(groups[number] for number in numbers):
                    for rows in self.rows_of(file.path, file.size):
                        yield fitted(rows, file.values, columns, self.to_scalar)

        return read


def group_files(files: Iterable[ListedFile], group_bytes: int) -> list[list[ListedFile]]:
    """Neighbouring files in groups of at most so many bytes; a larger file is a group of its own."""
    groups: list[list[ListedFile]] = []
    size = group_bytes
    for file in files:
        if size + file.size > group_bytes:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.size
    return groups


def fitted(
    rows: pa.RecordBatch, values: Mapping[str, Any], columns: pa.Schema, to_scalar: ToScalar = pa.scalar
) -> pa.RecordBatch:
    """Rows of a file in the table's columns: partition columns by their values, and null for what came later."""

    def column(wanted: pa.Field[Any]) -> Any:
        if wanted.name in values:
            return pa.repeat(to_scalar(values[wanted.name], wanted.type), rows.num_rows)
        if wanted.name in rows.schema.names:
            return rows.column(wanted.name).cast(wanted.type)
        return pa.nulls(rows.num_rows, wanted.type)

    return pa.RecordBatch.from_arrays([column(wanted) for wanted in columns], schema=columns)
