"""The program that is killed: a pipeline's driver that reports, through a pipe, where it is, and dies at a given place.

python -m tests.spark.kills.driver ROOT SINK PIPE [FATE]
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from penstock.spark.pipeline.run import PipelineRun, PipelineSource
from penstock.spark.pipeline.triggers import spark_trigger
from penstock.spark.source.stream_reader import BufferStreamReader
from penstock.spark.tables.buffer import BufferSink
from penstock.spark.tables.contract import BlockId, Sink, StagedBlock
from penstock.spark.tables.parquet.table import open_table
from tests.spark.kills.job import PER_BLOCK, Job
from tests.spark.kills.marks import IN_PLANNER, Deed, Fate, Mark, do
from tests.support.spark_session import local_session


class Telling:
    """Tells of marks, and does what is fated."""

    def __init__(self, pipe: int, fate: Fate | None) -> None:
        self._pipe = pipe
        self._fate = fate
        self._reached: tuple[Mark, int] | None = None

    def reach(self, mark: Mark, batch: int = -1) -> None:
        """Be at a mark of a block, for the first time."""
        if batch >= 0 and self._reached and (batch, mark.order) <= (self._reached[1], self._reached[0].order):
            return
        self._reached = mark, batch
        os.write(self._pipe, f"{mark} {batch}\n".encode())
        fate = self._fate
        if fate is not None and (mark, batch) == (fate.mark, fate.batch):
            do(fate.deed, os.getpid())


class TellingSink(Sink):
    """A sink that reaches one mark when it is asked for a block, one when it has staged it, one when it committed."""

    def __init__(self, sink: Sink, telling: Telling, asked: Mark, staged: Mark, committed: Mark) -> None:
        self._sink = sink
        self._telling = telling
        self._asked, self._staged, self._committed = asked, staged, committed

    @property
    def place(self) -> str | None:
        return self._sink.place

    def has(self, block: BlockId) -> bool:
        self._telling.reach(self._asked, block.batch)
        return self._sink.has(block)

    def rows_of(self, block: BlockId) -> int | None:
        return self._sink.rows_of(block)

    def check(self, schema: Any) -> None:
        self._sink.check(schema)

    def stage(self, rows: Any, block: BlockId) -> StagedBlock:
        staged = self._sink.stage(rows, block)
        self._telling.reach(self._staged, block.batch)
        return TellingBlock(staged, partial(self._telling.reach, self._committed, block.batch))


@dataclass(frozen=True)
class TellingBlock:
    """A staged block that tells when it is committed."""

    staged: StagedBlock
    tell: Any

    @property
    def rows(self) -> int | None:
        return self.staged.rows

    def commit(self) -> bool:
        is_ours = self.staged.commit()
        self.tell()
        return is_ours

    def discard(self) -> None:
        self.staged.discard()


def telling_run(job: Job, spark: SparkSession, telling: Telling) -> PipelineRun:
    """The job's pipeline, which tells of every step of every block."""

    def open_rows(spark: Any) -> Sink:
        sink = BufferSink(spark, str(job.rows), {}) if job.to_buffer else open_table(spark, str(job.rows))
        return TellingSink(sink, telling, Mark.PLANNED, Mark.ROWS_STAGED, Mark.ROWS_COMMITTED)

    def open_letters(spark: Any) -> Sink:
        sink = open_table(spark, str(job.letters))
        return TellingSink(sink, telling, Mark.READ, Mark.LETTERS_STAGED, Mark.LETTERS_COMMITTED)

    return PipelineRun(job.plan(open_rows, open_letters), spark, spark_trigger("asap"))


def dying_source(fate: Fate) -> type[PipelineSource]:
    """A source whose planner, a process of its own, does to this one what is fated: around the ack of a block."""
    driver, behind = os.getpid(), (fate.batch + 1) * PER_BLOCK

    def die() -> None:
        do(fate.deed, driver)
        if fate.deed is Deed.GROUP:  # Spark's workers are in a group of their own
            os.kill(os.getpid(), signal.SIGKILL)

    class DyingReader(BufferStreamReader):
        def latestOffset(self, start: Any, limit: Any) -> Any:  # noqa: N802  Spark's name
            if start["sequence"] == behind and fate.mark is Mark.ASKED:
                die()
            end = super().latestOffset(start, limit)
            if start["sequence"] == behind and fate.mark is Mark.ACKED:
                die()
            return end

    class DyingSource(PipelineSource):
        def streamReader(self, schema: Any) -> Any:  # noqa: N802  Spark's name
            reader = super().streamReader(schema)
            reader.__class__ = DyingReader
            return reader

    return DyingSource


def main(root: str, sink: str, pipe: str, fate: str = "") -> None:
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    fated = Fate.of(fate) if fate else None
    telling = Telling(int(pipe), fated)
    telling.reach(Mark.STARTED)
    spark = local_session()
    telling.reach(Mark.SESSION)
    if fated is not None and fated.mark in IN_PLANNER:
        PipelineRun.source_class = dying_source(fated)
    telling_run(Job(Path(root), to_buffer=sink == "buffer"), spark, telling).run()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
