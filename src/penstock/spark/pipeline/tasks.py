"""What the tasks of a block do, on the executors: they read their batches, and write rows and dead letters to files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType

from penstock.errors import DeadLetterRouteFailed
from penstock.spark.pipeline.dead_letters import LETTER, reason_in, unpacked
from penstock.spark.source.options import ReadOptions
from penstock.spark.source.partitions import BatchRun
from penstock.spark.source.reading import Rows, read_run
from penstock.spark.tables.contract import FileWriter, OpenFiles

_MAX_REASONS = 3


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What a task has done: descriptions of its files, how many rows and letters there were, and the first reasons."""

    files: tuple[bytes, ...] = ()
    letter_files: tuple[bytes, ...] = ()
    rows: int = 0
    dead: int = 0
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadRows:
    """A task: its batches to rows, with dead letters in a column of their own."""

    options: ReadOptions = field(repr=False)
    rows: Rows

    @staticmethod
    def schema(output: StructType) -> StructType:
        """The columns that it makes."""
        return StructType([*output, StructField(LETTER, BinaryType())])

    def __call__(self, run: BatchRun) -> Iterator[pa.RecordBatch]:
        """The rows of one run of batches."""
        yield from read_run(run, self.options, self.rows)


@dataclass(frozen=True, slots=True)
class WriteFiles:
    """A task: its batches to files of rows and files of dead letters, in one pass.

    Without a writer for letters they are counted, and the first reasons are kept. `at` is the time that letters get, in
    microseconds since 1970.
    """

    read: ReadRows
    writer: FileWriter
    letter_writer: FileWriter | None
    at: int

    def __call__(self, run: BatchRun, task: int) -> TaskResult:
        """Write one run of batches, as the task of that number."""
        files, letter_files = _Lazily(self.writer, task), _Lazily(self.letter_writer, task)
        rows = dead = 0
        reasons: list[str] = []
        try:
            for batch in self.read(run):
                letters = batch.column(LETTER)
                if letters.null_count == batch.num_rows:
                    rows += batch.num_rows
                    files.add(batch.drop_columns([LETTER]))
                    continue
                dead += batch.num_rows
                reasons += [reason_in(value.as_py()) for value in letters[: _MAX_REASONS - len(reasons)]]
                with _routing():
                    for letter_rows in unpacked([batch.select([LETTER])], self.at):
                        letter_files.add(letter_rows)
            with _routing():
                routed = letter_files.close()
            return TaskResult(files.close(), routed, rows, dead, tuple(reasons))
        except BaseException:
            files.abort()
            letter_files.abort()
            raise


@contextmanager
def _routing() -> Iterator[None]:
    """Whatever fails here is a failure of the letters' table, and not of the sink."""
    try:
        yield
    except Exception as error:
        raise DeadLetterRouteFailed(f"writing dead letters failed: {type(error).__name__}: {error}") from error


class _Lazily:
    """Files that are begun with the first rows; without a writer, none."""

    def __init__(self, writer: FileWriter | None, task: int) -> None:
        self._writer = writer
        self._task = task
        self._files: OpenFiles | None = None

    def add(self, rows: pa.RecordBatch) -> None:
        if self._writer is None:
            return
        if self._files is None:
            self._files = self._writer.open(self._task)
        schema = self._writer.schema
        self._files.add(rows if rows.schema.equals(schema) else rows.cast(schema))

    def close(self) -> tuple[bytes, ...]:
        return () if self._files is None else tuple(self._files.close())

    def abort(self) -> None:
        if self._files is not None:
            self._files.abort()
