"""The rows of a file: lines, lines of CSV as JSON objects, rows of Parquet as JSON objects."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec
import pyarrow as pa

from penstock.engine.dead_letters import DeadLetter
from penstock.engine.transports.file_state import TAIL_BYTES, KnownFile, digest
from penstock.errors import CorruptData

_READ_BYTES = 1 << 20
_NEWLINE, _QUOTE, _QUOTED_FIELD = b"\n", b'"', b',"'
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class FileFormat(StrEnum):
    """What the files hold."""

    NDJSON = "ndjson"
    CSV = "csv"
    PARQUET = "parquet"


class Replaced(Exception):
    """The bytes before the offset are not those that were read: the file was truncated, or written anew."""


@dataclass(frozen=True, slots=True)
class Room:
    """How many rows and bytes fit into a block. Where it `is_all`, the block is empty: any one row fits."""

    rows: int
    bytes: int
    is_all: bool


@dataclass(slots=True)
class Rows:
    """Some rows of a file, and the offset after them."""

    values: list[bytes] = field(default_factory=list)
    letters: list[DeadLetter] = field(default_factory=list)
    size: int = 0
    offset: int = 0
    is_cut: bool = False
    """Whether there is a row more that did not fit."""

    @property
    def count(self) -> int:
        """How many rows there are, bad ones too."""
        return len(self.values) + len(self.letters)

    def add(self, made: bytes | DeadLetter | None, offset: int) -> None:
        """Add what became of a row, which ends at an offset."""
        if isinstance(made, DeadLetter):
            self.letters.append(made)
            self.size += len(made.payload)
        elif made is not None:
            self.values.append(made)
            self.size += len(made)
        self.offset = offset

    def is_full(self, room: Room, next_size: int) -> bool:
        """Whether a row of this size does not fit any more; noted in `is_cut`."""
        fits = self.size + next_size <= room.bytes or (room.is_all and self.count == 0)
        self.is_cut = self.count >= room.rows or not fits
        return self.is_cut


def check_head(descriptor: int, known: KnownFile) -> None:
    """Raise `Replaced` where a file does not begin as it did."""
    if known.head_bytes and digest(os.pread(descriptor, known.head_bytes, 0)) != known.head:
        raise Replaced


class LineFile:
    """A file of lines that may grow. A row ends with a newline; a row of CSV may have newlines within quotes."""

    def __init__(self, descriptor: int, known: KnownFile, max_line_bytes: int) -> None:
        self._descriptor = descriptor
        self._known = known
        self._is_csv = known.format == FileFormat.CSV
        self._max = max_line_bytes
        self._names: list[str] | None = None
        self._no_newline_before = 0  # a long line was searched up to here
        self.tail = b""
        """The bytes before the offset, as they were read."""
        self.is_at_end = False
        """Whether the last read ended with the last byte of the file."""
        self.offset = 0
        self.go_to(known)

    def go_to(self, known: KnownFile) -> None:
        """Go on at the committed offset. Raises `Replaced` where the bytes before it are others, or not there."""
        self.offset, self._known, self._no_newline_before = known.offset, known, 0
        self.tail = self._before(known.offset)
        if len(self.tail) < min(known.offset, TAIL_BYTES) or (known.tail_bytes and digest(self.tail) != known.tail):
            raise Replaced

    def changed(self, known: KnownFile) -> None:
        """The file has changed since its end was read. Raises `Replaced` where it does not begin as it did."""
        check_head(self._descriptor, known)

    def _before(self, offset: int) -> bytes:
        length = min(offset, TAIL_BYTES)
        return os.pread(self._descriptor, length, offset - length)

    def read(self, room: Room, *, with_last: bool) -> Rows:
        """Read some rows; none where no whole one is there. `with_last`: the last one needs no newline."""
        length = _READ_BYTES
        while True:
            body = self._bytes(length)
            self.is_at_end = not body
            rows = self._rows(body, room)
            if rows.offset > self.offset or rows.is_cut:
                break
            if len(body) > self._max:
                rows = self._long_line(body, with_last=with_last)
                break
            if len(body) < length:
                if with_last and body:
                    rows.add(self._made(body, self.offset), self.offset + len(body))
                break
            length = min(length * 2, self._max + 1) if length <= self._max else self._max + 1
        if rows.offset > self.offset:
            used = rows.offset - self.offset
            self.tail = self._before(rows.offset) if used > len(body) else (self.tail + body[:used])[-TAIL_BYTES:]
            self.offset = rows.offset
        return rows

    def _bytes(self, length: int) -> bytes:
        before = len(self.tail)
        data = os.pread(self._descriptor, before + length, self.offset - before)
        if data[:before] != self.tail:
            raise Replaced
        return data[before:]

    def _rows(self, body: bytes, room: Room) -> Rows:
        rows = Rows(offset=self.offset)
        lines = body[: body.rfind(_NEWLINE) + 1].split(_NEWLINE)[:-1]
        for row in _quoted(lines) if self._is_csv else lines:
            if len(row) > self._max:
                made: bytes | DeadLetter | None = self._too_long(row[: self._max], rows.offset)
            elif rows.is_full(room, len(row)):
                break
            else:
                made = self._made(row, rows.offset)
            rows.add(made, rows.offset + len(row) + 1)
        return rows

    def _made(self, row: bytes, offset: int) -> bytes | DeadLetter | None:
        if not self._is_csv:
            row = row.removeprefix(_BYTE_ORDER_MARK) if offset == 0 else row
            return row if row.rstrip(b"\r") else None
        if offset == 0:
            self._names = _csv_names(row, self._known.path)
            return None
        if not row.rstrip(b"\r"):
            return None
        if self._names is None:
            self._names = self._names_of_file()
        return _csv_object(self._names, row, offset, self._known.path)

    def _names_of_file(self) -> list[str]:
        body, length = b"", _READ_BYTES
        while _NEWLINE not in body and len(body) < self._max:
            body = os.pread(self._descriptor, length, 0)
            length *= 2
        first = next(iter(_quoted(body.split(_NEWLINE))), body)
        return _csv_names(first, self._known.path)

    def _long_line(self, body: bytes, *, with_last: bool) -> Rows:
        """A dead letter for a line that is too long, when its newline is there, or it needs none."""
        rows = Rows(offset=self.offset)
        at = max(self._no_newline_before, self.offset + len(body))
        while data := os.pread(self._descriptor, _READ_BYTES, at):
            newline = data.find(_NEWLINE)
            if newline >= 0:
                rows.add(self._too_long(body[: self._max], self.offset), at + newline + 1)
                return rows
            at += len(data)
        if with_last:
            rows.add(self._too_long(body[: self._max], self.offset), at)
        self._no_newline_before = at
        return rows

    def _too_long(self, start: bytes, offset: int) -> DeadLetter:
        reason = f"the line at offset {offset} of {self._known.path} is longer than max_line_bytes = {self._max}"
        return DeadLetter(start, f"{reason}; this is its start", stage="recv")


class ParquetFile:
    """A file of Parquet, which is whole when it is there. Its offset counts rows."""

    def __init__(self, descriptor: int, known: KnownFile, _max_line_bytes: int) -> None:
        self._descriptor = descriptor
        self.offset = known.offset
        self.tail = b""  # a file that is whole does not change
        self.is_at_end = True
        self._group: tuple[int, Any] | None = None  # its first row, and its rows
        self._file: Any = None

    def go_to(self, known: KnownFile) -> None:
        """Go on at the committed row."""
        self.offset = known.offset

    def changed(self, known: KnownFile) -> None:
        """The file has changed since its end was read: it may have been written anew."""
        check_head(self._descriptor, known)
        self._file = self._group = None

    def read(self, room: Room, *, with_last: bool) -> Rows:  # noqa: ARG002  a row is always whole
        """Read some rows; none at the end, and of a file that is not whole."""
        rows = Rows(offset=self.offset)
        if not self._is_open():
            return rows
        group = self._group_of(self.offset)
        if group is None:
            self.is_at_end = True
            return rows
        first, table = group
        self.is_at_end = False
        for batch in table.slice(self.offset - first, room.rows).to_batches(max_chunksize=1_000):
            for row in batch.to_pylist():
                value = msgspec.json.encode(row, enc_hook=str)
                if rows.is_full(room, len(value)):
                    break
                rows.add(value, rows.offset + 1)
            else:
                continue
            break
        self.offset = rows.offset
        return rows

    def _is_open(self) -> bool:
        if self._file is None:
            from pyarrow import parquet  # here: it takes long to import, and few read Parquet

            try:
                self._file = parquet.ParquetFile(open(self._descriptor, "rb", closefd=False))  # noqa: SIM115  closed by its owner
            except (pa.ArrowInvalid, OSError):
                return False  # not whole yet: it is tried again when it has changed
        return True

    def _group_of(self, row: int) -> tuple[int, Any] | None:
        if self._group is not None and self._group[0] <= row < self._group[0] + self._group[1].num_rows:
            return self._group
        first = 0
        for number in range(self._file.num_row_groups):
            count = self._file.metadata.row_group(number).num_rows
            if first <= row < first + count:
                self._group = first, _in_microseconds(self._file.read_row_group(number))
                return self._group
            first += count
        self._group = None
        return None


def _in_microseconds(table: Any) -> Any:
    """The table with its nanoseconds cut off: Python's times have none."""
    schema = pa.schema([column.with_type(_microsecond_type(column.type)) for column in table.schema])
    return table if schema == table.schema else table.cast(schema, safe=False)


