"""`penstock status`: what waits in a buffer, at a glance."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Annotated

import typer

from penstock.buffer import BatchDescriptor, Manifest
from penstock.buffer.config import DATA_PATH_PREFIX
from penstock.buffer.locations import is_data_path
from penstock.cli.produce import StorageOptions, open_with
from penstock.errors import InvalidInput, NotFound
from penstock.storage import ObjectStore, url_of

MOST_MEASURED = 10_000
_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Status:
    """A buffer as it was when it was looked at. None is what is not known; sizes are bytes."""

    where: str
    version: int
    epoch: int
    next_sequence: int
    batches_waiting: int
    batches_measured: int
    batches_missing: int
    bytes_waiting: int
    records_waiting: int | None
    oldest_ingestion_time_ms: int | None
    oldest_age_seconds: float | None
    data_objects: int
    data_bytes: int


def status_command(
    where: Annotated[str, typer.Argument(help="The buffer: a path or a URL.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
    storage_options: StorageOptions = None,
) -> None:
    """Show what waits in a buffer. Takes no epoch, and so disturbs nobody."""
    found = look(open_with(where, storage_options), now=time.time())
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=2))
        return
    for name, value in _rows(found):
        typer.echo(f"{name:<17} {value}")


def look(store: ObjectStore, *, now: float, most_measured: int = MOST_MEASURED) -> Status:
    """Read a buffer's manifest, ask for the size of what it refers to, and count the data objects.

    Raises `StorageError` where the store fails, and `CorruptData` where the object is no manifest.
    """
    manifest = Manifest.read(store)
    waiting = manifest.entries
    sizes = _sizes(store, waiting[:most_measured])
    records = [entry.records for entry in waiting if entry.records is not None]
    times = [item.ingestion_time_ms for entry in waiting for item in entry.metadata]
    data = [meta.size for meta in store.list_objects(DATA_PATH_PREFIX) if is_data_path(meta.path, DATA_PATH_PREFIX)]
    return Status(
        where=url_of(store),
        version=manifest.version,
        epoch=manifest.epoch,
        next_sequence=manifest.next_sequence,
        batches_waiting=len(waiting),
        batches_measured=len(sizes),
        batches_missing=_missing(store, waiting, sizes),
        bytes_waiting=sum(size or 0 for size in sizes),
        records_waiting=sum(records) if len(records) == len(waiting) else None,
        oldest_ingestion_time_ms=min(times, default=None),
        oldest_age_seconds=max(now - min(times) / 1000, 0.0) if times else None,
        data_objects=len(data),
        data_bytes=sum(data),
    )


def _sizes(store: ObjectStore, entries: Sequence[BatchDescriptor]) -> list[int | None]:
    def size(entry: BatchDescriptor) -> int | None:
        if entry.size is not None:
            return entry.size
        try:
            return store.head(entry.location).size
        except (NotFound, InvalidInput):  # or its location is no path: no object either
            return None

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="penstock-status") as threads:
        return list(threads.map(size, entries))


def _missing(store: ObjectStore, entries: Sequence[BatchDescriptor], sizes: Sequence[int | None]) -> int:
    """How many entries have no data. What was acked since the manifest was read may be gone by right."""
    gone = [entry for entry, size in zip(entries, sizes, strict=False) if size is None]
    if not gone:
        return 0
    still_waiting = set(Manifest.read(store).entries)
    return sum(entry in still_waiting for entry in gone)


def _rows(found: Status) -> list[tuple[str, object]]:
    nothing = found.next_sequence == 0 and found.epoch == 0
    rows: list[tuple[str, object]] = [
        ("buffer", found.where),
        ("manifest version", found.version),
        ("epoch", found.epoch),
        ("next sequence", found.next_sequence),
        ("batches waiting", found.batches_waiting or ("0: it is empty" + (", and new" if nothing else ""))),
        ("bytes waiting", _bytes_row(found)),
        ("records waiting", _records_row(found)),
        ("oldest event", _oldest_row(found)),
        ("data objects", f"{found.data_objects}, {found.data_bytes} bytes"),
    ]
    if found.batches_missing:
        rows.append(("MISSING", f"{found.batches_missing} batches that wait have no data object"))
    return rows


def _bytes_row(found: Status) -> str:
    if found.batches_measured == found.batches_waiting:
        return str(found.bytes_waiting)
    return f"{found.bytes_waiting} in the first {found.batches_measured} batches; the rest was not looked at"


def _records_row(found: Status) -> str:
    if found.records_waiting is None:
        return f"not known: a manifest of version {found.version} does not count them"
    return str(found.records_waiting)


def _oldest_row(found: Status) -> str:
    if found.oldest_age_seconds is None or found.oldest_ingestion_time_ms is None:
        return "none" if not found.batches_waiting else "not known: nothing says when it came"
    return f"{_age(found.oldest_age_seconds)} old{_date(found.oldest_ingestion_time_ms)}"


def _age(seconds: float) -> str:
    """Say a length of time so that its size is seen.

    >>> _age(7.25), _age(125), _age(7300), _age(200_000)
    ('7.2 s', '2 min 5 s', '2 h 1 min', '2 d 7 h')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _date(milliseconds: int) -> str:
    try:
        return f", from {datetime.fromtimestamp(milliseconds // 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return ""  # a clock that was far off; the age says so
