"""A driver that merges changes into a table is killed at random moments, and started again each time."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock.buffer import Manifest
from tests.spark.kills.changes import ChangesJob, changes
from tests.spark.kills.harness import StartDriver
from tests.spark.kills.kinds import UPSERTS
from tests.spark.kills.marks import Mark
from tests.spark.kills.moments import die, moments

_MARKS = [mark for mark in Mark if mark not in (Mark.LETTERS_WRITTEN, Mark.LETTERS_COMMITTED)]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("keys", "count", "per_batch", "kills"),
    [(300, 1_500, 75, 1), pytest.param(10_000, 60_000, 500, 10, marks=pytest.mark.chaos)],
    ids=["300 keys", "10,000 keys"],
)
@pytest.mark.parametrize("kind", UPSERTS)
def test_a_table_equals_a_dictionary_of_its_changes_however_often_the_driver_is_killed(
    kind: str, keys: int, count: int, per_batch: int, kills: int, spark: Any, tmp_path: Path, start_driver: StartDriver
) -> None:
    job = ChangesJob(tmp_path, kind)
    batches, wanted = changes(keys, count, per_batch, seed=19)
    job.produce(batches)
    marks = _MARKS if kills > 1 else [Mark.ROWS_COMMITTED]
    last_marks, overtaken, when = Counter[str](), 0, moments(7, marks)
    for _ in range(kills):
        moment = next(when)
        driver = start_driver(job)
        while not die(driver, moment):
            overtaken += 1
            driver = start_driver(job)
        last_marks[f"{driver.marks[-1][0]}"] += 1
    left = len(Manifest.read(job.buffer).entries)

    done = job.pipeline().run(spark, trigger="available_now")

    differences = job.differences(wanted)
    print(
        f"\n{kind}: {keys} keys, {count} changes, {kills} kills, last seen at {dict(last_marks)}; {overtaken} drivers "
        f"were overtaken; {done.blocks} blocks were left for the last run.\n"
        f"{len(wanted)} rows, differences: {differences}"
    )
    assert left, "nothing was left to do after the kills"
    assert set(differences.values()) == {0}
    assert Manifest.read(job.buffer).entries == ()
