"""An Iceberg table that a pipeline's blocks are committed to: the contract of a table, put together."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table as OpenTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.core import Backoff
from penstock.errors import Conflict, InvalidInput
from penstock.spark.source.schemas import to_arrow
from penstock.spark.tables.contract import BlockId, Compacted, Position, Table, TableInfo, Vacuumed
from penstock.spark.tables.iceberg import maintenance
from penstock.spark.tables.iceberg.catalogs import OpenCatalog, TableName, store_options
from penstock.spark.tables.iceberg.columns import Change, iceberg_columns, match_columns, shown_type
from penstock.spark.tables.iceberg.commits import Append, StagedBlock
from penstock.spark.tables.iceberg.files import Commit, Layout, append_files
from penstock.spark.tables.iceberg.merge import Merge, MergeRule
from penstock.spark.tables.iceberg.partitioning import described, parse_partition_by, partition_spec
from penstock.spark.tables.iceberg.positions import BlockMark, position_in, positions_in, restored_in, version_in
from penstock.spark.tables.iceberg.reading import read_table
from penstock.spark.tables.iceberg.writing import IcebergWriter, StagedFile
from penstock.spark.tables.upserts import check_merge_bytes

_PROPERTIES = {
    "format-version": "2",
    # Each commit writes the metadata anew: without these, all earlier ones stay, and manifests become as many.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "50",
}
_PATIENCE_SECONDS = 60.0


class IcebergTable(Table):
    """A table in a catalog of Iceberg's. No credential is in its text."""

    def __init__(
        self,
        name: str,
        catalog: Mapping[str, str] | None,
        partition_by: Sequence[str],
        merge: MergeRule | None,
        *,
        evolves: bool,
        merge_max_bytes: int,
    ) -> None:
        self._name = TableName.parse(name)
        self._partition_by = parse_partition_by(partition_by)
        self._merge = merge
        self._evolves = evolves
        self._merge_max_bytes = merge_max_bytes
        self._catalog = OpenCatalog(self._name.catalog, catalog)
        self._layout: Layout | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name})"

    @property
    def place(self) -> str:
        """The catalog, and the table's name in it."""
        return f"iceberg:{self._catalog.place}:{self._name}"

    @property
    def location(self) -> str:
        """The URL below which its files are. Raises `InvalidInput` where there is no table yet."""
        return str(self._existing().location())

    def exists(self) -> bool:
        """Whether its catalog has it."""
        return self._catalog.load(self._name) is not None

    @property
    def store_options(self) -> dict[str, str]:
        """How the store is opened that its files are in. Raises `InvalidInput` where there is no table yet."""
        return store_options(self._existing().io.properties)

    def rows(self) -> Iterator[pa.RecordBatch]:
        """The rows of the table, by PyIceberg."""
        with self._catalog.errors(f"could not read the table {self._name}"):
            yield from self._existing().scan().to_arrow_batch_reader()

    def position(self, query: str) -> Position | None:
        """How far a query's events are in the table, durably: a property of the table."""
        table = self._catalog.load(self._name)
        found = None if table is None else position_in(table.metadata.properties, query)
        if table is None or found is None:
            return None
        self._catalog.sync()
        return replace(found, restored=restored_in(table.metadata, query))

    def move_back(self, query: str, end: int) -> None:
        """Set the query's properties to an earlier end, in a commit of its own, unless another driver has."""
        backoff = Backoff(0.02, 1.0, give_up_after=_PATIENCE_SECONDS)
        mark = BlockMark(BlockId(query, end, end), 0, uuid.uuid4().hex)
        while True:
            table = self._existing()
            if restored_in(table.metadata, query) is None:
                return
            with self._catalog.errors(f"could not move the position of the table {self._name}"):
                commit = Commit(table)
                # With a snapshot, though it has no files: properties alone are committed whatever others did meanwhile.
                append_files(commit.transaction, (), mark.summary)
                commit.transaction.set_properties(mark.properties)
                try:
                    commit.send()
                except CommitFailedException:
                    if not backoff.wait():
                        raise Conflict(f"the table {self._name} is changed by others all the time") from None

    def has(self, block: BlockId) -> bool:
        """Whether the table has the first events of a block, durably."""
        table = self._catalog.load(self._name)
        version = None if table is None else version_in(table.metadata.properties, block.query)
        if version is None or version < block.begins:
            return False
        self._catalog.sync()
        return True

    def check(self, schema: StructType) -> None:
        """Raise `InvalidInput` for columns that the table cannot take. Nothing is created or changed."""
        columns = iceberg_columns(schema)
        table = self._catalog.load(self._name)
        if table is None:
            self._check_new(columns)
        else:
            self._changes(table, columns)

    def writer(self, columns: StructType, _block: BlockId) -> IcebergWriter:
        """What writes a block's files. Creates the table if it is not there, and adds columns, or widens them."""
        wanted = iceberg_columns(columns)
        table = self._evolved(wanted)
        if self._merge is not None:
            self._merge.check(table.schema())
        layout = self._layout = Layout.of(table)
        matched = match_columns(wanted, layout.schema, str(self._name))
        return IcebergWriter(layout, matched.columns, to_arrow(columns), by_partition=self._merge is None)

    def staged(self, block: BlockId, files: Sequence[bytes]) -> StagedBlock:
        """A block of files that tasks have written."""
        staged = [StagedFile.decode(file) for file in files]
        mark = BlockMark(block, sum(one.file.record_count for one in staged), uuid.uuid4().hex)
        data_files = [one.file for one in staged]
        if self._merge is None or self._layout is None:
            return StagedBlock(self._catalog, self._name, self._layout, mark, Append(data_files))
        rule = self._merge.check(self._layout.schema)
        merge = Merge(self._layout, rule, data_files)
        block_of_rows = StagedBlock(self._catalog, self._name, self._layout, mark, merge)
        try:
            check_merge_bytes(sum(one.arrow_bytes for one in staged), self._merge_max_bytes)
        except InvalidInput:
            block_of_rows.discard()
            raise
        return block_of_rows

    def read(self, spark: SparkSession) -> DataFrame:
        """The rows of the table as it is now. Raises `InvalidInput` where there is no table yet."""
        return read_table(spark, self._existing())

    def info(self) -> TableInfo:
        """Rows, files, sizes and positions. Raises `InvalidInput` where there is no table yet."""
        table = self._existing()
        metadata = table.metadata
        with self._catalog.errors(f"could not read the table {self._name}"):
            tasks = list(table.scan().plan_files())
        snapshot = table.current_snapshot()
        return TableInfo(
            kind="iceberg",
            url=str(self._name),
            rows=None if any(task.delete_files for task in tasks) else sum(task.file.record_count for task in tasks),
            files=len(tasks),
            bytes=sum(task.file.file_size_in_bytes for task in tasks),
            columns=tuple((field.name, shown_type(field.field_type)) for field in table.schema().columns),
            partition_by=described(metadata.spec(), table.schema()),
            positions=positions_in(metadata.properties),
            last_commit_at=None if snapshot is None else datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC),
        )

    def compact(self, target_bytes: int = 128 << 20) -> Compacted:
        """Write small files of a partition together into files of about that size, in one commit."""
        if target_bytes < 1:
            raise InvalidInput(f"target_bytes must be a number of bytes from 1, not {target_bytes!r}")
        with self._catalog.errors(f"could not compact the table {self._name}"):
            return maintenance.compact(self._existing, target_bytes)

    def vacuum(self, older_than: float, *, dry_run: bool = False) -> Vacuumed:
        """Remove files that no reader needs who began at most `older_than` seconds ago.

        A file that no metadata names is kept for at least an hour: it may be of a block that is about to be committed.
        """
        if not older_than >= 0:  # nor a number that is none
            raise InvalidInput(f"older_than must be a number of seconds from 0, not {older_than!r}")
        with self._catalog.errors(f"could not vacuum the table {self._name}"):
            return maintenance.vacuum(self._existing, older_than, dry_run=dry_run)

    def _existing(self) -> OpenTable:
        table = self._catalog.load(self._name)
        if table is None:
            raise InvalidInput(f"there is no table {self._name} in {self._catalog.place} yet")
        return table

    def _evolved(self, wanted: Schema) -> OpenTable:
        """The table, with all columns that a block has."""
        backoff = Backoff(0.02, 1.0, give_up_after=_PATIENCE_SECONDS)
        while True:
            table = self._catalog.load(self._name) or self._created(wanted)
            changes = self._changes(table, wanted)
            if not changes:
                return table
            with self._catalog.errors(f"could not change the columns of the table {self._name}"):
                try:
                    with table.update_schema() as update:
                        for change in changes:
                            change.apply(update)
                except CommitFailedException:
                    # Another driver was faster, often with the same change.
                    if not backoff.wait():
                        raise Conflict(f"the columns of {self._name} are changed by others all the time") from None

    def _changes(self, table: OpenTable, wanted: Schema) -> tuple[Change, ...]:
        """What the table must gain to take these columns. Raises `InvalidInput` if it cannot, or may not."""
        if self._partition_by:
            ours = described(partition_spec(self._partition_by, table.schema()), table.schema())
            theirs = described(table.spec(), table.schema())
            if ours != theirs:
                raise InvalidInput(
                    f"the table {self._name} is partitioned by {list(theirs)}, not by {list(ours)}: give partition_by "
                    "as it is, or none to take the table's"
                )
        changes = match_columns(wanted, table.schema(), str(self._name)).changes
        if changes and not self._evolves:
            raise InvalidInput(f"the table {self._name} {changes[0]}: schema_evolution is 'none'")
        if self._merge is not None:
            # Of the block too: a key that only the table has is null in every row of it, and one row would be left.
            self._merge.check(wanted)
            self._merge.check(table.schema() if not changes else _together(table.schema(), wanted))
        return changes

    def _check_new(self, wanted: Schema) -> None:
        if not wanted.columns:
            raise InvalidInput("a table has at least one column, and the block has none")
        partition_spec(self._partition_by, wanted)
        if self._merge is not None:
            self._merge.check(wanted)

    def _created(self, wanted: Schema) -> OpenTable:
        self._check_new(wanted)
        schema = assign_fresh_schema_ids(wanted)
        with self._catalog.errors(f"could not create the table {self._name}"):
            self._catalog.create_namespace(self._name)
            with suppress(TableAlreadyExistsError):  # by another driver, a moment ago
                self._catalog.catalog.create_table(
                    self._name.identifier,
                    schema,
                    partition_spec=partition_spec(self._partition_by, schema),
                    properties=_PROPERTIES,
                )
        return self._existing()


def _together(table: Schema, block: Schema) -> Schema:
    """The columns of both, for a look at their names and types."""
    known = {field.name.lower() for field in table.columns}
    return assign_fresh_schema_ids(
        Schema(*table.columns, *(field for field in block.columns if field.name.lower() not in known))
    )
