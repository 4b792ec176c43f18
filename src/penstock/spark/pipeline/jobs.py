"""Spark jobs over the runs of batches that a block has: plain ones, that every Spark has.

In a session of Spark's own (not Connect) a job is one of RDDs: what tasks return is pickled, and no data passes
through the JVM.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from penstock.core import Backoff, call_with_retries, get_logger
from penstock.errors import EngineError
from penstock.spark.map_in_arrow import map_in_arrow
from penstock.spark.pipeline.tasks import ReadRows, TaskResult, WriteFiles
from penstock.spark.sessions import is_connect, is_slow_start
from penstock.spark.source.partitions import BatchRun

Answer = TypeVar("Answer")

_MAX_STARTS = 3

_log = get_logger(__name__)


class WorkerNotStarted(EngineError):
    """Spark gave up waiting for a Python worker, and nothing was processed."""


def write_files(spark: Any, task: WriteFiles, runs: Sequence[BatchRun]) -> list[TaskResult]:
    """Run a task for each run of batches, and return what they have done, in order."""
    if not runs:
        return []
    if not is_connect(spark):
        return with_retries(lambda: _by_rdd(spark, task, runs))
    return with_retries(lambda: _by_arrow(spark, task, runs))


def read_rows(spark: Any, task: ReadRows, runs: Sequence[BatchRun], output: StructType) -> DataFrame:
    """The rows of a block as a DataFrame, with their dead letters."""
    pickled = [pickle.dumps(run) for run in runs]

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            numbers: list[Any] = batch.column(0).to_pylist()
            for number in numbers:
                yield from task(pickle.loads(pickled[number]))  # noqa: S301  the driver made it

    numbers = spark.range(0, len(runs), 1, max(len(runs), 1))
    return map_in_arrow(numbers, read, ReadRows.schema(output))


def _by_rdd(spark: Any, task: WriteFiles, runs: Sequence[BatchRun]) -> list[TaskResult]:
    def write(number: int, pickled: Iterator[bytes]) -> Iterator[TaskResult]:
        return (task(pickle.loads(one), number) for one in pickled)  # noqa: S301  the driver made it

    items = spark.sparkContext.parallelize([pickle.dumps(run) for run in runs], len(runs))
    results: list[TaskResult] = items.mapPartitionsWithIndex(write).collect()
    return results


def _by_arrow(spark: Any, task: WriteFiles, runs: Sequence[BatchRun]) -> list[TaskResult]:
    pickled = [pickle.dumps(run) for run in runs]

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            numbers: list[Any] = batch.column(0).to_pylist()
            for number in numbers:
                run = pickle.loads(pickled[number])  # noqa: S301  the driver made it
                done = pickle.dumps((number, task(run, number)))
                yield pa.RecordBatch.from_arrays([pa.array([done], pa.binary())], names=["done"])

    rows = map_in_arrow(spark.range(0, len(runs), 1, len(runs)), write, "done binary").collect()
    done = sorted((pickle.loads(bytes(row[0])) for row in rows), key=lambda one: one[0])  # noqa: S301  our tasks' own
    return [result for _, result in done]


def with_retries(run: Callable[[], Answer]) -> Answer:
    """Run a job, and again where Spark gave up waiting for a Python worker. Raises `WorkerNotStarted` in the end."""

    def run_once() -> Answer:
        try:
            return run()
        except Exception as error:
            if not is_slow_start(error):
                raise
            raise WorkerNotStarted(
                "Spark waited for a Python worker to start, and it did not: this machine is too busy, or its Python "
                "cannot start. Nothing is lost: run again"
            ) from error

    return call_with_retries(
        run_once,
        Backoff(1.0, 5.0),
        tries=_MAX_STARTS,
        on=WorkerNotStarted,
        warn=lambda error: _log.warning("the job is started again: %s", error),
    )
