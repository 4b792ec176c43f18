"""A driver is killed at an exact place, and the next run of the pipeline finishes, with every event once."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.buffer import Manifest
from tests.spark.kills.harness import StartDriver
from tests.spark.kills.job import PER_BLOCK, Job, assert_exactly_once
from tests.spark.kills.kinds import BUFFER, PARQUET, TABLES, count_blocks
from tests.spark.kills.marks import OF_BLOCKS, Deed, Fate, Mark

BLOCKS = 4
QUICK = Fate(Deed.GROUP, Mark.ROWS_COMMITTED, PER_BLOCK)  # Python alone is killed in `test_random_kills.py`
PLACES = [
    QUICK,
    *(
        fate
        for deed in (Deed.PYTHON, Deed.GROUP)
        for mark in OF_BLOCKS
        for first in (0, PER_BLOCK)
        if (fate := Fate(deed, mark, first)) != QUICK
    ),
]


@dataclass(frozen=True)
class State:
    """The state after a driver: blocks in its tables, and batches that are acked."""

    letters: int
    rows: int
    acked: int

    @classmethod
    def of(cls, job: Job) -> State:
        entries = Manifest.read(job.buffer).entries
        return cls(count_blocks(job.kind, job.letters), job.blocks(), entries[0].sequence)

    @classmethod
    def at(cls, fate: Fate) -> State:
        """What there must be when a driver dies there: so that a place is where its name says."""
        before = fate.first // PER_BLOCK
        has_letters = fate.mark.order >= Mark.LETTERS_COMMITTED.order
        has_rows = fate.mark.order >= Mark.ROWS_COMMITTED.order
        return cls(before + has_letters, before + has_rows, fate.first + PER_BLOCK * (fate.mark is Mark.ACKED))


def finish(job: Job, spark: Any, numbers: range) -> str:
    """Run the rest, here, and look for every event; return what was found."""
    before = job.row_count()
    done = job.pipeline().run(spark, trigger="available_now")
    found = assert_exactly_once(job, spark, numbers)
    assert done.rows == found.rows.total() - before, "what was there already was written again"
    assert job.staged() == []
    return (
        f"{len(numbers)} events, {found.rows.total()} rows, {found.letters.total()} dead letters, lost "
        f"{len(found.lost(numbers))}, twice {len(found.twice())}; {before} rows were there before the last run"
    )


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "fate", [QUICK, *(pytest.param(fate, marks=pytest.mark.chaos) for fate in PLACES[1:])], ids=str
)
@pytest.mark.parametrize("kind", [PARQUET, *(pytest.param(kind, marks=pytest.mark.slow) for kind in TABLES[1:])])
def test_a_driver_that_is_killed_there_loses_nothing_and_leaves_nothing_twice(
    kind: str, fate: Fate, spark: Any, tmp_path: Path, start_driver: StartDriver
) -> None:
    job = Job(tmp_path, kind)
    numbers = job.produce_blocks(BLOCKS)
    driver = start_driver(job, fate)
    code = driver.wait()
    assert code == -signal.SIGKILL, f"it ended by itself, after {driver.marks[-1:]}:\n{driver.output[-4000:]}"
    assert State.of(job) == State.at(fate)

    print(f"\n{kind}, killed at {fate}: {finish(job, spark, numbers)}")


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fate", PLACES, ids=str)
def test_a_driver_that_is_killed_there_has_written_each_event_to_a_buffer_once(
    fate: Fate, spark: Any, tmp_path: Path, start_driver: StartDriver
) -> None:
    job = Job(tmp_path, BUFFER)
    numbers = job.produce_blocks(BLOCKS)
    driver = start_driver(job, fate)
    code = driver.wait()
    assert code == -signal.SIGKILL, f"it ended by itself, after {driver.marks[-1:]}:\n{driver.output[-4000:]}"
    job.pipeline().run(spark, trigger="available_now")
    assert_exactly_once(job, spark, numbers)
    assert job.plans() == []
