"""The program that is killed: a pipeline's driver that reports, through a pipe, where it is, and dies at a given place.

python -m tests.spark.kills.driver ROOT KIND PIPE [FATE]

A driver that is to pause waits for a byte on its standard input.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from penstock.spark.pipeline.block_plans import BlockPlans
from penstock.spark.pipeline.run import PipelineRun
from penstock.spark.pipeline.triggers import Trigger
from penstock.spark.source.planner import Planner
from penstock.spark.tables.contract import BlockId, FileWriter, Position, Sink, StagedBlock
from tests.spark.kills.changes import ChangesJob
from tests.spark.kills.job import Job
from tests.spark.kills.kinds import UPSERTS, letters_kind, open_rows
from tests.spark.kills.marks import Deed, Fate, Mark, kill
from tests.support.spark_session import local_session


class Telling:
    """Tells of marks, and does what is fated."""

    def __init__(self, pipe: int, fate: Fate | None) -> None:
        self._pipe = pipe
        self._fate = fate

    def reach(self, mark: Mark, first: int = -1) -> None:
        """Be at a mark of the block that begins at a sequence."""
        os.write(self._pipe, f"{mark} {first}\n".encode())
        fate = self._fate
        if fate is None or (mark, first) != (fate.mark, fate.first):
            return
        if fate.deed is Deed.PAUSE:
            os.read(sys.stdin.fileno(), 1)
        else:
            kill(fate.deed, os.getpid())


class TellingSink(Sink):
    """A sink that reaches a mark when it is asked for a writer, when a block is staged, and when it is committed."""

    def __init__(self, sink: Sink, telling: Telling, asked: Mark | None, staged: Mark, committed: Mark) -> None:
        self._sink = sink
        self._telling = telling
        self._asked, self._staged, self._committed = asked, staged, committed

    @property
    def place(self) -> str | None:
        return self._sink.place

    def position(self, query: str) -> Position | None:
        return self._sink.position(query)

    def move_back(self, query: str, end: int) -> None:
        self._sink.move_back(query, end)

    def has(self, block: BlockId) -> bool:
        return self._sink.has(block)

    def check(self, schema: Any) -> None:
        self._sink.check(schema)

    def writer(self, columns: Any, block: BlockId) -> FileWriter | None:
        if self._asked is not None:
            self._telling.reach(self._asked, block.first)
        return self._sink.writer(columns, block)

    def staged(self, block: BlockId, files: Sequence[bytes]) -> StagedBlock:
        return self._told(self._sink.staged(block, files), block)

    def stage(self, rows: Any, block: BlockId) -> StagedBlock:
        return self._told(self._sink.stage(rows, block), block)

    def _told(self, staged: StagedBlock, block: BlockId) -> StagedBlock:
        self._telling.reach(self._staged, block.first)
        return TellingBlock(staged, partial(self._telling.reach, self._committed, block.first))


class TellingBuffer(TellingSink):
    """As a buffer, which keeps no position."""

    keeps_position: ClassVar[bool] = False


@dataclass(frozen=True)
class TellingBlock:
    """A staged block that tells when it is committed."""

    staged: StagedBlock
    tell: Callable[[], None]

    @property
    def rows(self) -> int | None:
        return self.staged.rows

    def commit(self) -> bool:
        is_ours = self.staged.commit()
        self.tell()
        return is_ours

    def discard(self) -> None:
        self.staged.discard()


def telling_run(job: Job | ChangesJob, spark: Any, telling: Telling) -> PipelineRun:
    """The job's pipeline, which tells of every step of every block."""

    def open_telling_rows(spark: Any) -> Sink:
        sink = open_rows(job.kind, spark, job.rows)
        kind = TellingSink if sink.keeps_position else TellingBuffer
        planned = Mark.PLANNED if sink.keeps_position else None  # else when the plan is written
        return kind(sink, telling, planned, Mark.WRITTEN, Mark.ROWS_COMMITTED)

    def open_letters(spark: Any) -> Sink:
        sink = open_rows(letters_kind(job.kind), spark, job.letters)
        return TellingSink(sink, telling, None, Mark.LETTERS_WRITTEN, Mark.LETTERS_COMMITTED)

    return PipelineRun(job.plan(open_telling_rows, open_letters), spark, Trigger.of("asap"))


def tell_of_plans_and_acks(telling: Telling) -> None:
    """Tell of what happens in none of the sinks."""
    begin, ack, write = Planner.__init__, Planner.ack_before, BlockPlans.write

    def telling_begin(planner: Planner, *args: Any, **named: Any) -> None:
        begin(planner, *args, **named)
        telling.reach(Mark.CLAIMED)

    def telling_ack(planner: Planner, start: int) -> None:
        first = planner.first_sequence
        ack(planner, start)
        if start > first:
            telling.reach(Mark.ACKED, first)

    def telling_write(plans: BlockPlans, first: int, *rest: Any) -> Any:
        written = write(plans, first, *rest)
        telling.reach(Mark.PLANNED, first)
        return written

    Planner.__init__ = telling_begin  # type: ignore[method-assign, assignment]
    Planner.ack_before = telling_ack  # type: ignore[method-assign, assignment]
    BlockPlans.write = telling_write  # type: ignore[method-assign, assignment]


def main(root: str, kind: str, pipe: str, fate: str = "") -> None:
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    telling = Telling(int(pipe), Fate.of(fate) if fate else None)
    telling.reach(Mark.STARTED)
    spark = local_session()
    telling.reach(Mark.SESSION)
    tell_of_plans_and_acks(telling)
    job = ChangesJob(Path(root), kind) if kind in UPSERTS else Job(Path(root), kind)
    telling_run(job, spark, telling).run()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
