"""What a manifest says of one data batch."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Metadata:
    """Of the batch's entries from `start_index` on: when they were ingested, and what their caller attached."""

    start_index: int
    ingestion_time_ms: int
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class BatchDescriptor:
    """One entry of the queue: its place, where its data is, and what was said about it.

    `size` in bytes and the number of `records` are None where the manifest does not know them: version 1 does not.
    """

    sequence: int
    location: str
    metadata: tuple[Metadata, ...] = ()
    size: int | None = None
    records: int | None = None


@dataclass(frozen=True, slots=True)
class NewEntry:
    """A written batch on its way into the manifest. `deadline` is when its producer gives up, on its own clock."""

    location: str
    metadata: tuple[Metadata, ...] = field(repr=False)
    deadline: float
    size: int | None = None
    records: int | None = None
