"""The commit of a block: one transaction with its files and its position, by one driver of however many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, Transaction

from penstock.core import Backoff, get_logger
from penstock.errors import Conflict, OutcomeUnknown, StorageError
from penstock.spark.tables.iceberg.catalogs import OpenCatalog, TableName
from penstock.spark.tables.iceberg.files import Commit, Layout, append_files, remove_files
from penstock.spark.tables.iceberg.positions import BlockMark, version_in

_PATIENCE_SECONDS = 300.0
_log = get_logger(__name__)


class Change(Protocol):
    """What a block does to a table."""

    @property
    def staged(self) -> Sequence[str]:
        """The files that the block's tasks have written."""
        ...

    @property
    def keeps_staged(self) -> bool:
        """Whether those files are of the table once the block is committed."""
        ...

    def add_to(self, transaction: Transaction, table: Table, summary: dict[str, str]) -> Sequence[str]:
        """Make the change in a transaction on that table, and return the files that this has written."""
        ...


class Append:
    """The block's files are added to the table."""

    keeps_staged = True

    def __init__(self, files: Sequence[DataFile]) -> None:
        self._files = files

    @property
    def staged(self) -> Sequence[str]:
        """The files."""
        return [file.file_path for file in self._files]

    def add_to(self, transaction: Transaction, _table: Table, summary: dict[str, str]) -> Sequence[str]:
        """Add them."""
        append_files(transaction, self._files, summary)
        return ()


class StagedBlock:
    """A block whose files are written, and that no reader sees yet."""

    def __init__(
        self, catalog: OpenCatalog, name: TableName, layout: Layout | None, mark: BlockMark, change: Change
    ) -> None:
        """`layout` is the table's that the files were written for; None if there are none."""
        self._catalog = catalog
        self._name = name
        self._layout = layout
        self._mark = mark
        self._change = change
        self._may_be_committed = False
        self._is_over = False
        self._lost: list[tuple[Commit, Sequence[str]]] = []

    @property
    def rows(self) -> int:
        """How many rows the tasks have written."""
        return self._mark.rows

    def commit(self) -> bool:
        """Commit the block, unless the table has its first events or was changed: see the contract."""
        backoff = Backoff(0.02, 2.0, give_up_after=_PATIENCE_SECONDS)
        while True:
            table = self._load()
            if table is not None:
                if self._mark.is_in(table.metadata):
                    return self._committed()
                self._remove_lost()
                if not self._fits(table):
                    return self._refused()
                if self._try(table):
                    return self._committed()
            elif not self._may_be_committed:
                return self._refused()
            if not backoff.wait():
                self._give_up()

    def discard(self) -> None:
        """Remove the files, unless the block is committed, or may be."""
        if self._is_over or self._may_be_committed or self._layout is None:
            return
        self._is_over = True
        self._remove_lost()
        remove_files(self._layout.io, self._change.staged)

    def _load(self) -> Table | None:
        try:
            return self._catalog.load(self._name)
        except StorageError as error:
            if not self._may_be_committed:
                raise
            _log.warning("could not look whether the block %s is committed: %s", self._mark.block.name, error)
            return None

    def _fits(self, table: Table) -> bool:
        version = version_in(table.metadata.properties, self._mark.block.query)
        if version is not None and version >= self._mark.block.begins:
            return False
        return self._layout is None or self._layout.is_of(table.metadata)

    def _try(self, table: Table) -> bool:
        """Try once. False after a conflict, and where it is not known what happened: then it may be committed."""
        commit = Commit(table)
        with self._catalog.errors(f"could not write the commit of the block {self._mark.block.name} to {self._name}"):
            written = self._change.add_to(commit.transaction, table, self._mark.summary)
            commit.transaction.set_properties(self._mark.properties)
        try:
            commit.send()
        except CommitFailedException:
            # Usually another's commit; but it may be the answer to a request that something on the way has sent
            # twice. So its files are removed only after another look.
            self._lost.append((commit, written))
            return False
        except Exception as error:  # noqa: BLE001  the request may have arrived, whatever this is
            self._may_be_committed = True
            _log.warning(
                "the commit of the block %s to %s may have happened, and is looked up: %s",
                self._mark.block.name,
                self._name,
                self._catalog.redact(error),
            )
            return False
        return True

    def _committed(self) -> bool:
        self._catalog.sync()
        self._is_over = True
        if not self._change.keeps_staged and self._layout is not None:
            remove_files(self._layout.io, self._change.staged)
        return True

    def _refused(self) -> bool:
        # A try whose outcome is not known may be the one that moved the position, with other blocks after it: its files
        # stay, and are orphans at worst.
        self.discard()
        return False

    def _remove_lost(self) -> None:
        for commit, written in self._lost:
            commit.remove_manifests()
            if self._layout is not None:
                remove_files(self._layout.io, written)
        self._lost.clear()

    def _give_up(self) -> None:
        what = f"the block {self._mark.block.name} of the table {self._name}"
        if self._may_be_committed:
            raise OutcomeUnknown(f"{what} may be committed, and that could not be found out: look at its position")
        raise Conflict(f"{what} lost {_PATIENCE_SECONDS:.0f} seconds long against other commits: try again")
