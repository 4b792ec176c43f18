"""Open the table at a place, whatever kind it is, without Spark: what the commands `penstock table` and `dlq` work on.

Delta and Iceberg need an extra, and are imported where one of their tables is opened, here and nowhere else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.engine import StoredLetter, is_local, letters_in, notes_beside
from penstock.errors import InvalidInput
from penstock.spark.tables.contract import Table
from penstock.spark.tables.opening import TableKind, check_library, kind_at, open_any_table
from penstock.spark.tables.parquet.table import ParquetTable, open_table
from penstock.storage import ObjectStore, local_path, open_store, redact

KINDS = tuple(TableKind)
_NAME = re.compile(r"[^\s./:]+(\.[^\s./:]+)+")


@dataclass(frozen=True, slots=True)
class OpenedTable:
    """A table that is there, its kind, and a store beside it for what is kept about it."""

    kind: str
    table: Table
    notes_url: str = field(repr=False)  # it and the options may have credentials
    notes_options: Mapping[str, str] = field(repr=False)

    def rows(self) -> Iterator[pa.RecordBatch]:
        """The rows that are committed, without Spark. Raises `NotFound` where the table is compacted meanwhile."""
        return self.table.rows()

    def letters(self) -> Iterator[StoredLetter]:
        """The dead letters of a table of them. Raises `InvalidInput` for another table, and `NotFound` as `rows`."""
        return letters_in(self.rows())

    @property
    def buffer_id(self) -> str | None:
        """None: it is no buffer."""
        return None

    def notes(self) -> ObjectStore:
        """The store beside the table."""
        return open_store(self.notes_url, **self.notes_options)


def open_existing(
    url: str,
    *,
    kind: str | None = None,
    options: Mapping[str, str] | None = None,
    catalog: Mapping[str, str] | None = None,
) -> OpenedTable:
    """Open the table at a path or URL, or of that name in a catalog of Iceberg's.

    Without a kind it is found by looking: with a catalog it is Iceberg, with a `_delta_log` Delta, and Parquet else.
    Raises `InvalidInput` where there is no table.
    """
    if kind is not None and kind not in KINDS:
        raise InvalidInput(f"the kind of a table is one of {', '.join(KINDS)}, not {kind!r}")
    if kind == "iceberg" or (kind is None and catalog and _NAME.fullmatch(url) and not os.path.exists(url)):
        return _open_iceberg(url, catalog, options or {})
    if catalog:
        raise InvalidInput("a catalog goes with the name of an Iceberg table, such as lake.sales.events")
    options = dict(options or {})
    _check_place(url)
    if kind == "delta" or (kind is None and kind_at(url, options) is TableKind.DELTA):
        check_library(TableKind.DELTA, "a Delta table")
        delta = open_any_table(None, url, kind=TableKind.DELTA, options=options)
        return OpenedTable("delta", delta, *notes_beside(url, options))
    table = open_table(None, url, options=options) if not url.startswith("memory:") else _in_memory(url)
    state = table.blocks.state()
    if state.compacted is None and not state.names:
        raise InvalidInput(
            f"there is no table at {table.url}: no block is committed there. Is it the right place, and is it of "
            "another kind?"
        )
    return OpenedTable("parquet", table, *notes_beside(url, options))


def _open_iceberg(name: str, catalog: Mapping[str, str] | None, options: Mapping[str, str]) -> OpenedTable:
    check_library(TableKind.ICEBERG, "an Iceberg table")
    from penstock.spark.tables.iceberg.catalogs import embedded_catalog
    from penstock.spark.tables.iceberg.table import open_iceberg

    database = embedded_catalog(catalog or {})
    if database is not None and not os.path.exists(database):  # opening it would create one
        raise InvalidInput(
            f"there is no Iceberg catalog in {redact(os.path.dirname(database))}: is the warehouse right?"
        )
    table = open_iceberg(name, catalog=catalog or None)
    location = table.location.replace("s3a://", "s3://", 1)
    known = table.store_options if location.startswith("s3://") else {}
    return OpenedTable("iceberg", table, *notes_beside(location, known | dict(options)))


def _check_place(url: str) -> None:
    if not is_local(url) or os.path.isdir(local_path(url)):
        return
    problem = f"there is no table at {redact(url)}: there is no such directory"
    if _NAME.fullmatch(url):
        problem += (
            ". If it is the name of an Iceberg table, give its catalog, such as --catalog warehouse=/data/lake; or "
            "--kind iceberg, where PyIceberg is configured"
        )
    raise InvalidInput(problem)


def _in_memory(url: str) -> ParquetTable:
    from penstock.spark.tables.parquet.objects import ObjectBlocks

    return ParquetTable(ObjectBlocks(open_store(url)))
