"""Payloads into columns by way of structs: msgspec decodes, and Arrow takes the members.

The structs say what each field may be, so a payload that msgspec takes fits, but for these: times, dates and decimals
are only text by then, which may not go into its column; a repeated key goes unnoticed; MessagePack is not checked where
it is skipped, so members without a column are decoded too once they are known; and JSON is not checked for UTF-8 and
depth. Every row that may be wrong is read value by value, by `row_values`, which decides and finds the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, cast

import msgspec
import pyarrow as pa
from msgspec.structs import astuple

from penstock.engine.parsing.column_arrays import column, members
from penstock.engine.parsing.column_kinds import ColumnKinds
from penstock.engine.parsing.msgpack_payloads import NESTING, why_refused
from penstock.engine.parsing.parse_options import STRICT, ParseOptions
from penstock.engine.parsing.payload_format import (
    BadPayload,
    Decode,
    Fields,
    ParseFormat,
    decode_each,
    inner_fields,
    values_without,
    without,
)
from penstock.engine.parsing.rescued_fields import (
    members_outside,
    names_outside,
    rescued_text,
    struct_reader,
)
from penstock.engine.parsing.row_values import (
    RowShape,
    check_payload,
    format_of,
    member_without_column,
    read_object,
    read_objects,
    read_row,
    rows_without_proof,
)
from penstock.engine.parsing.struct_types import may_be_decoded, may_be_field, struct_decoder

ROWS_PER_GROUP = 2048  # that are structs at a time, few enough to stay in the cache of a core
_ROWS_TO_LEARN_FROM = 256  # before a block is read
_MAX_GROWTHS = 6  # of a schema; then all the rest of the block is learned from before it is read
_MAX_STRUCTS = 16  # for one reader
_MAX_OTHERS = 256  # members without a column that a struct has


class _SchemaGrew(Exception):
    """A row has something that the inferred schema has not; the kinds have learned it."""


class RowReader:
    """Reads groups of the payloads of a block into columns.

    Without a schema it is inferred with `kinds`: it grows where a row has something new, and a row that has a member
    without a column is an error. With one, such members are ignored, or rescued: in a column behind the others.
    """

    def __init__(
        self,
        values: pa.Array[Any],
        form: ParseFormat,
        schema: pa.Schema | None,
        kinds: ColumnKinds | None,
        options: ParseOptions = STRICT,
    ) -> None:
        self._values = values
        self._name = form
        self._form = format_of(form)
        self._kinds = kinds
        self._options = options
        self._rescues = options.rescue is not None
        self._has_use_for_others = kinds is None and (self._rescues or not self._form.checks_what_it_skips)
        self._forbids = kinds is not None or self._has_use_for_others
        self.growths = 0
        if schema is not None:
            self._use(tuple(schema))
        else:
            self._learn(0, _ROWS_TO_LEARN_FROM)

    def _learn(self, start: int, rows: int) -> None:
        """Have the columns of what was learned from, and of these rows."""
        assert self._kinds is not None  # noqa: S101  the schema is inferred
        for at in range(start, min(start + rows, len(self._values)), ROWS_PER_GROUP):
            size = min(ROWS_PER_GROUP, start + rows - at)
            for value in read_objects(self._values.slice(at, size), self._form)[0]:
                self._kinds.learn(value)
        self._use(tuple(self._kinds.schema))

    def _use(self, fields: Fields) -> None:
        self.fields = fields
        self._shape: RowShape | None = None  # made when a row is judged
        self._others: dict[str, tuple[str, ...]] = {}
        self._structs = 0
        self._is_flat = not any(inner_fields(field.type) for field in fields)
        self._is_decoded = may_be_decoded(self._form, fields)
        self._decode = self._decoder() if self._is_decoded else _refuse

    def _decoder(self) -> Decode:
        return struct_decoder(self._name, self.fields, tuple(self._others.items()), self._forbids, self._options)

    def read(self, start: int, rows: int) -> tuple[list[pa.Array[Any]], dict[int, str]]:
        """The columns of all payloads in a group of rows that fit, and why the others do not.

        Where one row of the group has something new, it is read again; where another one has, too, all of its rows are
        learned from before that, and after some more growths all rows of the block.
        """
        has_grown = False
        while True:
            try:
                return self._read(self._values.slice(start, rows))
            except _SchemaGrew:
                self.growths += 1
                to_learn = len(self._values) - start if self.growths > _MAX_GROWTHS else rows
                self._learn(start, to_learn if has_grown else 0)
                has_grown = True

    def _read(self, values: pa.Array[Any]) -> tuple[list[pa.Array[Any]], dict[int, str]]:
        payloads = cast("list[bytes]", values.to_pylist())
        bad: dict[int, str] = {}
        judged: set[int] = set()
        rescued: dict[int, str | None] = {}

        def judge(row: int) -> object:
            judged.add(row)
            return self._judge(payloads[row], row, bad, rescued)

        rows = decode_each(lambda: self._decode, payloads, judge)
        unsure = self._form.unchecked(values, payloads, judged)
        checked_keys = False
        while True:
            for row in sorted(unsure - judged):
                rows[row] = judge(row)
            kept = without(rows, bad) if bad else rows
            columns, misfits = _columns(kept, self.fields, self._options)
            others = self._unused(kept)
            misfits.update(_odd_rows(others))
            places = without(range(len(rows)), bad) if misfits else ()
            unsure = {places[at] for at in misfits}
            # Columns take every row that was judged: this is for a future Arrow that does not.
            bad.update((row, "a value does not fit into its column") for row in unsure & judged)
            if not unsure and not checked_keys:
                checked_keys = True
                unsure = self._may_repeat(values, payloads, rows, judged, columns, others)
            if not unsure and self._rescues:
                texts, unsure = self._rescued(without(range(len(rows)), bad), kept, rescued)
                columns.append(cast("pa.Array[Any]", pa.array(texts, pa.string())))
            if not unsure:
                return columns, bad

    def _rescued(
        self, rows: Sequence[int], structs: list[Any], known: dict[int, str | None]
    ) -> tuple[list[str | None], set[int]]:
        """The text of what the rows have without a column, and rows for which there can be none."""
        if not self._others:
            return [known.get(row) for row in rows], set()
        outside_of = struct_reader(self.fields, self._others)
        texts: list[str | None] = []
        unsure: set[int] = set()
        for row, struct in zip(rows, structs, strict=True):
            try:
                texts.append(known[row] if row in known else rescued_text(outside_of(struct)))
            except BadPayload:
                texts.append(None)
                unsure.add(row)
        return texts, unsure

    def _unused(self, rows: list[Any]) -> list[list[Any]]:
        """The members without a column that are decoded to be checked, and for nothing else."""
        if self._rescues:
            return []
        return [members(rows, len(self.fields) + at) for at in range(len(self._others.get("", ())))]

    def _judge(self, payload: bytes, at: int, bad: dict[int, str], rescued: dict[int, str | None]) -> object:
        """The struct of one payload, read value by value; None if it is bad. Raises `_SchemaGrew`."""
        shape = self._shape = self._shape or _shape(self.fields, self._options)
        kinds, found, why = self._kinds, dict[str, Any](), None
        try:
            payload = check_payload(payload, self._form, is_lenient=self._options.is_lenient)
            if kinds is not None:
                changes = kinds.changes
                found = read_object(payload, self._form)
                why = kinds.learn(found)
                if kinds.changes != changes:
                    raise _SchemaGrew
            try:
                row, top_names = read_row(payload, self._form, shape)
                names: Iterable[tuple[str, str]] = (("", name) for name in top_names)
            except BadPayload:
                read_object(payload, self._form)  # a key that is there twice is the reason, whatever does not fit
                raise
            if self._rescues:
                read_object(payload, self._form)  # everything goes into a column, so no key may be there twice
                outside = members_outside(payload, self._form, shape)
                rescued[at] = rescued_text(outside)
                names = names_outside(outside, shape)
        except BadPayload as error:
            bad[at] = str(error)
            return None
        if why is not None and member_without_column(found, shape):
            bad[at] = why
            return None
        if self._has_use_for_others and self._is_decoded:
            self._learn_others(names)
        return row

    def _learn_others(self, names: Iterable[tuple[str, str]]) -> None:
        """Have structs with these members too, which have no column; each is behind what is in front of its name."""
        known = {field.name for field in self.fields}
        new = {
            (path, name): None
            for path, name in names
            if (path or name not in known) and name not in self._others.get(path, ()) and may_be_field(name)
        }
        if new and self._structs < _MAX_STRUCTS and len(new) + sum(map(len, self._others.values())) <= _MAX_OTHERS:
            self._structs += 1
            for path, name in new:
                self._others[path] = (*self._others.get(path, ()), name)
            self._decode = self._decoder()

    def _may_repeat(
        self,
        values: pa.Array[Any],
        payloads: list[bytes],
        rows: list[Any],
        judged: set[int],
        columns: list[pa.Array[Any]],
        others: list[list[Any]],
    ) -> set[int]:
        """Rows, of those that were not judged, that may have a key twice; `others` are members without a column."""
        if len(judged) == len(rows):
            return set()
        if self._rescues and self._others:
            is_proved = False  # they are encoded still, or were decoded without a look at what is repeated in them
        elif self._is_flat and columns:
            counts = [len(column) - column.null_count for column in columns]
            for row in (rows[at] for at in judged if rows[at] is not None):
                counts = [count - (cell is not None) for count, cell in zip(counts, astuple(row), strict=True)]
            known = sum(len(each) - each.count(None) for each in others)
            not_judged = values_without(values, judged) if judged else values
            is_proved = self._form.has_no_more_keys(
                not_judged, self.fields, counts, known, times_are_text=not self._options.converts
            )
        else:
            is_proved = self._form.keeps_all_keys(without(payloads, judged), without(rows, judged))
        if is_proved:
            return set()
        unsure = set(judged)
        objects = decode_each(lambda: self._form.decoders.object, payloads, unsure.add)
        return unsure.union(rows_without_proof(payloads, objects, self._form, unsure)) - judged


def _refuse(_: bytes) -> object:
    """Stands for a decoder where there can be none."""
    raise msgspec.ValidationError


def _columns(rows: list[Any], fields: Fields, options: ParseOptions) -> tuple[list[pa.Array[Any]], set[int]]:
    """The columns, and the rows that have a value which is not in its column as it is."""
    columns: list[pa.Array[Any]] = []
    misfits: set[int] = set()
    for at, field in enumerate(fields):
        values, lost = column(members(rows, at), field.type, options, field.name)
        columns.append(values)
        misfits.update(lost)
        if values.null_count and not field.nullable:
            misfits.update(row for row, valid in enumerate(values.is_valid().to_pylist()) if not valid)
    return columns, misfits


def _odd_rows(others: list[list[Any]]) -> Iterable[int]:
    """Rows that have, in a member without a column, something that no payload may have."""
    nested = (values for values in others if not NESTING.isdisjoint(map(type, values)))
    return (row for values in nested for row, value in enumerate(values) if why_refused([value], 2))


_shape = lru_cache(maxsize=16)(RowShape)
