"""What a manifest has of one data batch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


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
