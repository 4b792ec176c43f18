"""`parse(..., mode, rescue, timestamp_unit)` through a pipeline: functions, the output and the table have it all."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from penstock.errors import InvalidInput
from penstock.spark import Pipeline
from tests.support.pipeline_places import Places

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers lack the module

EVENTS = [b'{"id": "42", "at": 1769860800000, "x": [1]}', b'{"id": 7, "at": "2026-01-31T12:00:00Z"}', b'{"id": {}}']
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def upper(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A function that sees the rescued fields as a column, and changes them."""
    rescued = pa.array([None if one is None else str(one).upper() for one in batch.column("_rescued").to_pylist()])
    return batch.set_column(batch.schema.get_field_index("_rescued"), "_rescued", rescued)


def test_rescued_fields_are_a_column_for_process_for_transform_and_in_the_table(spark: Any, tmp_path: Path) -> None:
    places = Places(tmp_path)
    places.put(EVENTS)
    seen: list[list[str]] = []

    def looked_at(rows: Any) -> Any:
        seen.append(rows.columns)
        return rows

    pipeline = places.pipeline().parse(
        "json", "id bigint, at timestamp", mode="lenient", rescue="_rescued", timestamp_unit="ms"
    )
    pipeline = pipeline.process(upper).transform(looked_at).dead_letters(places.dead_letters).to_parquet(places.table)
    done = pipeline.run(spark, "available_now")
    assert (done.rows, done.dead_letters) == (2, 1)
    assert seen == [["id", "at", "_rescued"]]
    assert places.rows() == [
        {"id": 42, "at": NOON, "_rescued": '{"X":[1]}'},
        {"id": 7, "at": NOON, "_rescued": None},
    ]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"rescue": "id"}, "rescue names the column 'id'"),
        ({"rescue": "ID"}, "rescue names the column 'ID'"),
        ({"timestamp_unit": {"id": "ms"}}, "id"),
        ({"timestamp_unit": {"gone": "ms"}}, "gone"),
    ],
)
def test_options_that_do_not_fit_the_columns_are_an_error_before_anything_runs(
    spark: Any, tmp_path: Path, given: dict[str, Any], problem: str
) -> None:
    places = Places(tmp_path)
    places.put(EVENTS)
    pipeline = Pipeline(places.events).parse("json", "id bigint, at timestamp", **given).to_parquet(places.table)
    with pytest.raises(InvalidInput, match=problem):
        pipeline.run(spark, "available_now")
    assert places.queued() == [0]
    assert places.backlog.epoch() == 0
