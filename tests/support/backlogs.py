"""A buffer that a test fills, reads with the data source, and looks at."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql.types import StructType

from penstock import BatchDescriptor, ProducerConfig, Record, open_store, peek
from penstock.buffer import Manifest
from penstock.buffer.producer.block_appender import BlockAppender
from penstock.errors import PenstockError
from penstock.records import records_to_arrow
from penstock.spark.source.batch_reader import BufferReader
from penstock.spark.source.data_source import PenstockDataSource
from penstock.spark.source.schemas import UNPARSED
from penstock.spark.source.stream_reader import BufferStreamReader
from penstock.spark.versions import InputPartition, ReadAllAvailable, ReadLimit
from penstock.storage import ObjectStore

Entry = bytes | Record
ALL = ReadAllAvailable()

_numbers = itertools.count()
_backlogs: dict[BufferStreamReader, Backlog] = {}


class AdmittingSource(PenstockDataSource):
    """A source whose stream reader admits blocks, on every Spark."""

    has_admission = True


@dataclass(frozen=True)
class Backlog:
    """A buffer, and how to reach it."""

    url: str
    options: dict[str, str] = field(default_factory=dict)

    @property
    def store(self) -> ObjectStore:
        return open_store(self.url, **self.options)

    def put(self, *batches: Sequence[Entry]) -> None:
        """Append batches, each with an object of its own."""
        appender = BlockAppender(self.store, ProducerConfig(format="arrow"))
        appender.append([appender.write(records_to_arrow(list(batch))) for batch in batches])

    def put_numbers(self, start: int, stop: int) -> None:
        """Append a batch for each number, which is its one payload."""
        self.put(*([b"%d" % number] for number in range(start, stop)))

    def entries(self) -> tuple[BatchDescriptor, ...]:
        return Manifest.read(self.store).entries

    def sequences(self) -> list[int]:
        """What is not acked."""
        return [entry.sequence for entry in self.entries()]

    def epoch(self) -> int:
        return Manifest.read(self.store).epoch

    def sizes(self) -> list[int]:
        """How large each object is."""
        return [self.store.head(entry.location).size for entry in self.entries()]

    def source(self, kind: type[PenstockDataSource] = PenstockDataSource, **options: object) -> PenstockDataSource:
        given = {name: str(value) for name, value in options.items()}
        return kind({"path": self.url, **self.options, **given})

    def reader(self, schema: StructType = UNPARSED, **options: object) -> BufferReader:
        """What Spark makes for a batch read."""
        reader = self.source(PenstockDataSource, **options).reader(schema)
        assert isinstance(reader, BufferReader)
        return reader

    def stream_reader(self, schema: StructType = UNPARSED, **options: object) -> BufferStreamReader:
        """What Spark 4.2 and later make for a stream read; an earlier one can call it too."""
        reader = self.source(AdmittingSource, **options).streamReader(schema)
        assert isinstance(reader, BufferStreamReader)
        _backlogs[reader] = self
        return reader

    def records(self) -> list[Record]:
        """All that is queued."""
        return peek(self.store, 10_000)

    def values(self) -> list[bytes]:
        """The payloads of all that is queued."""
        return [record.value for record in self.records()]

    def save(self, frame: Any, **options: object) -> None:
        """Append a DataFrame."""
        frame.write.format("penstock").mode("append").options(**self.options, **options).save(self.url)

    def start(self, frame: Any, checkpoint: Path, **options: object) -> Any:
        """Start a query that appends a stream."""
        writing = frame.writeStream.format("penstock").options(**self.options, **options)
        return writing.option("checkpointLocation", checkpoint.as_uri()).trigger(availableNow=True).start(self.url)

    def frame(self, session: Any, schema: str | None = None, **options: object) -> Any:
        """The backlog as a DataFrame."""
        reading = session.read.format("penstock").options(**self.options, **options)
        return (reading if schema is None else reading.schema(schema)).load(self.url)

    def stream(self, session: Any, schema: str | None = None, **options: object) -> Any:
        """The buffer as a stream."""
        reading = session.readStream.format("penstock").options(**self.options, **options)
        return (reading if schema is None else reading.schema(schema)).load(self.url)


def stop_readers() -> None:
    """Stop every reader that a test opened: each may have a collector, which would go on beside the tests after it."""
    while _backlogs:
        reader, _ = _backlogs.popitem()
        with suppress(PenstockError):  # of a store that fails on purpose
            reader.stop()


def in_memory(*batches: Sequence[Entry]) -> Backlog:
    """A buffer in this process, for the many of a property."""
    backlog = Backlog(f"memory://backlog-{next(_numbers)}")
    backlog.put(*batches)
    return backlog


def backlog_rows(reader: BufferReader) -> list[dict[str, Any]]:
    """What a batch read gives, task by task."""
    return [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]


def block_rows(reader: BufferStreamReader, start: int, end: int) -> list[dict[str, Any]]:
    """What a block gives, task by task."""
    tasks = parts(reader, start, end)
    return [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]


def parts(reader: BufferStreamReader, start: int, end: int) -> Sequence[InputPartition]:
    """The partitions of a block."""
    return reader.partitions(at(reader, start), at(reader, end))


def numbers(rows: Iterable[Any]) -> list[int]:
    """The payloads of `put_numbers` in rows."""
    return [int(row["value"]) for row in rows]


def at(reader: BufferStreamReader, sequence: int) -> dict[str, Any]:
    """An offset, as the reader of this buffer gives one."""
    backlog = _backlogs.get(reader)
    found = None if backlog is None else Manifest.read(backlog.store).id
    # Without asking the reader where that is possible: what it is asked first takes the epoch.
    return {"buffer": reader.initialOffset()["buffer"] if found is None else str(found), "sequence": sequence}


def plan(reader: BufferStreamReader, start: int, limit: ReadLimit = ALL) -> int:
    """Ask for the next block, as Spark does when the blocks before it are in its commit log."""
    return int(reader.latestOffset(at(reader, start), limit)["sequence"])


def blocks_of(reader: BufferStreamReader, limit: ReadLimit = ALL) -> list[range]:
    """Run all blocks to the end of the queue."""
    start = reader.initialOffset()["sequence"]
    blocks: list[range] = []
    while (end := plan(reader, start, limit)) > start:
        blocks.append(range(start, end))
        start = end
    return blocks
