"""`open_iceberg` opens a table of Apache Iceberg. It needs the extra `iceberg`, and nothing else here does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from penstock.errors import InvalidInput

if TYPE_CHECKING:
    from penstock.spark.tables.iceberg.iceberg_table import IcebergTable


def open_iceberg(
    name: str,
    *,
    catalog: Mapping[str, str] | None = None,
    partition_by: Sequence[str] = (),
    merge_on: Sequence[str] = (),
    order_by: str | None = None,
    delete_when: str | None = None,
    schema_evolution: Literal["add", "none"] = "add",
    merge_max_bytes: int = 512 << 20,
) -> IcebergTable:
    """Open the table `catalog.namespace.table`. It need not be there yet: the first block makes it.

    `catalog` has pyiceberg's properties (`type`, `uri`, `warehouse`, `s3.endpoint` ...). A `warehouse` alone, on this
    host's disk, has a catalog of its own: SQLite, in that directory. With None pyiceberg's own configuration counts
    (`~/.pyiceberg.yaml`, `PYICEBERG_CATALOG__...`). `partition_by` has columns and transforms of them, such as
    `days(at)` and `bucket(16, id)`.

    With `merge_on` a block's rows take the place of those with the same values in these columns, null included. Of
    several in one block the last counts: the greatest value of `order_by`, or else the last event. Where
    `delete_when` is true for it (a boolean column, or a condition such as `op = 'd'`), no row is left.

    Raises `InvalidInput` for an argument that cannot be right, and where pyiceberg is not installed.
    """
    if find_spec("pyiceberg") is None:
        raise InvalidInput("an Iceberg table needs pyiceberg: pip install 'penstock[iceberg]'")
    from penstock.spark.tables.iceberg.iceberg_table import IcebergTable
    from penstock.spark.tables.iceberg.merge import MergeRule

    if schema_evolution not in ("add", "none"):
        raise InvalidInput(f"schema_evolution must be 'add' or 'none', not {schema_evolution!r}")
    if isinstance(merge_on, str) or not all(merge_on):
        raise InvalidInput(f"merge_on must be a list of names of columns, not {merge_on!r}")
    if merge_max_bytes < 1:
        raise InvalidInput(f"merge_max_bytes must be a number of bytes from 1, not {merge_max_bytes!r}")
    if not merge_on and (order_by is not None or delete_when is not None):
        raise InvalidInput("order_by and delete_when go with merge_on")
    return IcebergTable(
        name,
        catalog,
        partition_by,
        MergeRule(tuple(merge_on), order_by, delete_when) if merge_on else None,
        evolves=schema_evolution == "add",
        merge_max_bytes=merge_max_bytes,
    )
