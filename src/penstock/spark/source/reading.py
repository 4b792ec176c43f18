"""What a task does: fetch its batches, and hand their rows over in bounded pieces. Runs on the executors."""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import pyarrow as pa

from penstock.buffer import BatchDescriptor, decode_object, largest_object, read_object
from penstock.engine import FetchAhead
from penstock.errors import CorruptData, NotFound, PenstockError
from penstock.records import rows_of_size
from penstock.spark.source.options import OnCorruptBatch, ReadOptions
from penstock.spark.source.partitions import BatchRun, Piece
from penstock.storage import ObjectStore, get_at_most, url_of

_CHUNK_BYTES = 8 << 20  # of records that become one batch for Spark
_CHUNK_ROWS = 100_000
_MAX_FETCHES = 4  # under way at a time
_MAX_BYTES_AHEAD = 32 << 20  # of objects that were fetched before they are needed


@dataclass(frozen=True, slots=True)
class Chunk:
    """Neighbouring records of one batch: their columns, where they begin, and what the manifest says of the batch."""

    records: pa.RecordBatch
    first: int
    batch: BatchDescriptor
    where: str

    def __str__(self) -> str:
        last = self.first + self.records.num_rows - 1
        return (
            f"records {self.first} to {last} of sequence {self.batch.sequence} ({self.batch.location}) in {self.where}"
        )


@dataclass(frozen=True, slots=True)
class BrokenBatch:
    """A batch that cannot be read: why, and the bytes of its object, if there is one."""

    batch: BatchDescriptor
    reason: str
    data: bytes | None


class Rows(Protocol):
    """What becomes of records. It travels to the executors."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of every batch it makes."""
        ...

    def of(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """The rows of some records."""
        ...

    def of_broken(self, broken: BrokenBatch) -> Iterator[pa.RecordBatch]:
        """The rows that stand for a batch that cannot be read."""
        ...


def read_run(run: BatchRun, options: ReadOptions, rows: Rows) -> Iterator[pa.RecordBatch]:
    """The rows of a partition, in batches that Spark takes as they are.

    Raises `NotFound` or `CorruptData`, naming sequence and location, for a batch that cannot be read, unless those are
    set aside; and whatever `rows` raises.
    """
    _ignore_interrupts()
    store, schema = options.store, rows.schema
    waiting = deque(run.pieces)
    # As they are stored: what they unpack to is known only then, and held one at a time.
    fetching = FetchAhead[Piece, bytes](lambda piece: read_object(store, piece.batch), _MAX_FETCHES, size_of=len)
    with closing(fetching) as ahead:
        while waiting or len(ahead):
            while waiting and (not len(ahead) or _may_start(ahead, waiting[0])):
                ahead.start(piece := waiting.popleft(), expected_size=piece.batch.size or 0)
            fetch = ahead.first()
            assert fetch is not None  # noqa: S101  at least one was started
            try:
                batch = decode_object(store, fetch.item.batch, fetch.result())
                results = map(rows.of, _chunks(fetch.item, batch, url_of(store)))
                del batch  # its last chunk is the last to refer to it
            except (NotFound, CorruptData) as error:
                if options.on_corrupt_batch is OnCorruptBatch.FAIL:
                    raise
                broken = BrokenBatch(fetch.item.batch, str(error), _bytes_of(store, fetch.item.batch))
                results = map(rows.of_broken, (broken,))
            yield from (_checked(out, schema) for out in chain.from_iterable(results) if out.num_rows)
            ahead.remove_first()
            fetch.release()  # before the next one is waited for and unpacked


def _may_start(ahead: FetchAhead[Piece, bytes], piece: Piece) -> bool:
    return ahead.can_start(_MAX_BYTES_AHEAD, max_under_way=_MAX_FETCHES, expected_size=piece.batch.size or 0)


def _chunks(piece: Piece, batch: pa.RecordBatch, where: str) -> Iterator[Chunk]:
    """The records of a piece of a batch, a bounded number at a time."""
    start, end = piece.rows(batch.num_rows)
    while start < end:
        count = max(min(rows_of_size(batch.slice(0, end), start, _CHUNK_BYTES), _CHUNK_ROWS), 1)
        yield Chunk(batch.slice(start, count), start, piece.batch, where)
        start += count


def _checked(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    # Spark looks at the first batch alone, and reads the memory of the others as if they were like it.
    if not batch.schema.equals(schema):
        raise PenstockError(f"a batch for Spark has the columns {batch.schema}, and not {schema}: this is a bug")
    return batch


def _bytes_of(store: ObjectStore, batch: BatchDescriptor) -> bytes | None:
    try:
        return get_at_most(store, batch.location, largest_object(batch)).data
    except PenstockError:
        return None


def _ignore_interrupts() -> None:
    # At a terminal, Ctrl-C goes to every process of the group. The driver's finishes the block in hand, and for that
    # its workers have to live.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
