"""What `files` takes from pyiceberg and pyiceberg does not promise. If one of these fails, look at `files` again."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest
from pyiceberg.io import pyarrow as theirs
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.update.snapshot import _SnapshotProducer

import penstock.spark.tables.iceberg as ours

FOLDER = Path(ours.__file__).parent

PROPERTIES: list[tuple[type, str]] = [(Transaction, "table_metadata"), (DataFile, "spec_id")]


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (
            theirs._to_requested_schema,
            "requested_schema file_schema batch downcast_ns_timestamp_to_us include_field_ids projected_missing_fields "
            "allow_timestamp_tz_mismatch format_model",
        ),
        (
            theirs._task_to_record_batches,
            "io task bound_row_filter projected_schema table_schema projected_field_ids positional_deletes "
            "case_sensitive name_mapping partition_spec format_version downcast_ns_timestamp_to_us dictionary_columns",
        ),
        (theirs._read_all_delete_files, "io tasks"),
        (theirs.ParquetFormatModel.create_writer, "self output_file file_schema properties"),
        (theirs.ParquetFormatWriter.write, "self table"),
        (theirs.ParquetFormatWriter.close, "self"),
        (Table._do_commit, "self updates requirements"),
        (_SnapshotProducer._clean_all_uncommitted, "self"),
        (_SnapshotProducer.delete_by_predicate, "self predicate case_sensitive"),
        (_SnapshotProducer.delete_data_file, "self data_file"),
        (_SnapshotProducer.append_data_file, "self data_file"),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_pyicebergs_functions_take_what_they_took(function: object, parameters: str) -> None:
    assert callable(function)
    assert list(inspect.signature(function).parameters) == parameters.split()


def test_a_transaction_has_what_it_had() -> None:
    assert {"_table", "_updates", "_requirements"} <= set(Transaction.__annotations__)
    assert all(isinstance(vars(owner)[name], property) for owner, name in PROPERTIES)


def test_only_one_module_uses_pyicebergs_private_names() -> None:
    for file in FOLDER.glob("*.py"):
        if file.name == "files.py":
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pyiceberg"):
                private = [alias.name for alias in node.names if alias.name.startswith("_")]
                assert not private, file
