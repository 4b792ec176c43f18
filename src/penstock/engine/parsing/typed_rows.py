"""Payloads into columns whose types are told, by way of structs: msgspec decodes, and Arrow takes the members.

The structs say what each field may be, so a payload that msgspec takes fits, but for three things. Times, dates and
decimals are only text by then, which may not go into its column. MessagePack with members that have no column is taken
once these are known, and decoded too: msgspec does not look at what it skips. JSON it skips with care, but not for
UTF-8 and depth. Every row that may be wrong is looked at one by one, which also finds the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Annotated, Any, cast

import pyarrow as pa

from penstock.engine.parsing.block_parser import ParseFormat
from penstock.engine.parsing.json_values import is_utf8
from penstock.engine.parsing.msgpack_values import NESTING, Refused, check_nested, may_be_field
from penstock.engine.parsing.parse_errors import MAX_DEPTH
from penstock.engine.parsing.typed_arrays import column, members
from penstock.engine.parsing.typed_values import Fields, Misfit, attribute, inner_fields, look_at, may_be_struct

GROUP = 2048  # rows that are structs at a time, few enough to stay in the cache of a core
_MOST_STRUCTS = 16  # for one reader
_MOST_OTHERS = 256  # members without a column that a struct has


class RowReader:
    """Reads groups of payloads into columns; learns on the way which members without a column there are."""

    def __init__(self, form: ParseFormat, fields: Fields) -> None:
        self._form = form
        self._fields = fields
        self._others: tuple[str, ...] = ()
        self._structs = 0
        self._decoder = _decoder(form, fields, ()) if _may_be_decoded(form, fields) else None

    def read(self, values: pa.Array[Any]) -> tuple[list[pa.Array[Any]], dict[int, str]]:
        """The columns of all payloads that fit, and why the others do not."""
        payloads = cast("list[bytes]", values.to_pylist())
        bad: dict[int, str] = {}
        rows = self._decode(payloads, bad)
        unsure = _unsure_json(values, payloads) if self._form == ParseFormat.JSON else self._unsure(rows)
        looked_at: set[int] = set()
        while True:
            for row in (row for row in unsure if row not in bad):
                rows[row] = self._look(payloads[row], row, bad)
            kept = [row for row in range(len(rows)) if row not in bad] if bad else range(len(rows))
            columns, misfits = _columns([rows[row] for row in kept] if bad else rows, self._fields)
            if not misfits:
                return columns, bad
            unsure = [kept[at] for at in misfits]
            # Looked at, a row is one that columns take: this is for a future Arrow that thinks otherwise.
            bad.update((row, "a value does not fit into its column") for row in unsure if row in looked_at)
            looked_at.update(unsure)

    def _decode(self, payloads: Sequence[bytes], bad: dict[int, str]) -> list[object]:
        """A struct for each payload; None for those that are bad."""
        import msgspec

        rows: list[object] = []
        left = iter(payloads)
        while len(rows) < len(payloads):
            try:
                if self._decoder is not None:
                    # A list keeps what it was given before an exception, and the loop stays out of Python.
                    rows.extend(map(self._decoder.decode, left))
                    break
                next(left)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                pass
            rows.append(self._look(payloads[len(rows)], len(rows), bad))
        return rows

    def _look(self, payload: bytes, at: int, bad: dict[int, str]) -> object:
        """The struct of one payload, looked at value by value; None if it is bad."""
        try:
            row, names = look_at(payload, self._form, self._fields)
        except Misfit as why:
            bad[at] = str(why)
            return None
        if self._form == ParseFormat.MSGPACK and self._decoder is not None:
            self._learn(names)
        return row

    def _learn(self, names: Sequence[str]) -> None:
        known = {*self._others, *(field.name for field in self._fields)}
        new = [name for name in names if name not in known and may_be_field(name)]
        if new and self._structs < _MOST_STRUCTS and len(new) + len(self._others) <= _MOST_OTHERS:
            self._structs += 1
            self._others += tuple(new)
            self._decoder = _decoder(self._form, self._fields, self._others)

    def _unsure(self, rows: list[Any]) -> list[int]:
        """Rows of MessagePack that have something in a member without a column that may not be there."""
        unsure: set[int] = set()
        for at in range(len(self._fields), len(self._fields) + len(self._others)):
            inside = members(rows, at)
            if not NESTING.isdisjoint(map(type, inside)):
                unsure.update(row for row, value in enumerate(inside) if _is_refused(value))
        return sorted(unsure)


def _is_refused(value: object) -> bool:
    try:
        check_nested([value], 2)
    except Refused:
        return True
    return False


def _unsure_json(values: pa.Array[Any], payloads: list[bytes]) -> list[int]:
    """Rows that may be nested too deep, and those that are not UTF-8: msgspec does not look at either."""
    unsure: set[int] = set()
    if max(map(len, payloads)) > 2 * MAX_DEPTH:
        brackets = (value.count(b"{") + value.count(b"[") for value in payloads)
        unsure.update(row for row, count in enumerate(brackets) if count > MAX_DEPTH)
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        unsure.update(row for row, value in enumerate(payloads) if not is_utf8(value))
    return sorted(unsure)


def _columns(rows: list[Any], fields: Fields) -> tuple[list[pa.Array[Any]], list[int]]:
    """The columns, and the rows that have a value which is not in its column as it is."""
    columns: list[pa.Array[Any]] = []
    misfits: set[int] = set()
    for at, field in enumerate(fields):
        made, lost = column(members(rows, at), field.type)
        columns.append(made)
        misfits.update(lost)
        if made.null_count and not field.nullable:
            misfits.update(row for row, valid in enumerate(made.is_valid().to_pylist()) if not valid)
    return columns, sorted(misfits)


def _may_be_decoded(form: ParseFormat, fields: Fields) -> bool:
    # Only at the top is it seen that a value without a type of its own is null, where it may not be.
    inner = chain.from_iterable(inner_fields(field.type) for field in fields)
    return may_be_struct(fields) and not any(_is_untyped_and_needed(form, field) for field in inner)


def _is_untyped_and_needed(form: ParseFormat, field: pa.Field[Any]) -> bool:
    untyped = pa.types.is_decimal(field.type) or (pa.types.is_timestamp(field.type) and form == ParseFormat.MSGPACK)
    inner = inner_fields(field.type)
    return (untyped and not field.nullable) or any(_is_untyped_and_needed(form, each) for each in inner)


@lru_cache(maxsize=64)
def _decoder(form: ParseFormat, fields: Fields, others: tuple[str, ...]) -> Any:
    import msgspec

    row = _struct(form, fields, others)
    return msgspec.json.Decoder(row) if form == ParseFormat.JSON else msgspec.msgpack.Decoder(row)


def _struct(form: ParseFormat, fields: Fields, others: tuple[str, ...] = ()) -> type:
    import msgspec

    strict = form == ParseFormat.MSGPACK
    names = [*(field.name for field in fields), *others]
    members: list[Any] = [
        (attribute(at), _type(form, field), *((None,) if field.nullable else ())) for at, field in enumerate(fields)
    ]
    members += [(attribute(at), Any, None) for at in range(len(fields), len(names))]
    rename = {attribute(at): name for at, name in enumerate(names)}
    return msgspec.defstruct("Row", members, rename=rename, forbid_unknown_fields=strict, kw_only=True, gc=False)


def _type(form: ParseFormat, field: pa.Field[Any]) -> Any:
    kind = _type_of(form, field.type)
    return kind | None if field.nullable and not _is_any(kind) else kind


def _is_any(kind: Any) -> bool:
    import msgspec

    return kind is Any or kind is msgspec.Raw


def _type_of(form: ParseFormat, kind: pa.DataType) -> Any:
    """What msgspec takes for a value of this kind; more only where `column` looks again."""
    import msgspec

    if pa.types.is_struct(kind):
        return _struct(form, inner_fields(kind))
    if pa.types.is_list(kind):
        return list.__class_getitem__(_type(form, kind.value_field))
    if pa.types.is_map(kind):
        return dict.__class_getitem__((str, _type(form, kind.item_field)))
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
