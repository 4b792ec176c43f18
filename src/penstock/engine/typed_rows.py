"""Payloads into columns whose types are told, by way of structs: msgspec decodes, and Arrow takes the members.

The structs say what each field may be, so a payload that msgspec takes fits, but for three things. Times, dates and
decimals are only text by then: where Arrow does not take the text of a group, halves are tried until few rows are
left. MessagePack with members that have no column is only taken when these have been seen before, and are decoded
too: msgspec does not look at what it skips. JSON is skipped with care, but not for UTF-8 and depth. Every row that may
be wrong is looked at one by one, which also finds the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import accumulate, chain
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, cast

import pyarrow as pa

from penstock.engine.json_values import _is_utf8
from penstock.engine.msgpack_values import _NESTING, _check_nested, _may_be_field, _Refused
from penstock.engine.parse_errors import MAX_DEPTH
from penstock.engine.parsing import ParseFormat
from penstock.engine.typed_values import Fields, Misfit, attribute, inner_fields, look_at, may_be_struct

if TYPE_CHECKING:
    import msgspec

GROUP = 2048  # rows that are structs at a time, few enough to stay in the cache of a core
_MOST_DIGITS = 38  # of a decimal
_FEW = 4  # rows that are not halved any more
_MOST_STRUCTS = 16  # for one reader
_MOST_OTHERS = 256  # members without a column that a struct has
_YEARS = (-62_135_596_800_000_000, 253_402_300_799_999_999)  # 1 to 9999, in microseconds
_DAYS = (-719_162, 2_932_896)
_MISFITS = (pa.ArrowException, OverflowError, TypeError, ValueError)


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
        while True:
            for row in unsure:
                rows[row] = self._look(payloads[row], row, bad)
            kept = [row for row in range(len(rows)) if row not in bad] if bad else range(len(rows))
            columns, misfits = _columns([rows[row] for row in kept] if bad else rows, self._fields)
            if not misfits:
                return columns, bad
            # What is left of these fits: a row that was looked at is one that columns take.
            unsure = [kept[at] for at in misfits]

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
        new = [name for name in names if name not in known and _may_be_field(name)]
        if new and self._structs < _MOST_STRUCTS and len(new) + len(self._others) <= _MOST_OTHERS:
            self._structs += 1
            self._others += tuple(new)
            self._decoder = _decoder(self._form, self._fields, self._others)

    def _unsure(self, rows: list[Any]) -> list[int]:
        """Rows of MessagePack that have something in a member without a column that may not be there."""
        unsure: set[int] = set()
        for at in range(len(self._fields), len(self._fields) + len(self._others)):
            inside = members(rows, at)
            if not _NESTING.isdisjoint(map(type, inside)):
                unsure.update(row for row, value in enumerate(inside) if _is_refused(value))
        return sorted(unsure)


def _is_refused(value: object) -> bool:
    try:
        _check_nested([value], 2)
    except _Refused:
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
        unsure.update(row for row, value in enumerate(payloads) if not _is_utf8(value))
    return sorted(unsure)


def _columns(rows: list[Any], fields: Fields) -> tuple[list[pa.Array[Any]], list[int]]:
    """The columns, if they take all rows as they are; and the rows that they may not take."""
    columns: list[pa.Array[Any]] = []
    misfits: set[int] = set()
    for at, field in enumerate(fields):
        values = members(rows, at)
        try:
            columns.append(column(values, field.type))
        except _MISFITS:
            misfits.update(_halved(values, field.type, 0, len(values)))
            continue
        if columns[-1].null_count and not field.nullable:
            misfits.update(row for row, value in enumerate(values) if value is None or _is_null(value))
    return columns, sorted(misfits)


def _is_null(value: object) -> bool:
    import msgspec

    return isinstance(value, msgspec.Raw) and bytes(value) == b"null"


def _halved(values: list[Any], kind: pa.DataType, start: int, end: int) -> Sequence[int]:
    try:
        column(values[start:end], kind)
    except _MISFITS:
        if end - start <= _FEW:
            return range(start, end)
        middle = (start + end) // 2
        return [*_halved(values, kind, start, middle), *_halved(values, kind, middle, end)]
    return ()


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


def members(rows: Sequence[Any], at: int) -> list[Any]:
    """One attribute of all rows; None of what is None."""
    name = attribute(at)
    try:
        return list(map(attrgetter(name), rows))
    except AttributeError:
        return [getattr(row, name, None) for row in rows]


def column(values: list[Any], kind: pa.DataType) -> pa.Array[Any]:
    """The members of structs as a column. Raises one of `_MISFITS` where some of them do not fit."""
    if pa.types.is_nested(kind):
        return _nested_column(values, kind)
    if pa.types.is_timestamp(kind):
        return _times(values, kind)
    if pa.types.is_date(kind):
        return in_range(pa.array(values, pa.string()).cast(kind))
    if pa.types.is_decimal(kind):
        return pa.array(list(map(_digits, values)), pa.string()).cast(kind)
    return cast("pa.Array[Any]", pa.array(values, type=kind))


def in_range(times: pa.Array[Any]) -> pa.Array[Any]:
    """Times or dates of the years 1 to 9999. Raises `ArrowInvalid` for others, which Python does not know."""
    import pyarrow.compute as pc

    days = pa.types.is_date(times.type)
    first, last = _DAYS if days else _YEARS
    ends: Any = pc.min_max(times.cast(pa.int32() if days else pa.int64()))
    if ends["min"].is_valid and not first <= ends["min"].as_py() <= ends["max"].as_py() <= last:
        raise pa.ArrowInvalid("a year that is not between 1 and 9999")
    return times


def _times(values: list[Any], kind: pa.TimestampType[Any, Any]) -> pa.Array[Any]:
    import pyarrow.compute as pc

    if not {str, type(None)}.issuperset(map(type, values)):
        values = [_iso(value) if isinstance(value, datetime) and kind.tz else value for value in values]
    text: Any = pa.array(values, pa.string())
    try:
        return in_range(text.cast(kind))
    except pa.ArrowInvalid:
        # Digits behind the microseconds are cut, and what has no zone is in UTC.
        text = pc.replace_substring_regex(text, r"(\.\d{6})\d+", r"\1")
        if kind.tz:
            text = pc.replace_substring_regex(text, r"([T ][\d:.]+)$", r"\1Z")
        return in_range(text.cast(kind))


def _iso(time: datetime) -> str:
    return time.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


def _digits(value: Any) -> str | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else repr(value) if isinstance(value, int | float) else bytes(value).decode()
    if text == "null":
        return None
    if len(text) > _MOST_DIGITS and sum(map(str.isdigit, text.lower().partition("e")[0])) > _MOST_DIGITS:
        raise ValueError("Arrow takes the digits modulo 2**128")
    return text.removeprefix('"').removesuffix('"')


def _nested_column(values: list[Any], kind: pa.DataType) -> pa.Array[Any]:
    fields = inner_fields(kind)
    valid = pa.array([value is not None for value in values], pa.bool_()).buffers()[1] if None in values else None
    if pa.types.is_struct(kind):
        children = [column(members(values, at), field.type) for at, field in enumerate(fields)]
        return pa.Array.from_buffers(kind, len(values), [valid], children=children)
    filled = [() if value is None else value for value in values]
    offsets = pa.array(list(accumulate(map(len, filled), initial=0)), pa.int32()).buffers()[1]
    if pa.types.is_map(kind):
        keys = column(list(chain.from_iterable(filled)), kind.key_type)
        items = column([item for value in filled if value for item in value.values()], kind.item_type)
        entries = pa.Array.from_buffers(fields[0].type, len(keys), [None], children=[keys, items])
    else:
        entries = column(list(chain.from_iterable(filled)), fields[0].type)
    return pa.Array.from_buffers(kind, len(values), [valid, offsets], children=[entries])
