"""What keeps a Delta table small and quick while pipelines write it: compaction, vacuum, and a look at it."""

from __future__ import annotations

import json
import math
import time
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from deltalake import CommitProperties, PostCommitHookProperties, WriterProperties

from penstock.core import Backoff, check_seconds, check_whole
from penstock.errors import Conflict
from penstock.spark.tables.contract import Compacted, Position, TableInfo, Vacuumed
from penstock.spark.tables.delta.files import STAGING

if TYPE_CHECKING:
    from penstock.spark.tables.delta.log import Handle
    from penstock.spark.tables.delta.table import DeltaTable

_NEVER_COMMITTED_SECONDS = 24 * 3600.0  # after which no pipeline still works on a block
_COMPACTED_WITHIN_SECONDS = 600.0
_COMMIT_RETRIES = 15  # of delta-rs's own: a compaction has no transaction, and appends do it no harm


def describe(table: DeltaTable) -> TableInfo:
    """Rows, files, sizes, and the positions of all queries that the log still has a commit of."""
    handle = table.loaded()
    files = table.log.files(handle)
    rows = [file.rows for file in files]
    positions: dict[str, Position] = {}
    for block in table.log.blocks(handle):
        if block.query not in positions and table.log.transaction(handle, block.query) == block.version:
            positions[block.query] = block.position
    with table.log.failing_to("read the history of"):
        newest = handle.history(1)
    at = newest[0].get("timestamp") if newest else None
    return TableInfo(
        kind="delta",
        url=table.url,
        rows=None if None in rows else sum(one or 0 for one in rows),
        files=len(files),
        bytes=sum(file.size for file in files),
        columns=tuple((field.name, field.dataType.simpleString()) for field in table.log.columns(handle)),
        partition_by=tuple(handle.metadata().partition_columns),
        positions=positions,
        last_commit_at=datetime.fromtimestamp(at / 1000, UTC) if isinstance(at, int) else None,
    )


def compact(table: DeltaTable, target_bytes: int) -> Compacted:
    """Write small files together. A merge in between makes delta-rs give up: then again, on what is there now.

    Delta-rs does not see that another compaction has replaced the same files, and both would add their rows. What it
    does see is a change of the table's metadata: so a compaction writes its name there first, and commits on a
    version that has it. It commits only if no other has written its own since. Raises `Conflict` if one has.
    """
    check_whole("target_bytes", target_bytes)
    lost = Backoff(0.1, 5.0, give_up_after=_COMPACTED_WITHIN_SECONDS)
    name = uuid.uuid4().hex
    is_announced = False
    while True:
        handle = table.loaded()
        table.log.check_writable(handle, merges=False)
        if not is_announced:
            if not _has_small_files(table, handle, target_bytes):
                return Compacted()
            try:
                table.log.announce_compaction(handle, name)
            except Conflict:
                if not lost.wait():
                    raise
                continue
            is_announced = True
            continue
        if table.log.announced_compaction(handle) != name:
            raise Conflict(f"the Delta table {table.url} was not compacted: another compaction of it has begun")
        table.step("compacting")
        try:
            with table.log.failing_to("compact"):
                done = handle.optimize.compact(
                    target_size=target_bytes,
                    max_concurrent_tasks=1,  # one partition in memory at a time
                    writer_properties=WriterProperties(compression="ZSTD"),
                    commit_properties=CommitProperties(max_commit_retries=_COMMIT_RETRIES),
                    post_commithook_properties=PostCommitHookProperties(
                        create_checkpoint=False, cleanup_expired_logs=False
                    ),
                )
        except Conflict:
            if not lost.wait():
                raise
            continue
        newest = table.loaded()
        table.settle(newest.version())
        table.checkpoint_if_due(newest, newest.version())
        before, after = _counted(done["filesRemoved"]), _counted(done["filesAdded"])
        return Compacted(
            done["numFilesRemoved"], done["numFilesAdded"], before.get("totalSize", 0), after.get("totalSize", 0)
        )


def _has_small_files(table: DeltaTable, handle: Handle, target_bytes: int) -> bool:
    """Whether two files of a partition are smaller than the target: without them there is nothing to announce."""
    small = [repr(sorted(file.values.items())) for file in table.log.files(handle) if file.size < target_bytes]
    return len(small) > len(set(small))


def vacuum(table: DeltaTable, older_than: float, *, dry_run: bool) -> Vacuumed:
    """Remove files that were replaced so long ago, and those that are a day old and were never committed."""
    check_seconds("older_than", older_than, zero=True)
    handle = table.loaded()
    table.log.check_writable(handle, merges=False)
    hours = math.ceil(older_than / 3600)
    with table.log.failing_to("look for old files in"):
        # Delta-rs only says which: it would remove files that a pipeline is about to commit as well.
        replaced = set(map(unquote, handle.vacuum(hours, dry_run=True, enforce_retention_duration=False)))
        unlisted = set(map(unquote, handle.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=True)))
    listed = {file.path for file in table.log.files(handle)}
    there = {meta.path: meta for meta in table.store.list_objects()}
    never_committed = {path for path in unlisted - replaced if path.endswith(".parquet")}
    never_committed |= {path for path in there if path.startswith(f"{STAGING}/")}
    before = time.time() - max(older_than, _NEVER_COMMITTED_SECONDS)
    old = {path for path in never_committed & there.keys() if there[path].last_modified.timestamp() < before}
    found = {path: there[path].size for path in (replaced | old) & there.keys() - listed}
    if not dry_run:
        # Once more: a pipeline that was asleep for a day may have woken up, and committed its files.
        found = {path: found[path] for path in found.keys() - {file.path for file in table.log.files(table.loaded())}}
        for result in table.store.delete(sorted(found)):
            if result.error:
                raise result.error
    return Vacuumed(len(found), sum(found.values()))


def _counted(files: Any) -> dict[str, int]:
    """Delta-rs's account of some files, which is JSON in JSON."""
    counted: dict[str, int] = json.loads(files) if isinstance(files, str) else files
    return counted
