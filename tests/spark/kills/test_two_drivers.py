"""Two drivers at the same block: one copy stays."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.spark.tables.contract import BlockId
from penstock.spark.tables.parquet.table import open_table, read_table
from tests.spark.kills.harness import StartDriver
from tests.spark.kills.job import PER_BLOCK, Job, assert_exactly_once
from tests.spark.kills.kinds import PARQUET, TABLES
from tests.spark.kills.marks import OF_BLOCKS, Deed, Fate, Mark
from tests.support.processes import PATIENCE
from tests.support.waiting import Background


def files_of(job: Job) -> set[Path]:
    """The files of the tables. Those of Iceberg are in a directory of their catalog.

    The locks that our own store keeps beside a Delta table's files are no part of it.
    """
    places = (job.rows, job.letters, job.root / "warehouse")
    return {path for table in places for path in table.rglob("*") if path.is_file() and path.suffix != ".lock"}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("mark", "per_block"),
    [
        (Mark.LETTERS_COMMITTED, PER_BLOCK + 1),
        *(
            pytest.param(mark, per_block, marks=pytest.mark.chaos)
            for mark in OF_BLOCKS
            for per_block in (PER_BLOCK, PER_BLOCK - 1, PER_BLOCK + 1)
            if (mark, per_block) != (Mark.LETTERS_COMMITTED, PER_BLOCK + 1)
        ),
    ],
)
@pytest.mark.parametrize("kind", TABLES)
def test_a_driver_that_sleeps_in_a_block_while_another_finishes_it_leaves_no_trace(
    kind: str, mark: Mark, per_block: int, spark: Any, tmp_path: Path, start_driver: StartDriver
) -> None:
    job = Job(tmp_path, kind)
    numbers = job.produce_blocks(4)
    sleeper = start_driver(job, Fate(Deed.PAUSE, mark, PER_BLOCK))
    assert sleeper.reaches(mark, PER_BLOCK), sleeper.output[-4000:]
    sleeper.pause(job.buffer)
    job.pipeline(per_block).run(spark, trigger="available_now")
    files = files_of(job)

    sleeper.go_on()

    assert sleeper.wait() == 1
    assert sleeper.was_overtaken, sleeper.output[-4000:]
    assert files_of(job) <= files, "it has left files"  # what it had written into a table before, it has removed
    assert job.kind != PARQUET or files_of(job) == files
    assert job.staged() == []
    found = assert_exactly_once(job, spark, numbers)
    print(f"\nasleep at {mark}: {found.rows.total()} rows and {found.letters.total()} dead letters, each once")


@pytest.mark.parametrize("staged_together", [False, True])
def test_of_two_that_write_a_block_at_the_same_time_one_is_kept(
    staged_together: bool, spark: Any, tmp_path: Path
) -> None:
    """Neither waits for the other; or both have staged before either commits."""
    blocks, rows = 5, 20
    together = threading.Barrier(2)

    def write(block: BlockId) -> bool:
        table = open_table(spark, str(tmp_path / "table"))
        df = spark.range(block.first * rows, (block.first + 1) * rows)
        together.wait(PATIENCE)
        staged = table.stage(df, block)
        if staged_together:
            together.wait(PATIENCE)
        return staged.commit()

    for number in range(blocks):
        block = BlockId("a-query", number, number + 1)
        writers = [Background(partial(write, block)) for _ in range(2)]
        assert all(writer.has_ended_within(PATIENCE) for writer in writers)
        assert [outcome(writer) for writer in writers].count(True) == 1, number

    assert sorted(row[0] for row in read_table(spark, str(tmp_path / "table")).collect()) == [*range(blocks * rows)]
    assert list((tmp_path / ".table.staging").glob("*")) == []


def outcome(writer: Background[bool]) -> bool | None:
    """Whether it wrote the block; None if it failed, as who is swept away in the middle of writing may."""
    try:
        return writer.result()
    except Exception:
        return None
