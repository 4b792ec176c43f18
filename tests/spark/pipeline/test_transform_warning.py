"""A `transform` that drops duplicates does so within one block, and the run says that once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.pipeline_places import Places


@pytest.mark.parametrize(
    ("transform", "warnings"),
    [(lambda rows: rows.dropDuplicates(["n"]), 1), (lambda rows: rows.distinct(), 1), (lambda rows: rows, 0)],
    ids=["dropDuplicates", "distinct", "neither"],
)
def test_dropping_duplicates_in_a_transform_is_warned_of_once(
    spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, transform: Any, warnings: int
) -> None:
    places = Places(tmp_path)
    places.put([b'{"n": 1}', b'{"n": 1}'], [b'{"n": 1}'])
    pipeline = places.pipeline(maxBatchesPerTrigger=1).parse("json", "n bigint").transform(transform)
    done = pipeline.to_parquet(places.table).run(spark, "available_now")
    assert done.rows == (2 if warnings else 3)
    assert sum("a transform drops duplicates" in line for line in caplog.messages) == warnings
