"""One run of a pipeline: how it starts, waits and ends, and what it reports meanwhile."""

from __future__ import annotations

import signal
import threading
import time
import uuid
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pickle import PicklingError
from types import FrameType
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark import InheritableThread
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType, TimestampType

from penstock.core import get_logger
from penstock.engine import Ticker
from penstock.errors import EngineError, InvalidInput
from penstock.spark.pipeline.block_loop import BlockLoop, BlockReport
from penstock.spark.pipeline.block_plans import SmallFiles, need_checkpoint, open_files
from penstock.spark.pipeline.block_writer import BlockWriter
from penstock.spark.pipeline.dead_letters import LETTER
from penstock.spark.pipeline.inferred_schema import INFER, find_schema
from penstock.spark.pipeline.maintenance import Maintenance
from penstock.spark.pipeline.plan import ParseStep, Plan
from penstock.spark.pipeline.progress import Progress
from penstock.spark.pipeline.steps import SEEN, ColumnStep, Parse, PipelineRows
from penstock.spark.pipeline.tasks import ReadRows
from penstock.spark.pipeline.triggers import Trigger
from penstock.spark.sessions import cores_of, is_connect
from penstock.spark.source.options import ReadOptions
from penstock.spark.source.schemas import RECORD_FIELDS
from penstock.spark.spark_errors import our_error, text_of
from penstock.spark.tables.contract import Table
from penstock.spark.versions import columns_from_ddl
from penstock.storage import redact

_POLL_SECONDS = 0.1
_STOP_SECONDS = 5.0
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


