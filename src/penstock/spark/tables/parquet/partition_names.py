"""The values of partition columns as text, and the names of their directories, as Hive and Spark write them."""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa

from penstock.errors import InvalidInput

# What Hive and Spark escape in the name of a partition's directory, and what our stores refuse in a path.
_ESCAPED = re.compile("[\\x00-\\x1f\\x7f\"#%'*/:=?\\\\{\\[\\]^\ufffe\uffff]")
_MAX_NAME = 255  # bytes
_NULL = "__HIVE_DEFAULT_PARTITION__"


def directory_of(name: str, value: str | None) -> str:
    """The directory of the rows with a value, as text, in a column.

    >>> directory_of("at", "2026-01-31 12:00:00"), directory_of("event", None)
    ('at=2026-01-31 12%3A00%3A00', 'event=__HIVE_DEFAULT_PARTITION__')
    """
    return f"{_escaped(name)}={_escaped(value) if value else _NULL}"


def check_directory(column: str, directory: str) -> None:
    """Raise `InvalidInput` for a directory whose name is longer than a file system takes."""
    size = len(os.fsencode(directory))
    if size > _MAX_NAME:
        raise InvalidInput(
            f"partition_by names the column {column!r}, and a row has a value there that is too long for the name of a "
            f"directory, {value_in(directory[:40])!r}...: {size} bytes with the column's name, and a file system takes "
            f"{_MAX_NAME}. Cut it, or partition by another column"
        )


def value_in(directory: str) -> str | None:
    """The value in the name of a directory, as text.

    >>> value_in("at=2026-01-31 12%3A00%3A00"), value_in("event=__HIVE_DEFAULT_PARTITION__")
    ('2026-01-31 12:00:00', None)
    """
    value = unquote(directory.partition("=")[2])
    return None if value == _NULL else value


def partition_text(values: pa.Array[Any]) -> pa.Array[Any]:
    """Values of a partition column as the commit and the names of directories have them.

    Timestamps are as Spark writes them, in UTC: without a zone, and without zeros at the end of a fraction.
    """
    if not pa.types.is_timestamp(values.type):
        return values.cast(pa.string())
    texts = values.cast(pa.timestamp("us")).cast(pa.string()).to_pylist()
    return pa.array([None if text is None else _without_zeros(text) for text in texts], pa.string())


def scalar_of(text: str | None, kind: pa.DataType) -> Any:
    """The value of a partition column that has this text."""
    if text is None:
        return pa.scalar(None, kind)
    if not isinstance(kind, pa.TimestampType):
        return pa.array([text], pa.string()).cast(kind)[0]
    # In UTC, without a zone; an earlier Penstock wrote a zone.
    instants = pa.array([text.removesuffix("Z")], pa.string()).cast(pa.timestamp(kind.unit))
    return instants.view(kind)[0]


def _without_zeros(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: quote(found[0], safe=""), text)
