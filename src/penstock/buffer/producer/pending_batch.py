"""A batch while a producer has it: entries and metadata come in, an encoded data batch comes out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa

from penstock.buffer.descriptors import Metadata, NewEntry
from penstock.buffer.format.batch import BatchFormat, Compression, EncodedBatch, check_values_only, encode
from penstock.buffer.producer.write_handle import Outcome
from penstock.errors import CorruptData, InvalidInput
from penstock.records import (
    RECORD_SCHEMA,
    VALUES_SCHEMA,
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

Entries: TypeAlias = bytes | str | Record | Sequence[bytes | str | Record] | pa.RecordBatch

ENTRY_OVERHEAD_BYTES = 64
"""What an entry takes in memory beside its payload while it is an object of its own: measured, and rounded up."""
_RECORD_OVERHEAD_BYTES = 256
_HEADER_OVERHEAD_BYTES = 192
_COLUMNS_OVERHEAD_BYTES = 2048
_MAX_LISTED_ENTRIES = 512  # a longer list is put into columns at once, where its entries take less memory
_PAYLOAD_TYPES = (bytes, bytearray, memoryview)  # nothing else is turned into bytes, and the last two are copied
_NO_COLUMNS = values_to_arrow([])
NOT_ENCODED = EncodedBatch(b"", 0)


@dataclass(frozen=True, slots=True)
class Input:
    """What one call of `produce` was given: a few entries in a list, or many in columns.

    `size` is in bytes, of payloads, keys and headers; `overhead` is what their objects take in memory beside that.
    """

    piece: Sequence[Entry] | pa.RecordBatch
    count: int
    size: int
    overhead: int
    has_records: bool = False
    """Whether the list has records in it, and not payloads alone."""

    @property
    def is_values_only(self) -> bool:
        """Whether every batch format can hold it: there is no key, no header and no time."""
        if isinstance(self.piece, pa.RecordBatch):
            return bool(self.piece.schema.names == ["value"])
        return not self.has_records


def take(entries: object, shape: BatchFormat) -> Input:
    """Check what was given to `produce`. Raises `InvalidInput` for what is no entry, or none at all."""
    given = _columns(entries) if isinstance(entries, pa.RecordBatch) else _listed(entries)
    if shape is BatchFormat.OPENDATA and not given.is_values_only:
        batch = given.piece if isinstance(given.piece, pa.RecordBatch) else records_to_arrow(given.piece)
        check_values_only(batch.schema)
    return given


def _columns(batch: pa.RecordBatch) -> Input:
    if not batch.num_rows:
        raise _nothing()
    try:
        if not batch.schema.equals(VALUES_SCHEMA, check_metadata=True):
            check_record_columns(batch.schema)
            fields = [field for field in RECORD_SCHEMA if field.name in batch.schema.names]
            batch = pa.RecordBatch.from_arrays([batch.column(field.name) for field in fields], schema=pa.schema(fields))
        check_no_nulls(batch)
    except CorruptData as error:
        raise InvalidInput(f"a record batch must have the columns of records: {error}") from error
    return Input(batch, batch.num_rows, size_of(batch), _COLUMNS_OVERHEAD_BYTES)


def _listed(entries: object) -> Input:
    if isinstance(entries, str | bytes | bytearray | memoryview | Record):
        return _one(_as_entry(entries))
    if isinstance(entries, dict) or not hasattr(entries, "__iter__"):
        raise InvalidInput(
            f"entries must be bytes, str, Records or a list of them, not {type(entries).__name__}; "
            "produce_json takes objects"
        )
    listed = entries if isinstance(entries, list) else list(entries)
    if not listed:
        raise _nothing()
    try:
        if len(listed) > _MAX_LISTED_ENTRIES:
            batch = values_to_arrow(listed)
            return Input(batch, len(listed), bytes_of(batch.column(0)), _COLUMNS_OVERHEAD_BYTES)
        payloads = msgspec.convert(listed, list[bytes], builtin_types=_PAYLOAD_TYPES)
    except (InvalidInput, msgspec.ValidationError, UnicodeEncodeError):  # there is text, a record, or no entry
        checked = [_as_entry(entry) for entry in listed]
        return Input(records_to_arrow(checked), len(checked), sum(map(_size, checked)), _COLUMNS_OVERHEAD_BYTES)
    return Input(payloads, len(payloads), sum(map(len, payloads)), ENTRY_OVERHEAD_BYTES * len(payloads))


def _one(entry: Entry) -> Input:
    if isinstance(entry, Record) and entry == Record(entry.value):
        entry = entry.value
    if isinstance(entry, bytes):
        return Input([entry], 1, len(entry), ENTRY_OVERHEAD_BYTES)
    overhead = _RECORD_OVERHEAD_BYTES + _HEADER_OVERHEAD_BYTES * len(entry.headers or ())
    return Input([entry], 1, _size(entry), overhead, has_records=True)


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


def _nothing() -> InvalidInput:
    return InvalidInput("entries must not be empty: there is nothing to produce")


class Stage(Enum):
    """How far a batch has come."""

    TAKING = auto()
    SEALED = auto()
    WRITTEN = auto()
    FINISHED = auto()


class Held(NamedTuple):
    """How much of a producer's `Capacity` something uses; `bytes` and `memory` are bytes."""

    calls: int = 0
    bytes: int = 0
    entries: int = 0
    memory: int = 0


