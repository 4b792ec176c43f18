"""The kinds of sinks that rows are written to while drivers are killed: how each is opened, and read by others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from penstock import peek
from penstock.spark import Pipeline
from penstock.spark.tables.buffer import BufferSink
from penstock.spark.tables.contract import Sink
from penstock.spark.tables.opening import TableKind, open_any_table

PARQUET, DELTA, ICEBERG, BUFFER = "parquet", "delta", "iceberg", "buffer"

TABLES = [PARQUET, DELTA, ICEBERG]
"""Those that `Pipeline.read_table` and strangers read."""

UPSERTS = {"delta-upserts": DELTA, "iceberg-upserts": ICEBERG}
"""Tables into which changes are merged, and the kind that each is for its readers."""

_MERGE: dict[str, Any] = {"merge_on": ["id"], "order_by": "version", "delete_when": "op = 'd'"}


def to_rows(kind: str, pipeline: Pipeline, place: Path) -> Pipeline:
    """The pipeline, into a sink of that kind."""
    if kind == BUFFER:
        return pipeline.to_buffer(place)
    if kind == PARQUET:
        return pipeline.to_parquet(place)
    merge = _MERGE if kind in UPSERTS else {}
    if UPSERTS.get(kind, kind) == DELTA:
        return pipeline.to_delta(place, **merge)
    return pipeline.to_iceberg(name_of(place), catalog=catalog_of(place), **merge)


def to_letters(kind: str, pipeline: Pipeline, place: Path) -> Pipeline:
    """The pipeline, with dead letters in a table of that kind; of Parquet where rows go to a buffer."""
    if kind == ICEBERG:
        return pipeline.dead_letters(name_of(place), kind=kind, catalog=catalog_of(place))
    return pipeline.dead_letters(place, kind=letters_kind(kind))


def letters_kind(kind: str) -> str:
    """The kind of the dead letters' table."""
    return PARQUET if kind == BUFFER else UPSERTS.get(kind, kind)


def open_rows(kind: str, spark: Any, place: Path, **more: Any) -> Sink:
    """The sink itself, as a run opens it; a table with more options."""
    if kind == BUFFER:
        return BufferSink(spark, str(place), {})
    merge = (_MERGE if kind in UPSERTS else {}) | more
    table = TableKind(UPSERTS.get(kind, kind))
    if table is TableKind.ICEBERG:
        return open_any_table(spark, name_of(place), kind=table, catalog=catalog_of(place), **merge)
    return open_any_table(spark, str(place), kind=table, **merge)


def read_table(kind: str, spark: Any, place: Path) -> Any:
    """What `Pipeline.read_table` finds."""
    if kind == ICEBERG:
        return Pipeline.read_table(spark, name_of(place), catalog=catalog_of(place))
    return Pipeline.read_table(spark, place)


def read_column(kind: str, place: Path, column: str) -> dict[str, list[Any]]:
    """A column of all rows, for each reader that is not ours; in a buffer, the payloads of what is queued."""
    if kind == BUFFER:
        return {"a consumer": [record.value for record in peek(place, 1_000_000)]}
    return {reader: [row[0] for row in rows] for reader, rows in read_columns(kind, place, [column]).items()}


def read_columns(kind: str, place: Path, columns: list[str]) -> dict[str, list[tuple[Any, ...]]]:
    """Columns of all rows of a table, for each reader that is not ours."""
    if kind == DELTA:
        return _read_delta(place, columns)
    if kind == ICEBERG:
        return _read_iceberg(place, columns)
    if not place.exists():
        return {"DuckDB": [], "Arrow": []}
    plain = ds.dataset(place, format="parquet", partitioning="hive").to_table(columns=columns)
    return {"DuckDB": _duckdb([f"{place}/**/*.parquet"], columns), "Arrow": _rows(plain, columns)}


def count_blocks(kind: str, place: Path) -> int:
    """How many blocks a table has: what its own format keeps of their commits."""
    if kind == DELTA:
        import deltalake

        if not (place / "_delta_log").exists():
            return 0
        return sum(one["operation"] == "WRITE" for one in deltalake.DeltaTable(place).history())
    if kind == ICEBERG:
        table = load_iceberg(place)
        return 0 if table is None else len(table.metadata.snapshots)
    return len(list(place.glob("block=*")))


def name_of(place: Path) -> str:
    """The name of an Iceberg table that stands where another table would be a directory."""
    return f"lake.kills.{place.name}"


def catalog_of(place: Path) -> dict[str, str]:
    """The catalog of that table: SQLite in a directory beside it."""
    return {"warehouse": str(place.parent / "warehouse")}


def _read_delta(place: Path, columns: list[str]) -> dict[str, list[tuple[Any, ...]]]:
    import deltalake

    if not (place / "_delta_log").exists():
        return {"delta-rs": [], "DuckDB": []}
    table = deltalake.DeltaTable(place)
    return {
        "delta-rs": _rows(pa.table(table.to_pyarrow_table()), columns),
        "DuckDB": _duckdb(table.file_uris(), columns),
    }


def _read_iceberg(place: Path, columns: list[str]) -> dict[str, list[tuple[Any, ...]]]:
    table = load_iceberg(place)
    if table is None:
        return {"PyIceberg": [], "DuckDB": []}
    files = [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
    return {"PyIceberg": _rows(table.scan().to_arrow(), columns), "DuckDB": _duckdb(files, columns)}


def _rows(table: pa.Table, columns: list[str]) -> list[tuple[Any, ...]]:
    return list(zip(*(table[column].to_pylist() for column in columns), strict=True))


def _duckdb(files: list[str], columns: list[str]) -> list[tuple[Any, ...]]:
    if not files:
        return []
    query = f"select {', '.join(columns)} from read_parquet(?, hive_partitioning = true)"
    with duckdb.connect() as connection:
        return connection.execute(query, [files]).fetchall()


def load_iceberg(place: Path) -> Any:
    """The table, by PyIceberg alone; None if it is not there."""
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NoSuchTableError

    warehouse = Path(catalog_of(place)["warehouse"])
    found = list(warehouse.glob("*.db"))
    if not found:
        return None
    catalog = load_catalog("lake", type="sql", uri=f"sqlite:///{found[0]}", warehouse=f"file://{warehouse}")
    try:
        return catalog.load_table(("kills", place.name))
    except NoSuchTableError:
        return None
