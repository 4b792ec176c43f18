"""What a task does: fetch its batches, and hand their rows over in bounded pieces. Runs on the executors."""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from penstock.buffer import BatchDescriptor, decode_object, largest_object, read_object
from penstock.errors import CorruptData, NotFound, PenstockError
from penstock.records import rows_of_size
from penstock.spark.source.options import OnCorruptBatch, ReadOptions
from penstock.spark.source.partitions import BatchRun, Piece
from penstock.storage import ObjectStore, get_at_most, url_of

_CHUNK_BYTES = 8 << 20  # of records that become one batch for Spark
_CHUNK_ROWS = 100_000
_AHEAD = 4  # batches that are fetched before they are needed,
_AHEAD_BYTES = 16 << 20  # as long as they are small


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
    store, schema = options.open(), rows.schema
    for piece, fetched in _fetch_ahead(run.pieces, store):
        yield from (_checked(out, schema) for out in _read_piece(piece, fetched, store, options, rows))
        del fetched  # before the next one is waited for and unpacked


def _read_piece(
    piece: Piece, fetched: Future[bytes], store: ObjectStore, options: ReadOptions, rows: Rows
) -> Iterator[pa.RecordBatch]:
    try:
        batch = decode_object(store, piece.batch, fetched.result())
    except (NotFound, CorruptData) as error:
        if options.on_corrupt_batch is OnCorruptBatch.FAIL:
            raise
        yield from rows.of_broken(BrokenBatch(piece.batch, str(error), _bytes_of(store, piece.batch)))
        return
    start, end = piece.rows(batch.num_rows)
    while start < end:
        count = max(min(rows_of_size(batch.slice(0, end), start, _CHUNK_BYTES), _CHUNK_ROWS), 1)
        chunk = Chunk(batch.slice(start, count), start, piece.batch, url_of(store))
        yield from (out for out in rows.of(chunk) if out.num_rows)
        start += count


def _fetch_ahead(pieces: Sequence[Piece], store: ObjectStore) -> Iterator[tuple[Piece, Future[bytes]]]:
    """Each piece with its object, in order, while the next ones are fetched already.

    As they are stored: what they unpack to is known only then, and held one at a time.
    """
    waiting = deque(pieces)
    under_way: deque[tuple[Piece, Future[bytes]]] = deque()
    with ThreadPoolExecutor(_AHEAD, "penstock-fetch") as pool:
        try:
            while waiting or under_way:
                held = sum(piece.batch.size or 0 for piece, _ in under_way)
                while waiting and len(under_way) <= _AHEAD and (not under_way or held < _AHEAD_BYTES):
                    piece = waiting.popleft()
                    under_way.append((piece, pool.submit(read_object, store, piece.batch)))
                    held += piece.batch.size or 0
                yield under_way.popleft()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


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
