"""Columns of an Iceberg table: how it is created, how it grows, and what it refuses before a file is written."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg import types as iceberg
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.errors import InvalidInput
from tests.spark.tables.iceberg.blocks import COLUMNS, opened, rows_of, staged, strangers_rows, strangers_table


def columns(**kinds: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


NOON = datetime.datetime(2026, 1, 31, 12, 30, 15, 123456)
EVERYTHING = columns(
    id=LongType(),
    text=StringType(),
    raw=BinaryType(),
    flag=BooleanType(),
    tiny=ByteType(),
    small=ShortType(),
    whole=IntegerType(),
    real=FloatType(),
    double=DoubleType(),
    price=DecimalType(20, 4),
    day=DateType(),
    at=TimestampType(),
    local=TimestampNTZType(),
    tags=ArrayType(StringType()),
    attributes=MapType(StringType(), IntegerType()),
    place=StructType([StructField("city", StringType()), StructField("spots", ArrayType(columns(x=DoubleType())))]),
)
ROW: dict[str, Any] = {
    "id": 1,
    "text": "ä",
    "raw": b"\x00\xff",
    "flag": True,
    "tiny": -128,
    "small": 32767,
    "whole": -(2**31),
    "real": 0.5,
    "double": 1e300,
    "price": Decimal("1234567890123456.7890"),
    "day": datetime.date(2026, 1, 31),
    "at": NOON.replace(tzinfo=datetime.UTC),
    "local": NOON,
    "tags": ["a", None, "b"],
    "attributes": [("k", 1), ("l", None)],
    "place": {"city": "Köln", "spots": [{"x": 1.5}, None]},
}
NULLS: dict[str, Any] = {"id": 2} | {name: None for name in ROW if name != "id"}


def test_values_of_every_type_come_back(tmp_path: Path) -> None:
    table = opened(tmp_path)
    assert staged(table, 0, 2, [ROW, NULLS], columns=EVERYTHING).commit()
    assert strangers_rows(tmp_path) == [ROW, NULLS]
    kinds = {field.name: str(field.field_type) for field in strangers_table(tmp_path).schema().columns}
    assert kinds["at"] == "timestamptz"
    assert kinds["local"] == "timestamp"
    assert kinds["tiny"] == kinds["whole"] == "int"


def test_data_files_have_the_ids_of_the_columns_and_bounds_of_their_values(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    assert staged(opened(tmp_path), 0, 2, [ROW, NULLS], columns=EVERYTHING).commit()
    table = strangers_table(tmp_path)
    file = next(iter(table.scan().plan_files())).file
    assert (pq.read_schema(file.file_path).field("text").metadata or {})[b"PARQUET:field_id"] == b"2"
    element = pq.read_schema(file.file_path).field("tags").type.value_field
    assert int(element.metadata[b"PARQUET:field_id"]) == table.schema().find_field("tags.element").field_id
    assert file.record_count == 2
    assert file.null_value_counts[table.schema().find_field("text").field_id] == 1
    assert file.lower_bounds[1] == (1).to_bytes(8, "little")
    assert file.upper_bounds[1] == (2).to_bytes(8, "little")
    assert list(table.scan(row_filter="id > 2").plan_files()) == []


@pytest.mark.parametrize(
    "kind", [NullType(), DayTimeIntervalType(), ArrayType(NullType())], ids=lambda kind: kind.simpleString()
)
def test_a_type_that_iceberg_does_not_have_is_refused(tmp_path: Path, kind: DataType) -> None:
    table = opened(tmp_path)
    with pytest.raises(InvalidInput, match="which Iceberg does not have"):
        table.check(columns(id=LongType(), odd=kind))
    with pytest.raises(InvalidInput, match="odd"):
        staged(table, 0, 1, columns=columns(id=LongType(), odd=kind))
    assert table.position("any") is None


def test_a_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="'ID' twice"):
        opened(tmp_path).check(columns(id=LongType(), ID=LongType()))


def test_a_new_column_is_added_and_null_in_earlier_rows(tmp_path: Path) -> None:
    table = opened(tmp_path)
    assert staged(table, 0, 2).commit()
    wider = columns(id=LongType(), name=StringType(), extra=DoubleType())
    assert staged(table, 2, 3, [{"id": 2, "name": "n", "extra": 0.5}], columns=wider).commit()
    assert staged(table, 3, 4, [{"id": 3}], columns=columns(id=LongType())).commit()
    assert [(row["name"], row["extra"]) for row in strangers_rows(tmp_path)] == [
        ("event 0", None),
        ("event 1", None),
        ("n", 0.5),
        (None, None),
    ]


def test_fields_are_added_in_structs_in_lists_and_in_maps(tmp_path: Path) -> None:
    def nested(kind: StructType) -> StructType:
        return columns(id=LongType(), s=kind, many=ArrayType(kind), named=MapType(StringType(), kind))

    def row(number: int, value: dict[str, Any]) -> dict[str, Any]:
        return {"id": number, "s": value, "many": [value], "named": [("k", value)]}

    table = opened(tmp_path)
    assert staged(table, 0, 1, [row(0, {"a": 1})], columns=nested(columns(a=LongType()))).commit()
    both = nested(columns(a=LongType(), b=StringType()))
    assert staged(table, 1, 2, [row(1, {"a": 2, "b": "x"})], columns=both).commit()
    # And a block without the field, and with the fields in another order.
    assert staged(table, 2, 3, [row(2, {"b": "y"})], columns=nested(columns(b=StringType()))).commit()
    found = strangers_rows(tmp_path)
    assert found == [row(0, {"a": 1, "b": None}), row(1, {"a": 2, "b": "x"}), row(2, {"a": None, "b": "y"})]


@pytest.mark.parametrize(
    ("narrow", "wide", "small", "large"),
    [
        (IntegerType(), LongType(), 7, 2**40),
        (FloatType(), DoubleType(), 0.5, 1e300),
        (DecimalType(6, 2), DecimalType(12, 2), Decimal("1234.56"), Decimal("1234567890.12")),
    ],
    ids=["int", "float", "decimal"],
)
def test_a_type_is_widened_and_a_narrower_one_fits(
    tmp_path: Path, narrow: DataType, wide: DataType, small: Any, large: Any
) -> None:
    table = opened(tmp_path)
    for number, (kind, value) in enumerate([(narrow, small), (wide, large), (narrow, small)]):
        rows = [{"id": number, "value": value, "many": [value], "s": {"x": value}}]
        shape = columns(id=LongType(), value=kind, many=ArrayType(kind), s=columns(x=kind))
        assert staged(table, number, number + 1, rows, columns=shape).commit()
    found = strangers_rows(tmp_path)
    assert [row["value"] for row in found] == [small, large, small]
    assert [row["many"] for row in found] == [[small], [large], [small]]
    assert [row["s"]["x"] for row in found] == [small, large, small]


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        (LongType(), StringType(), "bigint.*not string"),
        (StringType(), BinaryType(), "string.*not binary"),
        (BinaryType(), StringType(), "binary.*not string"),
        (DoubleType(), LongType(), "double.*not bigint"),
        (DecimalType(6, 2), DecimalType(8, 3), r"decimal\(6,2\).*not decimal\(8,3\)"),
        (TimestampType(), TimestampNTZType(), "timestamp .*not timestamp_ntz"),
        (DateType(), TimestampType(), "date .*not timestamp"),
        (ArrayType(LongType()), LongType(), "array<bigint>.*not bigint"),
        (MapType(IntegerType(), LongType()), MapType(LongType(), LongType()), "'value.key' is int.*not bigint"),
    ],
    ids=lambda value: value.simpleString() if isinstance(value, DataType) else "",
)
def test_any_other_change_of_a_type_fails_before_a_file_is_written(
    tmp_path: Path, before: DataType, after: DataType, named: str
) -> None:
    table = opened(tmp_path)
    assert staged(table, 0, 1, [{"id": 0}], columns=columns(id=LongType(), value=before)).commit()
    files = set(tmp_path.rglob("*"))
    for attempt in (table.check, lambda shape: staged(table, 1, 2, [{"id": 1}], columns=shape)):
        with pytest.raises(InvalidInput, match=named):
            attempt(columns(id=LongType(), value=after, other=LongType()))
    assert set(tmp_path.rglob("*")) == files


def test_without_evolution_a_table_stays_as_it_is(tmp_path: Path) -> None:
    assert staged(opened(tmp_path), 0, 1, [{"id": 0}], columns=columns(id=IntegerType(), a=LongType())).commit()
    table = opened(tmp_path, schema_evolution="none")
    with pytest.raises(InvalidInput, match=r"has no column 'b' \(long\): schema_evolution is 'none'"):
        table.check(columns(id=IntegerType(), b=LongType()))
    with pytest.raises(InvalidInput, match="has the column 'id' as int, not as long"):
        table.check(columns(id=LongType()))
    assert staged(table, 1, 2, [{"id": 1}], columns=columns(id=IntegerType())).commit()


def made_by_others(warehouse: Path, schema: Schema) -> None:
    catalog = load_catalog("lake", type="sql", uri=f"sqlite:///{warehouse}/catalog.db", warehouse=str(warehouse))
    catalog.create_namespace("web")
    catalog.create_table("web.clicks", schema)


def test_a_table_that_others_made_takes_blocks_by_name_whatever_the_case(tmp_path: Path) -> None:
    made_by_others(
        tmp_path,
        Schema(
            iceberg.NestedField(1, "Name", iceberg.StringType(), required=False),
            iceberg.NestedField(2, "id", iceberg.LongType(), required=True),
        ),
    )
    table = opened(tmp_path)
    assert staged(table, 0, 3).commit()
    assert strangers_rows(tmp_path) == [{"Name": row["name"], "id": row["id"]} for row in rows_of(0, 3)]


def test_a_column_that_others_require_must_be_there_and_not_null(tmp_path: Path) -> None:
    made_by_others(
        tmp_path,
        Schema(
            iceberg.NestedField(1, "id", iceberg.LongType(), required=False),
            iceberg.NestedField(2, "name", iceberg.StringType(), required=True),
        ),
    )
    table = opened(tmp_path)
    with pytest.raises(InvalidInput, match="requires the column 'name'"):
        table.check(columns(id=LongType()))
    with pytest.raises(InvalidInput, match=r"'name'.*null"):
        staged(table, 0, 1, [{"id": 1, "name": None}])
    assert not list(tmp_path.rglob("*.parquet"))


def test_two_columns_that_differ_in_case_are_told_apart_by_their_exact_names_only(tmp_path: Path) -> None:
    made_by_others(
        tmp_path,
        Schema(
            iceberg.NestedField(1, "id", iceberg.LongType(), required=False),
            iceberg.NestedField(2, "ID", iceberg.LongType(), required=False),
        ),
    )
    table = opened(tmp_path)
    table.check(columns(ID=LongType()))
    with pytest.raises(InvalidInput, match="may be either"):
        table.check(columns(Id=LongType()))


def test_names_that_avro_does_not_have_come_back(tmp_path: Path) -> None:
    shape = columns(**{"id": LongType(), "a.b": StringType(), "1 ä-c": LongType()})
    table = opened(tmp_path, partition_by=["a.b"])
    rows = [{"id": number, "a.b": f"p{number % 2}", "1 ä-c": number} for number in range(4)]
    assert staged(table, 0, 4, rows, columns=shape).commit()
    assert strangers_rows(tmp_path) == rows
    table.compact()
    assert strangers_rows(tmp_path) == rows


def test_rows_of_many_batches_are_written_with_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.spark.tables.contract import BlockId
    from penstock.spark.tables.iceberg import writing

    monkeypatch.setattr(writing, "_MAX_PENDING_BYTES", 1000)
    monkeypatch.setattr(writing, "_MAX_OPEN_FILES", 2)
    table = opened(tmp_path, partition_by=["bucket(4, id)"])
    block = BlockId("q", 0, 500)
    writer = table.writer(COLUMNS, block)
    files = writer.open(0)
    for first in range(0, 500, 50):
        files.add(pa.RecordBatch.from_pylist([dict(row) for row in rows_of(first, first + 50)], schema=writer.schema))
    assert table.staged(block, files.close()).commit()
    assert strangers_rows(tmp_path) == rows_of(0, 500)
    assert table.info().files > 4
