"""What pyiceberg keeps to itself, and a table needs: writing a data file bit by bit, reading one, committing once.

All names of pyiceberg that begin with an underscore, or that its documentation does not have, are used here and nowhere
else. `tests/spark/tables/iceberg/test_private_names.py` says when one of them has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import (
    ParquetFormatModel,
    _read_all_delete_files,
    _task_to_record_batches,
    _to_requested_schema,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.table import FileScanTask, Table, TableProperties, Transaction
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.name_mapping import NameMapping
from pyiceberg.table.update import (
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertTableUUID,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.table.update.snapshot import ExpireSnapshots
from pyiceberg.typedef import Properties, Record, TableVersion
from pyiceberg.types import ListType, MapType

from penstock.errors import InvalidInput
from penstock.spark.tables.iceberg.null_lists import keep_null_lists

keep_null_lists()

# These take what their types do not say.
_map_type: Callable[..., pa.DataType] = pa.map_
_same_schema: Callable[..., TableRequirement] = AssertCurrentSchemaId
_same_spec: Callable[..., TableRequirement] = AssertDefaultSpecId

_MAX_FOLDERS = 200  # characters of the directories' names, of which a file system takes 255 each


@dataclass(frozen=True, slots=True)
class Layout:
    """What of a table its files depend on. Unlike its metadata it does not grow with its snapshots."""

    io: FileIO
    uuid: str
    location: str
    schema: Schema
    spec: PartitionSpec
    specs: dict[int, PartitionSpec]
    properties: Properties
    format_version: TableVersion
    name_mapping: NameMapping | None

    @classmethod
    def of(cls, table: Table) -> Layout:
        """The layout of a table, as it is now."""
        metadata = table.metadata
        return cls(
            io=table.io,
            uuid=str(metadata.table_uuid),
            location=metadata.location,
            schema=metadata.schema(),
            spec=metadata.spec(),
            specs=metadata.specs(),
            # Positions of queries are no part of it.
            properties={name: value for name, value in metadata.properties.items() if not name.startswith("penstock.")},
            format_version=metadata.format_version,
            name_mapping=metadata.name_mapping(),
        )

    def __repr__(self) -> str:
        # A FileIO has credentials.
        return f"{type(self).__name__}({self.location})"

    @property
    def file_schema(self) -> Schema:
        """The columns of a data file: names with characters that Avro does not have are written in another way."""
        return sanitize_column_names(self.schema)

    @property
    def arrow_schema(self) -> pa.Schema:
        """The columns of a data file, as Arrow has them, with their ids."""
        return arrow_schema(self.file_schema)

    @property
    def target_file_bytes(self) -> int:
        """The size that the table wants its files to have."""
        wanted = self.properties.get(TableProperties.WRITE_TARGET_FILE_SIZE_BYTES)
        return int(wanted or TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT)

    def is_of(self, metadata: TableMetadata) -> bool:
        """Whether a table still has this layout: files of another one must not be committed to it."""
        return (
            str(metadata.table_uuid) == self.uuid
            and metadata.current_schema_id == self.schema.schema_id
            and metadata.default_spec_id == self.spec.spec_id
        )

    def file_rows(self, rows: pa.RecordBatch, columns: Schema) -> pa.RecordBatch:
        """Rows as a data file has them: the table's columns in its order and with its types, null where missing.

        `columns` are those of the rows, with the ids of the table's.
        """
        projected = _to_requested_schema(requested_schema=self.file_schema, file_schema=columns, batch=rows)
        try:
            # Text comes as two types of Arrow's, and one file has one of them; the ids come with the types.
            return projected.cast(self.arrow_schema)
        except ValueError as error:
            raise InvalidInput(f"the table at {self.location} does not take a row: {error}") from error


def arrow_schema(schema: Schema) -> pa.Schema:
    """Columns as Arrow has them, with their ids."""
    return pa.schema([_with_small_types(field) for field in schema_to_pyarrow(schema, include_field_ids=True)])


def _with_small_types(field: pa.Field[Any]) -> pa.Field[Any]:
    """A field with 32-bit offsets wherever pyiceberg wants 64: what Spark gives and others expect of a file.

    pyiceberg has a function for it, which drops the ids of elements.
    """
    return field.with_type(_small_type(field.type))


def _small_type(kind: Any) -> Any:
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return pa.list_(_with_small_types(kind.value_field))
    if pa.types.is_map(kind):
        return _map_type(_with_small_types(kind.key_field), _with_small_types(kind.item_field))
    if pa.types.is_struct(kind):
        return pa.struct([_with_small_types(kind.field(position)) for position in range(kind.num_fields)])
    return kind


class DataFileWriter:
    """One data file, in Parquet, with the ids of the table's columns."""

    def __init__(self, layout: Layout, name: str, partition: Record | None) -> None:
        """A file of a partition; with None one that is no part of the table, for rows that the driver reads again."""
        provider = load_location_provider(table_location=layout.location, table_properties=layout.properties)
        if partition is not None and len(partition):
            folders = layout.spec.partition_to_path(partition, layout.schema)
            # Without those that a file system would not take: to Iceberg the place of a file is all the same.
            name = f"{folders}/{name}" if len(folders) <= _MAX_FOLDERS else name
        self._layout = layout
        self._partition = partition
        self.path = provider.new_data_location(name)
        self._output = layout.io.new_output(self.path)
        self._writer = ParquetFormatModel().create_writer(self._output, layout.file_schema, layout.properties)
        self.rows = 0
        self.arrow_bytes = 0

    def write(self, rows: pa.Table) -> None:
        """Write rows as a row group, or more."""
        self._writer.write(rows)
        self.rows += rows.num_rows
        self.arrow_bytes += rows.nbytes

    def close(self) -> DataFile:
        """Finish the file, and describe it with the metrics of its columns."""
        statistics = self._writer.close()
        file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self.path,
            file_format=FileFormat.PARQUET,
            partition=self._partition if self._partition is not None else Record(),
            file_size_in_bytes=len(self._output),
            sort_order_id=None,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )
        file.spec_id = self._layout.spec.spec_id  # `from_args` takes it, and drops it
        return file

    def abort(self) -> None:
        """Remove what is written, as far as that is possible."""
        with suppress(Exception):
            self._writer.close()
        remove_files(self._layout.io, [self.path])


