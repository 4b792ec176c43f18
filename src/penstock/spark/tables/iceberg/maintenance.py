"""Compaction, and removal of what no reader needs. pyiceberg has only the expiry of snapshots."""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.fs as pafs
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile, ManifestEntryStatus
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import Record

from penstock.core import Backoff, get_logger
from penstock.errors import Conflict, OutcomeUnknown
from penstock.spark.tables.contract import Compacted, Vacuumed
from penstock.spark.tables.iceberg.files import (
    Commit,
    DataFileWriter,
    Layout,
    expire_snapshots,
    read_file,
    remove_files,
    replace_files,
)

_SMALL = 0.75  # of the target: a file of at least that size is left alone
_WRITE_BYTES = 64 << 20
_PATIENCE_SECONDS = 300.0
_ATTEMPT_SECONDS = 3600.0
"""How old a file must be that no metadata names: a younger one may be of a block that is about to be committed."""

_log = get_logger(__name__)

Load = Callable[[], Table]


@dataclass(frozen=True, slots=True)
class _Rewrite:
    """Small files of one partition, and the file that has their rows."""

    sources: list[FileScanTask]
    result: DataFile | None


def compact(load: Load, target_bytes: int) -> Compacted:
    """Write small files of a partition together into larger ones, in one commit."""
    table = load()
    layout = Layout.of(table)
    done: list[_Rewrite] = []
    try:
        done = [_rewritten(layout, group) for group in _small_files(table, target_bytes)]
        committed = _commit_rewrites(load, layout, done)
    except OutcomeUnknown:
        raise
    except BaseException:
        _remove_results(layout.io, done)
        raise
    _remove_results(layout.io, [rewrite for rewrite in done if rewrite not in committed])
    sources = [task.file for rewrite in committed for task in rewrite.sources]
    results = [rewrite.result for rewrite in committed if rewrite.result is not None]
    return Compacted(len(sources), len(results), _size(sources), _size(results))


def _size(files: Iterable[DataFile]) -> int:
    return sum(file.file_size_in_bytes for file in files)


def _small_files(table: Table, target_bytes: int) -> list[list[FileScanTask]]:
    """Groups of files whose rows go together: of one partition, in the order in which they came, of the target's size.

    A file of an earlier partitioning stays. One with deleted rows is written again even alone.
    """
    by_partition: dict[Record, list[FileScanTask]] = defaultdict(list)
    for task in table.scan().plan_files():
        small = task.file.file_size_in_bytes < target_bytes * _SMALL
        if task.file.spec_id == table.metadata.default_spec_id and (small or task.delete_files):
            by_partition[task.file.partition].append(task)
    groups: list[list[FileScanTask]] = []
    for tasks in by_partition.values():
        size = target_bytes
        for task in reversed(tasks):  # a snapshot lists the newest first
            if size + task.file.file_size_in_bytes > target_bytes:
                groups.append([])
                size = 0
            groups[-1].append(task)
            size += task.file.file_size_in_bytes
    return [group for group in groups if len(group) > 1 or group[0].delete_files]


def _rewritten(layout: Layout, sources: list[FileScanTask]) -> _Rewrite:
    """Write the rows of some files into one. At most `_WRITE_BYTES` of them are in memory."""
    writer: DataFileWriter | None = None
    pending: list[pa.RecordBatch] = []
    pending_bytes = 0
    try:
        for task in sources:
            for batch in read_file(layout, task):
                pending.append(layout.file_rows(batch, layout.schema))
                pending_bytes += pending[-1].nbytes
                if pending_bytes >= _WRITE_BYTES:
                    writer = writer or _compacted_file(layout, sources)
                    writer.write(pa.Table.from_batches(pending))
                    pending, pending_bytes = [], 0
        if pending:
            writer = writer or _compacted_file(layout, sources)
            writer.write(pa.Table.from_batches(pending))
        return _Rewrite(sources, None if writer is None else writer.close())
    except BaseException:
        if writer is not None:
            writer.abort()
        raise


def _compacted_file(layout: Layout, sources: Sequence[FileScanTask]) -> DataFileWriter:
    return DataFileWriter(layout, f"compacted-{uuid.uuid4().hex}.parquet", sources[0].file.partition)


def _commit_rewrites(load: Load, layout: Layout, rewrites: Sequence[_Rewrite]) -> list[_Rewrite]:
    """Put the new files in the place of the old ones, where those are still the same; return what was committed.

    pyiceberg validates nothing but that the files are there: that no row of them was deleted meanwhile is looked up.
    """
    nonce = uuid.uuid4().hex
    summary = {"penstock.compaction": nonce}
    backoff = Backoff(0.02, 2.0, give_up_after=_PATIENCE_SECONDS)
    sent: list[_Rewrite] = []
    may_be_committed = False
    lost: Commit | None = None
    while True:
        table = load()
        summaries = (snapshot.summary for snapshot in table.snapshots())
        if any(one and one.additional_properties.get("penstock.compaction") == nonce for one in summaries):
            return sent
        if lost is not None:
            lost.remove_manifests()
        rewrites = _still_there(table, layout, rewrites)
        if not rewrites:
            return []
        commit, lost = Commit(table), None
        sent = list(rewrites)
        try:
            removed = [task.file for rewrite in sent for task in rewrite.sources]
            added = [rewrite.result for rewrite in sent if rewrite.result is not None]
            replace_files(commit.transaction, removed, added, summary)
            commit.send()
        except (CommitFailedException, ValidationException):
            lost = commit
        except Exception as error:  # noqa: BLE001  the request may have arrived, whatever this is
            may_be_committed = True
            _log.warning("a compaction may be committed, and is looked up: %s", type(error).__name__)
        else:
            return sent
        if not backoff.wait():
            if may_be_committed:
                raise OutcomeUnknown(f"the compaction of {layout.location} may be committed, and may not be")
            raise Conflict(f"the compaction of {layout.location} lost against other commits for too long: try again")


