"""What a value means in a column that is not of its type, where that is one thing only; and numbers as times.

Reached only by values that are not of their column's type, so a strict parser and a lenient one agree on all others.
The guide to parsing has the rules in a table, with what Spark does beside each.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import MAX_EMAX, MIN_EMIN, ROUND_FLOOR, ROUND_HALF_UP, Context, Decimal, DecimalException
from functools import lru_cache, partial
from typing import Any

import pyarrow as pa

from penstock.engine.parsing.parse_options import ColumnRule, TimestampUnit
from penstock.engine.parsing.text_values import DECIMAL, as_decimal, as_time

FIRST_MICROSECOND, LAST_MICROSECOND = -62_135_596_800_000_000, 253_402_300_799_999_999  # of the years 1 to 9999
EXPONENTS = {
    TimestampUnit.SECONDS: 6,
    TimestampUnit.MILLISECONDS: 3,
    TimestampUnit.MICROSECONDS: 0,
    TimestampUnit.NANOSECONDS: -3,
}
"""Of ten: how many microseconds a unit is."""

_NO_UNIT = "is a number that may count s, ms, us or ns: the option timestamp_unit says which"
_EPOCH = datetime(1970, 1, 1)
_MAX_DIGITS = 30  # in front of the point, of a number that may be a time in any unit
_SHORT = 18  # digits of a number that is in 64 bits, whatever they are
_SPACE = " \t\r\n"
_TRUTH = {"true": True, "false": False}
_NOT_FINITE = re.compile(r"nan|[+-]?inf(inity)?", re.ASCII | re.IGNORECASE)
_DAY = r"(\d{4})-(\d{1,2})-(\d{1,2})"
_CLOCK = r"(\d{1,2})(?::(\d\d)(?::(\d\d)(?:[.,](\d+))?)?)?"
_TIME = re.compile(rf"{_DAY}(?:[Tt ]{_CLOCK} ?([Zz]|UTC|GMT|[+-]\d\d(?::?\d\d)?)?)?", re.ASCII)
_ZERO_OFFSETS = frozenset({"", "Z", "z", "UTC", "GMT", "+00", "+0000", "+00:00", "-00", "-0000", "-00:00"})


class NoMeaning(Exception):
    """A value that has no one meaning in its column; the text goes behind the name of its field."""


@lru_cache(maxsize=256)
def lenient_reader(kind: pa.DataType, rule: ColumnRule) -> Callable[[Any], Any]:
    """A function from a value that is not of its column's type to what goes into the column; None where nothing does.

    Times, dates and decimals are text that Arrow casts. Raises `NoMeaning` where it can say why.
    """
    if pa.types.is_timestamp(kind):
        return partial(_as_timestamp, zoned=kind.tz is not None, rule=rule)
    if rule.is_lenient:
        for is_kind, read in _READERS:
            if is_kind(kind):
                return partial(read, kind=kind)
    return lambda _: None


def unit_of_size(smallest: Any, largest: Any) -> TimestampUnit | None:
    """The unit in which numbers from the smallest to the largest are times from September 2001 to November 2286.

    In any other unit they are before May 1970, or after the year 9999. None where there is no such unit.

    >>> unit_of_size(1_767_225_600_000, 1_767_225_600_999), unit_of_size(1_767_225_600, 1_767_225_600_999)
    (<TimestampUnit.MILLISECONDS: 'ms'>, None)
    """
    for digits, unit in ((10, "s"), (13, "ms"), (16, "us"), (19, "ns")):
        if 10 ** (digits - 1) <= smallest and largest < 10**digits:
            return TimestampUnit(unit)
    return None


def _as_number(found: Any) -> Decimal | None:
    """A number, also one that is written as text, with all digits it is written in."""
    if isinstance(found, bool) or not isinstance(found, int | float | str):
        return None
    if isinstance(found, int):
        return Decimal(found)
    text = found.strip(_SPACE) if isinstance(found, str) else getattr(found, "digits", "") or repr(found)
    if not DECIMAL.fullmatch(text):
        return None
    try:
        return Decimal(text)
    except DecimalException:
        return None  # an exponent beyond all measure


def _as_integer(found: Any, kind: Any) -> int | None:
    bits = kind.bit_width
    if isinstance(found, str) and len(found) <= _SHORT and found.isascii() and found.isdigit():
        whole = int(found)  # as below, and sooner
        if whole < 1 << (bits - 1):
            return whole
    number = _as_number(found)
    if number is None:
        return None
    if number and number.adjusted() > bits // 3:  # far out of range, and perhaps too long to be written out
        raise NoMeaning(f"is out of the range of {kind}")
    whole = int(number)
    if number != whole:
        raise NoMeaning(f"is a number with a fraction, and the column is {kind}")
    if not -1 << (bits - 1) <= whole < 1 << (bits - 1):
        raise NoMeaning(f"is out of the range of {kind}")
    return whole


def _as_float(found: Any, kind: Any) -> float | None:  # noqa: ARG001  which rounds it
    text = found.strip(_SPACE) if isinstance(found, str) else ""
    return float(text) if DECIMAL.fullmatch(text) or _NOT_FINITE.fullmatch(text) else None


def _as_truth(found: Any, kind: Any) -> bool | None:  # noqa: ARG001  there is one kind
    return _TRUTH.get(found.strip(_SPACE).lower()) if isinstance(found, str) else None


def _as_date(found: Any, kind: Any) -> str | None:  # noqa: ARG001  there is one kind
    """The day in UTC of a time."""
    time = _time_of_text(found, zoned=True) if isinstance(found, str) else as_time(found, zoned=True)
    return None if time is None else time[:10]


def _as_decimal(found: Any, kind: Any) -> str | None:
    """Rounded to the column's digits, half away from zero, as Spark rounds; never to fewer in front of the point."""
    number = _as_number(found)
    if number is None:
        return None
    if not number or number.adjusted() < -kind.scale - 1:
        return "0"
    if number.adjusted() >= kind.precision - kind.scale:
        return None
    context = Context(prec=kind.precision + 1, Emax=MAX_EMAX, Emin=MIN_EMIN)
    rounded = number.quantize(Decimal((0, (1,), -kind.scale)), ROUND_HALF_UP, context)
    return as_decimal(f"{rounded:f}", kind)  # None where it was rounded up to one digit more


