"""Drivers of one pipeline in this process, each in a thread: hundreds of ways to meet, and no JVM to wait for.

The buffer, the tables, the files that tasks write and the loop are real; only a job's tasks run here, one after the
other. `tests/spark/kills` does the same with real drivers and real Spark.
"""

from __future__ import annotations

import io
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from pyspark.sql.types import LongType, StructField, StructType

from penstock.engine import ParseFormat
from penstock.errors import PenstockError
from penstock.spark.pipeline.block_loop import BlockLoop, BlockReport
from penstock.spark.pipeline.block_plans import open_files
from penstock.spark.pipeline.block_writer import BlockWriter
from penstock.spark.pipeline.plan import Plan, Target
from penstock.spark.pipeline.progress import Progress
from penstock.spark.pipeline.steps import Parse, PipelineRows
from penstock.spark.pipeline.tasks import ReadRows
from penstock.spark.pipeline.triggers import Trigger
from penstock.spark.source.options import OnError, ReadOptions
from penstock.spark.tables.contract import BlockId, FileSink, FileWriter, Position, StagedBlock
from tests.spark.kills.kinds import PARQUET, open_rows, read_column
from tests.support.backlogs import Backlog
from tests.support.waiting import Background, Gate

COLUMNS = StructType([StructField("n", LongType())])
_NUMBER = re.compile(rb"\d+")


class Step(StrEnum):
    """A step of a block that is done when a driver stands at it, in their order."""

    PLANNED = "planned"
    WRITTEN = "files written"
    LETTERS_STAGED = "letters staged"
    LETTERS_COMMITTED = "letters committed"
    ROWS_COMMITTED = "rows committed"
    ACKED = "acked"


class Jobs:
    """Stands where a session, its context and an RDD do, and runs the tasks here."""

    _jsparkSession = None  # noqa: N815  Spark's name

    def __init__(self, items: Iterable[Any] = (), task: Callable[..., Iterable[Any]] | None = None) -> None:
        self._items = list(items)
        self._task = task

    @property
    def sparkContext(self) -> Jobs:  # noqa: N802  Spark's name
        return self

    def parallelize(self, items: Iterable[Any], _parts: int) -> Jobs:
        return Jobs(items)

    def mapPartitionsWithIndex(self, task: Callable[..., Iterable[Any]]) -> Jobs:  # noqa: N802  Spark's name
        return Jobs(self._items, task)

    def collect(self) -> list[Any]:
        assert self._task is not None
        return [result for number, item in enumerate(self._items) for result in self._task(number, iter([item]))]


Reach = Callable[[Step, BlockId], None]


class WatchedSink(FileSink):
    """A table that tells of each step."""

    def __init__(self, sink: FileSink, reach: Reach, begun: Step | None, staged: Step, committed: Step) -> None:
        self._sink = sink
        self._reach = reach
        self._steps = begun, staged, committed

    @property
    def place(self) -> str | None:
        return self._sink.place

    def position(self, query: str) -> Position | None:
        return self._sink.position(query)

    def move_back(self, query: str, end: int) -> None:
        self._sink.move_back(query, end)

    def has(self, block: BlockId) -> bool:
        return self._sink.has(block)

    def check(self, schema: StructType) -> None:
        self._sink.check(schema)

    def writer(self, columns: StructType, block: BlockId) -> FileWriter | None:
        begun, _, _ = self._steps
        if begun is not None:
            self._reach(begun, block)
        return self._sink.writer(columns, block)

    def staged(self, block: BlockId, files: Any) -> StagedBlock:
        _, staged, committed = self._steps
        ready = self._sink.staged(block, files)
        self._reach(staged, block)
        return WatchedBlock(ready, lambda: self._reach(committed, block))


@dataclass(frozen=True)
class WatchedBlock:
    """A staged block that tells when it is committed by itself."""

    staged: StagedBlock
    tell: Callable[[], None]

    @property
    def rows(self) -> int | None:
        return self.staged.rows

    def commit(self) -> bool:
        is_ours = self.staged.commit()
        if is_ours:
            self.tell()
        return is_ours

    def discard(self) -> None:
        self.staged.discard()


def event(number: int) -> bytes:
    """A row, or what becomes a dead letter."""
    return b"letter %d" % number if number < 0 else b'{"n": %d}' % number


class Killed(BaseException):
    """Ends a driver where it stands: nothing of Penstock's catches it."""


