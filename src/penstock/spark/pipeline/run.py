"""One run of a pipeline: its query, how it starts, waits and ends, and what it reports meanwhile."""

from __future__ import annotations

import shutil
import signal
import tempfile
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pickle import PicklingError
from types import FrameType
from typing import Any, ClassVar

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import BinaryType, StructField, StructType

from penstock.core import Backoff, call_with_retries, get_logger
from penstock.engine import Ticker
from penstock.errors import EngineError, InvalidInput
from penstock.spark.pipeline.block_writer import BlockWriter
from penstock.spark.pipeline.control_files import ControlFiles, Sign
from penstock.spark.pipeline.dead_letters import LETTER
from penstock.spark.pipeline.plan import Plan
from penstock.spark.pipeline.progress import Progress
from penstock.spark.pipeline.steps import ColumnStep, Parse, PipelineRows
from penstock.spark.pipeline.triggers import has_interval
from penstock.spark.source.data_source import PenstockDataSource, known_to
from penstock.spark.source.options import ReadOptions
from penstock.spark.source.reading import Rows
from penstock.spark.source.schemas import RECORD_FIELDS
from penstock.spark.spark_errors import our_error

_POLL_SECONDS = 0.1
_STOP_SECONDS = 5.0
_MAX_STARTS = 3
_NOT_CONNECTED = "Python worker failed to connect back"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SIGNAL_LINES = ("", "stopping after the block in hand; a second signal stops at once", "stopping at once")

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run did: rows that its sink got, bytes of the batches they came from, dead letters, blocks, seconds."""

    rows: int = 0
    bytes: int = 0
    dead_letters: int = 0
    blocks: int = 0
    seconds: float = 0.0


class PipelineSource(PenstockDataSource):
    """The data source of one pipeline: its steps travel with the class."""

    source_name: ClassVar[str] = "penstock-pipeline"
    rows: ClassVar[Rows]
    output: ClassVar[StructType]

    @classmethod
    def name(cls) -> str:
        """A name of its own in the session."""
        return cls.source_name

    def schema(self) -> StructType:
        """The columns of the output, and the dead letters."""
        return StructType([*self.output, StructField(LETTER, BinaryType())])

    def _rows(self, _schema: StructType, _options: ReadOptions) -> Rows:
        return self.rows


class WorkerNotStarted(EngineError):
    """Spark gave up waiting for a Python worker, which it does after 10 seconds, and nothing was processed."""


class PipelineRun:
    """One run."""

    source_class: ClassVar[type[PipelineSource]] = PipelineSource
    """The data source that the run reads with."""

    def __init__(self, plan: Plan, spark: SparkSession, trigger: dict[str, Any]) -> None:
        self._plan = plan
        self._spark = spark
        self._trigger = trigger
        self._control = ControlFiles(Path())
        self._tickers = [Ticker(ticks, time.monotonic) for ticks in plan.ticks]
        self._progress = Progress()
        self._writer = BlockWriter(plan, spark, self._progress)
        self._failure: BaseException | None = None

    def run(self) -> Summary:
        """Run to the end. Raises what went wrong, with Spark's exception as its cause."""
        started = time.monotonic()
        self._control = ControlFiles(Path(tempfile.mkdtemp(prefix="penstock-run-")))
        try:
            with Stopping() as stopping, self._progress:
                source = self._register_source()
                # Spark's limit of 10 seconds is no setting, and a busy machine may need longer. Nothing is lost then:
                # the same query starts again.
                call_with_retries(
                    partial(self._run_query, source, stopping),
                    Backoff(1.0, 5.0),
                    tries=_MAX_STARTS,
                    on=WorkerNotStarted,
                    warn=lambda error: _log.warning("starting the query again: %s", error),
                )
        except PicklingError as error:
            raise InvalidInput(f"a process function cannot be sent to the executors: {error}") from error
        except (PySparkException, Py4JError, ConnectionError) as error:
            raise self._error_of(error) from error
        finally:
            shutil.rmtree(self._control.directory, ignore_errors=True)
        return Summary(**self._progress.totals, seconds=time.monotonic() - started)

    def _run_query(self, source: type[PipelineSource], stopping: Stopping) -> None:
        try:
            self._run_to_end(source, stopping)
        except (PySparkException, Py4JError) as error:
            if self._failure is None and _NOT_CONNECTED in str(error):
                raise WorkerNotStarted(
                    "Spark waited 10 seconds for a Python worker to start, and it did not: this machine is too busy, "
                    "or its Python cannot start. Nothing is lost: run again"
                ) from error
            raise

    def _run_to_end(self, source: type[PipelineSource], stopping: Stopping) -> None:
        waits_between_blocks = has_interval(self._trigger)
        query = self._start(source, self._trigger)
        try:
            self._wait(query, stopping, waits_between_blocks=waits_between_blocks)
        finally:
            self._stop(query)
        if "availableNow" in self._trigger and not stopping.is_asked and not self._control.has(Sign.DONE):
            raise EngineError(
                "the query was stopped by another caller before it was through: the rest is not acked, and the next "
                "run goes on with it"
            )
        is_acked = not waits_between_blocks or self._control.has(Sign.STOPPED)
        if is_acked or stopping.is_urgent or not stopping.is_asked:
            return
        # The query was between two blocks, and the last one is not acked. A stop is asked: this query acks and ends.
        closing = self._start(source, {"availableNow": True})
        self._wait(closing, stopping, waits_between_blocks=False)
        self._stop(closing)

    def _register_source(self) -> type[PipelineSource]:
        plan, name = self._plan, f"penstock-pipeline-{uuid.uuid4().hex}"
        parse, schema = None, self._writer.sink.unparsed
        if plan.parse is not None:
            schema = _columns(plan.parse.schema)
            parse = Parse(plan.parse.form, schema, plan.parse.on_error)
        elif plan.on_records:
            schema = StructType(list(RECORD_FIELDS))
        steps = []
        for fn, returned in plan.on_columns:
            schema = schema if returned is None else _columns(returned)
            steps.append(ColumnStep(fn, schema))
        if any(field.name.lower() == LETTER for field in schema):
            raise InvalidInput(f"the column {LETTER!r} cannot be used: a pipeline has its dead letters in it")
        output = StructType([StructField(field.name, field.dataType) for field in schema])  # letters have nulls
        rows = PipelineRows(output, plan.on_records, parse, steps)
        source = known_to(self._spark, self.source_class, source_name=name, rows=rows, output=output)
        self._spark.dataSource.register(source)
        return source

    def _start(self, source: type[PipelineSource], trigger: dict[str, Any]) -> StreamingQuery:
        options = {**self._plan.options, "controlDirectory": str(self._control.directory)}
        stream = self._spark.readStream.format(source.name()).options(**options).load(self._plan.source)
        writer = stream.writeStream.foreachBatch(self._take_block).trigger(**trigger)
        return writer.option("checkpointLocation", self._plan.checkpoint).start()

    def _wait(self, query: StreamingQuery, stopping: Stopping, *, waits_between_blocks: bool) -> None:
        """Return when the query has ended, or may be stopped."""
        while not query.awaitTermination(_POLL_SECONDS):  # type: ignore[arg-type]  # it takes fractions of a second too
            for ticker in self._tickers:
                ticker.tick()
            self._progress.show()
            stopping.log_signals()
            if not stopping.is_asked:
                continue
            self._control.give(Sign.STOP)
            if stopping.is_urgent or self._control.has(Sign.STOPPED):
                return
            if waits_between_blocks and not query.status["isTriggerActive"]:
                return

    def _stop(self, query: StreamingQuery) -> None:
        """Stop a query. Spark waits for a sink of the user's that does not return; this does not for long."""
        stopper = threading.Thread(target=_stop_quietly, args=(query,), name="penstock-stop", daemon=True)
        stopper.start()
        stopper.join(_STOP_SECONDS)

    def _error_of(self, error: Exception) -> BaseException:
        if self._failure is not None:
            return self._failure
        if isinstance(error, StreamingQueryException):
            return our_error(error) or EngineError(f"the query ended: {error}")
        what = "Spark failed" if isinstance(error, Py4JJavaError | PySparkException) else "Spark is gone"
        return our_error(error) or EngineError(f"{what}: {type(error).__name__}: {error}")

    def _take_block(self, df: DataFrame, batch: int) -> None:
        """What the query calls for each block, in a thread of Spark's."""
        try:
            self._writer.write(df, batch, self._control.read_block())
        except Exception as error:
            self._failure = error
            raise
        except BaseException as error:
            # Spark's bridge to Python answers with exceptions only: after a SystemExit the query would wait forever.
            self._failure = EngineError(f"a block ended with {type(error).__name__}: {error}. Nothing of it is acked")
            raise self._failure from error