class _Counted(NamedTuple):
    """What a batch has. Replaced as a whole, so that an interrupt never leaves half of a change."""

    calls: int = 0
    bytes: int = 0
    overhead: int = 0
    parts: int = 0
    """How many of the batch's `parts` are counted above; those behind them came by the short path."""
    granted: int = 0
    """What `spare` was when they were counted."""


class PendingBatch:
    """A batch on its way. Its producer's lock guards it while it takes entries; after that one thread has it.

    Entries come in by `add`, or by the short path: `Producer.produce` appends a payload to `parts` by itself, while
    `spare` has its size and `ENTRY_OVERHEAD_BYTES`, which it takes off first. `settle` counts those afterwards.
    """

    def __init__(self, due: float) -> None:
        self.due = due
        self.metadata: list[Metadata] = []
        self.outcome = Outcome()
        self.stage = Stage.TAKING
        self.held = Held()
        self.location = ""
        self.encoded = NOT_ENCODED  # kept until it is enqueued: it may have to be stored under another name
        self.deadline = 0.0
        self.started = 0.0
        self.is_values_only = True
        self.now = 0  # the millisecond of the last call
        self.since = math.nan  # the same, if that call had no metadata: for another such call nothing is to be noted
        self.spare = 0
        self.parts: list[Entry | pa.RecordBatch] = []  # one list, for one append of it can be neither lost nor halved
        self._last_columns = (0, _NO_COLUMNS)  # with their place in it, where an interrupt may have come before them
        self._rows_beside = 0  # so many entries has it more than that list has members, without those last columns
        self._has_records = False
        self._counted = _Counted()

    @property
    def count(self) -> int:
        """How many entries it has."""
        place, columns = self._last_columns
        is_there = place < len(self.parts) and self.parts[place] is columns
        return self._rows_beside + len(self.parts) + (columns.num_rows - 1 if is_there else 0)

    @property
    def total(self) -> Held:
        """All that it has, as of the last `settle`."""
        calls, size, overhead, _, _ = self._counted
        return Held(calls, size, self.count, size + overhead)

    def settle(self) -> None:
        """Count what came by the short path since the last time."""
        calls, size, overhead, counted, granted = self._counted
        came = len(self.parts) - counted
        beside = came * ENTRY_OVERHEAD_BYTES
        self._counted = _Counted(
            calls + came, size + granted - self.spare - beside, overhead + beside, len(self.parts), self.spare
        )

    def grant(self, spare: int) -> None:
        """Set how much may come by the short path from now on. What came before must be settled."""
        self._counted = self._counted._replace(granted=spare)
        self.spare = spare

    def add(self, given: Input, size: int, ingestion_time_ms: int, payload: bytes) -> None:
        """Add what one call brought; `size` is that of its entries and its metadata. Settle before.

        An interrupt between two lines may count a call twice, or its bytes not; its entries are there whole, or not.
        """
        self.note(ingestion_time_ms, payload)
        calls, before, overhead, _, granted = self._counted
        self.is_values_only = self.is_values_only and given.is_values_only
        if isinstance(given.piece, pa.RecordBatch):
            beside, columns = self.count - len(self.parts), (len(self.parts), given.piece)
            self._rows_beside, self._last_columns = beside, columns
            self.parts.append(given.piece)
        else:
            self._has_records = self._has_records or given.has_records
            self.parts += given.piece
        self._counted = _Counted(calls + 1, before + size, overhead + given.overhead, len(self.parts), granted)

    def note(self, ingestion_time_ms: int, payload: bytes) -> None:
        """Note what is known of the entries that come now. Neighbours with the same share one metadata item."""
        self.since = math.nan  # an interrupt leaves it so
        last = self.metadata[-1] if self.metadata else None
        if last is None or last.ingestion_time_ms != ingestion_time_ms or last.payload != payload:
            self.metadata.append(Metadata(self.count, ingestion_time_ms, payload))
        self.now, self.since = ingestion_time_ms, math.nan if payload else float(ingestion_time_ms)

    def encode(self, compression: Compression, shape: BatchFormat, most: int) -> None:
        """Encode the entries, and drop them."""
        batch = join_records(self._in_columns())
        self.parts, self._rows_beside, self._last_columns = [], batch.num_rows, (0, _NO_COLUMNS)
        self.encoded = encode(batch, compression, shape, most)

    def _in_columns(self) -> list[pa.RecordBatch]:
        as_columns: Callable[[list[Any]], pa.RecordBatch] = records_to_arrow if self._has_records else values_to_arrow
        if self._last_columns[1] is _NO_COLUMNS:
            return [as_columns(self.parts)]
        pieces = list[pa.RecordBatch]()
        for are_columns, run in itertools.groupby(self.parts, lambda part: isinstance(part, pa.RecordBatch)):
            members: list[Any] = list(run)
            pieces += members if are_columns else [as_columns(members)]
        return pieces

    def entry(self) -> NewEntry:
        """The entry that the manifest gets."""
        return NewEntry(self.location, tuple(self.metadata), self.deadline, len(self.encoded.data), self.count)