@dataclass
class Setting:
    """A buffer, two tables of a kind, and drivers of one pipeline between them."""

    root: Path
    kind: str = PARQUET
    backlog: Backlog = field(init=False)

    def __post_init__(self) -> None:
        self.backlog = Backlog(str(self.root / "events"))

    @property
    def rows(self) -> Path:
        return self.root / "rows"

    @property
    def letters(self) -> Path:
        return self.root / "letters"

    def put(self, *batches: Iterable[int]) -> list[int]:
        """Append batches of numbers, negative ones for dead letters; return the numbers."""
        given = [list(batch) for batch in batches]
        self.backlog.put(*([event(number) for number in batch] for batch in given))
        return [number for batch in given for number in batch]

    def driver(self, per_block: int = 1, reach: Reach = lambda _step, _block: None, **settings: Any) -> Driver:
        return Driver(self, per_block, reach, **settings)

    def found(self) -> Counter[int]:
        """How often each number is where it belongs, by DuckDB."""
        rows = self._column(self.rows, "n")
        payloads = self._column(self.letters, "payload")
        assert all(number >= 0 for number in rows)
        letters = [-int(_NUMBER.search(bytes(payload))[0]) for payload in payloads]  # type: ignore[index]
        return Counter([*rows, *letters])

    def assert_each_once(self, numbers: Iterable[int]) -> None:
        """Every event is where it belongs, once, and all is acked."""
        assert self.found() == Counter(numbers)
        assert self.backlog.sequences() == []

    def open(self, jobs: Any, place: Path) -> Any:
        """Open one of the tables."""
        return open_rows(self.kind, jobs, place)

    def _column(self, place: Path, name: str) -> list[Any]:
        if self.kind == PARQUET and not list(place.glob("**/*.parquet")):
            return []
        return read_column(self.kind, place, name)["DuckDB"]

    def staged(self) -> list[Path]:
        return [path for name in (".rows.staging", ".letters.staging") for path in (self.root / name).glob("*")]


class Driver:
    """A driver of the pipeline: `run` works off what is queued."""

    def __init__(
        self, setting: Setting, per_block: int, reach: Reach, *, checkpoint: str | None = None, group: str = "default"
    ) -> None:
        self._setting = setting
        self._reach = reach
        self.blocks: list[BlockReport] = []
        self._checkpoint = checkpoint
        given = {"path": setting.backlog.url, "maxBatchesPerTrigger": str(per_block), "pollInterval": "0.05"}
        self._options = ReadOptions.of(given | {"group": group, "selfRegulation": "off"})

    def run(self) -> None:
        """Run to the end of the queue. Raises what a run raises."""
        jobs: Any = Jobs()

        def open_table(_spark: Any) -> FileSink:
            table = self._setting.open(jobs, self._setting.rows)
            return WatchedSink(table, self._reach, Step.PLANNED, Step.WRITTEN, Step.ROWS_COMMITTED)

        def open_letters(_spark: Any) -> FileSink:
            table = self._setting.open(jobs, self._setting.letters)
            return WatchedSink(table, self._reach, None, Step.LETTERS_STAGED, Step.LETTERS_COMMITTED)

        plan = Plan(
            self._setting.backlog.url,
            None,
            sink=Target("rows", open_table),
            dead_letters=Target("letters", open_letters),
        )
        rows = PipelineRows(COLUMNS, (), Parse(ParseFormat.JSON, COLUMNS, OnError.DLQ))
        checkpoint = self._checkpoint
        loop = WatchedLoop(
            self._reach,
            self._options,
            BlockWriter(plan, jobs, ReadRows(self._options, rows), COLUMNS),
            Trigger.of("available_now"),
            cores=2,
            progress=Progress(io.StringIO()),
            should_stop=lambda _seconds: False,
            files=None if checkpoint is None else open_files(jobs, checkpoint),
            shown_checkpoint=checkpoint or "",
            on_block=self.blocks.append,
        )
        loop.run()


class WatchedLoop(BlockLoop):
    """A loop that tells of its acks."""

    def __init__(self, reach: Reach, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._reach = reach

    def _ack(self, end: int) -> None:
        first = self._at
        super()._ack(end)
        self._reach(Step.ACKED, BlockId("query", first, end))


def killed_at(step: Step, first: int) -> Reach:
    """Die at a step of the block that begins there."""

    def reach(at: Step, block: BlockId) -> None:
        if (at, block.first) == (step, first):
            raise Killed

    return reach


class Sleeper:
    """A driver that sleeps at a step of the first block that comes to it, from a sequence on, until it is woken."""

    def __init__(self, setting: Setting, per_block: int, step: Step, first: int = 0) -> None:
        self._gate = Gate()
        self._step, self._first = step, first
        self.is_asleep = threading.Event()
        self.driver = setting.driver(per_block, self._reach)
        self._running = Background(self.driver.run)

    def sleeps(self) -> bool:
        """Wait until it sleeps; False if it ended, as it never comes to that step."""
        while not self.is_asleep.wait(0.01):
            if self._running.has_ended_within(0.0):
                return self.is_asleep.is_set()
        return True

    def wake(self) -> BaseException | None:
        """Let it go on to its end, and return what it raised."""
        self._gate.open()
        return self._running.error()

    def _reach(self, step: Step, block: BlockId) -> None:
        if step is self._step and block.first >= self._first and not self.is_asleep.is_set():
            self.is_asleep.set()
            self._gate()


def error_of(run: Callable[[], object]) -> BaseException | None:
    """What a run raises, of ours or as a kill."""
    try:
        run()
    except (PenstockError, Killed) as error:
        return error
    return None
