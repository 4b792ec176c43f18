"""The program that is killed: a pipeline's driver that tells, through a pipe, where it is, and dies where it is told.

python -m tests.spark.kills.driver ROOT SINK PIPE [FATE]
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from penstock.spark.pipeline import run as pipeline_run
from penstock.spark.pipeline.run import PipelineRun
from penstock.spark.source.data_source import PenstockDataSource, known_to
from penstock.spark.source.planner import Planner
from penstock.spark.tables.file_table import FileTable, StagedDirectory
from penstock.spark.tables.sinks import BufferSink
from tests.spark.kills.job import PER_BLOCK, Job
from tests.spark.kills.marks import IN_PLANNER, Deed, Fate, Mark, do


class Telling:
    """Tells of marks, and does what is fated."""

    def __init__(self, pipe: int, fate: Fate | None) -> None:
        self._pipe = pipe
        self._fate = fate
        self._batch = -1

    def reach(self, mark: Mark, batch: int | None = None) -> None:
        """Be at a mark: of the block in hand, if not of another."""
        self._batch = self._batch if batch is None else batch
        os.write(self._pipe, f"{mark} {self._batch}\n".encode())
        fate = self._fate
        if fate is not None and (mark, self._batch) == (fate.mark, fate.batch):
            do(fate.deed, os.getpid())

    def after(self, owner: type, name: str, mark: Callable[[Any], Mark]) -> None:
        """Reach a mark whenever a method has returned."""
        real = getattr(owner, name)

        def and_then(self_: Any, *args: Any, **kwargs: Any) -> Any:
            answer = real(self_, *args, **kwargs)
            self.reach(mark(self_))
            return answer

        setattr(owner, name, and_then)


def tell_of_blocks(telling: Telling) -> None:
    """Tell of every step of every block."""
    real = PipelineRun._take_block

    def take_block(run: PipelineRun, block: Any, batch: int) -> None:
        telling.reach(Mark.TAKEN, batch)
        real(run, block, batch)
        telling.reach(Mark.DONE)

    def of(table: FileTable, letters: Mark, rows: Mark) -> Mark:
        return letters if table.url.endswith("/letters") else rows

    PipelineRun._take_block = take_block  # type: ignore[method-assign, assignment]
    telling.after(PipelineRun, "_count", lambda _: Mark.READ)
    telling.after(FileTable, "stage", lambda table: of(table, Mark.LETTERS_STAGED, Mark.ROWS_STAGED))
    telling.after(
        StagedDirectory, "commit", lambda staged: of(staged._table, Mark.LETTERS_COMMITTED, Mark.ROWS_COMMITTED)
    )
    telling.after(BufferSink, "write", lambda _: Mark.ROWS_COMMITTED)


def die_in_planner(fate: Fate) -> None:
    """Let the planner, a process of its own, do to this one what is fated: around the ack of a block."""
    driver, behind = os.getpid(), (fate.batch + 1) * PER_BLOCK

    def stream_reader(source: PenstockDataSource, schema: Any) -> Any:
        real = Planner.ack_before

        def ack_before(planner: Planner, start: int) -> None:
            if start == behind and fate.mark is Mark.ASKED:
                die()
            real(planner, start)
            if start == behind and fate.mark is Mark.ACKED:
                die()

        def die() -> None:
            do(fate.deed, driver)
            if fate.deed is Deed.GROUP:  # Spark's workers are in a group of their own
                os.kill(os.getpid(), signal.SIGKILL)

        Planner.ack_before = ack_before  # type: ignore[method-assign, assignment]
        return PenstockDataSource.streamReader(source, schema)

    def known_with_fate(*args: Any, **kwargs: Any) -> Any:
        return known_to(*args, **kwargs, streamReader=stream_reader)

    pipeline_run.known_to = known_with_fate  # type: ignore[attr-defined]


def session() -> SparkSession:
    return (
        SparkSession.builder.master("local[2]")
        .appName("a driver that is killed")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )


def main(root: str, sink: str, pipe: str, fate: str = "") -> None:
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    fated = Fate.of(fate) if fate else None
    telling = Telling(int(pipe), fated)
    telling.reach(Mark.STARTED)
    spark = session()
    telling.reach(Mark.SESSION)
    tell_of_blocks(telling)
    if fated is not None and fated.mark in IN_PLANNER:
        die_in_planner(fated)
    Job(Path(root), to_buffer=sink == "buffer").pipeline(PER_BLOCK).run(spark, trigger="asap")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
