"""`penstock status`: what waits in a buffer, at a glance."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from penstock.buffer import (
    Backlog,
    BatchDescriptor,
    BufferQueue,
    GroupStatus,
    QueueView,
    groups_in,
    is_data_path,
)
from penstock.cli.output import counted, date, say, say_json
from penstock.cli.places import DEFAULTS, MANIFEST_PATH, ManifestPath, StorageOptions, Where, open_with
from penstock.core import Backoff, call_with_retries
from penstock.errors import InvalidInput, NotFound
from penstock.storage import ObjectStore, url_of

MAX_MEASURED_BATCHES = 10_000
_SIZE_THREADS = 16
_TRIES = 5


@dataclass(frozen=True, slots=True)
class Status:
    """A buffer as it was when it was looked at. None is what is not known; sizes are bytes.

    What waits is what some group has not acked. `bytes_waiting` is that of the `batches_measured`, and
    `batches_missing` is counted among the first `MAX_MEASURED_BATCHES` batches.
    """

    where: str
    id: str | None
    version: int
    epoch: int
    next_sequence: int
    batches_waiting: int
    batches_measured: int
    batches_missing: int
    bytes_waiting: int
    records_waiting: int | None
    records_at_least: int
    oldest_ingestion_time_ms: int | None
    oldest_age_seconds: float | None
    data_objects: int
    data_bytes: int
    groups: list[GroupStatus]
    names_groups: bool
    """Whether the manifest has groups with names, and counts records."""


def status_command(
    where: Where,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
    path: ManifestPath = MANIFEST_PATH,
    storage_options: StorageOptions = None,
) -> None:
    """Show what waits in a buffer. Only reads: takes no epoch, and fences no consumer."""
    store = open_with(where, storage_options)
    found = look(store, path, now=time.time(), most_measured=MAX_MEASURED_BATCHES)
    if as_json:
        shown = asdict(found)
        del shown["names_groups"]  # a script has the version
        say_json(shown)
        return
    for name, value in _rows(found):
        say(f"{name:<17} {value}")


def look(
    store: ObjectStore, path: str = MANIFEST_PATH, *, now: float, most_measured: int = MAX_MEASURED_BATCHES
) -> Status:
    """Read a buffer's manifest, and count the data objects. Of version 1 the sizes are asked of the store.

    Raises `StorageError` where the store fails, and `CorruptData` where the object is no manifest.
    """
    queue = BufferQueue(store, path, "consumer")

    def read() -> tuple[QueueView, Backlog]:
        view = queue.look()
        return view, view.backlog(most_measured)

    # What was acked since the head was read may be collected: then the head that is there now names less.
    view, backlog = call_with_retries(read, Backoff(0.0, 0.0), tries=_TRIES, on=NotFound)
    first = backlog.first[:most_measured]
    is_measured = backlog.size is not None
    # After the manifest: whatever it names was there before it.
    listed = {meta.path: meta.size for meta in store.list_objects(DEFAULTS.data_path_prefix)}
    data = [size for path, size in listed.items() if is_data_path(path, DEFAULTS.data_path_prefix)]
    oldest = min(backlog.times, default=None)
    return Status(
        where=url_of(store),
        id=None if view.buffer_id is None else str(view.buffer_id),
        version=view.format_version,
        epoch=view.epoch,
        next_sequence=view.next_sequence,
        batches_waiting=backlog.batches,
        batches_measured=backlog.batches if is_measured else len(first),
        batches_missing=_missing(store, queue, first, listed),
        bytes_waiting=sum(size or 0 for size in _sizes(store, first)) if backlog.size is None else backlog.size,
        records_waiting=backlog.records,
        records_at_least=backlog.records_at_least,
        oldest_ingestion_time_ms=oldest,
        oldest_age_seconds=None if oldest is None else max(now - oldest / 1000, 0.0),
        data_objects=len(data),
        data_bytes=sum(data),
        groups=groups_in(view),
        names_groups=view.names_groups,
    )


def _sizes(store: ObjectStore, entries: Sequence[BatchDescriptor]) -> list[int | None]:
    """The size of each data object, asked of the store; None where there is none."""

    def size(entry: BatchDescriptor) -> int | None:
        try:
            return store.head(entry.location).size
        except (NotFound, InvalidInput):  # or its location is no path: no object either
            return None

    with ThreadPoolExecutor(_SIZE_THREADS, thread_name_prefix="penstock-status") as threads:
        return list(threads.map(size, entries))


def _missing(
    store: ObjectStore, queue: BufferQueue, entries: Sequence[BatchDescriptor], listed: Collection[str]
) -> int:
    """How many entries have no data. What was acked since the manifest was read may be gone by right."""
    unseen = [entry for entry in entries if entry.location not in listed]  # gone, or elsewhere
    gone = [entry for entry, size in zip(unseen, _sizes(store, unseen), strict=True) if size is None]
    if not gone:
        return 0
    first = queue.look().first_sequence
    return sum(entry.sequence >= first for entry in gone)


def _rows(found: Status) -> list[tuple[str, object]]:
    nothing = found.next_sequence == 0 and found.epoch == 0
    rows: list[tuple[str, object]] = [
        ("buffer", found.where),
        ("id", found.id or "none yet"),
        ("manifest version", found.version),
        ("epoch", found.epoch),
        ("next sequence", found.next_sequence),
        ("batches waiting", found.batches_waiting or ("0: it is empty" + (", and new" if nothing else ""))),
        ("bytes waiting", _bytes_row(found)),
        ("records waiting", _records_row(found)),
        ("oldest event", _oldest_row(found)),
        ("data objects", f"{found.data_objects}, {counted(found.data_bytes, 'byte')} in {DEFAULTS.data_path_prefix}/"),
    ]
    if found.batches_missing:
        missing = counted(found.batches_missing, "batch that waits has", "batches that wait have")
        rows.append(("MISSING", f"{missing} no data object"))
    for group in found.groups if found.names_groups else ():
        owner = f", last taken over by {group.owner}" if group.owner else ""
        behind = counted(group.lag, "batch", "batches")
        rows.append((f"group {group.name}", f"{behind} behind, epoch {group.epoch}{owner}"))
    return rows


def _bytes_row(found: Status) -> str:
    if found.batches_measured == found.batches_waiting:
        return str(found.bytes_waiting)
    measured = counted(found.batches_measured, "batch", "batches")
    return f"{found.bytes_waiting} in the first {measured}; the rest was not looked at"


def _records_row(found: Status) -> str:
    if found.records_waiting is not None:
        return str(found.records_waiting)
    if not found.names_groups:
        return "not known: a manifest of version 1 does not count them"
    return f"at least {found.records_at_least}: those from before the upgrade to version 2 were not counted"


def _oldest_row(found: Status) -> str:
    if found.oldest_age_seconds is None or found.oldest_ingestion_time_ms is None:
        return "none" if not found.batches_waiting else "not known: its entry has no time"
    since = date(found.oldest_ingestion_time_ms)
    return f"{_age(found.oldest_age_seconds)} old{since and f', from {since}'}"


def _age(seconds: float) -> str:
    """A length of time in two units.

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
