"""`penstock metalog`: look at a metadata log on an object store."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import count
from typing import Annotated

import typer

from penstock.cli.output import say, say_json, show
from penstock.cli.places import AsJson, StorageOptions, open_with
from penstock.errors import CorruptData, NotFound, PartitionOutOfRange, PenstockError
from penstock.metalog import (
    MetadataLog,
    MetadataRecord,
    ObjectMetadataLog,
    PartitionDelete,
    PartitionStart,
    SegmentMetadata,
    SegmentUpdate,
    decode_event,
)
from penstock.storage import ObjectStore, url_of

_MAX_THREADS = 16
_SEGMENT_NUMBERS = ("start_offset", "end_offset", "max_timestamp_ms", "segment_size_in_bytes")

metalog_app = typer.Typer(help="Look at a metadata log on an object store.", no_args_is_help=True)

Log = Annotated[str, typer.Argument(help="The metadata log: a path or a URL.")]


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """A partition as it was when it was read; None and the error, where its end cannot be read."""

    partition: int
    high_water_mark: int | None
    objects: int | None
    error: str | None = None


@metalog_app.command()
def status(
    where: Log,
    as_json: AsJson = False,
    storage_options: StorageOptions = None,
) -> None:
    """Show each partition's high-water mark, and how many objects it has. Writes nothing."""
    with _opened(open_with(where, storage_options)) as log:
        partitions = range(log.partition_count)
        threads = ThreadPoolExecutor(min(_MAX_THREADS, len(partitions)), thread_name_prefix="penstock-metalog-status")
        with threads:
            found = list(threads.map(lambda partition: _status_of(log, partition), partitions))
    if as_json:
        say_json([asdict(one) for one in found])
    else:
        rows = [[str(one.partition), _text(one.high_water_mark), _text(one.objects)] for one in found]
        show(["partition", "high-water mark", "objects"], rows)
    _end_with([one.error for one in found if one.error])


@metalog_app.command()
def dump(
    where: Log,
    partitions: Annotated[
        list[int] | None, typer.Option("--partition", help="A partition to print; may be given again. Default: all.")
    ] = None,
    start: Annotated[int, typer.Option("--from", min=0, help="The first offset to print, of each partition.")] = 0,
    limit: Annotated[int | None, typer.Option(min=0, help="How many records to print at most, in all.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Print payloads as base64, whatever they are.")] = False,
    storage_options: StorageOptions = None,
) -> None:
    """Print the records that are there, one a line, as JSON, partition by partition. Writes nothing.

    A payload that is no segment event is printed as base64, with the reason. Where an object cannot be read its
    partition ends, the others follow, and the exit status is 1.
    """
    errors = list[str]()
    with _opened(open_with(where, storage_options)) as log:
        remaining = limit
        for partition in _chosen(log, partitions):
            try:
                for record in _records(log, partition, start, remaining):
                    say_json(_as_json(record, raw=raw), indent=None)
                    remaining = None if remaining is None else remaining - 1
            except PenstockError as error:
                errors.append(str(error))
    _end_with(errors)


@contextmanager
def _opened(store: ObjectStore) -> Iterator[ObjectMetadataLog]:
    try:
        log = ObjectMetadataLog(store)  # without a number of partitions it makes no log
    except NotFound as error:
        raise NotFound(f"there is no metadata log in {url_of(store)}") from error
    with log:
        yield log


def _status_of(log: ObjectMetadataLog, partition: int) -> PartitionStatus:
    try:
        end = log.partition_end(partition)
    except PenstockError as error:
        return PartitionStatus(partition, None, None, str(error))
    return PartitionStatus(partition, end.offset, end.objects)


def _chosen(log: MetadataLog, partitions: list[int] | None) -> list[int]:
    chosen = list(dict.fromkeys(partitions or range(log.partition_count)))
    for partition in chosen:
        if not 0 <= partition < log.partition_count:
            raise PartitionOutOfRange(partition, log.partition_count)
    return chosen


def _records(log: MetadataLog, partition: int, start: int, limit: int | None) -> Iterator[MetadataRecord]:
    """The records that are there now: a poll that does not wait finds none at the end."""
    with log.subscribe([PartitionStart(partition, start)]) as records:
        for _ in count() if limit is None else range(limit):
            record = records.poll(0)
            if record is None:
                return
            yield record


def _as_json(record: MetadataRecord, *, raw: bool) -> dict[str, object]:
    shown: dict[str, object] = {"partition": record.partition, "offset": record.offset}
    if not raw:
        try:
            return shown | {"event": _event(decode_event(record.payload))}
        except CorruptData as error:
            shown["error"] = str(error)
    return shown | {"payload_base64": _base64(record.payload)}


def _event(event: SegmentMetadata | SegmentUpdate | PartitionDelete) -> dict[str, object]:
    tp = event.topic_id_partition if isinstance(event, PartitionDelete) else event.id.topic_id_partition
    shown: dict[str, object] = {"type": type(event).__name__, "state": event.state.name}
    shown |= {"topic": tp.topic, "topic_id": str(tp.topic_id), "topic_partition": tp.partition}
    if not isinstance(event, PartitionDelete):
        shown["segment_id"] = str(event.id.id)
    if isinstance(event, SegmentMetadata):
        shown |= {name: getattr(event, name) for name in _SEGMENT_NUMBERS}
        shown |= {"segment_leader_epochs": dict(event.segment_leader_epochs), "txn_index_empty": event.txn_index_empty}
    shown |= {"event_timestamp_ms": event.event_timestamp_ms, "broker_id": event.broker_id}
    if not isinstance(event, PartitionDelete):
        custom = event.custom_metadata
        shown["custom_metadata_base64"] = None if custom is None else _base64(custom)
    return shown


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _text(number: int | None) -> str:
    return "not known" if number is None else str(number)


def _end_with(errors: Sequence[str]) -> None:
    """Print each error on a line; with any, the exit status is 1."""
    for error in errors:
        say(f"penstock: {error}", err=True)
    if errors:
        raise typer.Exit(1)
