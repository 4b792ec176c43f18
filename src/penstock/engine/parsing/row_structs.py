"""Payloads into columns by way of structs: msgspec decodes, and Arrow takes the members.

The structs say what each field may be, so a payload that msgspec takes fits, but for these: times, dates and decimals
are only text by then, which may not go into its column; a repeated key goes unnoticed; MessagePack is not checked where
it is skipped, so members without a column are decoded too once they are known; and JSON is not checked for UTF-8 and
depth. Every row that may be wrong is read value by value, by `row_values`, which decides and finds the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Annotated, Any, cast

import msgspec
import pyarrow as pa
from msgspec.structs import astuple

from penstock.engine.parsing.column_arrays import column, members
from penstock.engine.parsing.column_kinds import ColumnKinds
from penstock.engine.parsing.msgpack_payloads import NESTING, why_refused
from penstock.engine.parsing.payload_format import (
    BadPayload,
    Decode,
    Fields,
    ParseFormat,
    attribute,
    decode_each,
    inner_fields,
    values_without,
    without,
)
from penstock.engine.parsing.row_values import (
    PayloadFormat,
    RowShape,
    check_payload,
    format_of,
    member_without_column,
    read_object,
    read_objects,
    read_row,
    rows_without_proof,
)

ROWS_PER_GROUP = 2048  # that are structs at a time, few enough to stay in the cache of a core
_ROWS_TO_LEARN_FROM = 256  # before a block is read
_MAX_GROWTHS = 6  # of a schema; then all the rest of the block is learned from before it is read
_MAX_STRUCTS = 16  # for one reader
_MAX_OTHERS = 256  # members without a column that a struct has
_MAX_DECODED_FIELDS = 256  # of structs, which are kept for the next block
_MAX_NAME_CHARS = 100


class _SchemaGrew(Exception):
    """A row has something that the inferred schema has not; the kinds have learned it."""


class RowReader:
    """Reads groups of the payloads of a block into columns.

    Without a schema it is inferred with `kinds`: it grows where a row has something new, and a row that has a member
    without a column is an error. With one, such members are ignored.
    """

    def __init__(
        self, values: pa.Array[Any], form: ParseFormat, schema: pa.Schema | None, kinds: ColumnKinds | None
    ) -> None:
        self._values = values
        self._name = form
        self._form = format_of(form)
        self._kinds = kinds
        self._forbids = kinds is not None or not self._form.checks_what_it_skips
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
        self._others: tuple[str, ...] = ()
        self._structs = 0
        self._is_flat = not any(inner_fields(field.type) for field in fields)
        self._is_decoded = _may_be_decoded(self._form, fields)
        self._decode = _decoder(self._name, fields, (), self._forbids) if self._is_decoded else _refuse

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

        def judge(row: int) -> object:
            judged.add(row)
            return self._judge(payloads[row], row, bad)

        rows = decode_each(lambda: self._decode, payloads, judge)
        unsure = self._form.unchecked(values, payloads, judged)
        checked_keys = False
        while True:
            for row in sorted(unsure - judged):
                rows[row] = judge(row)
            kept = without(rows, bad) if bad else rows
            columns, misfits = _columns(kept, self.fields)
            others = [members(kept, len(self.fields) + at) for at in range(len(self._others))]
            misfits.update(_odd_rows(others))
            places = without(range(len(rows)), bad) if misfits else ()
            unsure = {places[at] for at in misfits}
            # Columns take every row that was judged: this is for a future Arrow that does not.
            bad.update((row, "a value does not fit into its column") for row in unsure & judged)
            if not unsure and not checked_keys:
                checked_keys = True
                unsure = self._may_repeat(values, payloads, rows, judged, columns, others)
            if not unsure:
                return columns, bad

    def _judge(self, payload: bytes, at: int, bad: dict[int, str]) -> object:
        """The struct of one payload, read value by value; None if it is bad. Raises `_SchemaGrew`."""
        shape = self._shape = self._shape or _shape(self.fields)
        kinds, found, why = self._kinds, dict[str, Any](), None
        try:
            check_payload(payload, self._form)
            if kinds is not None:
                changes = kinds.changes
                found = read_object(payload, self._form)
                why = kinds.learn(found)
                if kinds.changes != changes:
                    raise _SchemaGrew
            try:
                row, names = read_row(payload, self._form, shape)
            except BadPayload:
                read_object(payload, self._form)  # a key that is there twice is the reason, whatever does not fit
                raise
        except BadPayload as error:
            bad[at] = str(error)
            return None
        if why is not None and member_without_column(found, shape):
            bad[at] = why
            return None
        if kinds is None and not self._form.checks_what_it_skips and self._is_decoded:
            self._learn_others(names)
        return row

    def _learn_others(self, names: Sequence[str]) -> None:
        known = {*self._others, *(field.name for field in self.fields)}
        new = [name for name in names if name not in known and _may_be_field(name)]
        if new and self._structs < _MAX_STRUCTS and len(new) + len(self._others) <= _MAX_OTHERS:
            self._structs += 1
            self._others += tuple(dict.fromkeys(new))
            self._decode = _decoder(self._name, self.fields, self._others, self._forbids)

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
        if self._is_flat and columns:
            counts = [len(column) - column.null_count for column in columns]
            for row in (rows[at] for at in judged if rows[at] is not None):
                counts = [count - (cell is not None) for count, cell in zip(counts, astuple(row), strict=True)]
            known = sum(len(each) - each.count(None) for each in others)
            not_judged = values_without(values, judged) if judged else values
            is_proved = self._form.has_no_more_keys(not_judged, self.fields, counts, known)
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


def _columns(rows: list[Any], fields: Fields) -> tuple[list[pa.Array[Any]], set[int]]:
    """The columns, and the rows that have a value which is not in its column as it is."""
    columns: list[pa.Array[Any]] = []
    misfits: set[int] = set()
    for at, field in enumerate(fields):
        values, lost = column(members(rows, at), field.type)
        columns.append(values)
        misfits.update(lost)
        if values.null_count and not field.nullable:
            misfits.update(row for row, valid in enumerate(values.is_valid().to_pylist()) if not valid)
    return columns, misfits


def _odd_rows(others: list[list[Any]]) -> Iterable[int]:
    """Rows that have, in a member without a column, something that no payload may have."""
    nested = (values for values in others if not NESTING.isdisjoint(map(type, values)))
    return (row for values in nested for row, value in enumerate(values) if why_refused([value], 2))


def _may_be_decoded(form: PayloadFormat, fields: Fields) -> bool:
    # Only at the top is it seen that a value without a type of its own is null, where it may not be.
    inner = chain.from_iterable(inner_fields(field.type) for field in fields)
    everything = list(_all_fields(fields))
    return (
        len(everything) <= _MAX_DECODED_FIELDS
        and all(_may_be_field(field.name) for field in everything)
        and not any(_is_untyped(form, field.type) and not field.nullable for field in _all_fields(inner))
    )


def _all_fields(fields: Iterable[pa.Field[Any]]) -> Iterable[pa.Field[Any]]:
    for field in fields:
        yield field
        yield from _all_fields(inner_fields(field.type))


def _may_be_field(name: str) -> bool:
    """Whether a name can be that of a struct's field: msgspec writes it as it is, and decoders must stay small."""
    return name.isprintable() and not {'"', "\\"} & set(name) and len(name) <= _MAX_NAME_CHARS


