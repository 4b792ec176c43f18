"""A staged block, and the loop that commits it: look at the table's newest version, commit as the next one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.core import Backoff, get_logger
from penstock.errors import Conflict, OutcomeUnknown, StorageError
from penstock.spark.tables.contract import BlockId
from penstock.spark.tables.delta.files import StagedFile
from penstock.storage import LocalStore, ObjectStore

if TYPE_CHECKING:
    from penstock.spark.tables.delta.log import Handle
    from penstock.spark.tables.delta.merge import MergeRule
    from penstock.spark.tables.delta.table import DeltaTable

_MAX_FAILED_COMMITS = 5
_CONFLICTS_FOR_SECONDS = 120.0

_log = get_logger(__name__)


class StagedDelta(ABC):
    """A block whose rows are written, and that no reader sees yet."""

    def __init__(self, table: DeltaTable, block: BlockId, attempt: str, files: Sequence[StagedFile]) -> None:
        self._table = table
        self._block = block
        self._attempt = attempt
        self._files = files
        self._may_be_committed = False
        self.rows = sum(file.rows for file in files)
        """How many rows it has."""

    def commit(self) -> bool:
        """Commit it as the next version of the table, unless that has the block already.

        After each failure the table is looked at again. A commit whose answer was lost has this attempt's name in the
        log. One that is still on its way cannot come late either: it is for the version after the one its handle had
        seen, and the next try is for the same, or finds another commit there.
        """
        table, block = self._table, self._block
        failures = 0
        conflicts = Backoff(0.01, 2.0, give_up_after=_CONFLICTS_FOR_SECONDS)
        while True:
            handle = self._look()
            have = table.log.transaction(handle, block.query)
            if have is not None and have >= block.begins:
                return self._found(handle, have)
            if not table.still_fits(handle):
                _log.info("the table %s has changed, and the block %s is staged again", table.url, block.name)
                self._remove()
                return False
            version = handle.version() + 1
            table.step("looked")
            self._may_be_committed = True
            try:
                self._apply(handle)
                table.step("committed")
            except Conflict as error:
                if not conflicts.wait():
                    raise self._unknown(error) from error
                continue
            except StorageError as error:
                failures += 1
                if failures == _MAX_FAILED_COMMITS or not conflicts.wait():
                    raise self._unknown(error) from error
                _log.warning("the commit of block %s is looked for, and tried again: %s", block.name, error)
                continue
            self._settle(handle, version)
            return True

    def discard(self) -> None:
        """Remove the files, unless they are in the table, or may be."""
        if not self._may_be_committed:
            self._remove()

    @abstractmethod
    def _apply(self, handle: Handle) -> None:
        """Commit on this very handle. Raises `StorageError`, of which `Conflict` says that another was faster."""

    def _clear(self) -> None:  # noqa: B027  appended files are the table's
        """Remove what a committed block does not need any more."""

    def _look(self) -> Handle:
        try:
            return self._table.loaded()
        except StorageError as error:
            if self._may_be_committed:
                raise self._unknown(error) from error
            raise

    def _found(self, handle: Handle, version: int) -> bool:
        """What a version of the query that has the block's first events says: that it is this one, or another's."""
        if not self._may_be_committed or not self._is_ours(handle, version):
            self._remove()
            return False
        self._settle(handle, handle.version())
        return True

    def _is_ours(self, handle: Handle, version: int) -> bool:
        found = self._table.log.last_block(handle, self._block.query, version)
        if found is not None:
            return found.attempt == self._attempt
        # The entry may be gone, or of a writer that keeps no attempts. A file that is in the table must stay.
        active = {file.path for file in self._table.log.files(handle)}
        return any(file.path in active for file in self._files)

    def _settle(self, handle: Handle, version: int) -> None:
        try:
            self._table.settle(version)
        except StorageError as error:
            raise OutcomeUnknown(
                f"the block {self._block.name} is in {self._table.url}, and may not be durable: {error}. Run again: it "
                "is synced before it counts"
            ) from error
        self._table.step("settled")
        self._clear()
        self._table.checkpoint_if_due(handle, version)

    def _unknown(self, error: StorageError) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"the block {self._block.name} may be committed in {self._table.url}: {error}. Run again: the block is "
            "looked for before it is written"
        )

    def _remove(self) -> None:
        remove_files(self._table.store, [file.path for file in self._files])


class StagedAppend(StagedDelta):
    """A block of files that become the table's."""

    def _apply(self, handle: Handle) -> None:
        self._table.log.append(handle, self._block, self._attempt, self._files)


class StagedMerge(StagedDelta):
    """A block of files that are read, and merged into the table."""

    def __init__(
        self,
        table: DeltaTable,
        block: BlockId,
        attempt: str,
        files: Sequence[StagedFile],
        rule: MergeRule,
    ) -> None:
        super().__init__(table, block, attempt, files)
        self._rule = rule
        self._last_rows: pa.Table | None = None

    def _apply(self, handle: Handle) -> None:
        if not self._files:
            self._table.log.append(handle, self._block, self._attempt, [])
            return
        if self._last_rows is None:
            # In the order of the files and of the rows in them, which is the order of the events.
            batches = [rows for file in self._files for rows in self._table.files.rows_of(file.path, file.size)]
            partition_by = handle.metadata().partition_columns
            last_rows = self._rule.last_rows(pa.Table.from_batches(batches), partition_by)
            if isinstance(self._table.store, LocalStore):
                self._rule.check_directories(last_rows, partition_by)
            self._last_rows = last_rows
        self._rule.apply(self._table.log, handle, self._last_rows, self._block, self._attempt, self.rows)

    def _clear(self) -> None:
        self._remove()


def remove_files(store: ObjectStore, paths: Sequence[str]) -> None:
    """Remove files that no table lists. What cannot be removed uses space until the next vacuum, and nothing else."""
    if not paths:
        return
    try:
        problems = [result.error for result in store.delete(paths) if result.error]
    except StorageError as error:
        problems = [error]
    for problem in problems:
        _log.warning("a file that no table lists stays in %s until it is vacuumed: %s", store.url, problem)
