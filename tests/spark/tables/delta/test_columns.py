"""Which columns a Delta table takes, how it gets new ones, and which tables of others are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import types as t

from penstock.errors import InvalidInput
from penstock.spark.tables.delta.table import open_delta
from tests.support.delta_blocks import COLUMNS, block, commit, data_files, ids, position, read, rows


def columns(**kinds: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in kinds.items()])


def test_a_table_is_created_from_the_columns_all_nullable(tmp_path: Path) -> None:
    given = t.StructType([t.StructField("id", t.LongType(), nullable=False), t.StructField("event", t.StringType())])
    open_delta(str(tmp_path), partition_by=["event"]).writer(given, block(0, 1))
    table = deltalake.DeltaTable(str(tmp_path))
    assert [(field.name, str(field.type), field.nullable) for field in table.schema().fields] == [
        ("id", 'PrimitiveType("long")', True),
        ("event", 'PrimitiveType("string")', True),
    ]
    assert table.metadata().partition_columns == ["event"]


def test_a_new_column_is_added_and_null_in_earlier_rows(tmp_path: Path) -> None:
    table = open_delta(str(tmp_path))
    commit(table, block(0, 1))
    wider = t.StructType([t.StructField("more", t.StringType()), *COLUMNS])
    assert commit(table, block(1, 2), [{"id": 1, "more": "x"}], wider)
    assert commit(table, block(2, 3))
    assert {row["id"]: row["more"] for row in read(tmp_path).to_pylist()} == {0: None, 1: "x", 2: None}


def test_a_new_field_of_a_struct_is_added(tmp_path: Path) -> None:
    def nested(*names: str) -> t.StructType:
        inner = columns(**dict.fromkeys(names, t.LongType()))
        return columns(id=t.LongType(), s=inner, many=t.ArrayType(inner))

    table = open_delta(str(tmp_path))
    commit(table, block(0, 1), [{"id": 0, "s": {"a": 1}, "many": [{"a": 1}]}], nested("a"))
    commit(table, block(1, 2), [{"id": 1, "s": {"a": 2, "b": 3}, "many": [{"a": 2, "b": 3}]}], nested("a", "b"))
    found = {row["id"]: (row["s"], row["many"]) for row in read(tmp_path).to_pylist()}
    assert found[1] == ({"a": 2, "b": 3}, [{"a": 2, "b": 3}])
    assert found[0] == ({"a": 1, "b": None}, [{"a": 1, "b": None}])


def test_without_evolution_a_new_column_is_refused(tmp_path: Path) -> None:
    commit(open_delta(str(tmp_path)), block(0, 1))
    table = open_delta(str(tmp_path), schema_evolution="none")
    wider = t.StructType([*COLUMNS, t.StructField("more", t.StringType())])
    with pytest.raises(InvalidInput, match="does not have more string, and schema_evolution is 'none'"):
        table.writer(wider, block(1, 2))
    assert commit(table, block(1, 2))


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        (t.StringType(), "the column 'id' is bigint in the table file://.*, not string: Delta widens no types"),
        (t.IntegerType(), "the column 'id' is bigint in the table file://.*, not int"),
    ],
)
def test_another_type_is_refused_before_a_file_is_written(tmp_path: Path, kind: t.DataType, problem: str) -> None:
    table = open_delta(str(tmp_path))
    commit(table, block(0, 1))
    before = data_files(tmp_path)
    for refused in (table.check, lambda given: table.writer(given, block(1, 2))):
        with pytest.raises(InvalidInput, match=problem):
            refused(columns(id=kind, event=t.StringType()))
    assert data_files(tmp_path) == before


@pytest.mark.parametrize(
    ("given", "partition_by", "problem"),
    [
        (columns(id=t.LongType(), ID=t.LongType()), [], "the block has the column 'ID' twice"),
        (columns(id=t.NullType()), [], "the column 'id' is void, which a Delta table cannot have"),
        (columns(id=t.DayTimeIntervalType()), [], "the column 'id' is interval"),
        (columns(id=t.ArrayType(columns(x=t.NullType()))), [], r"the column 'id.element.x' is void"),
        (columns(id=t.StructType([])), [], "the column 'id' is struct"),
        (t.StructType([t.StructField("a b", t.LongType())]), [], "the column 'a b' has a space"),
        (columns(id=t.LongType()), ["x"], "partition_by names the column 'x', and the block has only id"),
        (columns(id=t.LongType()), ["id"], "partition_by names every column"),
        (columns(id=t.LongType(), x=t.DoubleType()), ["x"], "partition_by names the column 'x', which is double"),
        (
            columns(id=t.LongType(), x=t.DecimalType(5, 2)),
            ["x"],
            r"partition_by names the column 'x', which is decimal",
        ),
    ],
)
def test_columns_that_no_delta_table_has_are_refused(
    tmp_path: Path, given: t.StructType, partition_by: list[str], problem: str
) -> None:
    table = open_delta(str(tmp_path / "table"), partition_by=partition_by)
    with pytest.raises(InvalidInput, match=problem):
        table.check(given)
    assert not (tmp_path / "table").exists()


def test_a_name_that_differs_in_case_is_refused(tmp_path: Path) -> None:
    table = open_delta(str(tmp_path))
    commit(table, block(0, 1))
    with pytest.raises(InvalidInput, match="has a column 'id', and Spark cannot tell 'ID' from it"):
        table.check(columns(ID=t.LongType()))


def test_other_partition_columns_are_refused(tmp_path: Path) -> None:
    commit(open_delta(str(tmp_path), partition_by=["event"]), block(0, 1))
    with pytest.raises(InvalidInput, match=r"is partitioned by \['event'\], not by \[\]"):
        open_delta(str(tmp_path)).check(COLUMNS)


@pytest.mark.parametrize("options", [{}, {"merge_on": ["id"]}], ids=["append", "merge"])
def test_a_column_that_is_not_null_stays_so(tmp_path: Path, options: dict[str, Any]) -> None:
    fields: list[pa.Field[Any]] = [pa.field("id", pa.int64(), nullable=False), pa.field("event", pa.string())]
    arrow = pa.schema(fields)
    deltalake.DeltaTable.create(str(tmp_path), deltalake.Schema.from_arrow(arrow))
    table = open_delta(str(tmp_path), **options)
    with pytest.raises(InvalidInput, match="the column 'id' is NOT NULL in the table, and a row has null there"):
        commit(table, block(0, 1), [{"id": None, "event": "x"}])
    if not options:
        with pytest.raises(InvalidInput, match=r"the column 'id' is NOT NULL in the table .* does not have it"):
            table.check(columns(event=t.StringType()))
    assert commit(table, block(0, 1), [{"id": 1, "event": "x"}])
    assert ids(tmp_path) == [1]


def test_a_table_of_delta_rs_is_appended_to(tmp_path: Path) -> None:
    given = pa.table({"id": [100], "event": ["x"], "at": pa.array([1], pa.timestamp("us", "UTC"))})
    deltalake.write_deltalake(str(tmp_path), given, partition_by=["event"])
    table = open_delta(str(tmp_path), partition_by=["event"])
    assert commit(table, block(0, 2), [*rows(0, 1, "x"), *rows(1, 2, "y z")])
    assert ids(tmp_path) == [0, 1, 100]


@pytest.mark.parametrize(
    ("feature", "name"), [("DeletionVectors", "deletionVectors"), ("ColumnMapping", "columnMapping")]
)
def test_a_table_with_a_feature_that_is_not_written_here_is_refused(tmp_path: Path, feature: str, name: str) -> None:
    commit(open_delta(str(tmp_path)), block(0, 1))
    deltalake.DeltaTable(str(tmp_path)).alter.add_feature(
        getattr(deltalake.TableFeatures, feature), allow_protocol_versions_increase=True
    )
    with pytest.raises(InvalidInput, match=f"has {name}, which Penstock cannot read"):
        open_delta(str(tmp_path)).check(COLUMNS)


def test_a_table_with_a_constraint_is_refused(tmp_path: Path) -> None:
    commit(open_delta(str(tmp_path)), block(0, 1))
    deltalake.DeltaTable(str(tmp_path)).alter.add_constraint({"positive": "id >= 0"})
    with pytest.raises(InvalidInput, match=r"has constraints \(delta.constraints.positive\), which nothing here would"):
        open_delta(str(tmp_path)).check(COLUMNS)


@pytest.mark.parametrize(
    ("retention", "fits"),
    [("interval 7 days", False), ("interval 4 weeks", False), ("interval 30 days", True), ("interval 5 weeks", True)],
)
def test_a_table_that_forgets_transactions_early_is_refused(tmp_path: Path, retention: str, fits: bool) -> None:
    commit(open_delta(str(tmp_path)), block(0, 1))
    name = "delta.setTransactionRetentionDuration"
    deltalake.DeltaTable(str(tmp_path)).alter.set_table_properties({name: retention})
    table = open_delta(str(tmp_path))
    if fits:
        assert commit(table, block(1, 2))
    else:
        with pytest.raises(InvalidInput, match="it would forget how far a pipeline is"):
            commit(table, block(1, 2))


def test_a_property_that_is_set_while_a_block_is_staged_is_seen(tmp_path: Path) -> None:
    table = open_delta(str(tmp_path))
    commit(table, block(0, 1))
    name = "delta.setTransactionRetentionDuration"
    deltalake.DeltaTable(str(tmp_path)).alter.set_table_properties({name: "interval 1 days"})
    assert not commit(table, block(1, 2))
    assert position(table) == 1
    with pytest.raises(InvalidInput, match="it would forget how far a pipeline is"):
        commit(table, block(1, 2))


def test_a_class_that_a_table_names_is_not_loaded(tmp_path: Path) -> None:
    import sys

    commit(open_delta(str(tmp_path)), block(0, 1))
    log = tmp_path / "_delta_log" / f"{0:020d}.json"
    udt = '{\\"type\\":\\"udt\\",\\"class\\":null,\\"pyClass\\":\\"antigravity.Udt\\",\\"sqlType\\":\\"long\\"}'
    changed = log.read_text().replace('\\"type\\":\\"long\\"', f'\\"type\\":{udt}')
    assert "antigravity" in changed
    log.write_text(changed)
    sys.modules.pop("antigravity", None)
    with pytest.raises(Exception, match="Delta table"):
        open_delta(str(tmp_path)).info()
    assert "antigravity" not in sys.modules