def _still_there(table: Table, layout: Layout, rewrites: Sequence[_Rewrite]) -> list[_Rewrite]:
    """The rewrites whose sources the table has, with the deletes that they had."""
    if not layout.is_of(table.metadata):
        return []
    now = {task.file.file_path: {file.file_path for file in task.delete_files} for task in table.scan().plan_files()}
    return [
        rewrite
        for rewrite in rewrites
        if all(
            now.get(task.file.file_path) == {file.file_path for file in task.delete_files} for task in rewrite.sources
        )
    ]


def _remove_results(io: FileIO, rewrites: Iterable[_Rewrite]) -> None:
    remove_files(io, [rewrite.result.file_path for rewrite in rewrites if rewrite.result is not None])


def vacuum(load: Load, older_than: float, *, dry_run: bool) -> Vacuumed:
    """Expire snapshots that were replaced that long ago, and remove files that none names any more."""
    now = time.time()
    io = _listing_io(load().io)
    # In this order: a file that is committed between the two steps is in the metadata that is read after the listing.
    files = _files_of(load(), io)
    table = load()
    expired = _expired(table.metadata, now - older_than)
    # What an expired snapshot named was committed, and goes with it; any other file may be of a block in the making.
    replaced = {io.parse_location(name)[2] for name in _named_by(table, expired)}
    if not dry_run:
        table = _expire(load, expired)
    kept = [snapshot for snapshot in table.snapshots() if snapshot.snapshot_id not in {s.snapshot_id for s in expired}]
    needed = {io.parse_location(name)[2] for name in _named_by(table, kept)}
    needed |= {io.parse_location(name)[2] for name in _metadata_files(table)}
    oldest = now - max(older_than, _ATTEMPT_SECONDS)
    removable = [
        file
        for file in files
        if file.path not in needed and (file.path in replaced or (file.mtime_ns or 0) < oldest * 1e9)
    ]
    for file in removable:
        if not dry_run:
            remove_files(io, [_location_like(table.location(), file.path)])
    return Vacuumed(len(removable), sum(file.size for file in removable))


def _expired(metadata: TableMetadata, cutoff: float) -> list[Snapshot]:
    """Snapshots that were replaced before that time, and that no branch or tag is at.

    When a snapshot was made does not matter: the one before the newest may be old, and be replaced a second ago.
    """
    protected = {ref.snapshot_id for ref in metadata.refs.values()} | {metadata.current_snapshot_id}
    replaced_at: dict[int, int] = {}
    for entry, after in zip(metadata.snapshot_log, metadata.snapshot_log[1:], strict=False):
        replaced_at[entry.snapshot_id] = after.timestamp_ms
    return [
        snapshot
        for snapshot in metadata.snapshots
        if snapshot.snapshot_id not in protected
        and replaced_at.get(snapshot.snapshot_id, cutoff * 1000) < cutoff * 1000
    ]


def _expire(load: Load, expired: Sequence[Snapshot]) -> Table:
    """Remove snapshots from the metadata. The table's properties, and with them its positions, stay."""
    backoff = Backoff(0.02, 2.0, give_up_after=_PATIENCE_SECONDS)
    while True:
        table = load()
        there = {snapshot.snapshot_id for snapshot in table.snapshots()}
        ids = [snapshot.snapshot_id for snapshot in expired if snapshot.snapshot_id in there]
        if not ids:
            return table
        commit = Commit(table)
        expire_snapshots(commit.transaction, ids)
        try:
            commit.send()
        except CommitFailedException:
            if not backoff.wait():
                raise Conflict(f"the expiry of snapshots of {table.location()} lost for too long: try again") from None


def _named_by(table: Table, snapshots: Iterable[Snapshot]) -> set[str]:
    """Every file that some snapshots need."""
    named: set[str] = set()
    seen: set[str] = set()
    for snapshot in snapshots:
        named.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in seen:
                continue
            seen.add(manifest.manifest_path)
            entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
            named |= {e.data_file.file_path for e in entries if e.status != ManifestEntryStatus.DELETED}
    return named | seen


def _metadata_files(table: Table) -> set[str]:
    metadata = table.metadata
    named = {table.metadata_location} | {entry.metadata_file for entry in metadata.metadata_log}
    named |= {statistics.statistics_path for statistics in metadata.statistics}
    return named | {statistics.statistics_path for statistics in metadata.partition_statistics}


def _listing_io(io: FileIO) -> PyArrowFileIO:
    return io if isinstance(io, PyArrowFileIO) else PyArrowFileIO(io.properties)


def _files_of(table: Table, io: PyArrowFileIO) -> list[pafs.FileInfo]:
    """All files below the table's own location; data that it has elsewhere may be beside another table's.

    But for those in folders with an underscore first, which are no files of the table: the replays of dead letters.
    """
    scheme, netloc, path = io.parse_location(table.location(), io.properties)
    selector = pafs.FileSelector(path, recursive=True, allow_not_found=True)
    found = io.fs_by_scheme(scheme, netloc).get_file_info(selector)
    return [file for file in found if file.is_file and not _is_apart(file.path, path)]


def _is_apart(file: str, top: str) -> bool:
    return file.removeprefix(top.lstrip("/") if not file.startswith("/") else top).lstrip("/").startswith("_")


def _location_like(location: str, path: str) -> str:
    """A path of a file system as a location of the same kind as the table's."""
    scheme, separator, _ = location.partition("://")
    return f"{scheme}://{path}" if separator else path
