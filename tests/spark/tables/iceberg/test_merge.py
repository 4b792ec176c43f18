"""Upserts into an Iceberg table: the last event of a key counts, once."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.errors import InvalidInput
from penstock.spark.tables.contract import Position
from tests.spark.tables.iceberg.blocks import QUERY, Row, opened, staged, strangers_rows, strangers_table


def columns(**kinds: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


CHANGES = columns(id=LongType(), op=StringType(), at=LongType(), value=StringType())


def change(key: int | None, value: str, op: str = "u", at: int | None = None) -> dict[str, Any]:
    return {"id": key, "op": op, "at": at, "value": value}


def values(warehouse: Path) -> dict[Any, Any]:
    rows = strangers_rows(warehouse)
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row["value"] for row in rows}


@pytest.mark.parametrize("partition_by", [[], ["bucket(3, id)"], ["value"]], ids=["", "key", "other"])
def test_a_row_takes_the_place_of_that_with_its_key(tmp_path: Path, partition_by: list[str]) -> None:
    table = opened(tmp_path, merge_on=["id"], partition_by=partition_by)
    assert staged(table, 0, 4, [change(key, f"a{key}") for key in range(4)], columns=CHANGES).commit()
    assert staged(table, 4, 7, [change(1, "b1"), change(9, "b9"), change(1, "c1")], columns=CHANGES, tasks=3).commit()
    assert values(tmp_path) == {0: "a0", 1: "c1", 2: "a2", 3: "a3", 9: "b9"}
    assert table.position(QUERY) == Position(end=7, first=4, last="ingest/7.arrow", rows=3)
    # The files that tasks wrote for the driver are gone.
    assert not [file for file in tmp_path.rglob("*.parquet") if "staged-" in file.name]


def test_the_same_block_again_changes_nothing(tmp_path: Path) -> None:
    table = opened(tmp_path, merge_on=["id"])
    assert staged(table, 0, 2, [change(1, "a"), change(2, "a")], columns=CHANGES).commit()
    assert staged(table, 2, 3, [change(1, "b")], columns=CHANGES).commit()
    assert not staged(table, 0, 2, [change(1, "a"), change(2, "a")], columns=CHANGES).commit()
    assert values(tmp_path) == {1: "b", 2: "a"}


def test_the_greatest_value_of_order_by_wins_and_then_the_last_event(tmp_path: Path) -> None:
    table = opened(tmp_path, merge_on=["id"], order_by="at")
    rows = [
        change(1, "late", at=9),
        change(1, "early", at=3),
        change(2, "first", at=5),
        change(2, "second", at=5),
        change(3, "dated", at=-1),
        change(3, "undated"),
    ]
    assert staged(table, 0, 6, rows, columns=CHANGES, tasks=2).commit()
    assert values(tmp_path) == {1: "late", 2: "second", 3: "dated"}
    # Across blocks the later block counts.
    assert staged(table, 6, 7, [change(1, "later block", at=0)], columns=CHANGES).commit()
    assert values(tmp_path)[1] == "later block"


@pytest.mark.parametrize("delete_when", ["op = 'd'", "op in ('d', 't') and id >= 0", "OP = 'd'"])
def test_a_row_is_deleted_where_the_condition_is_true(tmp_path: Path, delete_when: str) -> None:
    table = opened(tmp_path, merge_on=["id"], delete_when=delete_when)
    rows = [change(1, "a"), change(2, "a"), change(3, "gone", "d"), change(4, "gone", "d"), change(4, "back")]
    assert staged(table, 0, 5, rows, columns=CHANGES).commit()
    assert values(tmp_path) == {1: "a", 2: "a", 4: "back"}
    last: list[Row] = [change(1, "", "d"), change(7, "", "d"), {"id": 2, "op": None, "value": "kept"}]
    assert staged(table, 5, 8, last, columns=CHANGES).commit()
    assert values(tmp_path) == {2: "kept", 4: "back"}


def test_a_row_is_deleted_where_a_column_is_true(tmp_path: Path) -> None:
    table = opened(tmp_path, merge_on=["id"], delete_when="deleted")
    shape = columns(id=LongType(), deleted=BooleanType(), value=StringType())
    rows: list[Row] = [{"id": 1, "value": "a"}, {"id": 2, "value": "a", "deleted": False}, {"id": 3, "deleted": True}]
    assert staged(table, 0, 3, rows, columns=shape).commit()
    assert staged(table, 3, 4, [{"id": 1, "deleted": True}], columns=shape).commit()
    assert values(tmp_path) == {2: "a"}


def test_a_block_of_deletes_alone_empties_the_table(tmp_path: Path) -> None:
    table = opened(tmp_path, merge_on=["id"], delete_when="op = 'd'")
    assert staged(table, 0, 1, [change(1, "", "d")], columns=CHANGES).commit()
    assert staged(table, 1, 3, [change(1, "a"), change(2, "a")], columns=CHANGES).commit()
    assert staged(table, 3, 5, [change(1, "", "d"), change(2, "", "d")], columns=CHANGES).commit()
    assert values(tmp_path) == {}
    position = table.position(QUERY)
    assert position is not None
    assert position.end == 5


def test_null_is_a_key_like_any_other(tmp_path: Path) -> None:
    table = opened(tmp_path, merge_on=["id"], delete_when="op = 'd'")
    assert staged(table, 0, 3, [change(None, "a"), change(1, "a"), change(None, "b")], columns=CHANGES).commit()
    assert values(tmp_path) == {None: "b", 1: "a"}
    assert staged(table, 3, 4, [change(None, "c")], columns=CHANGES).commit()
    assert values(tmp_path) == {None: "c", 1: "a"}
    assert staged(table, 4, 5, [change(None, "", "d")], columns=CHANGES).commit()
    assert values(tmp_path) == {1: "a"}


def test_a_key_of_several_columns(tmp_path: Path) -> None:
    shape = columns(id=LongType(), region=StringType(), value=StringType())
    table = opened(tmp_path, merge_on=["region", "ID"])

    def row(key: int, region: str | None, value: str) -> dict[str, Any]:
        return {"id": key, "region": region, "value": value}

    assert staged(table, 0, 3, [row(1, "eu", "a"), row(1, "us", "a"), row(1, None, "a")], columns=shape).commit()
    assert staged(table, 3, 5, [row(1, "us", "b"), row(1, None, "b")], columns=shape).commit()
    found = {
        (row["id"], row["region"]): row["value"] for row in strangers_table(tmp_path).scan().to_arrow().to_pylist()
    }
    assert found == {(1, "eu"): "a", (1, "us"): "b", (1, None): "b"}


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        (StringType(), "ä", "b"),
        (BinaryType(), b"\xff", b""),
        (BooleanType(), True, False),
        (IntegerType(), 1, -1),
        (DecimalType(9, 2), Decimal("1.20"), Decimal("-1.20")),
        (DateType(), datetime.date(2026, 1, 1), datetime.date(1969, 1, 1)),
        (
            TimestampType(),
            datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
            datetime.datetime(1969, 1, 1, tzinfo=datetime.UTC),
        ),
    ],
    ids=lambda value: value.simpleString() if isinstance(value, DataType) else "",
)
def test_keys_of_every_type(tmp_path: Path, kind: DataType, one: Any, other: Any) -> None:
    shape = columns(id=kind, value=StringType())
    table = opened(tmp_path, merge_on=["id"])
    assert staged(table, 0, 2, [{"id": one, "value": "a"}, {"id": other, "value": "a"}], columns=shape).commit()
    assert staged(table, 2, 3, [{"id": other, "value": "b"}], columns=shape).commit()
    assert values(tmp_path) == {one: "a", other: "b"}


def test_a_file_without_one_of_the_keys_is_not_written_again(tmp_path: Path) -> None:
    table = opened(tmp_path, merge_on=["id"])
    assert staged(table, 0, 10, [change(key, "a") for key in range(10)], columns=CHANGES).commit()
    first = {task.file.file_path for task in strangers_table(tmp_path).scan().plan_files()}
    # By its bounds, and where those do not tell, by its keys.
    assert staged(table, 10, 11, [change(50, "b")], columns=CHANGES).commit()
    assert staged(table, 11, 13, [change(-1, "b"), change(60, "b")], columns=CHANGES).commit()
    many = [change(key, "c") for key in range(1000, 2000)] + [change(-5, "c")]
    assert staged(table, 13, 1014, many, columns=CHANGES).commit()
    assert first <= {task.file.file_path for task in strangers_table(tmp_path).scan().plan_files()}
    assert len(values(tmp_path)) == 10 + 1 + 2 + 1001


def test_rows_that_others_deleted_stay_deleted(tmp_path: Path) -> None:
    table = opened(tmp_path, merge_on=["id"])
    assert staged(table, 0, 3, [change(key, "a") for key in range(3)], columns=CHANGES).commit()
    strangers_table(tmp_path).delete("id = 2")
    assert staged(table, 3, 4, [change(0, "b")], columns=CHANGES).commit()
    assert values(tmp_path) == {0: "b", 1: "a"}


def test_a_new_column_comes_with_an_upsert(tmp_path: Path) -> None:
    table = opened(tmp_path, merge_on=["id"])
    assert staged(table, 0, 2, [change(1, "a"), change(2, "a")], columns=CHANGES).commit()
    wider = StructType([*CHANGES, StructField("extra", DoubleType())])
    assert staged(table, 2, 3, [change(2, "b") | {"extra": 0.5}], columns=wider).commit()
    assert [(row["value"], row["extra"]) for row in strangers_rows(tmp_path)] == [("a", None), ("b", 0.5)]


def test_a_block_that_is_too_large_to_be_merged_is_refused_and_removed(tmp_path: Path) -> None:
    table = opened(tmp_path, merge_on=["id"], merge_max_bytes=1000)
    with pytest.raises(InvalidInput, match="merge_max_bytes is 1000"):
        staged(table, 0, 100, [change(key, "a" * 100) for key in range(100)], columns=CHANGES)
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"merge_on": "id"}, "merge_on must be a list"),
        ({"order_by": "at"}, "go with merge_on"),
        ({"delete_when": "at"}, "go with merge_on"),
        ({"merge_on": ["id"], "merge_max_bytes": 0}, "merge_max_bytes"),
    ],
)
def test_options_that_cannot_be_right_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        opened(tmp_path, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"merge_on": ["nothing"]}, "merge_on names the column 'nothing'"),
        ({"merge_on": ["ratio"]}, "'ratio', which is double"),
        ({"merge_on": ["id"], "order_by": "nothing"}, "order_by names the column 'nothing'"),
        ({"merge_on": ["id"], "delete_when": "op"}, "'op', which is string"),
        ({"merge_on": ["id"], "delete_when": "gone = 1"}, "neither a column nor a condition"),
        ({"merge_on": ["id"], "delete_when": "op ="}, "neither a column nor a condition"),
    ],
)
def test_columns_that_do_not_go_with_the_rule_are_refused_before_anything_is_written(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    table = opened(tmp_path, **options)
    shape = StructType([*CHANGES, StructField("ratio", DoubleType())])
    for attempt in (table.check, lambda shape: staged(table, 0, 1, [], columns=shape)):
        with pytest.raises(InvalidInput, match=message):
            attempt(shape)


@pytest.mark.parametrize("evolves", [False, True])
@pytest.mark.parametrize(
    ("missing", "options"),
    [("id", {}), ("at", {"order_by": "at"}), ("op", {"delete_when": "op = 'd'"}), ("gone", {"delete_when": "gone"})],
)
def test_a_block_without_a_column_of_the_rule_is_refused_though_the_table_has_it(
    tmp_path: Path, missing: str, options: dict[str, Any], evolves: bool
) -> None:
    shape = StructType([*CHANGES, StructField("gone", BooleanType())])
    assert staged(opened(tmp_path), 0, 2, [change(key, "a") for key in range(2)], columns=shape).commit()
    table = opened(tmp_path, merge_on=["id"], **options)
    fewer = [field for field in shape if field.name != missing]
    narrow = StructType([*fewer, StructField("more", LongType())] if evolves else fewer)
    for attempt in (table.check, lambda shape: staged(table, 2, 3, [], columns=shape)):
        with pytest.raises(InvalidInput, match=missing):
            attempt(narrow)
    assert values(tmp_path) == {0: "a", 1: "a"}


_CHANGE = st.tuples(
    st.one_of(st.none(), st.integers(0, 5)), st.sampled_from("uud"), st.integers(0, 9), st.integers(0, 10**6)
)


@pytest.mark.slow
@given(blocks=st.lists(st.lists(_CHANGE, min_size=1, max_size=6), max_size=4))
def test_any_changes_equal_a_dictionary(tmp_path_factory: pytest.TempPathFactory, blocks: list[list[Any]]) -> None:
    warehouse = tmp_path_factory.mktemp("merge")
    table = opened(warehouse, merge_on=["id"], order_by="at", delete_when="op = 'd'")
    expected: dict[Any, str] = {}
    first = 0
    for block in blocks:
        rows = [change(key, str(value), op, at) for key, op, at, value in block]
        assert staged(table, first, first + len(rows), rows, columns=CHANGES, tasks=2).commit()
        first += len(rows)
        for row in sorted(rows, key=lambda row: row["at"]):
            expected.pop(row["id"], None)
            if row["op"] != "d":
                expected[row["id"]] = row["value"]
    if blocks:
        assert values(warehouse) == expected
