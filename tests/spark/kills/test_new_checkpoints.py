"""A new checkpoint on an old table adds, and skips nothing: the table says how far it is, and not the checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.spark.kills.job import PER_BATCH, PER_BLOCK, Job, assert_exactly_once


@pytest.mark.slow
def test_a_new_checkpoint_on_an_old_table_adds_and_skips_nothing(spark: Any, tmp_path: Path) -> None:
    job, half = Job(tmp_path), 2 * PER_BLOCK * PER_BATCH
    job.produce(range(half))
    job.pipeline(PER_BLOCK).run(spark, trigger="available_now")
    before = job.blocks()
    job.produce(range(half, 2 * half))

    done = replace(job, checkpoint="another-checkpoint").pipeline(PER_BLOCK).run(spark, trigger="available_now")

    assert (before, done.blocks, job.blocks()) == (2, 2, 4)
    assert_exactly_once(job, spark, range(2 * half))