def remove_files(io: FileIO, paths: Iterable[str]) -> None:
    """Remove files that no table names, as far as that is possible: what stays is an orphan, which `vacuum` removes."""
    for path in paths:
        with suppress(Exception):
            io.delete(path)


def read_file(layout: Layout, task: FileScanTask, columns: Schema | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of a data file, bit by bit: with the table's columns by their ids, and without rows that are deleted."""
    wanted = columns or layout.schema
    ids = {id_ for id_ in wanted.field_ids if not isinstance(wanted.find_type(id_), ListType | MapType)}
    deletes = _read_all_delete_files(layout.io, [task])
    return _task_to_record_batches(
        layout.io,
        task,
        AlwaysTrue(),
        wanted,
        layout.schema,
        ids,
        deletes.get(task.file.file_path),
        True,  # names are compared with their case
        layout.name_mapping,
        layout.specs.get(task.file.spec_id),
        layout.format_version,
    )


class _Transaction(Transaction):
    """A transaction that does not copy all of a table's metadata each time that something of it is looked up.

    pyiceberg copies it some twenty times a commit, with every snapshot in it: 0.6 seconds with 500 of them.
    """

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self._known: tuple[tuple[TableUpdate, ...], TableMetadata] = ((), table.metadata)

    @property
    def table_metadata(self) -> TableMetadata:
        if self._known[0] is not self._updates:
            self._known = (self._updates, super().table_metadata if self._updates else self._table.metadata)
        return self._known[1]


class Commit:
    """One try to commit a transaction against exactly the metadata that it was made from.

    pyiceberg's own `commit_transaction` tries a lost commit again on newer metadata, without a look at what has been
    committed meanwhile; and it removes the manifests of a commit that was answered with a conflict, which may be its
    own earlier request. This does neither.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self.transaction: Transaction = _Transaction(table)

    def send(self) -> None:
        """Ask the catalog to commit. Raises whatever it raises; `CommitFailedException` after a conflict."""
        metadata = self._table.metadata
        transaction = self.transaction
        requirements = (
            *transaction._requirements,
            AssertTableUUID(uuid=metadata.table_uuid),
            _same_schema(**{"current-schema-id": metadata.current_schema_id}),
            _same_spec(**{"default-spec-id": metadata.default_spec_id}),
        )
        self._table._do_commit(updates=transaction._updates, requirements=requirements)

    def remove_manifests(self) -> None:
        """Remove the manifests of a try that is known not to be committed."""
        for producer in self.transaction._snapshot_producers:
            producer._clean_all_uncommitted()


def replace_files(
    transaction: Transaction, removed: Iterable[DataFile], added: Iterable[DataFile], summary: dict[str, str]
) -> None:
    """Put data files in the place of others, in one snapshot.

    Raises `ValidationException` if one of those to be removed is not in the table.
    """
    with transaction.update_snapshot(snapshot_properties=summary).overwrite() as snapshot:
        # Which manifests may name the files: all of them. What pyiceberg derives from the files' partitions finds none
        # in a table without partitions.
        snapshot.delete_by_predicate(AlwaysTrue())
        for file in removed:
            snapshot.delete_data_file(file)
        for file in added:
            snapshot.append_data_file(file)


def expire_snapshots(transaction: Transaction, ids: list[int]) -> None:
    """Remove snapshots from a table's metadata.

    As `table.maintenance.expire_snapshots` does, whose transaction copies all metadata twice for each of them.
    """
    ExpireSnapshots(transaction).by_ids(ids).commit()


def append_files(transaction: Transaction, added: Iterable[DataFile], summary: dict[str, str]) -> None:
    """Add data files in one snapshot, which is made even if there are none."""
    properties = transaction.table_metadata.properties
    merges = str(properties.get(TableProperties.MANIFEST_MERGE_ENABLED, "false")).lower() == "true"
    update = transaction.update_snapshot(snapshot_properties=summary)
    with update.merge_append() if merges else update.fast_append() as snapshot:
        for file in added:
            snapshot.append_data_file(file)
