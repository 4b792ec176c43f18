"""A Delta table as a sink: `open_delta` opens the one at a URL.

The order of the steps of a block is in `commits`. What needs delta-rs is imported when a table is opened.
"""

from __future__ import annotations

import importlib.util
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.core import Backoff, check_whole, get_logger
from penstock.errors import Conflict, InvalidInput, NotFound, StorageError
from penstock.spark.source.schemas import to_arrow
from penstock.spark.tables.column_rules import check_names, nullable_columns
from penstock.spark.tables.contract import (
    BlockId,
    Compacted,
    Position,
    Restored,
    Table,
    TableInfo,
    Vacuumed,
    accepted_restore,
)
from penstock.spark.tables.delta.columns import check_columns, missing_columns
from penstock.spark.tables.delta.commits import StagedAppend, StagedDelta, StagedMerge, remove_files
from penstock.spark.tables.delta.durability import SyncedLog
from penstock.spark.tables.delta.files import (
    STAGING,
    DeltaWriter,
    decode_files,
)
from penstock.spark.tables.delta.places import check_conditional_put, delta_options, open_place
from penstock.spark.tables.listed_files import ListedFiles
from penstock.spark.tables.upserts import check_merge_bytes
from penstock.storage import LocalStore, ObjectStore, local_path

if TYPE_CHECKING:
    from penstock.spark.tables.delta.log import DeltaLog, Handle
    from penstock.spark.tables.delta.merge import MergeRule

SchemaEvolution = Literal["add", "none"]

_READ_GROUP_BYTES = 64 << 20
_PREPARED_WITHIN_SECONDS = 60.0

_log = get_logger(__name__)


def open_delta(
    url: str,
    *,
    partition_by: Sequence[str] = (),
    options: Mapping[str, object] | None = None,
    merge_on: Sequence[str] = (),
    order_by: str | None = None,
    delete_when: str | None = None,
    schema_evolution: SchemaEvolution = "add",
    merge_max_bytes: int = 512 << 20,
) -> DeltaTable:
    """Open the Delta table at a path or URL. It need not be there yet.

    A path, `file:///dir`, `s3://`, `gs://` and `az://`, which `options` are for, as for `open_store`.

    With `merge_on` a row takes the place of the one with the same values in those columns. Of rows of a block with the
    same key the last one counts: the greatest in the column `order_by`, or the last event. A row for which
    `delete_when` is true, an expression over its columns, deletes. Such a block is merged in the driver's memory, and
    has at most `merge_max_bytes` of rows.

    `schema_evolution="none"` refuses a block with columns that the table does not have, instead of adding them.

    Raises `InvalidInput` for a place, an option or a column that cannot be right, and where delta-rs is not installed.
    """
    if importlib.util.find_spec("deltalake") is None:
        raise InvalidInput("Delta tables need the package deltalake: pip install 'penstock[delta]'")
    from penstock.spark.tables.delta.log import DeltaLog
    from penstock.spark.tables.delta.merge import MergeRule

    if schema_evolution not in ("add", "none"):
        raise InvalidInput(f"schema_evolution must be 'add' or 'none', not {schema_evolution!r}")
    keys = check_names("merge_on", merge_on)
    if not keys and (order_by or delete_when):
        raise InvalidInput("order_by and delete_when go with merge_on: without it rows are only added")
    check_whole("merge_max_bytes", merge_max_bytes)
    given = dict(options or {})
    store = open_place(url, given)
    where = os.path.realpath(local_path(store.url)) if isinstance(store, LocalStore) else store.url
    return DeltaTable(
        store,
        DeltaLog(store.url, where, {} if isinstance(store, LocalStore) else delta_options(given)),
        check_names("partition_by", partition_by),
        rule=MergeRule(keys, order_by or None, delete_when) if keys else None,
        adds_columns=schema_evolution == "add",
        merge_max_bytes=merge_max_bytes,
    )


