"""Upserts: the last row of each key counts, deletes delete, each block once."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pytest
from pyspark.sql import types as t

from penstock.errors import InvalidInput
from penstock.spark.tables.delta.table import DeltaTable, open_delta
from tests.support.delta_blocks import QUERY, Row, block, commit, position, read, stage
from tests.support.processes import Parent, Start

CHANGES = t.StructType(
    [
        t.StructField("id", t.LongType()),
        t.StructField("value", t.StringType()),
        t.StructField("op", t.StringType()),
        t.StructField("at", t.LongType()),
        t.StructField("where", t.StringType()),
    ]
)


def merge(table: DeltaTable, first: int, given: list[Row], columns: t.StructType = CHANGES) -> bool:
    return commit(table, block(first, first + max(len(given), 1)), given, columns)


def values(place: Path, column: str = "value") -> dict[Any, Any]:
    """The table as a dictionary. A key that is there twice is an error."""
    found = read(place).to_pylist()
    table = {row["id"]: row[column] for row in found}
    assert len(table) == len(found), found
    return table


def test_a_row_takes_the_place_of_the_one_with_its_key(tmp_path: Path) -> None:
    table = open_delta(str(tmp_path), merge_on=["id"])
    assert merge(table, 0, [{"id": 1, "value": "a"}, {"id": 2, "value": "b"}])
    assert merge(table, 2, [{"id": 2, "value": "B"}, {"id": 3, "value": "C"}])
    assert values(tmp_path) == {1: "a", 2: "B", 3: "C"}
    assert table.position(QUERY) is not None


def test_of_rows_with_one_key_the_last_event_counts(tmp_path: Path) -> None:
    table = open_delta(str(tmp_path), merge_on=["id"])
    merge(table, 0, [{"id": number % 2, "value": str(number)} for number in range(7)])
    assert values(tmp_path) == {0: "6", 1: "5"}


def test_of_rows_with_one_key_the_greatest_in_order_by_counts_and_of_equal_ones_the_last(tmp_path: Path) -> None:
    table = open_delta(str(tmp_path), merge_on=["id"], order_by="at")
    given = [("late", 9), ("none", None), ("later", 9), ("early", 1)]
    merge(table, 0, [{"id": 1, "value": value, "at": at} for value, at in given])
    assert values(tmp_path) == {1: "later"}


@pytest.mark.parametrize("condition", ["op = 'd'", "lower(`op`) = 'd' and op is not null", "\"op\" in ('d', 'D')"])
def test_a_row_for_which_delete_when_is_true_deletes(tmp_path: Path, condition: str) -> None:
    table = open_delta(str(tmp_path), merge_on=["id"], delete_when=condition)
    merge(table, 0, [{"id": 1, "value": "a"}, {"id": 2, "value": "b", "op": "u"}])
    merge(table, 2, [{"id": 1, "op": "d"}, {"id": 7, "op": "d"}, {"id": 2, "op": "d"}, {"id": 2, "value": "again"}])
    assert values(tmp_path) == {2: "again"}


def test_delete_when_may_be_the_name_of_a_column(tmp_path: Path) -> None:
    columns = t.StructType([t.StructField("id", t.LongType()), t.StructField("Gone", t.BooleanType())])
    table = open_delta(str(tmp_path), merge_on=["id"], delete_when="gone")
    merge(table, 0, [{"id": 1}, {"id": 2, "Gone": False}], columns)
    merge(table, 2, [{"id": 2, "Gone": True}], columns)
    assert values(tmp_path, "Gone") == {1: None}


def test_deletes_of_keys_that_are_not_there_move_the_position(tmp_path: Path) -> None:
    table = open_delta(str(tmp_path), merge_on=["id"], delete_when="op = 'd'")
    for number in range(3):
        assert merge(table, number, [{"id": number, "op": "d"}])
        assert position(table) == number + 1
    assert values(tmp_path) == {}


def test_a_block_without_rows_moves_the_position(tmp_path: Path) -> None:
    table = open_delta(str(tmp_path), merge_on=["id"])
    assert merge(table, 0, [])
    assert position(table) == 1


def test_null_is_a_key_like_any_other(tmp_path: Path) -> None:
    table = open_delta(str(tmp_path), merge_on=["id", "where"], delete_when="op = 'd'")
    merge(table, 0, [{"id": None, "value": "a"}, {"id": None, "value": "b"}, {"id": 1, "value": "c", "where": "x"}])
    merge(table, 3, [{"id": None, "value": "d"}, {"id": 1, "value": "e"}, {"id": 1, "value": "f", "where": "x"}])
    found = {(row["id"], row["where"]): row["value"] for row in read(tmp_path).to_pylist()}
    assert found == {(None, None): "d", (1, None): "e", (1, "x"): "f"}
    merge(table, 6, [{"id": None, "op": "d"}])
    assert read(tmp_path).num_rows == 2


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        (t.StringType(), "a'b`\\", ""),
        (t.BinaryType(), b"\x00", b"\xff"),
        (t.BooleanType(), True, False),
        (t.DateType(), date(2026, 1, 31), date(1969, 1, 1)),
        (t.TimestampType(), datetime(2026, 1, 31, 1, 2, 3, 4, UTC), datetime(2026, 1, 31, 1, 2, 3, 5, UTC)),
        (t.TimestampNTZType(), datetime(2026, 1, 31, 1, 2, 3, 4), datetime(2026, 1, 31, 1, 2, 3, 5)),
        (t.DecimalType(20, 4), Decimal("-1.5000"), Decimal("1234567890123456.1234")),
        (t.ByteType(), -1, 1),
    ],
    ids=lambda value: value.simpleString() if isinstance(value, t.DataType) else "",
)
def test_keys_of_every_type_are_found_again(tmp_path: Path, kind: t.DataType, one: Any, other: Any) -> None:
    columns = t.StructType([t.StructField("id", kind), t.StructField("value", t.LongType())])
    table = open_delta(str(tmp_path), merge_on=["id"])
    merge(table, 0, [{"id": one, "value": 1}, {"id": other, "value": 2}], columns)
    merge(table, 2, [{"id": one, "value": 3}], columns)
    assert values(tmp_path) == {one: 3, other: 2}


@pytest.mark.parametrize(
    ("precision", "scale", "keys"),
    [(38, 0, ["1" + "2" * 37, "9" * 38, "-" + "9" * 38]), (38, 38, ["0." + "9" * 38, "-0." + "1" * 38, "0.1"])],
)
def test_keys_with_more_digits_than_a_float_has_are_found_again(
    tmp_path: Path, precision: int, scale: int, keys: list[str]
) -> None:
    columns = t.StructType([t.StructField("id", t.DecimalType(precision, scale)), t.StructField("value", t.LongType())])
    table = open_delta(str(tmp_path), merge_on=["id"])
    found = {Decimal(key): 0 for key in keys}
    merge(table, 0, [{"id": key, "value": 0} for key in found], columns)
    for number, key in enumerate(found, 1):
        found[key] = number
        merge(table, 2 + number, [{"id": key, "value": number}], columns)
        assert values(tmp_path) == found


def test_of_a_key_that_is_a_partition_empty_text_and_null_are_one_as_in_delta(tmp_path: Path) -> None:
    table = open_delta(str(tmp_path), merge_on=["where"], partition_by=["where"])
    merge(table, 0, [{"id": 1, "where": ""}, {"id": 2, "where": None}, {"id": 3, "where": ""}])
    assert values(tmp_path, "where") == {3: None}
    merge(table, 3, [{"id": 4, "where": ""}])
    assert values(tmp_path, "where") == {4: None}


def test_a_partition_value_that_is_too_long_for_a_directory_is_refused_by_its_column(tmp_path: Path) -> None:
    table = open_delta(str(tmp_path), merge_on=["id"], partition_by=["where"])
    with pytest.raises(InvalidInput, match="the column 'where' has a value of 300 characters, 'aaa"):
        merge(table, 0, [{"id": 1, "where": "a" * 300}])
    assert position(table) == 0
    merge(table, 0, [{"id": 1, "where": "a" * 200}])
    assert values(tmp_path, "where") == {1: "a" * 200}


def test_a_row_moves_to_the_partition_of_its_new_value(tmp_path: Path) -> None:
    table = open_delta(str(tmp_path), merge_on=["id"], partition_by=["where"], delete_when="op = 'd'")
    merge(table, 0, [{"id": 1, "value": "a", "where": "x"}, {"id": 2, "value": "b", "where": "x y/z"}])
    merge(table, 2, [{"id": 1, "value": "A", "where": "x y/z"}, {"id": 3, "value": "c"}])
    assert values(tmp_path) == {1: "A", 2: "b", 3: "c"}
    assert values(tmp_path, "where") == {1: "x y/z", 2: "x y/z", 3: None}
    merge(table, 4, [{"id": 2, "op": "d"}])
    assert values(tmp_path) == {1: "A", 3: "c"}


def test_columns_that_a_block_does_not_have_stay_as_they_are(tmp_path: Path) -> None:
    narrow = t.StructType([t.StructField("id", t.LongType()), t.StructField("op", t.StringType())])
    table = open_delta(str(tmp_path), merge_on=["id"])
    merge(table, 0, [{"id": 1, "value": "a"}])
    merge(table, 1, [{"id": 1, "op": "u"}, {"id": 2, "op": "c"}], narrow)
    assert values(tmp_path) == {1: "a", 2: None}
    assert values(tmp_path, "op") == {1: "u", 2: "c"}


def test_a_column_is_added_by_a_merge(tmp_path: Path) -> None:
    wider = t.StructType([*CHANGES, t.StructField("More", t.LongType())])
    table = open_delta(str(tmp_path), merge_on=["id"])
    merge(table, 0, [{"id": 1, "value": "a"}, {"id": 2, "value": "b"}])
    merge(table, 2, [{"id": 1, "value": "A", "More": 5}], wider)
    assert values(tmp_path, "More") == {1: 5, 2: None}


def test_staging_files_are_not_in_the_table_and_are_removed(tmp_path: Path) -> None:
    table = open_delta(str(tmp_path), merge_on=["id"])
    staged = stage(table, block(0, 1), [{"id": 1, "value": "a"}], CHANGES)
    staging = tmp_path / "_penstock_staging"
    assert len(list(staging.glob("*.parquet"))) == 1
    assert values(tmp_path) == {}
    staged.commit()
    assert list(staging.glob("*.parquet")) == []
    stage(table, block(1, 2), [{"id": 1, "value": "a"}], CHANGES).discard()
    assert list(staging.glob("*.parquet")) == []


@pytest.mark.parametrize("tasks", [1, 4])
def test_a_block_that_is_too_large_for_the_driver_names_the_options(tmp_path: Path, tasks: int) -> None:
    import pyarrow as pa

    table = open_delta(str(tmp_path), merge_on=["id"], merge_max_bytes=40_000 * 2 // tasks)
    writer = table.writer(CHANGES, block(0, 1))
    rows = pa.RecordBatch.from_pylist([{"id": n, "value": "x" * 100} for n in range(300)], schema=writer.schema)

    def write() -> None:
        described = []
        for task in range(tasks):
            files = writer.open(task)
            for _ in range(3 if tasks == 1 else 1):
                files.add(rows)
            described += files.close()
        table.staged(block(0, 1), described)

    with pytest.raises(InvalidInput, match=r"merge_max_bytes is .*Give a smaller maxBytesPerTrigger, or a larger"):
        write()
    assert list((tmp_path / "_penstock_staging").glob("*.parquet")) == []


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"merge_on": ["no"]}, "merge_on names the column 'no', and the block has only id, value"),
        ({"merge_on": ["id"], "order_by": "no"}, "order_by names the column 'no'"),
        ({"merge_on": ["id"], "delete_when": "no = 1"}, "delete_when 'no = 1' is no condition over the columns id,"),
        ({"merge_on": ["id"], "delete_when": "id"}, "delete_when 'id' is no condition"),
        ({"merge_on": ["id"], "delete_when": "op ="}, "delete_when 'op =' is no condition"),
    ],
)
def test_what_cannot_be_merged_is_refused_before_anything_is_written(
    tmp_path: Path, options: dict[str, Any], problem: str
) -> None:
    table = open_delta(str(tmp_path / "table"), **options)
    with pytest.raises(InvalidInput, match=problem):
        table.writer(CHANGES, block(0, 1))
    assert not (tmp_path / "table").exists()


@pytest.mark.parametrize("kind", [t.DoubleType(), t.ArrayType(t.LongType())])
def test_a_key_without_equality_is_refused(tmp_path: Path, kind: t.DataType) -> None:
    columns = t.StructType([t.StructField("id", kind), t.StructField("value", t.LongType())])
    with pytest.raises(InvalidInput, match="merge_on names the column 'id', which is"):
        open_delta(str(tmp_path), merge_on=["id"]).check(columns)


@pytest.mark.parametrize("options", [{"order_by": "at"}, {"delete_when": "x"}])
def test_options_of_merges_without_keys_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="order_by and delete_when go with merge_on"):
        open_delta(str(tmp_path), **options)


def test_an_append_only_table_is_not_merged_into(tmp_path: Path) -> None:
    commit(open_delta(str(tmp_path)), block(0, 1), [{"id": 1}], CHANGES)
    deltalake.DeltaTable(str(tmp_path)).alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(InvalidInput, match="is append-only"):
        open_delta(str(tmp_path), merge_on=["id"]).check(CHANGES)
    assert commit(open_delta(str(tmp_path)), block(1, 2), [{"id": 2}], CHANGES)


STREAM = {"merge_on": ["id"], "delete_when": "op = 'd'", "partition_by": ["where"]}


def changes(seed: int, count: int, keys: int) -> list[Row]:
    """A stream of changes of keys."""
    chance = random.Random(seed)
    known = [None, *range(keys)]
    return [
        {
            "id": chance.choice(known),
            "value": f"{number}",
            "op": chance.choice(["c", "u", "d", None]),
            "where": chance.choice(["x", "y", None]),
        }
        for number in range(count)
    ]


def model(stream: list[Row]) -> dict[Any, Any]:
    table: dict[Any, Any] = {}
    for row in stream:
        if row["op"] == "d":
            table.pop(row["id"], None)
        else:
            table[row["id"]] = row["value"]
    return table


def apply_stream(parent: Parent | None, place: str, seed: int, count: int, keys: int, kill_at: int) -> None:
    """A driver that goes on where the table is, in blocks of its own, and waits at some step to be killed."""
    stream = changes(seed, count, keys)
    steps = iter(range(10**9))

    def step(_name: str) -> None:
        if parent is not None and next(steps) == kill_at:
            parent.tell("here")
            parent.wait()

    table = open_delta(place, **STREAM)  # type: ignore[arg-type]
    table.step = step
    chance = random.Random(seed + kill_at)
    while (first := position(table)) < count:
        end = min(first + chance.randrange(1, count // 4), count)
        commit(table, block(first, end), stream[first:end], CHANGES)


@pytest.mark.parametrize("seed", range(2))
def test_a_stream_of_changes_with_kills_in_between_equals_a_dictionary(tmp_path: Path, start: Start, seed: int) -> None:
    place, count, keys = str(tmp_path), 600, 40
    for kill_at in random.Random(seed).sample(range(1, 14), 6):
        child = start(apply_stream, place, seed, count, keys, kill_at)
        if _waits(child.hear):
            child.kill()
    apply_stream(None, place, seed, count, keys, -1)
    assert values(tmp_path) == model(changes(seed, count, keys))


def _waits(hear: Any) -> bool:
    """Whether a driver waits to be killed, and is not at its end."""
    try:
        return bool(hear() == "here")
    except AssertionError:
        return False


@pytest.mark.slow
def test_changes_of_ten_thousand_keys_with_kills_equal_a_dictionary(tmp_path: Path, start: Start) -> None:
    place, count, keys = str(tmp_path), 60_000, 10_000
    for kill_at in range(2, 20, 3):
        child = start(apply_stream, place, 7, count, keys, kill_at)
        if _waits(child.hear):
            child.kill()
    apply_stream(None, place, 7, count, keys, -1)
    assert values(tmp_path) == model(changes(7, count, keys))
