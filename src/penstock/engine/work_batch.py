"""`WorkBatch`: the records of a block, and the tokens that ack their input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import pyarrow as pa

from penstock.engine.dead_letters import DeadLetter, Place
from penstock.errors import CorruptData, InvalidInput
from penstock.records import (
    Record,
    bytes_of,
    check_no_nulls,
    check_record_columns,
    records_from_arrow,
    records_to_arrow,
    rows_within,
)


class WorkBatch:
    """Records, with the commit tokens of the block they belong to, and dead letters. It never changes.

    A record carries no token: the tokens are the input's, and stay the same when records are added or removed.
    `records` is a list of `Record`, or a `pyarrow.RecordBatch` of their columns, of which objects are created only on
    demand. A record batch with other columns is accepted too: its `records` are its rows, as JSON.

    Raises `InvalidInput` for what are no records, tokens or dead letters.

    >>> batch = WorkBatch([Record(b"a"), Record(b"b")], commit_tokens=(0, 1))
    >>> twice = batch.map_records(lambda records: [*records, *records])
    >>> len(twice), twice.commit_tokens
    (4, (0, 1))
    """

    __slots__ = (
        "_arrow",
        "_has_own_columns",
        "_place",
        "_records",
        "_size",
        "commit_tokens",
        "dead_letters",
        "filtered",
    )

    def __init__(
        self,
        records: Iterable[Record] | pa.RecordBatch,
        commit_tokens: Iterable[Any] = (),
        dead_letters: Iterable[DeadLetter] = (),
        *,
        filtered: int = 0,
    ) -> None:
        self._records: list[Record] | None = None
        self._arrow: pa.RecordBatch | None = None
        self._size: int | None = None
        self._has_own_columns = False
        self._place = Place()
        if isinstance(records, pa.RecordBatch):
            self._arrow = records
            self._has_own_columns = not _are_record_columns(records)
        else:
            self._records = _checked_records(records)
        self.commit_tokens: tuple[Any, ...] = _as_tuple("commit_tokens", commit_tokens)
        self.dead_letters: tuple[DeadLetter, ...] = _checked_letters(dead_letters)
        self.filtered = filtered

    @classmethod
    def of_columns(
        cls, columns: pa.RecordBatch, commit_tokens: Iterable[Any] = (), dead_letters: Iterable[DeadLetter] = ()
    ) -> WorkBatch:
        """A batch of the user's own columns, even where they have the names and types of a record's."""
        batch = cls(columns, commit_tokens, dead_letters)
        batch._has_own_columns = True
        return batch

    @classmethod
    def of_checked(cls, columns: pa.RecordBatch, commit_tokens: Iterable[Any]) -> WorkBatch:
        """A batch of columns that are known to be those of records, as a receiver has built or decoded them."""
        batch = cls.__new__(cls)
        batch._records, batch._arrow, batch._size, batch._has_own_columns = None, columns, None, False
        batch._place = Place()
        batch.commit_tokens, batch.dead_letters, batch.filtered = tuple(commit_tokens), (), 0
        return batch

    @property
    def records(self) -> list[Record]:
        """The records, as objects, created on first use."""
        if self._records is None:
            assert self._arrow is not None  # noqa: S101  one of the two is there
            self._records = _rows_as_json(self._arrow) if self._has_own_columns else records_from_arrow(self._arrow)
        return self._records

    @property
    def arrow(self) -> pa.RecordBatch:
        """The records in columns, created on first use; or the columns that a column function returned."""
        if self._arrow is None:
            assert self._records is not None  # noqa: S101  one of the two is there
            self._arrow = records_to_arrow(self._records)
        return self._arrow

    @property
    def record_columns(self) -> pa.RecordBatch:
        """The columns of the records: `arrow`, or, where those are the user's own columns, each row as JSON."""
        return records_to_arrow(self.records) if self._has_own_columns else self.arrow

    @property
    def is_empty(self) -> bool:
        """Whether there are no records."""
        return len(self) == 0

    @property
    def total_bytes(self) -> int:
        """How many bytes the payloads have together."""
        if self._size is None and self._records is not None:
            self._size = sum([len(record.value) for record in self._records])
        elif self._size is None:
            self._size = self.arrow.nbytes if self._has_own_columns else bytes_of(self.arrow.column("value"))
        return self._size

    def __len__(self) -> int:
        return len(self._records) if self._records is not None else self.arrow.num_rows

    def __bool__(self) -> bool:
        return True  # a block without records may have tokens

    def __repr__(self) -> str:
        return (
            f"WorkBatch({len(self)} records, {len(self.commit_tokens)} commit tokens, "
            f"{len(self.dead_letters)} dead letters)"
        )

    def map_records(self, fn: Callable[[list[Record]], Iterable[Record]]) -> WorkBatch:
        """The batch with the records that `fn` returns; tokens and dead letters stay."""
        return WorkBatch(fn(list(self.records)), self.commit_tokens, self.dead_letters, filtered=self.filtered)

    def with_tokens(self, commit_tokens: tuple[Any, ...]) -> WorkBatch:
        """The same with other tokens."""
        changed = copy(self)
        changed.commit_tokens = commit_tokens
        return changed

    def at(self, place: Place) -> WorkBatch:
        """The same as a block of a run: its letters have their identities, and those of its parser will have."""
        block = copy(self)
        block._place = place
        if self.dead_letters:
            block.dead_letters = tuple(
                # Whatever stage a filter has put on it: it must not be taken for one of the parser's.
                replace(letter, identity=place.identity(index, "recv"))
                for index, letter in enumerate(self.dead_letters)
            )
        return block

    @property
    def place(self) -> Place:
        """Where it is in a run."""
        return self._place

    def drop_letter(self, letter: DeadLetter) -> bool:
        """Drop a dead letter of this block on purpose: it is counted, and not routed. For `process`.

        False: it is routed already, as those that came with the block are before `process` is called, and those of
        earlier blocks. Raises `InvalidInput` for what is no letter of a block, such as one that `process` created (do
        not return that one), and on a batch that is not the one that `process` was given.
        """
        return self._place.drop(letter)

    def rows_within(self, start: int, most: int) -> int:
        """How many records from `start` on have at most so many bytes of payload together."""
        if self._arrow is not None and not self._has_own_columns:
            return rows_within(self._arrow.column("value"), start, most)
        records, size = self.records, 0
        for at in range(start, len(records)):
            size += len(records[at].value)
            if size > most:
                return at - start
        return len(records) - start

    def record(self, row: int) -> Record:
        """One of the records."""
        if self._records is not None:
            return self._records[row]
        return self.piece(row, row + 1).records[0]

    def piece(self, start: int, stop: int) -> WorkBatch:
        """Some of the records, without tokens or dead letters."""
        piece = copy(self)
        if self._arrow is not None:
            piece._records, piece._arrow = None, self._arrow.slice(start, stop - start)
        else:
            piece._records = self.records[start:stop]
        piece._size, piece.commit_tokens, piece.dead_letters, piece.filtered = None, (), (), 0
        piece._place = self._place.behind(start)
        return piece


