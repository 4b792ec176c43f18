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
from tests.spark.kills.marks import IN_PLANNER, Deed, Fate, Mark

BLOCKS = 4
PLACES = [Fate(Deed.GROUP, Mark.ROWS_COMMITTED, 1)]  # Python alone is killed in `test_random_kills.py`
MORE_PLACES = [
    # in block 0, whose start is not in the checkpoint
    Fate(Deed.GROUP, Mark.PLANNED, 0),
    Fate(Deed.PYTHON, Mark.LETTERS_STAGED, 0),
    Fate(Deed.GROUP, Mark.LETTERS_COMMITTED, 0),
    Fate(Deed.GROUP, Mark.ROWS_STAGED, 0),
    Fate(Deed.GROUP, Mark.ROWS_COMMITTED, 0),
    # between planning and the sink
    Fate(Deed.PYTHON, Mark.PLANNED, 2),
    Fate(Deed.PYTHON, Mark.READ, 1),
    # in the sink
    Fate(Deed.PYTHON, Mark.LETTERS_COMMITTED, 1),
    Fate(Deed.PYTHON, Mark.ROWS_STAGED, 1),
    Fate(Deed.PYTHON, Mark.ROWS_COMMITTED, 1),
    # between the commit log and the ack
    Fate(Deed.GROUP, Mark.ASKED, 0),
    Fate(Deed.PYTHON, Mark.ASKED, 1),
    # between the ack and the next block's offsets
    Fate(Deed.GROUP, Mark.ACKED, 0),
    Fate(Deed.PYTHON, Mark.ACKED, 1),
]


@dataclass(frozen=True)
class State:
    """The state after a driver: blocks in its tables and in the commit log, and batches that are acked."""

    letters: int
    rows: int
    logged: int
    acked: int

    @classmethod
    def of(cls, job: Job) -> State:
        log = [path for path in (job.root / job.checkpoint / "commits").glob("*") if path.name.isdigit()]
        entries = Manifest.read(job.buffer).entries
        return cls(len(list(job.letters.glob("block=*"))), job.blocks(), len(log), entries[0].sequence)

    @classmethod
    def at(cls, fate: Fate) -> State:
        """What there must be when a driver dies there: so that a place is where its name says."""
        before = fate.batch
        if fate.mark in IN_PLANNER:
            return cls(before + 1, before + 1, before + 1, (before + (fate.mark is Mark.ACKED)) * PER_BLOCK)
        has_letters = fate.mark.order >= Mark.LETTERS_COMMITTED.order
        has_rows = fate.mark.order >= Mark.ROWS_COMMITTED.order
        return cls(before + has_letters, before + has_rows, before, before * PER_BLOCK)


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
    "fate", [*PLACES, *(pytest.param(fate, marks=pytest.mark.chaos) for fate in MORE_PLACES)], ids=str
)
def test_a_driver_that_is_killed_there_loses_nothing_and_leaves_nothing_twice(
    fate: Fate, spark: Any, tmp_path: Path, start_driver: StartDriver
) -> None:
    job = Job(tmp_path)
    numbers = job.produce_blocks(BLOCKS)
    driver = start_driver(job, fate)
    code = driver.wait()
    assert code == -signal.SIGKILL, f"it ended by itself, after {driver.marks[-1:]}:\n{driver.output[-4000:]}"
    if not (fate.mark in IN_PLANNER and fate.deed is Deed.PYTHON):  # there the planner lives on, and may ack
        assert State.of(job) == State.at(fate)

    print(f"\nkilled at {fate}: {finish(job, spark, numbers)}")
