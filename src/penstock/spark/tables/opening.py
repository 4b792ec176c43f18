"""Opens a table of any kind. Delta's and Iceberg's libraries are loaded where they are used."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from penstock.errors import InvalidInput
from penstock.spark.tables.contract import Table
from penstock.storage import local_path, open_store

_DELTA_LOG = "_delta_log"
_OBJECT_STORES = ("s3://", "gs://", "az://", "memory://")


class TableKind(StrEnum):
    """The formats of tables."""

    PARQUET = "parquet"
    DELTA = "delta"
    ICEBERG = "iceberg"


class Evolution(StrEnum):
    """What becomes of a table when rows have columns that it does not have."""

    ADD = "add"
    NONE = "none"


def open_any_table(
    spark: Any,
    where: str,
    *,
    kind: TableKind = TableKind.PARQUET,
    partition_by: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
    catalog: Mapping[str, str] | None = None,
    **more: Any,
) -> Table:
    """Open the table of a kind at a URL or, for Iceberg, of a name. It need not be there yet.

    `spark` is None where there is no session: then a place on a file system of Hadoop's cannot be opened. `more` is
    what not all kinds take. Raises `InvalidInput` for what cannot be right, and where a library is missing.
    """
    if kind is TableKind.DELTA:
        from penstock.spark.tables.delta.table import open_delta

        return open_delta(where, partition_by=partition_by, options=options, **more)
    if kind is TableKind.ICEBERG:
        from penstock.spark.tables.iceberg.table import open_iceberg

        return open_iceberg(where, catalog=catalog, partition_by=partition_by, **more)
    from penstock.spark.tables.parquet.table import open_table

    return open_table(spark, where, partition_by=partition_by, options=options, **more)


def check_library(kind: TableKind, call: str) -> None:
    """Raise `InvalidInput`, naming the extra, where the library of a kind of table is not installed."""
    library = {TableKind.DELTA: "deltalake", TableKind.ICEBERG: "pyiceberg"}.get(kind)
    if library is not None and importlib.util.find_spec(library) is None:
        raise InvalidInput(f"{call} needs {library}, which is not installed: pip install 'penstock[{kind}]'")


def kind_at(url: str, options: Mapping[str, str]) -> TableKind:
    """What kind of table is at a place: Delta where there is a `_delta_log`, and else Parquet."""
    if url.startswith(_OBJECT_STORES):
        found = next(iter(open_store(url, **options).list_objects(_DELTA_LOG)), None)
        return TableKind.PARQUET if found is None else TableKind.DELTA
    if "://" in url and not url.startswith("file:"):
        return TableKind.PARQUET
    return TableKind.DELTA if os.path.isdir(os.path.join(local_path(url), _DELTA_LOG)) else TableKind.PARQUET
