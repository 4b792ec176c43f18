"""The values of many rows as a column of a given type, and which of the rows have one that does not go in as it is.

Values are those of structs that msgspec made: of the right type, but for times, dates and decimals, which are text.
Arrow casts a whole column of text or nothing; what it refuses is found with a pattern, and then by halving the rest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import accumulate, chain
from operator import attrgetter
from typing import Any, cast

import msgspec
import pyarrow as pa

from penstock.engine.parsing.lenient_values import (
    EXPONENTS,
    FIRST_MICROSECOND,
    LAST_MICROSECOND,
    NoMeaning,
    lenient_reader,
    unit_of_size,
)
from penstock.engine.parsing.parse_options import STRICT, ColumnRule, ParseOptions, TimestampUnit
from penstock.engine.parsing.payload_format import attribute, inner_fields

_UTC = pa.timestamp("us", tz="UTC")
_TIMESTAMPS = frozenset({datetime, type(None)})
_TEXT = frozenset({str, type(None)})
_RAW = frozenset({msgspec.Raw, type(None)})
_INTEGERS = frozenset({int, type(None)})
_OF_TYPE: dict[pa.DataType, frozenset[type]] = {
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32(), pa.int64()), _INTEGERS),
    **dict.fromkeys((pa.float32(), pa.float64()), frozenset({float, type(None)})),
    pa.bool_(): frozenset({bool, type(None)}),
}
_EXACT_FLOATS = 1 << 53  # below it every whole float is one number only
_DAYS = (-719_162, 2_932_896)
_MAX_DIGITS = 38  # of a decimal
_ROWS_PER_ODD_ONE = 8  # with more odd ones than one in so many, the whole column is rewritten
_DAY, _CLOCK, _FRACTION = r"\d{4}-\d\d-\d\d", r"[T ]\d\d(:\d\d(:\d\d", r"(\.\d{1,6})?)?)?"
_LOOKS_RIGHT = {
    _UTC: rf"^{_DAY}{_CLOCK}{_FRACTION}(Z|[+-]\d\d(:?\d\d)?)$",
    pa.timestamp("us"): rf"^{_DAY}({_CLOCK}{_FRACTION})?$",
    pa.date32(): rf"^{_DAY}$",
}


def members(rows: Sequence[Any], at: int) -> list[Any]:
    """One attribute of all rows; None of what is None, or does not have it."""
    # Attribute by attribute: a tuple for each row would have Python collect garbage all the time.
    name = attribute(at)
    try:
        return list(map(attrgetter(name), rows))
    except AttributeError:
        return [getattr(row, name, None) for row in rows]


def column(
    values: Sequence[Any], kind: pa.DataType, options: ParseOptions = STRICT, path: str = ""
) -> tuple[pa.Array[Any], Iterable[int]]:
    """The values as a column, and the places of those that are null in it, or have something null in them, instead."""
    if pa.types.is_nested(kind):
        return _nested_column(values, kind, options, path)
    if options.converts:
        return _lenient_column(values, kind, options.rule(path, kind))
    return _strict_column(values, kind)


def _strict_column(values: Sequence[Any], kind: pa.DataType) -> tuple[pa.Array[Any], Iterable[int]]:
    if pa.types.is_temporal(kind):
        if cast("Any", kind) == _UTC and _TIMESTAMPS.issuperset(map(type, values)):
            return cast("pa.Array[Any]", pa.array(values, type=kind)), ()
        text = values
        if not _TEXT.issuperset(map(type, values)):
            text = [value if value is None or isinstance(value, str) else _iso(value, kind) for value in values]
    elif pa.types.is_decimal(kind):
        return _decimal_column(values, kind)
    else:
        return cast("pa.Array[Any]", pa.array(values, type=kind)), ()
    return _cast(pa.array(text, pa.string()), kind)


def in_range(values: pa.Array[Any]) -> pa.Array[Any]:
    """A column, whose times and dates, at any depth, are of the years 1 to 9999. Raises `ArrowInvalid` for others."""
    import pyarrow.compute as pc

    nested: Any = values
    if pa.types.is_struct(values.type) or pa.types.is_list(values.type):
        for inner in nested.flatten() if pa.types.is_struct(values.type) else (nested.flatten(),):
            in_range(inner)
    elif pa.types.is_temporal(values.type):
        days = pa.types.is_date(values.type)
        first, last = _DAYS if days else (FIRST_MICROSECOND, LAST_MICROSECOND)
        ends: Any = pc.min_max(values.cast(pa.int32() if days else pa.int64()))
        if ends["min"].is_valid and not first <= ends["min"].as_py() <= ends["max"].as_py() <= last:
            raise pa.ArrowInvalid("a year that is not between 1 and 9999")
    return values


def epoch_column(numbers: pa.Array[Any], kind: pa.DataType, rule: ColumnRule) -> pa.Array[Any] | None:
    """Numbers of 64 bits as a column of timestamps; None where one is none, or the unit of them all is not plain."""
    import pyarrow.compute as pc

    ends: Any = pc.min_max(cast("Any", numbers))
    smallest, largest = ends["min"].as_py(), ends["max"].as_py()
    if smallest is None:
        return cast("pa.Array[Any]", pa.nulls(len(numbers), cast("Any", kind)))
    unit = rule.unit or unit_of_size(smallest, largest)
    if unit is None or (smallest < 0 and unit is TimestampUnit.NANOSECONDS):  # which Arrow rounds towards zero
        return None
    exponent = EXPONENTS[unit]
    factor: Any = pa.scalar(10 ** abs(exponent), pa.int64())
    in_micros = (int(end * 10 ** max(exponent, 0)) // 10 ** max(-exponent, 0) for end in (smallest, largest))
    if not all(FIRST_MICROSECOND <= micros <= LAST_MICROSECOND for micros in in_micros):
        return None
    count: Any = numbers
    micros: Any = pc.multiply(count, factor) if exponent >= 0 else pc.divide(count, factor)
    return cast("pa.Array[Any]", micros.cast(kind))


def _lenient_column(values: Sequence[Any], kind: pa.DataType, rule: ColumnRule) -> tuple[pa.Array[Any], Iterable[int]]:
    """A column into which more goes than values of its type."""
    if not rule.converts:
        return _strict_column(values, kind)
    read = _quick_reader(kind, rule)
    if pa.types.is_temporal(kind) or pa.types.is_decimal(kind):
        if pa.types.is_timestamp(kind) and _INTEGERS.issuperset(map(type, values)):
            whole = _epochs(values, kind, rule)
            if whole is not None:
                return whole, ()
        strict, lost = _strict_column(values, kind)
        meant = {at: read(values[at]) for at in lost}
        if not any(value is not None for value in meant.values()):
            return strict, lost
        # What has no meaning is a text that is none here either, so it is lost once more.
        return _strict_column([meant.get(at) or value for at, value in enumerate(values)], kind)
    expected = _OF_TYPE.get(kind)
    if expected is None or expected.issuperset(map(type, values)):
        return _strict_column(values, kind)
    converted = [value if type(value) in expected else read(value) for value in values]
    lost = [at for at, value in enumerate(converted) if value is None and values[at] is not None]
    return cast("pa.Array[Any]", pa.array(converted, type=kind)), lost


def _epochs(values: Sequence[Any], kind: pa.DataType, rule: ColumnRule) -> pa.Array[Any] | None:
    try:
        return epoch_column(cast("pa.Array[Any]", pa.array(values, pa.int64())), kind, rule)
    except (OverflowError, pa.ArrowInvalid):  # more than 64 bits
        return None


def _quick_reader(kind: pa.DataType, rule: ColumnRule) -> Callable[[Any], Any]:
    """A function to what a value means in the column; None where that is for `row_values` to say."""
    lenient, is_integer = lenient_reader(kind, rule), pa.types.is_integer(kind)

    def read(value: Any) -> Any:
        if is_integer and isinstance(value, float) and abs(value) >= _EXACT_FLOATS:
            return None  # its digits are not known
        try:
            return lenient(_digits(value) if isinstance(value, msgspec.Raw) else value)
        except NoMeaning:
            return None

    return read


def _cast(text: Any, kind: pa.DataType) -> tuple[pa.Array[Any], Iterable[int]]:
    import pyarrow.compute as pc

    try:
        return in_range(text.cast(kind)), ()
    except pa.ArrowInvalid:
        pass
    lost: list[int] = []
    if kind in _LOOKS_RIGHT:
        lost = _odd(text, _LOOKS_RIGHT[kind])
        if pa.types.is_timestamp(kind) and len(lost) * _ROWS_PER_ODD_ONE > len(text):
            # Not a few odd ones: cut digits behind the microseconds, and say that what has no zone is in UTC.
            text = pc.replace_substring_regex(text, r"(:\d\d\.\d{6})\d+", r"\1")
            if kind.tz is not None:
                text = pc.replace_substring_regex(text, r"([T ][\d:.]+)$", r"\1Z")
            lost = _odd(text, _LOOKS_RIGHT[kind])
        text = pc.replace_with_mask(text, _mask(lost, len(text)), pa.scalar(None, pa.string()))
    parts: list[pa.Array[Any]] = []
    _halve(text, kind, 0, parts, lost)
    return pa.concat_arrays(parts), lost


def _odd(text: Any, pattern: str) -> list[int]:
    import pyarrow.compute as pc

    wrong = pc.invert(pc.match_substring_regex(text, pattern)).fill_null(False)
    return cast("list[int]", pc.indices_nonzero(wrong).to_pylist())


def _mask(rows: list[int], total: int) -> pa.Array[Any]:
    marked = bytearray(total)
    for row in rows:
        marked[row] = 1
    return cast("pa.Array[Any]", pa.array(marked, pa.uint8()).cast(pa.bool_()))


def _halve(text: Any, kind: pa.DataType, start: int, parts: list[pa.Array[Any]], lost: list[int]) -> None:
    try:
        parts.append(in_range(text.cast(kind)))
    except pa.ArrowInvalid:
        if len(text) == 1:
            parts.append(cast("Any", pa.nulls(1, cast("Any", kind))))
            lost.append(start)
            return
        middle = len(text) // 2
        _halve(text.slice(0, middle), kind, start, parts, lost)
        _halve(text.slice(middle), kind, start + middle, parts, lost)


def _iso(value: Any, kind: pa.DataType) -> str:
    """A timestamp as text; nothing for what is none, or is one where no zone may be."""
    if not isinstance(value, datetime) or cast("Any", kind).tz is None:
        return ""
    return value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


def _decimal_column(values: Sequence[Any], kind: Any) -> tuple[pa.Array[Any], Iterable[int]]:
    """Only plain digits that fit are cast: what does not fit, Arrow takes modulo 2**128, or without its last digits."""
    import pyarrow.compute as pc

    text = _decimal_text(values)
    whole, fraction, zeros = kind.precision - kind.scale, max(kind.scale, 0), _MAX_DIGITS - kind.precision
    odd = _odd(text, rf"^[+-]?0?\d{{0,{whole}}}(\.\d{{0,{fraction}}}0{{0,{zeros}}})?$")
    if odd:
        text = pc.replace_with_mask(text, _mask(odd, len(text)), pa.scalar(None, pa.string()))
    cast, lost = _cast(text, kind)
    return cast, [*odd, *lost]


def _decimal_text(values: Sequence[Any]) -> Any:
    """Numbers as they are written; of those that JSON has as text, what is in it."""
    import pyarrow.compute as pc

    if not _RAW.issuperset(map(type, values)):
        return pa.array(map(_digits, values), pa.string())
    raw = [None if value is None else bytes(value) for value in values]
    text: Any = pa.array(raw, pa.binary()).cast(pa.string())
    is_null: Any = pc.equal(text, pa.scalar("null"))
    return pc.if_else(is_null, pa.scalar(None, pa.string()), pc.utf8_trim(text, characters='"'))


def _digits(value: Any) -> str | None:
    if not isinstance(value, msgspec.Raw):
        return None if value is None else str(value)
    text = bytes(value).decode()
    return None if text == "null" else text.strip('"')


def _nested_column(
    values: Sequence[Any], kind: pa.DataType, options: ParseOptions, path: str
) -> tuple[pa.Array[Any], Iterable[int]]:
    fields = inner_fields(kind)
    valid = pa.array([value is not None for value in values], pa.bool_()).buffers()[1] if None in values else None
    if pa.types.is_struct(kind):
        inner = [
            column(members(values, at), field.type, options, f"{path}.{field.name}") for at, field in enumerate(fields)
        ]
        whole = pa.Array.from_buffers(kind, len(values), [valid], children=[child for child, _ in inner])
        return whole, set(chain.from_iterable(lost for _, lost in inner))
    filled = [() if value is None else value for value in values]
    ends = list(accumulate(map(len, filled), initial=0))
    inside = list(chain.from_iterable(filled))
    if pa.types.is_map(kind):
        keys = pa.array(inside, pa.string())
        inner_values = list(chain.from_iterable(each.values() for each in filled if each))
        items, lost = column(inner_values, kind.item_type, options, path)
        entries = pa.Array.from_buffers(fields[0].type, len(keys), [None], children=[keys, items])
    else:
        entries, lost = column(inside, fields[0].type, options, path)
    offsets = pa.array(ends, pa.int32()).buffers()[1]
    whole = pa.Array.from_buffers(kind, len(values), [valid, offsets], children=[entries])
    return whole, {bisect_right(ends, place) - 1 for place in lost}
