"""Arguments and options of commands that work on tables."""

from __future__ import annotations

import importlib.util
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from penstock.cli.places import named_values
from penstock.errors import InvalidInput, PenstockError

if TYPE_CHECKING:
    from penstock.spark import OpenedTable

TablePlace: TypeAlias = Annotated[
    str, typer.Argument(metavar="TABLE", help="The table: a path, a URL, or the name of an Iceberg table.")
]
TableKind: TypeAlias = Annotated[
    str | None, typer.Option("--kind", help="parquet, delta or iceberg. Without it: found by looking.")
]
CatalogOptions: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--catalog", metavar="NAME=VALUE", help="A property of the Iceberg catalog, such as warehouse=/data/lake."
    ),
]

NO_PYSPARK = "tables need PySpark, though no Spark is started: pip install 'penstock[spark]'"

_AGE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)
_SECONDS = {"": 1, "s": 1, "second": 1, "m": 60, "minute": 60, "h": 3600, "hour": 3600, "d": 86400, "day": 86400}
_SECONDS |= {"w": 7 * 86400, "week": 7 * 86400}


def open_table_at(
    where: str, kind: str | None, catalog: list[str] | None, storage_options: list[str] | None
) -> OpenedTable:
    """Open a table that is there, as it was typed."""
    if importlib.util.find_spec("pyspark") is None:
        raise PenstockError(NO_PYSPARK)
    from penstock.spark import open_existing

    properties = named_values(catalog, "a property of a catalog is NAME=VALUE, such as warehouse=/data/lake")
    options = named_values(storage_options, "a storage option is NAME=VALUE, such as region=eu-west-1")
    return open_existing(where, kind=kind, options=options, catalog=properties)


def seconds_of(option: str, text: str) -> float:
    """A length of time as it was typed, in seconds. Raises `InvalidInput` naming the option.

    >>> seconds_of("--older-than", "7 days"), seconds_of("--older-than", "90")
    (604800.0, 90.0)
    """
    found = _AGE.fullmatch(text)
    unit = found and _SECONDS.get(found[2].lower().removesuffix("s") or found[2].lower())
    if found is None or unit is None:
        raise InvalidInput(f"{option} must be a time such as '7 days', '12 hours' or a number of seconds, not {text!r}")
    return float(found[1]) * unit


def moment_of(option: str, text: str, now: datetime) -> datetime:
    """A date or a time as it was typed, in UTC where it has no zone; or that long ago. Raises `InvalidInput`."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        try:
            return now - timedelta(seconds=seconds_of(option, text))
        except (InvalidInput, OverflowError) as error:
            raise InvalidInput(
                f"{option} must be a date such as 2026-01-31, a time such as 2026-01-31T12:00:00Z, or how long ago it "
                f"was, such as '2 hours', not {text!r}"
            ) from error
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at


def size_of(count: int) -> str:
    """A number of bytes as people read it.

    >>> size_of(999), size_of(1536), size_of(5 << 30)
    ('999 B', '1.5 KiB', '5.0 GiB')
    """
    if count < 1024:
        return f"{count} B"
    size, units = count / 1024, iter(("KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    while size >= 1024 and (larger := next(units, None)) is not None:
        size, unit = size / 1024, larger
    return f"{size:.1f} {unit}"
