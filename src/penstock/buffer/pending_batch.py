"""A batch while a producer has it: entries and metadata come in, an encoded data batch comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

import pyarrow as pa

from penstock.buffer.batch import BatchFormat, Compression, check_values_only, encode
from penstock.buffer.descriptors import Metadata, NewEntry
from penstock.buffer.write_handle import Outcome
from penstock.errors import CorruptData, InvalidInput
from penstock.records import (
    RECORD_SCHEMA,
    Entry,
    Record,
    bytes_of,
    check_no_nulls,
    check_record_columns,
    join_records,
    records_to_arrow,
    size_of,
    values_to_arrow,
)

Entries: TypeAlias = "bytes | str | Record | Sequence[bytes | str | Record] | pa.RecordBatch"


@dataclass(frozen=True, slots=True)
class Taken:
    """What one call of `produce` brought: an entry on its own, or many in columns."""

    piece: Entry | pa.RecordBatch
    count: int
    size: int


def take(entries: object, shape: BatchFormat) -> Taken:
    """Check what was given to `produce`. Raises `InvalidInput` for what is no entry, or none at all."""
    if isinstance(entries, str | bytes | bytearray | memoryview | Record):
        entry = _as_entry(entries)
        if isinstance(entry, Record) and shape is BatchFormat.OPENDATA:
            check_values_only(records_to_arrow([entry]).schema)
        return Taken(entry, 1, _size(entry))
    if isinstance(entries, pa.RecordBatch):
        return _take_columns(entries, shape)
    if isinstance(entries, dict) or not hasattr(entries, "__iter__"):
        raise InvalidInput(
            f"entries must be bytes, str, Records or a list of them, not {type(entries).__name__}; "
            "produce_json takes objects"
        )
    listed = entries if isinstance(entries, list) else list(entries)
    if not listed:
        raise _nothing()
    if set(map(type, listed)) == {bytes}:
        batch = values_to_arrow(listed)
        return Taken(batch, len(listed), bytes_of(batch.column("value")))
    checked = [_as_entry(entry) for entry in listed]
    batch = records_to_arrow(checked)
    if shape is BatchFormat.OPENDATA:
        check_values_only(batch.schema)
    return Taken(batch, len(checked), sum(map(_size, checked)))


def _take_columns(batch: pa.RecordBatch, shape: BatchFormat) -> Taken:
    if not batch.num_rows:
        raise _nothing()
    try:
        check_record_columns(batch.schema)
        check_no_nulls(batch)
    except CorruptData as error:
        raise InvalidInput(f"a record batch must have the columns of records: {error}") from error
    if shape is BatchFormat.OPENDATA:
        check_values_only(batch.schema)
    fields = [field for field in RECORD_SCHEMA if field.name in batch.schema.names]
    columns = [batch.column(field.name) for field in fields]
    ordered = pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
    return Taken(ordered, batch.num_rows, size_of(ordered))


def _nothing() -> InvalidInput:
    return InvalidInput("entries must not be empty: there is nothing to produce")


class Stage(Enum):
    """How far a batch has come."""

    TAKING = auto()
    SEALED = auto()
    WRITTEN = auto()
    FINISHED = auto()


class PendingBatch:
    """A batch on its way. Its producer's lock guards it while it takes entries; after that one thread has it."""

    __slots__ = (
        "_pieces",
        "bytes",
        "calls",
        "count",
        "data",
        "deadline",
        "due",
        "encoded_sizes",
        "location",
        "metadata",
        "outcome",
        "spare_bytes",
        "spare_calls",
        "stage",
        "started",
        "tail",
    )

    def __init__(self, due: float) -> None:
        self.due = due
        self.calls = 0
        self.count = 0
        self.bytes = 0
        self.metadata: list[Metadata] = []
        self.outcome = Outcome()
        self.stage = Stage.TAKING
        self.location = ""
        self.data: bytes | memoryview = (
            b""  # as it was stored, until it is enqueued: it may have to be stored again under another name
        )
        self.deadline = 0.0
        self.started = 0.0
        self.encoded_sizes = (0, 0)
        self.spare_calls = self.spare_bytes = 0  # what it takes without anybody looking; see Producer.produce
        self.tail: list[Entry] = []  # entries that came one by one since the last columns
        self._pieces: list[list[Entry] | pa.RecordBatch] = [self.tail]

    def add(self, piece: Entry | pa.RecordBatch, count: int, size: int, ingestion_time_ms: int, payload: bytes) -> None:
        """Add what one call brought."""
        self.note(ingestion_time_ms, payload)
        if isinstance(piece, pa.RecordBatch):
            self.tail = []
            self._pieces += [piece, self.tail]
        else:
            self.tail.append(piece)
        self.calls += 1
        self.count += count
        self.bytes += size

    def note(self, ingestion_time_ms: int, payload: bytes) -> None:
        """Note what was said about the entries that come now. Neighbours with the same share one metadata item."""
        last = self.metadata[-1] if self.metadata else None
        if last is None or last.ingestion_time_ms != ingestion_time_ms or last.payload != payload:
            self.metadata.append(Metadata(self.count, ingestion_time_ms, payload))

    def encode(self, compression: Compression, shape: BatchFormat, most: int) -> None:
        """Make `data` of the entries, and let go of them."""
        pieces, self._pieces, self.tail = self._pieces, [], []
        batches = [piece if isinstance(piece, pa.RecordBatch) else records_to_arrow(piece) for piece in pieces if piece]
        pieces.clear()
        encoded = encode(join_records(batches), compression, shape, most)
        self.encoded_sizes = (encoded.plain_size, len(encoded.data))
        self.data = encoded.data

    def entry(self) -> NewEntry:
        """What the manifest is told."""
        return NewEntry(self.location, tuple(self.metadata), self.deadline, len(self.data), self.count)


def _as_entry(entry: object) -> Entry:
    if isinstance(entry, bytes | Record):
        return entry
    if isinstance(entry, str):
        try:
            return entry.encode()
        except UnicodeEncodeError as error:
            raise InvalidInput(f"an entry cannot be written as UTF-8: {error}") from error
    if isinstance(entry, bytearray | memoryview):
        return bytes(entry)
    raise InvalidInput(f"an entry must be bytes, str or a Record, not {type(entry).__name__}")


def _size(entry: Entry) -> int:
    if isinstance(entry, bytes):
        return len(entry)
    size = len(entry.value) + len(entry.key or b"") + (8 if entry.timestamp_ms is not None else 0)
    # A header has two places in columns, of four bytes each, with or without anything in it.
    return size + sum(8 + len(key.encode()) + len(value) for key, value in entry.headers or ())