def _as_timestamp(found: Any, *, zoned: bool, rule: ColumnRule) -> str | None:
    if isinstance(found, str) and not rule.is_lenient:
        return None
    number = _as_number(found)
    if number is not None:
        return _time_of_number(number, rule.unit or unit_of_size(number, number), zoned=zoned)
    if isinstance(found, str):
        return _time_of_text(found, zoned=zoned)
    if rule.is_lenient and isinstance(found, datetime):  # in a column without a zone: in UTC
        time = as_time(found, zoned=True)
        return time.removesuffix("Z") if time else None
    return None


def _time_of_number(number: Decimal, unit: TimestampUnit | None, *, zoned: bool) -> str:
    if unit is None:
        raise NoMeaning(_NO_UNIT)
    micros = 0
    if number:
        if number.adjusted() > _MAX_DIGITS:
            raise NoMeaning("is a time beyond the years 1 to 9999")
        digits = len(number.as_tuple().digits) + _MAX_DIGITS
        context = Context(prec=digits, Emax=MAX_EMAX, Emin=MIN_EMIN)
        scaled = number.scaleb(EXPONENTS[unit], context)
        micros = int(scaled.to_integral_value(ROUND_FLOOR, context))
    if not FIRST_MICROSECOND <= micros <= LAST_MICROSECOND:
        raise NoMeaning("is a time beyond the years 1 to 9999")
    return (_EPOCH + timedelta(microseconds=micros)).isoformat() + ("Z" if zoned else "")


def _time_of_text(text: str, *, zoned: bool) -> str | None:
    """A time that is not quite ISO 8601. Without a zone in the column, only one in UTC has one meaning there."""
    match = _TIME.fullmatch(text.strip(_SPACE))
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, zone = (group or "" for group in match.groups())
    if not zoned and zone not in _ZERO_OFFSETS:
        raise NoMeaning("is a time with an offset, and the column has no zone")
    offset = zone if zone[:1] in {"+", "-"} else "Z"
    clock = f"{hour:0>2}:{minute:0>2}:{second:0>2}.{fraction or '0'}"
    time = as_time(f"{year}-{month:0>2}-{day:0>2}T{clock}{offset}", zoned=True)
    return time if zoned or time is None else time.removesuffix("Z")


_READERS: tuple[tuple[Callable[[Any], bool], Callable[..., Any]], ...] = (
    (pa.types.is_integer, _as_integer),
    (pa.types.is_floating, _as_float),
    (pa.types.is_boolean, _as_truth),
    (pa.types.is_decimal, _as_decimal),
    (pa.types.is_date, _as_date),
)
