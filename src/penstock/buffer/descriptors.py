"""What a manifest has of one data batch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.errors import InvalidInput

_U16, _U32, _I64 = (1 << 16) - 1, (1 << 32) - 1, (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Metadata:
    """When the entries from `start_index` on were ingested, and what their producer attached."""

    start_index: int
    ingestion_time_ms: int
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class BatchDescriptor:
    """One entry of the queue: its sequence, the location of its data, and its metadata.

    `size` in bytes and the number of `records` are None where the manifest does not know them: version 1 does not.
    """

    sequence: int
    location: str
    metadata: tuple[Metadata, ...] = ()
    size: int | None = None
    records: int | None = None


@dataclass(frozen=True, slots=True)
class NewEntry:
    """A written batch that is to be appended. `deadline` is when its producer gives up, by its uptime clock."""

    location: str
    metadata: tuple[Metadata, ...] = field(repr=False)
    deadline: float = math.inf
    size: int | None = None
    records: int | None = None


def check_entry(location: str, metadata: Iterable[Metadata]) -> bytes:
    """The bytes of a location. Raises `InvalidInput` for what version 1 of the manifest cannot hold, or no text."""
    try:
        encoded = location.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"the location {location!r} cannot be written as UTF-8") from error
    if not 0 < len(encoded) <= _U16:
        raise InvalidInput(f"a location must have 1 to {_U16} bytes, not {len(encoded)}")
    for item in metadata:
        if not 0 <= item.start_index <= _U32:
            raise InvalidInput(f"a metadata item's start_index must be from 0 to {_U32}, not {item.start_index}")
        if not -_I64 - 1 <= item.ingestion_time_ms <= _I64:
            raise InvalidInput(f"a metadata item's ingestion_time_ms must fit in 64 bits, not {item.ingestion_time_ms}")
        if len(item.payload) > _U32:
            raise InvalidInput(f"a metadata payload cannot have more than {_U32} bytes, and has {len(item.payload)}")
    return encoded
