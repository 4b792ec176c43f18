"""Values at the edge of their types, in one table of each kind: they come back as they went in."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.errors import InvalidInput
from tests.spark.kills.kinds import DELTA, ICEBERG, PARQUET, TABLES, load_iceberg, open_rows
from tests.support.plain_tables import put_block

POINT = StructType().add("x", DoubleType()).add("tags", ArrayType(StringType()))
COLUMNS = (
    StructType()
    .add("id", LongType())
    .add("part", StringType())
    .add("text", StringType())
    .add("bytes", BinaryType())
    .add("flag", BooleanType())
    .add("small", IntegerType())
    .add("exact", DecimalType(38, 18))
    .add("single", FloatType())
    .add("number", DoubleType())
    .add("day", DateType())
    .add("at", TimestampType())
    .add("wall", TimestampNTZType())
    .add("point", StructType().add("name", StringType()).add("inner", POINT))
    .add("points", ArrayType(POINT))
    .add("map", MapType(StringType(), ArrayType(LongType())))
    .add("places", MapType(StringType(), POINT))
)
FULL = {
    "text": "",
    "bytes": b"",
    "flag": False,
    "small": -(2**31),
    "exact": Decimal("-99999999999999999999.999999999999999999"),
    "single": math.inf,
    "number": math.nan,
    "day": date(1582, 10, 4),
    "at": datetime(1801, 2, 3, 4, 5, 6, 789012, tzinfo=UTC),
    "wall": datetime(1, 1, 1, 0, 0, 0, 1),
    "point": {"name": None, "inner": {"x": -0.0, "tags": ["", None]}},
    "points": [None, {"x": None, "tags": None}, {"x": 1.5, "tags": []}],
    "map": [("", []), ("ü/ ", [None, 2**63 - 1])],
    "places": [("here", None), ("there", {"x": 0.5, "tags": [None]})],
}
EMPTY: dict[str, Any] = dict.fromkeys(FULL)
LATEST = FULL | {
    "text": "a\x00b\U0001f600",
    "bytes": bytes(range(256)),
    "exact": Decimal("0E-18"),
    "single": math.nan,
    "number": -math.inf,
    "day": date(9999, 12, 31),
    "at": datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    "wall": datetime(9999, 12, 31, 23, 59, 59, 999999),
    "point": None,
    "points": [],
    "map": [],
}
PARTS = ["a/b", " ", "ü = 100%", "..", "", None, "__x__", "C:\\d", "'quoted' \"twice\"", "x" * 240]
ROWS = [
    {"id": number, "part": part} | (FULL, EMPTY, LATEST)[number % 3] for number, part in enumerate([*PARTS, *PARTS])
]


def comparable(value: object) -> object:
    """A value of which NaN equals itself, and a map is a list of pairs."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, dict):
        return {name: comparable(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [comparable(one) for one in value]
    if isinstance(value, datetime):
        return value.astimezone(UTC) if value.tzinfo else value
    return value


def read_by_others(kind: str, place: Path) -> list[dict[str, Any]]:
    """The rows as the format's own library reads them; a table of Parquet files is read by us alone."""
    import deltalake

    if kind == DELTA:
        return deltalake.DeltaTable(place).to_pyarrow_table().to_pylist()
    if kind == ICEBERG:
        return load_iceberg(place).scan().to_arrow().to_pylist()  # type: ignore[no-any-return]
    return [row for batch in open_rows(kind, None, place).rows() for row in batch.to_pylist()]  # type: ignore[attr-defined]


@pytest.mark.parametrize("partition_by", [[], ["part"]], ids=["plain", "partitioned"])
@pytest.mark.parametrize("kind", TABLES)
def test_values_at_the_edge_of_their_types_come_back_as_they_went_in(
    kind: str, partition_by: list[str], tmp_path: Path
) -> None:
    place = tmp_path / "table"
    table: Any = open_rows(kind, None, place, partition_by=partition_by)
    half = len(PARTS)
    put_block(table, ROWS[:half], 0, schema=COLUMNS)
    put_block(table, ROWS[half:], 1, schema=COLUMNS)
    wanted = ROWS
    if kind == DELTA and partition_by:  # whose log cannot tell empty text from null
        wanted = [row | {"part": row["part"] or None} for row in ROWS]
    for _ in ("as it was written", "after a compaction"):
        ours = [row for batch in table.rows() for row in batch.to_pylist()]
        for found in (ours, read_by_others(kind, place)):
            assert comparable(sorted(found, key=lambda row: row["id"])) == comparable(wanted)
        table.compact()


@pytest.mark.parametrize("kind", TABLES)
def test_a_partition_value_that_no_directory_can_be_named_after_is_written_or_refused_by_name(
    kind: str, tmp_path: Path
) -> None:
    long = "ü" * 200
    table: Any = open_rows(kind, None, tmp_path / "table", partition_by=["part"])
    row = {"id": 0, "part": long} | EMPTY
    if kind == PARQUET:
        with pytest.raises(InvalidInput, match=r"the column 'part', and a row has a value there that is too long"):
            put_block(table, [row], 0, schema=COLUMNS)
        return
    put_block(table, [row], 0, schema=COLUMNS)
    assert [found["part"] for found in read_by_others(kind, tmp_path / "table")] == [long]


@pytest.mark.parametrize("kind", TABLES)
def test_a_struct_without_fields_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    table: Any = open_rows(kind, None, tmp_path / "table")
    columns = StructType().add("id", LongType()).add("list", ArrayType(StructType([])))
    with pytest.raises(InvalidInput, match=r"the column 'list\.element' is (a )?struct"):
        table.check(columns)


@pytest.mark.parametrize(("kind", "widens"), [(PARQUET, False), (DELTA, False), (ICEBERG, True)])
@pytest.mark.parametrize(("narrow", "wide"), [(IntegerType(), LongType()), (FloatType(), DoubleType())])
def test_a_wider_type_is_taken_or_refused_with_both_types_before_a_file_is_written(
    kind: str, widens: bool, narrow: Any, wide: Any, tmp_path: Path
) -> None:
    table: Any = open_rows(kind, None, tmp_path / "table")
    put_block(table, [{"id": 1}], 0, schema=StructType().add("id", narrow))
    files = set(tmp_path.rglob("*.parquet"))
    wider = StructType().add("id", wide)
    if widens:
        put_block(table, [{"id": 2}], 1, schema=wider)
        assert sorted(row["id"] for row in read_by_others(kind, tmp_path / "table")) == [1, 2]
        return
    both = rf"{narrow.simpleString()} in the table .*, not {wide.simpleString()}"
    with pytest.raises(InvalidInput, match=both):
        put_block(open_rows(kind, None, tmp_path / "table"), [{"id": 2}], 1, schema=wider)  # type: ignore[arg-type]
    assert set(tmp_path.rglob("*.parquet")) == files
