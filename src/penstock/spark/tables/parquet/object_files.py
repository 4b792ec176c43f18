"""The Parquet files of a table in an object store, as executors write and read them. No Hadoop jars are needed."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from io import BytesIO
from itertools import chain
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import TaskContext

from penstock.errors import CorruptData, NotFound
from penstock.spark.map_in_arrow import BatchFunction
from penstock.spark.tables.parquet.commits import BlockFile
from penstock.storage import ObjectStore

TARGET_FILE_BYTES = 64 << 20
_TARGET_ROW_GROUP_BYTES = 16 << 20
_MAX_ROWS_PER_BATCH = 65_536

DESCRIBED = "path string, size bigint, rows bigint, values array<string>"
"""The columns in which a task describes the files it wrote: those of `BlockFile`."""
_FIELDS: list[pa.Field[Any]] = [
    pa.field("path", pa.string()),
    pa.field("size", pa.int64()),
    pa.field("rows", pa.int64()),
    pa.field("values", pa.list_(pa.string())),
]

# What Hive and Spark escape in the name of a partition's directory, and what our stores refuse in a path.
_ESCAPED = re.compile("[\\x00-\\x1f\\x7f\"#%'*/:=?\\\\{\\[\\]^\ufffe\uffff]")
_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A committed file: where it is, and the values of its partition columns as text."""

    path: str
    size: int
    values: dict[str, str | None]


def writing(
    store: ObjectStore, top: str, attempt: str, columns: pa.Schema, partition_by: Sequence[str], file_bytes: int
) -> BatchFunction:
    """A task: rows to Parquet files below `top`, each of one partition. Gives a row for each file it wrote.

    Rows come sorted by partition, so that one file is open at a time: it holds `file_bytes` at most, and a row group
    more.
    """

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        task = context.partitionId() if context else 0
        current: _OpenFile | None = None
        for batch in batches:
            for values, rows in split(batch.cast(columns), partition_by):
                if current and (current.values != values or current.size >= file_bytes):
                    yield _described(current.close(store))
                    current = None
                if current is None:
                    # The attempt is in the name, so that its files can be found; the rest is this try of the task.
                    name = f"part-{task:05d}-{attempt}-{uuid.uuid4().hex}.parquet"
                    path = "/".join([top, *map(_directory, partition_by, values), name])
                    current = _OpenFile(path, values, rows.schema)
                current.add(rows)
        if current:
            yield _described(current.close(store))

    return write


def reading(store: ObjectStore, groups: Sequence[Sequence[StoredFile]], columns: pa.Schema) -> BatchFunction:
    """A task: numbers of groups to the rows of their files, in the given columns."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            numbers: list[Any] = batch.column(0).to_pylist()
            for file in chain.from_iterable(groups[number] for number in numbers):
                for rows in _rows_of(store, file):
                    yield _fitted(rows, file.values, columns)

    return read


def group_files(files: Iterable[StoredFile], group_bytes: int) -> list[list[StoredFile]]:
    """Neighbouring files in groups of at most so many bytes; a larger file is a group of its own."""
    groups: list[list[StoredFile]] = []
    size = group_bytes
    for file in files:
        if size + file.size > group_bytes:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.size
    return groups


def split(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
    """Runs of rows with the same values in some columns: those values as text, and the rest of the rows.

    >>> batch = pa.RecordBatch.from_pydict({"id": [1, 2, 3], "event": ["a", "a", None]})
    >>> [(values, rows.to_pydict()) for values, rows in split(batch, ["event"])]
    [(('a',), {'id': [1, 2]}), ((None,), {'id': [3]})]
    """
    if batch.num_rows == 0:
        return
    if not columns:
        yield (), batch
        return
    keys = [batch.column(name) for name in columns]
    changes: list[Any] = pc.indices_nonzero(reduce(pc.or_, map(_changes, keys))).to_pylist()
    starts = [0, *(before + 1 for before in changes)]
    texts = [key.take(pa.array(starts)).cast(pa.string()).to_pylist() for key in keys]
    rest = batch.drop_columns(list(columns))
    for values, start, end in zip(zip(*texts, strict=True), starts, [*starts[1:], batch.num_rows], strict=True):
        yield values, rest.slice(start, end - start)


class _OpenFile:
    """A Parquet file that is being written, in memory."""

    def __init__(self, path: str, values: tuple[str | None, ...], schema: pa.Schema) -> None:
        self.values = values
        self._path = path
        self._content = BytesIO()
        self._writer = pq.ParquetWriter(self._content, schema, compression="zstd")
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._rows = 0

    @property
    def size(self) -> int:
        return self._content.tell()

    def add(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        self._rows += rows.num_rows
        if self._waiting_bytes >= _TARGET_ROW_GROUP_BYTES:
            self._write_row_group()

    def close(self, store: ObjectStore) -> BlockFile:
        if self._waiting:
            self._write_row_group()
        self._writer.close()
        store.put(self._path, self._content.getbuffer())
        return BlockFile(self._path, self.size, self._rows, self.values)

    def _write_row_group(self) -> None:
        self._writer.write_table(pa.Table.from_batches(self._waiting))
        self._waiting, self._waiting_bytes = [], 0


def _changes(column: pa.Array[Any]) -> pa.Array[Any]:
    """For each row but the last, whether the next one has another value; null is one."""
    one, next_one = column.slice(0, len(column) - 1), column.slice(1)
    return pc.coalesce(pc.not_equal(one, next_one), pc.xor(pc.is_null(one), pc.is_null(next_one)))


def _directory(name: str, value: str | None) -> str:
    return f"{_escaped(name)}={_escaped(value) if value else _NULL}"


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: quote(found[0], safe=""), text)


def _described(file: BlockFile) -> pa.RecordBatch:
    rows = [{"path": file.path, "size": file.size, "rows": file.rows, "values": list(file.values)}]
    return pa.RecordBatch.from_pylist(rows, schema=pa.schema(_FIELDS))


def _rows_of(store: ObjectStore, file: StoredFile) -> Iterator[pa.RecordBatch]:
    place = f"{file.path} in {store.url}"
    try:
        data = store.get(file.path).data
    except NotFound as error:
        raise CorruptData(f"{place} is gone, and a committed block of the table lists it") from error
    if len(data) != file.size:
        raise CorruptData(f"{place} has {len(data)} bytes, and the commit of its block says {file.size}")
    try:
        yield from pq.ParquetFile(pa.BufferReader(data)).iter_batches(_MAX_ROWS_PER_BATCH, use_threads=False)
    except pa.ArrowException as error:
        raise CorruptData(f"{place} cannot be read: {error}") from error


def _fitted(rows: pa.RecordBatch, values: dict[str, str | None], columns: pa.Schema) -> pa.RecordBatch:
    def column(field: pa.Field[Any]) -> Any:
        if field.name in rows.schema.names:
            return rows.column(field.name).cast(field.type)
        text = values.get(field.name)
        if text is None:
            return pa.nulls(rows.num_rows, field.type)
        value: Any = pa.array([text], pa.string()).cast(field.type)[0]
        return pa.repeat(value, rows.num_rows)

    return pa.RecordBatch.from_arrays([column(field) for field in columns], schema=columns)
