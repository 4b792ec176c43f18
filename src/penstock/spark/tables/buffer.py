"""Another buffer as a sink: tasks write data objects, and the driver enqueues a block's in one manifest write.

The manifest keeps the writer and the transaction that a block is: its query, and where it begins. It does not keep
where the block ended, so a block that comes again must be the same: the pipeline writes its plan down.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import StructType

from penstock.buffer import BlockAppender, BlockName, WrittenObject, join_to_size
from penstock.records import size_of
from penstock.spark.source.schemas import RECORD_FIELDS, to_arrow
from penstock.spark.source.write_rows import converter
from penstock.spark.source.writing import BufferTarget
from penstock.spark.tables.contract import BlockId, FileSink, FileWriter, Position


class BufferSink(FileSink):
    """A buffer that rows are appended to, as the data source's writer does."""

    keeps_position = False
    unparsed = StructType(list(RECORD_FIELDS))  # as records, and not as JSON of every column

    def __init__(self, _spark: object, url: str, options: Mapping[str, str]) -> None:
        self._options = {**{name.lower(): value for name, value in options.items()}, "path": url}
        self._target: BufferTarget | None = None

    def position(self, _query: str) -> Position | None:
        """Not known."""
        return None

    def has(self, _block: BlockId) -> bool:
        """Not known before the manifest is written."""
        return False

    def check(self, schema: StructType) -> None:
        """Raise `InvalidInput` for columns that have no form in JSON, and for options that cannot be right."""
        self._target_of(schema)

    def writer(self, columns: StructType, _block: BlockId) -> FileWriter:
        """What writes data objects, which no consumer sees until they are enqueued."""
        return _ObjectWriter(self._target_of(columns))

    def staged(self, block: BlockId, files: Sequence[bytes]) -> _StagedObjects:
        """A block of data objects that tasks have written."""
        assert self._target is not None  # noqa: S101  its writer was made
        objects = [pickle.loads(file) for file in files]  # noqa: S301  our own tasks made them
        return _StagedObjects(self._target, block, objects)

    def _target_of(self, schema: StructType) -> BufferTarget:
        if self._target is None or self._target.schema != schema:
            self._target = BufferTarget.of(dict(self._options), schema, overwrite=False)
        return self._target


@dataclass(frozen=True, slots=True)
class _ObjectWriter:
    target: BufferTarget

    @property
    def schema(self) -> pa.Schema:
        return to_arrow(self.target.schema)

    def open(self, _task: int) -> _OpenObjects:
        return _OpenObjects(self.target)


class _OpenObjects:
    """Records that wait until they fill an object, and the objects that are written."""

    def __init__(self, target: BufferTarget) -> None:
        self._target = target
        self._appender = BlockAppender(target.store, target.config)
        self._convert = converter(target.schema)
        self._rows = self._held_bytes = 0
        self._held: list[pa.RecordBatch] = []
        self._written: list[WrittenObject] = []

    def add(self, rows: pa.RecordBatch) -> None:
        for records in self._convert(rows, self._rows):
            self._held.append(records)
            self._held_bytes += size_of(records)
            if self._held_bytes >= self._target.batch_bytes:
                self._write_held()
        self._rows += rows.num_rows

    def close(self) -> list[bytes]:
        self._write_held()
        return [pickle.dumps(written) for written in self._written]

    def abort(self) -> None:
        """Leave the objects: no manifest names them, and the collector deletes them."""

    def _write_held(self) -> None:
        self._written += map(self._appender.write, join_to_size(self._held, self._target.batch_bytes))
        self._held, self._held_bytes = [], 0


@dataclass(frozen=True, slots=True)
class _StagedObjects:
    target: BufferTarget
    block: BlockId
    objects: Sequence[WrittenObject]

    @property
    def rows(self) -> int:
        return sum(written.records for written in self.objects)

    def commit(self) -> bool:
        """Enqueue the objects. A block that is there already is the same block: it counts as committed."""
        name = BlockName(self.block.query, self.block.begins, self.block.end_text)
        BlockAppender(self.target.store, self.target.config).append(self.objects, name)
        return True

    def discard(self) -> None:
        """Leave the objects: no manifest names them, and the collector deletes them."""