def _microsecond_type(kind: Any) -> Any:
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if pa.types.is_duration(kind) and kind.unit == "ns":
        return pa.duration("us")
    if pa.types.is_time64(kind) and kind.unit == "ns":
        return pa.time64("us")
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_microsecond_type(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_microsecond_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(_microsecond_type(kind.key_type)),
            kind.item_field.with_type(_microsecond_type(kind.item_type)),
        )
    return kind


OpenRows = LineFile | ParquetFile
READERS: dict[str, Callable[[int, KnownFile, int], OpenRows]] = {
    FileFormat.NDJSON: LineFile,
    FileFormat.CSV: LineFile,
    FileFormat.PARQUET: ParquetFile,
}


def _quoted(lines: list[bytes]) -> list[bytes]:
    """Rows of CSV: a line that ends within quotes goes on in the next one. The last one may be incomplete."""
    rows, parts, is_open = list[bytes](), list[bytes](), False
    for line in lines:
        parts.append(line)
        if _QUOTE in line:
            is_open = _ends_in_quotes(line, is_open=is_open)
        if not is_open:
            rows.append(_NEWLINE.join(parts))
            parts = []
    return rows


def _ends_in_quotes(line: bytes, *, is_open: bool) -> bool:
    """Whether a line ends within quotes. One that is not at the start of a field is a character as any other."""
    at = 0
    if not is_open:
        first = line.removeprefix(_BYTE_ORDER_MARK)
        is_open = first.startswith(_QUOTE)
        at = len(line) - len(first) + is_open
    while True:
        if not is_open:
            field_start = line.find(_QUOTED_FIELD, at)
            if field_start < 0:
                return False
            at = field_start + len(_QUOTED_FIELD)
        quote = line.find(_QUOTE, at)
        if quote < 0:
            return True
        is_open = line.startswith(_QUOTE, quote + 1)  # two of them are one character
        at = quote + 1 + is_open


def _csv_names(row: bytes, path: str) -> list[str]:
    try:
        names = next(csv.reader([row.decode("utf-8-sig").rstrip("\r")], strict=True), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise CorruptData(f"the header of {path} is no line of CSV: {error}") from error
    if not names or len(set(names)) != len(names):
        raise CorruptData(f"the header of {path} must name each column once, and is {names!r:.200}")
    return names


def _csv_object(names: list[str], row: bytes, offset: int, path: str) -> bytes | DeadLetter:
    where = f"the row at offset {offset} of {path}"
    try:
        values = next(csv.reader([row.decode().rstrip("\r")], strict=True), [])
    except (UnicodeDecodeError, csv.Error) as error:
        return DeadLetter(row, f"{where} is no line of CSV: {error}", stage="recv")
    if len(values) != len(names):
        return DeadLetter(row, f"{where} has {len(values)} fields, and its header {len(names)}", stage="recv")
    return msgspec.json.encode(dict(zip(names, values, strict=True)))