def _is_untyped(form: PayloadFormat, kind: pa.DataType) -> bool:
    return pa.types.is_decimal(kind) or (pa.types.is_timestamp(kind) and form.has_timestamps)


_shape = lru_cache(maxsize=16)(RowShape)


@lru_cache(maxsize=64)
def _decoder(form: ParseFormat, fields: Fields, others: tuple[str, ...], forbids: bool) -> Decode:
    return format_of(form).decoders.struct(_struct(form, fields, others, forbids))


def _struct(form: ParseFormat, fields: Fields, others: tuple[str, ...], forbids: bool) -> type:
    names = [*(field.name for field in fields), *others]
    types: list[Any] = [
        (attribute(at), _type(form, field, forbids), *((None,) if field.nullable else ()))
        for at, field in enumerate(fields)
    ]
    types += [(attribute(at), Any, None) for at in range(len(fields), len(names))]
    rename = {attribute(at): name for at, name in enumerate(names)}
    return msgspec.defstruct(
        "Row", types, rename=rename, forbid_unknown_fields=forbids, omit_defaults=True, kw_only=True, gc=False
    )


def _type(form: ParseFormat, field: pa.Field[Any], forbids: bool) -> Any:
    kind = _type_of(form, field.type, forbids)
    return kind | None if field.nullable and kind not in (Any, msgspec.Raw, None) else kind


def _type_of(form: ParseFormat, kind: pa.DataType, forbids: bool) -> Any:
    """What msgspec takes for a value of this kind; more only where `column` looks again."""
    if pa.types.is_null(kind):
        return None
    if pa.types.is_struct(kind):
        return _struct(form, inner_fields(kind), (), forbids)
    if pa.types.is_list(kind):
        return list.__class_getitem__(_type(form, kind.value_field, forbids))
    if pa.types.is_map(kind):
        return dict.__class_getitem__((str, _type(form, kind.item_field, forbids)))
    if pa.types.is_integer(kind):
        most = 1 << (kind.bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-most, le=most - 1)]
    if pa.types.is_decimal(kind):
        return msgspec.Raw if form == ParseFormat.JSON else int | float | str
    if pa.types.is_timestamp(kind) and form == ParseFormat.MSGPACK:
        return Any
    if pa.types.is_floating(kind):
        return float
    return {pa.bool_(): bool, pa.binary(): bytes}.get(kind, str)