class Stopping:
    """Counts SIGTERM and Ctrl-C, in place of the handlers that were there: the session has its own.

    Outside the main thread Python allows no handlers, and no signal is counted.
    """

    def __init__(self) -> None:
        self._asked = 0
        self._logged = 0
        self._before: dict[signal.Signals, Any] = {}

    @property
    def is_asked(self) -> bool:
        """Whether to finish the block in hand, and stop."""
        return self._asked > 0

    @property
    def is_urgent(self) -> bool:
        """Whether to stop at once."""
        return self._asked > 1

    def log_signals(self) -> None:
        """Log each signal that was counted since. Not in the handler: a logger's lock may be held where it runs."""
        while self._logged < min(self._asked, 2):
            self._logged += 1
            _log.info(_SIGNAL_LINES[self._logged])

    def __enter__(self) -> Stopping:
        if threading.current_thread() is threading.main_thread():
            self._before = {one: signal.signal(one, self._ask) for one in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for one, handler in self._before.items():
            signal.signal(one, handler)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self._asked += 1


def _stop_quietly(query: StreamingQuery) -> None:
    with suppress(Exception):  # the query or Spark has ended already: `_error_of` reports what that means
        query.stop()


def _columns(schema: str | StructType) -> StructType:
    if isinstance(schema, StructType):
        return schema
    try:
        parsed = StructType.fromDDL(schema)
    except Exception as error:
        raise InvalidInput(f"the schema {schema!r} cannot be read: {error}") from error
    if not isinstance(parsed, StructType):
        raise InvalidInput(f"the schema {schema!r} is no list of columns such as 'id bigint, event string'")
    return parsed
