"""The write side of the data source: tasks write data objects, and the driver enqueues a block's in one manifest write.

A task that fails, runs twice or comes too late leaves objects that no manifest names, and the collector deletes those.
So a reader sees nothing of a block before its commit, and after it everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from penstock.buffer import (
    DATA_PATH_PREFIX,
    MANIFEST_PATH,
    BatchFormat,
    BlockAppender,
    BlockName,
    Compression,
    ProducerConfig,
    WrittenObject,
    join_to_size,
)
from penstock.core import as_word, check_whole
from penstock.errors import InvalidInput
from penstock.spark.source.options import size_in_bytes, whole_number
from penstock.spark.source.unknown_options import NO_TABLES, open_place
from penstock.spark.source.write_rows import converter
from penstock.spark.versions import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from penstock.storage import ObjectStore

_TARGET_BATCH_BYTES = 16 << 20
_QUERY_ID = "sql.streaming.queryId"
WRITE_OPTIONS = (
    "path",
    "manifestPath",
    "dataPathPrefix",
    "compression",
    "batchFormat",
    "targetBatchBytes",
    "writer",
    "transaction",
    "checkpointLocation",
)
"""The names of the data source's own."""


@dataclass(frozen=True, slots=True)
class TaskWritten(WriterCommitMessage):
    """What a task sends to the driver: its objects in order, and the query it worked for, if that is a stream."""

    objects: tuple[WrittenObject, ...]
    query_id: str | None


class BufferWriter(DataSourceArrowWriter):
    """Writes a DataFrame into a buffer: `df.write.format("penstock").mode("append").save(url)`.

    At least once: what a crashed driver committed is not known to the next. With the options `writer` and `transaction`
    a block that comes again is not appended again; in a buffer of version 1, not while it is still queued. Raises
    `InvalidInput` for `overwrite`, for an option or a column that it cannot take.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        given = _with_lower_names(options)
        self._name = _pop_block_name(given)
        self._target = BufferTarget.of(given, schema, overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:  # type: ignore[override]  # as Spark has it
        """Write a task's rows as data objects. Raises `InvalidInput` naming a row that is no record."""
        return self._target.write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Enqueue what all tasks wrote, in the order of the tasks, in one manifest write."""
        self._target.append(_written(messages), self._name)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Leave everything as it is.

        Nothing is deleted: Spark aborts after a failed commit too, and the manifest names these objects if only the
        reply to the commit was lost. The collector deletes what no manifest names.
        """


class BufferStreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream into a buffer: `df.writeStream.format("penstock")….start(url)`.

    A block's name is the query id and the batch id, so one that comes again is not appended again; in a buffer of
    version 1, not while it is still queued. After a checkpoint was deleted there is a new query id: its blocks are new.
    Spark creates a new writer for each commit: it keeps nothing. Raises what `BufferWriter` raises.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        given = _with_lower_names(options)
        if given.keys() & {"writer", "transaction"}:
            raise InvalidInput("writer and transaction name a batch write; a stream's are its query id and batch id")
        self._target = BufferTarget.of(given, schema, overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:  # type: ignore[override]  # as Spark has it
        """Write a task's rows as data objects. Raises `InvalidInput` naming a row that is no record."""
        return self._target.write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        """Enqueue what all tasks of a block wrote, in the order of the tasks, in one manifest write."""
        written = _written(messages)
        query = next((message.query_id for message in written if message.query_id), None)
        if query is None and any(message.objects for message in written):
            raise InvalidInput(f"no task of block {batchId} knows its query: {_QUERY_ID} is not set")
        self._target.append(written, None if query is None else BlockName(query, batchId))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        """Leave everything as it is, for the reason that `BufferWriter.abort` gives."""


@dataclass(frozen=True, slots=True)
class BufferTarget:
    """Where rows go, and how. It is checked on the driver, before any task runs."""

    store: ObjectStore = field(repr=False)
    config: ProducerConfig
    schema: StructType
    batch_bytes: int

    @classmethod
    def of(cls, options: dict[str, str], schema: StructType, overwrite: bool) -> BufferTarget:
        """Check where rows go. Raises `InvalidInput` for an option or a column that it cannot take."""
        where = options.pop("path", "")
        if not where:
            raise InvalidInput(
                "the buffer's place is missing: give it to save(...) or start(...), or as option path"
                + ("" if options else f". {NO_TABLES}")
            )
        if overwrite:
            raise InvalidInput("a buffer is append only: use mode('append'), or outputMode('append') for a stream")
        options.pop("checkpointlocation", None)
        config = ProducerConfig(
            manifest_path=options.pop("manifestpath", MANIFEST_PATH),
            data_path_prefix=options.pop("datapathprefix", DATA_PATH_PREFIX),
            compression=options.pop("compression", Compression.NONE),
            format=_batch_format(options.pop("batchformat", None)),
        )
        batch_bytes = size_in_bytes("targetBatchBytes", options.pop("targetbatchbytes", str(_TARGET_BATCH_BYTES)))
        check_whole("targetBatchBytes", batch_bytes, 1, config.max_batch_bytes)
        converter(schema)
        return cls(open_place(where, options, WRITE_OPTIONS), config, schema, batch_bytes)

    def write(self, batches: Iterable[pa.RecordBatch]) -> TaskWritten:
        """Write a task's rows as data objects, which no manifest names yet."""
        context = TaskContext.get()
        appender = BlockAppender(self.store, self.config)
        try:
            objects = [appender.write(batch) for batch in join_to_size(self._records(batches), self.batch_bytes)]
        except InvalidInput as error:
            raise InvalidInput(f"partition {context.partitionId() if context else 0}: {error}") from error
        return TaskWritten(tuple(objects), context.getLocalProperty(_QUERY_ID) if context else None)

    def _records(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        convert = converter(self.schema)
        before = 0
        for batch in batches:
            yield from convert(batch, before)
            before += batch.num_rows

    def append(self, written: Sequence[TaskWritten], name: BlockName | None) -> None:
        """Enqueue what all tasks wrote, in one manifest write."""
        objects = [one for message in written for one in message.objects]
        BlockAppender(self.store, self.config).append(objects, name)


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[TaskWritten]:
    return [message for message in messages if isinstance(message, TaskWritten)]


def _with_lower_names(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items()}


def _batch_format(text: str | None) -> str | None:
    return None if text is None else as_word("batchFormat", BatchFormat, text)


def _pop_block_name(options: dict[str, str]) -> BlockName | None:
    writer, transaction = options.pop("writer", None), options.pop("transaction", None)
    if writer is None and transaction is None:
        return None
    if not writer or transaction is None:
        raise InvalidInput("writer and transaction name a write together: give both, or neither")
    return BlockName(writer, whole_number("transaction", transaction, 0), options.pop("blockend", None))
