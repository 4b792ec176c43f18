"""One block of a pipeline: one job, then its dead letters are committed, then its rows. Runs in the driver."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pickle import PicklingError
from typing import Any, cast

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  the usual name
from pyspark.sql.types import StructType

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
from penstock.spark.pipeline.block_plans import need_checkpoint
from penstock.spark.pipeline.dead_letters import LETTER, TABLE, reason_in, unpacked
from penstock.spark.pipeline.deduplication import Deduplicated, Deduplication
from penstock.spark.pipeline.jobs import read_rows, with_retries, write_files
from penstock.spark.pipeline.plan import Plan, Transform
from penstock.spark.pipeline.tasks import ReadRows, TaskResult, WriteFiles
from penstock.spark.sessions import is_connect
from penstock.spark.source.partitions import BatchRun
from penstock.spark.spark_errors import our_error, text_of
from penstock.spark.tables.contract import BlockId, StagedBlock

_MAX_REASONS = 3
_NOT_THE_SINKS = (EngineError, InvalidInput, Fenced, PicklingError)

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AlreadyThere:
    """What an attempt before has committed of a block, which ends at `end` for that reason: its letters, its keys.

    `dead` is how many letters there are; None if that is not known.
    """

    end: int
    has_letters: bool = False
    dead: int | None = None
    has_keys: bool = False


@dataclass(frozen=True, slots=True)
class Written:
    """A block that is in the sink: how many rows it got, and how many dead letters there were."""

    rows: int
    dead: int


class BlockWriter:
    """Writes blocks into the sink and the dead-letter table of a plan. Raises `InvalidInput` if these are one table.

    `may_commit` is asked before each commit: a run that was given up commits nothing more.
    """

    def __init__(
        self, plan: Plan, spark: Any, read: ReadRows, output: StructType, may_commit: Callable[[], bool] = lambda: True
    ) -> None:
        if plan.sink is None:
            raise InvalidInput("the pipeline has no sink: add to_parquet, to_delta, to_iceberg, to_buffer or to")
        self._spark = spark
        self._read = read
        self._output = output
        self._may_commit = may_commit
        self._transforms = plan.transforms
        self._is_warned = False
        self._call = plan.sink.call
        self.sink = plan.sink.open(spark)
        self.letters = None if plan.dead_letters is None else plan.dead_letters.open(spark)
        self._letters_url = plan.dead_letters.shown_url if plan.dead_letters else ""
        self.keys: Deduplication | None = None
        if plan.deduplicate is not None:
            checkpoint = need_checkpoint(plan.checkpoint, "deduplicate")
            self.keys = Deduplication(spark, checkpoint, plan.deduplicate)
        self._check_apart()

    def write(self, block: BlockId, runs: Sequence[BatchRun], there: AlreadyThere | None) -> Written | None:
        """Write a block; None if another driver was faster, or the table has changed: nothing of it is visible then.

        `there` is what an attempt before has committed of it. Raises `SinkFailed`, `DeadLetterRouteFailed`,
        `DeadLettersUnrouted`, and what went wrong on an executor.
        """
        with self._failing(SinkFailed, f"writing block {block.name} with {self._call}"):
            needs_rows = bool(self._transforms) or self.keys is not None
            writer = None if needs_rows else self.sink.writer(self._output, block)
        with self._failing(DeadLetterRouteFailed, f"writing dead letters to {self._letters_url}"):
            has_letters = there is not None and there.has_letters
            is_needed = writer is not None and self.letters is not None and not has_letters
            letter_writer = self.letters.writer(TABLE, block) if is_needed and self.letters else None
        if writer is None or (is_needed and letter_writer is None):
            return self._write_persisted(block, runs, there)
        task = WriteFiles(self._read, writer, letter_writer, int(time.time() * 1e6))
        with self._failing(SinkFailed, f"writing block {block.name} with {self._call}"):
            done = write_files(self._spark, task, runs)
            staged = self.sink.staged(block, [file for result in done for file in result.files])
        rows, dead = sum(result.rows for result in done), sum(result.dead for result in done)
        try:
            is_routed = self._route_letters(block, done, there)
        except BaseException:
            _discard(staged, block)
            raise
        if is_routed:
            return self._commit_rows(staged, block, rows, dead)
        _discard(staged, block)
        return None

    def _route_letters(self, block: BlockId, done: Sequence[TaskResult], there: AlreadyThere | None) -> bool:
        """Commit the letters that tasks have written; False if another driver was faster."""
        dead = sum(result.dead for result in done)
        if there is not None and there.has_letters:
            self._check_same_letters(there, block, dead)
        elif dead and self.letters is None:
            raise self._unrouted(dead, [reason for result in done for reason in result.reasons])
        elif dead and self.letters is not None:
            with self._failing(DeadLetterRouteFailed, f"writing {dead} dead letters to {self._letters_url}"):
                files = [file for result in done for file in result.letter_files]
                return self._commit(self.letters.staged(block, files), block)
        return True

    def _commit_rows(self, staged: StagedBlock, block: BlockId, rows: int, dead: int) -> Written | None:
        if not rows:
            _discard(staged, block)  # a block without rows is not written
            return Written(0, dead)
        with self._failing(SinkFailed, f"committing block {block.name} with {self._call}"):
            return Written(rows, dead) if self._commit(staged, block) else None

    def _write_persisted(self, block: BlockId, runs: Sequence[BatchRun], there: AlreadyThere | None) -> Written | None:
        """Write a block's letters, then its rows, from one DataFrame.

        There are several outputs of one block: reading it for each would run the process functions for each.
        """
        df = read_rows(self._spark, self._read, runs, self._output)
        kept = df.persist(StorageLevel.MEMORY_AND_DISK)
        found: Deduplicated | None = None
        try:
            rows = kept.where(F.col(LETTER).isNull()).drop(LETTER)
            if self.keys is None:
                rows = self._checked(rows)
            with self._failing(ProcessFailed, "reading a block"):
                dead, count = with_retries(kept.agg(F.count(LETTER), F.count(F.lit(1))).collect)[0]
            if self.keys is not None and count > dead:
                with self._failing(ProcessFailed, "deduplicating a block"):
                    found = self.keys.apply(rows, block)
                rows = self._checked(found.rows)
            if there is not None and there.has_letters:
                self._check_same_letters(there, block, dead)
            elif dead and not self._write_letters(kept, block, dead):
                return None
            if count == dead:
                return Written(0, dead)  # a block without rows is not written
            if found is not None and not (there is not None and there.has_keys):
                with self._failing(ProcessFailed, "writing the keys of a block"):
                    if not self._commit(self._keys_of(found, block), block):
                        return None
            with self._failing(SinkFailed, f"writing block {block.name} with {self._call}"):
                staged = self.sink.stage(rows, block)
                written = staged.rows
                if not self._commit(staged, block):
                    return None
            if written is None:
                written = rows.count() if self._transforms or found is not None else count - dead
            return Written(written, dead)
        finally:
            with suppress(Exception):  # a session that is gone has nothing persisted
                kept.unpersist()
                if found is not None:
                    found.persisted.unpersist()

    def _keys_of(self, found: Deduplicated, block: BlockId) -> StagedBlock:
        assert self.keys is not None  # noqa: S101  it has found them
        return self.keys.table.stage(found.keys, block)

    def _checked(self, rows: DataFrame) -> DataFrame:
        """The rows as the sink gets them, which are of columns that it takes."""
        rows = self._transformed(rows)
        self.sink.check(rows.schema)
        return rows

    def _transformed(self, rows: DataFrame) -> DataFrame:
        for transform in self._transforms:
            rows = _transformed(rows, transform)
        if self._transforms and not self._is_warned and _drops_duplicates(rows):
            self._is_warned = True
            _log.warning(
                "a transform drops duplicates: it finds those within one block only. To find them across blocks, use "
                "deduplicate(keys, within=...)"
            )
        return rows

    def _write_letters(self, df: DataFrame, block: BlockId, dead: int) -> bool:
        letters = df.where(F.col(LETTER).isNotNull()).select(LETTER)
        if self.letters is None:
            raise self._unrouted(dead, [reason_in(bytes(row[0])) for row in letters.limit(_MAX_REASONS).collect()])
        with self._failing(DeadLetterRouteFailed, f"writing {dead} dead letters to {self._letters_url}"):
            at = int(time.time() * 1e6)
            staged = self.letters.stage(map_in_arrow(letters, lambda parts: unpacked(parts, at), TABLE), block)
            return self._commit(staged, block)

    def _commit(self, staged: StagedBlock, block: BlockId) -> bool:
        if not self._may_commit():
            _discard(staged, block)
            raise EngineError(f"the run was stopped at once before block {block.name} was committed: it comes again")
        return staged.commit()

    def _check_same_letters(self, there: AlreadyThere, block: BlockId, dead: int) -> None:
        """Letters are committed before rows: when the block comes again, it must have the same ones."""
        if there.dead is not None and there.dead != dead:
            raise DeadLetterRouteFailed(
                f"the block {block.name} has {there.dead} dead letters in {self._letters_url} from a run before, and "
                f"makes {dead} now: the pipeline was changed in between. Nothing of the block is acked: remove that "
                "block from the dead letters, and run again"
            )

    def _check_apart(self) -> None:
        """Raise `InvalidInput` where one table is the other, or is inside it, by their real places."""
        if self.letters is None or self.letters.place is None or self.sink.place is None:
            return
        one, other = (f"{place.rstrip('/')}/" for place in (self.sink.place, self.letters.place))
        if one.startswith(other) or other.startswith(one):
            raise InvalidInput(
                f"the table and its dead letters need places of their own: {self._letters_url} is that of "
                f"{self._call}, or one is inside the other"
            )

    def _unrouted(self, dead: int, reasons: Sequence[str]) -> DeadLettersUnrouted:
        return DeadLettersUnrouted(
            f"{dead} dead letters, and no place for them; the first reasons: {'; '.join(reasons[:_MAX_REASONS])}. Give "
            "the pipeline a table for them with dead_letters(...)"
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
            raise kind(f"{what} failed: {type(error).__name__}: {found or text_of(error)}") from error


def _transformed(rows: DataFrame, transform: Transform) -> DataFrame:
    """What a transform makes of a block's rows. Raises `ProcessFailed`."""
    try:
        returned: object = transform(rows)
        if is_connect(returned):
            _ = cast("DataFrame", returned).schema  # it is checked there, and not when it is made
    except Exception as error:
        raise ProcessFailed(f"a transform failed: {type(error).__name__}: {text_of(error)}") from error
    if type(returned) is not type(rows) and not isinstance(returned, DataFrame):
        raise ProcessFailed(f"a transform must return a DataFrame, and returned {type(returned).__name__}")
    return returned  # of Connect, or of Spark's own session


def _drops_duplicates(rows: DataFrame) -> bool:
    plan: Any = rows
    text = plan._plan.print() if is_connect(rows) else plan._jdf.queryExecution().logical().toString()
    return "Deduplicate" in text


def _discard(staged: StagedBlock, block: BlockId) -> None:
    """Discard what was staged. Should that fail, the reason for it is what matters, and no reader sees what stays."""
    try:
        staged.discard()
    except Exception as error:  # noqa: BLE001  whatever a sink raises
        _log.warning("what was staged of block %s could not be discarded, and uses space: %s", block.name, error)