class DeltaTable(Table):
    """A Delta table that blocks are appended to, or merged into, each once.

    `step` is called with the name of each step of a commit, for tests that stop a driver there.
    """

    def __init__(
        self,
        store: ObjectStore,
        log: DeltaLog,
        partition_by: tuple[str, ...] = (),
        *,
        rule: MergeRule | None = None,
        adds_columns: bool = True,
        merge_max_bytes: int = 512 << 20,
        step: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.url = log.url
        self.store = store
        self.log = log
        self.files = ListedFiles(store, "the table's log")
        self.step = step
        self._partition_by = partition_by
        self._rule = rule
        self._adds_columns = adds_columns
        self._merge_max_bytes = merge_max_bytes
        self._synced = SyncedLog(log.where if isinstance(store, LocalStore) else None)
        self._checked: StructType | None = None
        self._prepared: StructType | None = None
        self._required: tuple[str, ...] = ()
        self._state = ""
        self._checkpointed = 0
        self._is_conditional = isinstance(store, LocalStore)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url})"

    @property
    def place(self) -> str:
        """Where the table really is."""
        return self.log.where

    def exists(self) -> bool:
        """Whether there is a log."""
        return self.log.load() is not None

    def rows(self) -> Iterator[pa.RecordBatch]:
        """The rows of the table, by delta-rs."""
        with self.log.failing_to("read"):
            yield from self.loaded().to_pyarrow_dataset().to_batches()

    def position(self, query: str) -> Position | None:
        """How far a query's events are in the table, durably."""
        handle = self.log.load()
        return None if handle is None else self._position_in(handle, query)

    def move_back(self, query: str, end: int) -> None:
        """Set the query's transaction to an earlier one, in a commit of its own, unless another driver has."""
        lost = Backoff(0.01, 1.0, give_up_after=_PREPARED_WITHIN_SECONDS)
        while True:
            handle = self.loaded()
            position = self._position_in(handle, query)
            if position is None or position.restored is None:
                return
            try:
                self.log.append(handle, BlockId(query, end, end), uuid.uuid4().hex, [])
            except Conflict:
                if not lost.wait():
                    raise

    def has(self, block: BlockId) -> bool:
        """Whether the table has the first events of a block, durably."""
        handle = self.log.load()
        version = None if handle is None else self.log.transaction(handle, block.query)
        if handle is None or version is None or version < block.begins:
            return False
        self.settle(handle.version(), handle)
        return True

    def check(self, schema: StructType) -> None:
        """Raise `InvalidInput` for columns that the table cannot take."""
        if self._checked == schema:
            return
        check_columns(schema, self._partition_by)
        if self._rule is not None:
            self._rule.check(schema)
        handle = self.log.load()
        if handle is not None:
            self._missing(handle, schema)
        self._checked = schema

    def writer(self, columns: StructType, block: BlockId) -> DeltaWriter:
        """What writes a block's files. Creates the table if it is not there, and adds columns that it does not have."""
        del block  # whose files have names of their own
        self.check(columns)
        if self._prepared != columns:
            self._prepare(columns)
        schema, file_schema = to_arrow(columns), to_arrow(nullable_columns(columns))
        if self._rule is None:
            return DeltaWriter(self.store, schema, file_schema, self._required, self._partition_by)
        return DeltaWriter(self.store, schema, file_schema, self._required, (), STAGING, self._merge_max_bytes)

    def staged(self, block: BlockId, files: Sequence[bytes]) -> StagedDelta:
        """A block of files that tasks have written. Raises `InvalidInput` for one that is too large to be merged."""
        described = decode_files(files)
        attempt = uuid.uuid4().hex
        if self._rule is None:
            return StagedAppend(self, block, attempt, described)
        try:
            check_merge_bytes(sum(file.bytes_in_memory for file in described), self._merge_max_bytes)
        except InvalidInput:
            remove_files(self.store, [file.path for file in described])
            raise
        return StagedMerge(self, block, attempt, described, self._rule)

    def read(self, spark: SparkSession) -> DataFrame:
        """The table's rows, as of now. Executors read the files that its log lists; no jar of Delta's is needed."""
        handle = self.loaded()
        self.log.check_readable(handle)
        columns = nullable_columns(self.log.columns(handle))
        return self.files.read(spark, self.log.files(handle), columns, _READ_GROUP_BYTES)

    def info(self) -> TableInfo:
        """Rows, files, sizes and positions."""
        from penstock.spark.tables.delta.maintenance import describe

        return describe(self)

    def compact(self, target_bytes: int = 128 << 20) -> Compacted:
        """Write small files together, by delta-rs, one partition after the other."""
        from penstock.spark.tables.delta.maintenance import compact

        return compact(self, target_bytes)

    def vacuum(self, older_than: float, *, dry_run: bool = False) -> Vacuumed:
        """Remove files that no reader needs who began at most `older_than` seconds ago, rounded up to hours.

        Files that were never committed are removed when they are a day old: a pipeline may be about to commit them.
        """
        from penstock.spark.tables.delta.maintenance import vacuum

        return vacuum(self, older_than, dry_run=dry_run)

    def loaded(self) -> Handle:
        """The newest version of the table. Raises `InvalidInput` where there is none."""
        handle = self.log.load()
        if handle is None:
            raise InvalidInput(f"there is no Delta table at {self.url}: it is created with the first block")
        return handle

    def settle(self, version: int, handle: Handle | None = None) -> None:
        """Make all up to a version durable. Raises `CorruptData` for a file that a power cut has cut."""
        active = {file.path for file in self.log.files(handle)} if handle is not None and self._synced.is_first else ()
        self._synced.settle(version, active)

    def still_fits(self, handle: Handle) -> bool:
        """Whether the table is as it was when the last writer was made."""
        if self._prepared is None or self.log.state(handle) == self._state:
            return True
        self._prepared = self._checked = None
        return False

    def checkpoint_if_due(self, handle: Handle, version: int) -> None:
        """Make a checkpoint if the last one is too far behind: each look at the table reads all commits since.

        That it did not work is no reason to stop.
        """
        interval = self.log.checkpoint_interval(handle)
        if version - self._checkpointed < interval:
            return
        try:
            self._checkpointed = self._last_checkpoint()
            if version - self._checkpointed >= interval:
                self.log.make_checkpoint()
                self._synced.settle_checkpoint()
                self._checkpointed = version
        except StorageError as error:
            _log.warning("looks at %s take longer until there is a checkpoint: %s", self.url, error)

    def _position_in(self, handle: Handle, query: str) -> Position | None:
        version = self.log.transaction(handle, query)
        if version is None:
            return None
        self.settle(handle.version(), handle)
        found = self.log.last_block(handle, query, version)
        position = Position(version + 1) if found is None else found.position
        left = self.log.survivors(handle, query)
        if left is None or left.end >= position.end:
            return position
        accepted = handle.metadata().configuration.get(accepted_restore(query))
        return replace(position, restored=Restored(left.gone_from, is_accepted=accepted == str(position.end)))

    def _last_checkpoint(self) -> int:
        try:
            return int(msgspec.json.decode(self.store.get("_delta_log/_last_checkpoint").data)["version"])
        except (NotFound, msgspec.DecodeError, KeyError, TypeError, ValueError):
            return 0

    def _prepare(self, columns: StructType) -> None:
        """Create the table, or add the columns that it lacks. Another driver may do the same at the same time."""
        if not self._is_conditional:
            check_conditional_put(self.store, f"{STAGING}/probe-{uuid.uuid4().hex}")
            self._is_conditional = True
        lost = Backoff(0.01, 1.0, give_up_after=_PREPARED_WITHIN_SECONDS)
        while True:
            handle = self.log.load()
            try:
                if handle is None:
                    self._refuse_other_files()
                    self.log.create(nullable_columns(columns), self._partition_by)
                    self.step("created")
                    continue
                missing = self._missing(handle, columns)
                if missing.fields:
                    self.log.add_columns(handle, missing)
                    self.step("columns added")
                    continue
            except Conflict:
                if not lost.wait():
                    raise
                continue
            break
        self.settle(handle.version(), handle)
        required = [field.name for field in self.log.columns(handle) if not field.nullable]
        self._required, self._state, self._prepared = tuple(required), self.log.state(handle), columns

    def _missing(self, handle: Handle, columns: StructType) -> StructType:
        """The columns that are to be added. Raises `InvalidInput` for a table that cannot take the others."""
        self.log.check_writable(handle, merges=self._rule is not None)
        found = tuple(handle.metadata().partition_columns)
        if found != self._partition_by:
            raise InvalidInput(
                f"the table {self.url} is partitioned by {list(found)}, not by {list(self._partition_by)}: give "
                "partition_by as it was, or write to another place"
            )
        missing = missing_columns(self.log.columns(handle), columns, self.url)
        if missing.fields and not self._adds_columns:
            names = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in missing)
            raise InvalidInput(f"the table {self.url} does not have {names}, and schema_evolution is 'none'")
        return missing

    def _refuse_other_files(self) -> None:
        """A directory of other files is no place for a new table, whose vacuum would remove them."""
        for found in self.store.list_objects():
            if found.path.startswith("_delta_log/"):
                return  # of a driver that creates the table just now
            if not found.path.startswith(f"{STAGING}/"):
                raise InvalidInput(
                    f"{self.url} has files, such as {found.path!r}, and is no Delta table: use another place"
                )