def _are_record_columns(batch: pa.RecordBatch) -> bool:
    try:
        check_record_columns(batch.schema)
    except CorruptData:
        return False
    try:
        check_no_nulls(batch)
    except CorruptData as error:
        raise InvalidInput(f"these are no records: {error}") from error
    return True


def _checked_records(records: object) -> list[Record]:
    if not isinstance(records, Iterable) or isinstance(records, str | bytes | bytearray | memoryview | Record | dict):
        raise InvalidInput(f"records must be a list of Records or a pyarrow.RecordBatch, not {type(records).__name__}")
    listed = list(records)  # a copy: the caller may change its list later
    if set(map(type, listed)) - {Record}:
        for record in listed:
            if not isinstance(record, Record):
                raise InvalidInput(f"records must be Records, and one is {type(record).__name__}")
    return listed


def _checked_letters(letters: object) -> tuple[DeadLetter, ...]:
    checked = _as_tuple("dead_letters", letters)
    for letter in checked:
        if not isinstance(letter, DeadLetter):
            raise InvalidInput(f"dead_letters must be DeadLetters, and one is {type(letter).__name__}")
    return checked


def _as_tuple(field: str, given: object) -> tuple[Any, ...]:
    if not isinstance(given, Iterable) or isinstance(given, str | bytes):
        raise InvalidInput(f"{field} must be a list or a tuple, not {type(given).__name__}")
    return tuple(given)


def _rows_as_json(batch: pa.RecordBatch) -> list[Record]:
    import msgspec

    rows: Sequence[object] = batch.to_pylist()
    return [Record(msgspec.json.encode(row)) for row in rows]
