"""What text says in a column of times, dates, decimals or binary, and numbers in one of decimals.

Times, dates and decimals stay text, in a form that Arrow casts.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, DecimalException
from typing import Any, cast

import msgspec
import pyarrow as pa

_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d)(?::(\d\d)(?::(\d\d)(?:\.(\d+))?)?)?(Z|[+-]\d\d(?::?\d\d)?)?)?", re.ASCII
)
_LAST_DAY_OF_YEAR_0 = "0000-12-31"
_NONE = timedelta()
# Possessive, for there is one way to read any digits: a long text that is no number is read once.
DECIMAL = re.compile(r"[+-]?(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d++)?", re.ASCII)


def from_text(found: Any, kind: pa.DataType) -> Any:
    """What goes into a column of times, dates, decimals or binary; None where that cannot be."""
    if pa.types.is_binary(kind):
        return found if isinstance(found, bytes) else as_bytes(found)
    if pa.types.is_decimal(kind):
        return as_decimal(found, kind)
    if pa.types.is_timestamp(kind):
        return as_time(found, zoned=kind.tz is not None)
    if pa.types.is_date(kind) and isinstance(found, str) and _DATE.fullmatch(found):
        return found if _date(found) is not None else None
    return None


def as_bytes(found: Any) -> bytes | None:
    """The bytes that a text is base64 of, or None."""
    if not isinstance(found, str):
        return None
    try:
        return msgspec.convert(found, bytes)
    except msgspec.ValidationError:
        return None


def as_decimal(found: Any, kind: pa.DataType) -> str | None:
    """A number, or text that is one, as plain digits; None for what is none, and where the column would lose digits."""
    if isinstance(found, bool) or not isinstance(found, int | float | str):
        return None
    text = found if isinstance(found, str) else getattr(found, "digits", "") or repr(found)
    if not DECIMAL.fullmatch(text):
        return None
    try:
        number = Decimal(text).normalize(Context(prec=len(text), Emax=MAX_EMAX, Emin=MIN_EMIN))
    except DecimalException:
        return None  # an exponent beyond all measure
    if not number:
        return "0"
    decimal, exponent = cast("Any", kind), cast("int", number.as_tuple().exponent)
    fits = exponent >= -decimal.scale and number.adjusted() < decimal.precision - decimal.scale
    return f"{number:f}" if fits else None


def as_time(found: Any, *, zoned: bool) -> str | None:
    """A timestamp as text that Arrow casts: in UTC if `zoned`, else without a zone; None for what is none."""
    if isinstance(found, datetime) and zoned:
        return _in_utc(found)
    match = _TIME.fullmatch(found) if isinstance(found, str) else None
    if match is None:
        return None
    day, hour, minute, second, fraction, zone = match.groups()
    if zone is not None and not zoned:
        return None
    is_before_year_1 = zoned and day == _LAST_DAY_OF_YEAR_0  # of which times may be in the year 1, in UTC
    if is_before_year_1:
        day = "0001-01-01"
    try:
        time = datetime.fromisoformat(
            f"{day}T{hour or '00'}:{minute or '00'}:{second or '00'}.{(fraction or '0'):0<6.6}"
        )
    except ValueError:
        return None
    if not zoned:
        return time.isoformat()
    return _in_utc(time.replace(tzinfo=UTC), zone, timedelta(days=is_before_year_1))


def _in_utc(time: datetime, zone: str | None = None, offset: timedelta = _NONE) -> str | None:
    if zone is not None and zone != "Z":
        hours, minutes = int(zone[1:3]), int(zone[3:].lstrip(":") or "0")
        if hours > 23 or minutes > 59:
            return None
        offset += timedelta(hours=hours, minutes=minutes) * (-1 if zone[0] == "-" else 1)
    try:
        return (time.astimezone(UTC) - offset).replace(tzinfo=None).isoformat() + "Z"
    except OverflowError:
        return None


def _date(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None
