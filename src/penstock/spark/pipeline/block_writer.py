"""One block of a pipeline: its dead letters are committed first, then its rows. Runs in the driver."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the usual name

from penstock.core import get_logger
from penstock.errors import (
    CorruptData,
    DeadLetterRouteFailed,
    DeadLettersUnrouted,
    EngineError,
    Fenced,
    InvalidInput,
    NotFound,
    ProcessFailed,
    SinkFailed,
)
from penstock.spark.map_in_arrow import map_in_arrow
from penstock.spark.pipeline.control_files import PlannedBlock
from penstock.spark.pipeline.dead_letters import LETTER, TABLE, reason_in, unpacked
from penstock.spark.pipeline.plan import Plan, Transform
from penstock.spark.pipeline.progress import Progress
from penstock.spark.spark_errors import our_error
from penstock.spark.tables.contract import BlockId, StagedBlock

_MAX_REASONS = 3
_NOT_THE_SINKS = (EngineError, InvalidInput, Fenced)
_QUERY_ID = "sql.streaming.queryId"
_TIMESTAMPS = "spark.sql.parquet.outputTimestampType"

_log = get_logger(__name__)


class BlockWriter:
    """Writes blocks into the sink and the dead-letter table of a plan. Raises `InvalidInput` if these are one table."""

    def __init__(self, plan: Plan, spark: SparkSession, progress: Progress) -> None:
        if plan.sink is None:
            raise InvalidInput("the pipeline has no sink: add to_parquet, to_delta, to_buffer or to")
        self._transforms = plan.transforms
        self._call = plan.sink.call
        self.sink = plan.sink.open(spark)
        self._letters = None if plan.dead_letters is None else plan.dead_letters.open(spark)
        self._letters_url = plan.dead_letters.shown_url if plan.dead_letters else ""
        self._progress = progress
        self._check_apart()

    def write(self, df: DataFrame, batch: int, planned: PlannedBlock) -> None:
        """Write a block that Spark hands over, unless the sink has it already.

        Raises `SinkFailed`, `DeadLetterRouteFailed`, `DeadLettersUnrouted`, and what went wrong on an executor.
        """
        if planned.start == planned.end:
            return  # Spark's first block, when nothing was queued
        started = time.monotonic()
        session = df.sparkSession  # the query's own
        query = session.sparkContext.getLocalProperty(_QUERY_ID)
        if query is None:
            raise EngineError(f"Spark does not say which query a block is of: {_QUERY_ID} is not set")
        if not session.sparkContext.getConf().contains(_TIMESTAMPS):
            # Spark's default is a type of which other readers cannot tell the time zone.
            session.conf.set(_TIMESTAMPS, "TIMESTAMP_MICROS")
        block = BlockId(query, batch, json.dumps({"sequence": planned.end}))
        # Letters are committed first: where the rows are, they are too.
        with self._failing(SinkFailed, f"looking for block {block.name} in {self._call}"):
            is_there = self.sink.has(block)
        if is_there:
            _log.info("block %s is there already", block.name)
            return
        in_one_pass = self.sink.stages_rows and self._letters is None and not self._transforms
        rows, dead = self._write_in_one_pass(df, block) if in_one_pass else self._write_persisted(df, block)
        self._progress.note(
            rows=rows, size=planned.bytes, dead=dead, lag=planned.lag, seconds=time.monotonic() - started
        )

    def _write_persisted(self, df: DataFrame, block: BlockId) -> tuple[int, int]:
        """Write a block's letters, then its rows; return how many rows the sink got, and how many letters there were.

        There are several outputs of one block: reading it for each would run the process functions for each.
        """
        kept = df.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            rows = kept.where(F.col(LETTER).isNull()).drop(LETTER)
            for transform in self._transforms:
                rows = _transformed(rows, transform)
            self.sink.check(rows.schema)
            with self._failing(ProcessFailed, "reading a block"):
                dead, count = kept.agg(F.count(LETTER), F.count(F.lit(1))).collect()[0]
            if dead or self._letters is not None:
                self._write_letters(kept, block, dead)
            if count == dead:
                return 0, dead  # a block without rows is not written
            staged = self._stage(rows, block)
            self._commit(staged, block)
            if staged.rows is not None:
                return staged.rows, dead
            return rows.count() if self._transforms else count - dead, dead
        finally:
            with suppress(Exception):  # a session that is gone has nothing persisted
                kept.unpersist()

    def _write_letters(self, df: DataFrame, block: BlockId, dead: int) -> None:
        if self._letters is None:
            raise self._unrouted(df, dead)
        with self._failing(DeadLetterRouteFailed, f"writing {dead} dead letters to {self._letters_url}"):
            if self._letters.has(block):
                self._check_same_letters(self._letters.rows_of(block), block, dead)
            elif dead:
                at = int(time.time() * 1e6)
                letters = df.where(F.col(LETTER).isNotNull()).select(LETTER)
                staged = self._letters.stage(map_in_arrow(letters, lambda parts: unpacked(parts, at), TABLE), block)
                # Another driver may have finished the block since this one looked for it. Its letters count then.
                _discard(staged, block) if self.sink.has(block) else staged.commit()

    def _write_in_one_pass(self, df: DataFrame, block: BlockId) -> tuple[int, int]:
        """Stage the rows and count the letters in one job: if there are letters, the staged rows are discarded."""
        observation = Observation()
        observed = df.observe(observation, F.count(LETTER).alias("dead"), F.count(F.lit(1)).alias("all"))
        staged = self._stage(observed.where(F.col(LETTER).isNull()).drop(LETTER), block)
        counts = observation.get
        if counts["dead"] or not counts["all"]:
            _discard(staged, block)
        if counts["dead"]:
            raise self._unrouted(df, counts["dead"])
        if not counts["all"]:
            return 0, 0
        self._commit(staged, block)
        return counts["all"], 0

    def _stage(self, rows: DataFrame, block: BlockId) -> StagedBlock:
        with self._failing(SinkFailed, f"writing block {block.name} with {self._call}"):
            return self.sink.stage(rows, block)

    def _commit(self, staged: StagedBlock, block: BlockId) -> None:
        with self._failing(SinkFailed, f"committing block {block.name} with {self._call}"):
            staged.commit()

    def _check_same_letters(self, before: int | None, block: BlockId, dead: int) -> None:
        """Letters are committed before rows: when the block comes again, it must have the same ones."""
        if before is not None and before != dead:
            raise DeadLetterRouteFailed(
                f"the block {block.name} has {before} dead letters in {self._letters_url} from a run before, and "
                f"makes {dead} now: the pipeline was changed in between. Nothing of the block is acked: remove that "
                "block from the dead letters, and run again"
            )

    def _check_apart(self) -> None:
        """Raise `InvalidInput` where one table is the other, or is inside it, by their real places."""
        if self._letters is None or self._letters.place is None or self.sink.place is None:
            return
        one, other = (f"{place.rstrip('/')}/" for place in (self.sink.place, self._letters.place))
        if one.startswith(other) or other.startswith(one):
            raise InvalidInput(
                f"the table and its dead letters need places of their own: {self._letters_url} is that of "
                f"{self._call}, or one is inside the other"
            )

    def _unrouted(self, df: DataFrame, dead: int) -> DeadLettersUnrouted:
        some = df.where(F.col(LETTER).isNotNull()).select(LETTER).limit(_MAX_REASONS).collect()
        reasons = "; ".join(reason_in(bytes(row[0])) for row in some)
        return DeadLettersUnrouted(
            f"{dead} dead letters, and no place for them; the first reasons: {reasons}. Give the pipeline a table for "
            "them with dead_letters(...)"
        )

    @contextmanager
    def _failing(self, kind: type[EngineError], what: str) -> Iterator[None]:
        """Raise an error of `kind` for whatever fails; or that of the executor, where reading or processing failed."""
        try:
            yield
        except _NOT_THE_SINKS:
            raise
        except Exception as error:
            found = our_error(error)
            if isinstance(found, _NOT_THE_SINKS) or (found is not error and isinstance(found, NotFound | CorruptData)):
                raise found from error
            raise kind(f"{what} failed: {type(error).__name__}: {error if found is None else found}") from error


def _transformed(rows: DataFrame, transform: Transform) -> DataFrame:
    try:
        returned: object = transform(rows)
    except Exception as error:
        raise ProcessFailed(f"a transform failed: {type(error).__name__}: {error}") from error
    if not isinstance(returned, DataFrame):
        raise ProcessFailed(f"a transform must return a DataFrame, and returned {type(returned).__name__}")
    return returned


def _discard(staged: StagedBlock, block: BlockId) -> None:
    """Discard what was staged. Should that fail, the reason for it is what matters, and no reader sees what stays."""
    try:
        staged.discard()
    except Exception as error:  # noqa: BLE001  whatever a sink raises
        _log.warning("what was staged of block %s could not be discarded, and uses space: %s", block.name, error)
