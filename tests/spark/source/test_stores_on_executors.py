"""A store travels to Spark's executors and works there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock import open_store
from penstock.errors import Conflict

TASKS = 4
INCREMENTS = 25


def test_executors_count_together_through_a_store_that_was_pickled_to_them(spark: Any, tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.put("counter", b"0")

    def count(_: int) -> int:
        done = 0
        while done < INCREMENTS:
            found = store.get("counter")
            try:
                store.put_if_match("counter", json.dumps(json.loads(found.data) + 1).encode(), found.version)
            except Conflict:
                continue
            done += 1
        return done

    counted = spark.sparkContext.parallelize(range(TASKS), TASKS).map(count).sum()
    assert counted == TASKS * INCREMENTS
    assert json.loads(store.get("counter").data) == TASKS * INCREMENTS


def test_a_memory_store_says_on_an_executor_that_it_cannot_be_used_there(spark: Any) -> None:
    store = open_store("memory://driver-only")
    store.put("a", b"x")
    failed = spark.sparkContext.parallelize([0], 1).map(lambda _: store.get("a").data)
    with pytest.raises(Exception, match="memory://driver-only lives in the process that made it"):
        failed.collect()