class PipelineRun:
    """One run."""

    def __init__(self, plan: Plan, spark: Any, trigger: Trigger) -> None:
        self._plan = plan
        self._spark = spark
        self._trigger = trigger
        self._group = f"penstock-{uuid.uuid4().hex}"
        self._tickers = [Ticker(ticks, time.monotonic) for ticks in plan.ticks]
        self._progress = Progress()
        self._stop = threading.Event()
        self._is_given_up = False
        self._failure: BaseException | None = None
        self._options = ReadOptions.of({"path": plan.source, **plan.options})

    def run(self) -> Summary:
        """Run to the end. Raises what went wrong, with Spark's exception as its cause."""
        started = time.monotonic()
        try:
            with Stopping() as stopping, self._progress:
                self._run_and_wait(stopping)
        except PicklingError as error:
            raise InvalidInput(f"a process function cannot be sent to the executors: {error}") from error
        except (PySparkException, Py4JError, ConnectionError) as error:
            raise self._error_of(error) from error
        return Summary(**self._progress.totals, seconds=time.monotonic() - started)

    def _loop(self) -> BlockLoop | None:
        """What runs the blocks; None where there is nothing, and no columns can be inferred from it."""
        plan = self._plan
        checkpoint = plan.checkpoint
        files = None if checkpoint is None else open_files(self._spark, checkpoint)
        parse = None
        if plan.parse is not None:
            schema = self._schema(plan.parse, files)
            if schema is None:
                return None
            parse = Parse(plan.parse.form, schema, plan.parse.on_error, plan.parse.options, plan.parse.payload_schemas)
            _check_options(parse)
        rows, output = self._rows(parse)
        writer = BlockWriter(plan, self._spark, ReadRows(self._options, rows), output, lambda: not self._is_given_up)
        if not writer.sink.keeps_position:
            need_checkpoint(checkpoint, f"the sink {plan.sink.call if plan.sink else ''}")
        return BlockLoop(
            self._options,
            writer,
            self._trigger,
            cores=cores_of(self._spark),
            progress=self._progress,
            should_stop=self._stop.wait,
            files=files,
            shown_checkpoint=redact(checkpoint or ""),
            on_block=self._tell_listeners,
        )

    def _schema(self, step: ParseStep, files: SmallFiles | None) -> StructType | None:
        if step.schema != INFER:
            return columns_of(step.schema)
        checkpoint = need_checkpoint(self._plan.checkpoint, "schema='infer'")
        if files is None:
            raise InvalidInput(f"the checkpoint {redact(checkpoint)} cannot be opened")
        self._progress.say("looking at the first events, to infer their columns")

        def should_wait(seconds: float) -> bool:
            return not self._trigger.available_now and not self._stop.wait(seconds)

        return find_schema(files, redact(checkpoint), self._options, step.form, step.payload_schemas, should_wait)

    def _rows(self, parse: Parse | None) -> tuple[PipelineRows, StructType]:
        """What becomes of records, and the columns of the output."""
        plan = self._plan
        schema = plan.sink.unparsed if plan.sink else StructType(list(RECORD_FIELDS))
        if parse is not None:
            schema = parse.output
        elif plan.on_records:
            schema = StructType(list(RECORD_FIELDS))
        steps = []
        for fn, returned in plan.on_columns:
            schema = schema if returned is None else columns_of(returned)
            steps.append(ColumnStep(fn, schema))
        if any(field.name.lower() == LETTER for field in schema):
            raise InvalidInput(f"the column {LETTER!r} cannot be used: a pipeline has its dead letters in it")
        output = StructType([StructField(field.name, field.dataType) for field in schema])  # letters have nulls
        if plan.deduplicate is None:
            return PipelineRows(output, plan.on_records, parse, steps), output
        plan.deduplicate.check(output.names)
        rows = PipelineRows(output, plan.on_records, parse, steps, with_times=True)
        return rows, StructType([*output, StructField(SEEN, TimestampType())])

    def _run_and_wait(self, stopping: Stopping) -> None:
        worker = self._thread()
        worker.start()
        while worker.is_alive():
            worker.join(_POLL_SECONDS)
            for ticker in self._tickers:
                ticker.tick()
            self._progress.show()
            stopping.log_signals()
            if stopping.is_asked:
                self._stop.set()
            if stopping.is_urgent:
                self._give_up(worker)
                return
        if self._failure is not None:
            raise self._failure

    def _thread(self) -> threading.Thread:
        """The thread of the loop. A job has the group, or with Connect the tag, of the thread that starts it."""
        if is_connect(self._spark):

            def run_with_tag() -> None:
                self._spark.addTag(self._group)
                self._run_loop()

            return threading.Thread(target=run_with_tag, name="penstock-blocks", daemon=True)

        def run_in_group() -> None:
            _make_active(self._spark)
            self._spark.sparkContext.setJobGroup(self._group, f"penstock: {redact(self._plan.source)}", True)
            self._run_loop()

        worker = InheritableThread(target=run_in_group, name="penstock-blocks")
        worker.daemon = True
        return worker

    def _run_loop(self) -> None:
        try:
            loop = self._loop()
            if loop is not None:
                with self._maintenance():
                    loop.run()
        except Exception as error:  # noqa: BLE001  raised again in the caller's thread
            self._failure = error
        except BaseException as error:  # noqa: BLE001  a sink's SystemExit would end this thread without a word
            failure = EngineError(f"a block ended with {type(error).__name__}: {error}. Nothing of it is acked")
            failure.__cause__ = error
            self._failure = failure

    def _maintenance(self) -> AbstractContextManager[object]:
        step, sink = self._plan.maintain, self._plan.sink
        if step is None or sink is None:
            return nullcontext()
        table = sink.open(self._spark)
        if not isinstance(table, Table):
            raise InvalidInput(f"maintain is for tables, and {sink.call} is none")
        # A table of its own: what a table remembers of its blocks is for one thread.
        return Maintenance(step, lambda: table)

    def _give_up(self, worker: threading.Thread) -> None:
        """Stop at once: cancel the jobs. The thread commits nothing more, whatever a sink of the user's still does."""
        self._is_given_up = True
        with suppress(Exception):  # Spark is gone, and with it the jobs
            if is_connect(self._spark):
                self._spark.interruptTag(self._group)
            else:
                self._spark.sparkContext.cancelJobGroup(self._group)
        worker.join(_STOP_SECONDS)

    def _tell_listeners(self, report: BlockReport) -> None:
        for listener in self._plan.listeners:
            listener(report)

    def _error_of(self, error: Exception) -> BaseException:
        what = "Spark failed" if isinstance(error, Py4JJavaError | PySparkException) else "Spark is gone"
        return our_error(error) or EngineError(f"{what}: {type(error).__name__}: {text_of(error)}")


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


def _check_options(parse: Parse) -> None:
    """Raise `InvalidInput` where an option of parsing does not fit the columns, whose case means nothing to Spark."""
    parse.options.check(parse.arrow_schema)
    rescue = parse.options.rescue
    if rescue is not None and rescue.lower() in {name.lower() for name in parse.schema.names}:
        raise InvalidInput(
            f"rescue names the column {rescue!r}, which the schema has in another case: give another name"
        )


def columns_of(schema: str | StructType) -> StructType:
    """The columns of a schema. Raises `InvalidInput` for DDL that cannot be read."""
    if isinstance(schema, StructType):
        return schema
    try:
        parsed = columns_from_ddl(schema)
    except Exception as error:
        raise InvalidInput(f"the schema {schema!r} cannot be read: {error}") from error
    if not isinstance(parsed, StructType):
        raise InvalidInput(f"the schema {schema!r} is no list of columns such as 'id bigint, event string'")
    return parsed


def _make_active(spark: Any) -> None:
    """Make a session that of this thread: data sources that are registered in it are found only there."""
    class_of = getattr(SparkSession, "_get_j_spark_session_class", None)  # Spark 3.5 has none
    sessions = spark._jvm.org.apache.spark.sql.SparkSession if class_of is None else class_of(spark._jvm)
    sessions.setActiveSession(spark._jsparkSession)
