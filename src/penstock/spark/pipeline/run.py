"""One run of a pipeline: its query, its blocks, how it ends, and what it says meanwhile."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from pickle import PicklingError
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark import StorageLevel
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812  as everybody calls it
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import BinaryType, StructField, StructType

from penstock.core import get_logger
from penstock.engine import Ticker
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
from penstock.spark.pipeline.dead_letters import LETTER, TABLE, reason_in, unpacked
from penstock.spark.pipeline.map_in_arrow import map_in_arrow
from penstock.spark.pipeline.pipeline import AT_ONCE, Plan
from penstock.spark.pipeline.progress import Progress
from penstock.spark.pipeline.steps import ColumnStep, Parse, PipelineRows
from penstock.spark.pipeline.stopping import Stopping
from penstock.spark.source.data_source import PenstockDataSource, known_to
from penstock.spark.source.options import ReadOptions
from penstock.spark.source.reading import Rows
from penstock.spark.source.schemas import RECORD_FIELDS, UNPARSED
from penstock.spark.source.stream_reader import BLOCK, DONE, STOP, STOPPED
from penstock.spark.spark_errors import our_error
from penstock.spark.tables.commits import BlockCommit
from penstock.spark.tables.contract import BlockId
from penstock.spark.tables.sinks import BufferSink, OpenTable, TableSink

_LOOK_AGAIN = 0.1
_REASONS = 3
_STOPS_WITHIN = 5.0
_NOT_THE_SINKS = (EngineError, InvalidInput, Fenced)
_TIMESTAMPS = "spark.sql.parquet.outputTimestampType"

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

    source_name = "penstock-pipeline"
    rows: Rows
    output: StructType

    @classmethod
    def name(cls) -> str:
        """A name of its own in the session."""
        return cls.source_name

    def schema(self) -> StructType:
        """The columns of the output, and the dead letters."""
        return StructType([*self.output, StructField(LETTER, BinaryType())])

    def _rows(self, _schema: StructType, _options: ReadOptions) -> Rows:
        return self.rows


class PipelineRun:
    """One run."""

    def __init__(self, plan: Plan, spark: SparkSession, trigger: dict[str, Any]) -> None:
        if plan.sink is None:
            raise InvalidInput("the pipeline has no sink: add to_parquet, to_delta, to_buffer or to")
        self._plan = plan
        self._spark = spark
        self._trigger = trigger
        self._control = Path()
        self._tickers = [Ticker(ticks, time.monotonic) for ticks in plan.ticks]
        self._waits_for_triggers = trigger.get("processingTime", AT_ONCE) != AT_ONCE
        self._sink = plan.sink.open(spark)
        self._letters = None if plan.dead_letters is None else TableSink(plan.dead_letters).open(spark)
        _check_apart(self._sink, self._letters)
        self._failure: BaseException | None = None
        self._progress = Progress()
        self._rows = self._bytes = self._dead = self._blocks = 0

    def run(self) -> Summary:
        """Run to the end. Raises what went wrong, with Spark's exception as its cause."""
        started = time.monotonic()
        self._control = Path(tempfile.mkdtemp(prefix="penstock-run-"))
        try:
            with Stopping() as stopping, self._progress:
                self._run_query(self._source(), stopping)
        except PicklingError as error:
            raise InvalidInput(f"a process function cannot be sent to the executors: {error}") from error
        except (PySparkException, Py4JError, ConnectionError) as error:
            raise self._error_of(error) from error
        finally:
            shutil.rmtree(self._control, ignore_errors=True)
        return Summary(self._rows, self._bytes, self._dead, self._blocks, time.monotonic() - started)

    def _run_query(self, source: type[PenstockDataSource], stopping: Stopping) -> None:
        query = self._start(source, self._trigger)
        try:
            self._wait(query, stopping, idles=self._waits_for_triggers)
        finally:
            self._stop(query)
        if "availableNow" in self._trigger and not stopping.is_asked and not (self._control / DONE).exists():
            raise EngineError(
                "the query was stopped, by somebody else, before it was through: what is left is not acked, and the "
                "next run goes on with it"
            )
        is_acked = not self._waits_for_triggers or (self._control / STOPPED).exists()
        if is_acked or stopping.is_urgent or not stopping.is_asked:
            return
        # It was between two triggers: nobody has acked the last block yet, and with `stop` there this does no more.
        closing = self._start(source, {"availableNow": True})
        self._wait(closing, stopping, idles=False)
        self._stop(closing)

    def _stop(self, query: StreamingQuery) -> None:
        """Stop a query. Spark waits for a sink of the user's that does not come back; this does not for long."""
        stopper = threading.Thread(target=_stop_quietly, args=(query,), name="penstock-stop", daemon=True)
        stopper.start()
        stopper.join(_STOPS_WITHIN)

    def _source(self) -> type[PenstockDataSource]:
        plan, name = self._plan, f"penstock-pipeline-{uuid.uuid4().hex}"
        parse, schema = None, UNPARSED
        if plan.parse is not None:
            schema = _columns(plan.parse.schema)
            parse = Parse(plan.parse.form, schema, plan.parse.on_error)
        elif plan.on_records:
            schema = StructType(list(RECORD_FIELDS))
        steps = []
        for fn, told in plan.on_columns:
            schema = schema if told is None else _columns(told)
            steps.append(ColumnStep(fn, schema))
        if any(field.name.lower() == LETTER for field in schema):
            raise InvalidInput(f"the column {LETTER!r} is taken: a pipeline has its dead letters in it")
        if isinstance(plan.sink, BufferSink) and schema is UNPARSED:
            schema = StructType(list(RECORD_FIELDS))  # as records, and not as JSON of all that is known of them
        output = StructType([StructField(field.name, field.dataType) for field in schema])  # letters have nulls
        rows = PipelineRows(output, plan.on_records, parse, steps)
        source = known_to(self._spark, PipelineSource, source_name=name, rows=rows, output=output)
        self._spark.dataSource.register(source)
        return source

    def _start(self, source: type[PenstockDataSource], trigger: dict[str, Any]) -> StreamingQuery:
        options = {**self._plan.options, "controlDirectory": str(self._control)}
        stream = self._spark.readStream.format(source.name()).options(**options).load(self._plan.source)
        writer = stream.writeStream.foreachBatch(self._take_block).trigger(**trigger)
        return writer.option("checkpointLocation", self._plan.checkpoint).start()

    def _wait(self, query: StreamingQuery, stopping: Stopping, *, idles: bool) -> None:
        """Return when the query has ended, or may be stopped: one that `idles` between triggers, then too."""
        while not query.awaitTermination(_LOOK_AGAIN):  # type: ignore[arg-type]  # it takes fractions of a second too
            for ticker in self._tickers:
                ticker.tick()
            self._progress.show()
            if not stopping.is_asked:
                continue
            (self._control / STOP).touch()
            if stopping.is_urgent or (self._control / STOPPED).exists():
                return
            if idles and not query.status["isTriggerActive"]:
                return

    def _error_of(self, error: Exception) -> BaseException:
        if self._failure is not None:
            return self._failure
        if isinstance(error, StreamingQueryException):
            return our_error(error) or EngineError(f"the query ended: {error}")
        what = "Spark failed" if isinstance(error, Py4JJavaError | PySparkException) else "Spark is gone"
        return our_error(error) or EngineError(f"{what}: {type(error).__name__}: {error}")

    # A block: in a thread of Spark's, while its query waits.

    def _take_block(self, block: DataFrame, batch: int) -> None:
        session = block.sparkSession  # the query's own
        if not session.sparkContext.getConf().contains(_TIMESTAMPS):
            session.conf.set(
                _TIMESTAMPS, "TIMESTAMP_MICROS"
            )  # Spark's default is one that others cannot tell a zone of
        try:
            self._work_off(block, batch)
        except BaseException as error:
            self._failure = error
            raise

    def _work_off(self, block: DataFrame, batch: int) -> None:
        planned = json.loads((self._control / BLOCK).read_text())
        if planned["start"] == planned["end"]:
            return  # Spark's first block, where there was nothing yet
        query = block.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if query is None:
            raise EngineError(
                "Spark does not say which query a block is of: its id is missing among the local properties"
            )
        name = BlockId(query, batch, json.dumps({"sequence": planned["end"]}))
        started = time.monotonic()
        if self._has(name):
            _log.info("block %s is there already", name.name)
            return
        rows, dead = self._write(block, name)
        self._rows, self._bytes = self._rows + rows, self._bytes + planned["bytes"]
        self._dead, self._blocks = self._dead + dead, self._blocks + 1
        self._progress.note(
            rows=rows, size=planned["bytes"], dead=dead, lag=planned["lag"], seconds=time.monotonic() - started
        )

    def _has(self, name: BlockId) -> bool:
        # The letters come first: where the rows are, they are too.
        try:
            return self._sink.has(name)
        except Exception as error:
            raise self._failed(error, SinkFailed, f"looking for block {name.name} in {self._plan.sink}") from error

    def _write(self, block: DataFrame, name: BlockId) -> tuple[int, int]:
        """Write a block's letters, then its rows, and return how many there were of both."""
        if isinstance(self._sink, OpenTable) and self._letters is None and not self._plan.transforms:
            return self._write_in_one_pass(block, self._sink, name)
        # Several outputs of one block: reading it for each would run the process functions for each.
        kept = block.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            rows = self._transformed(kept.where(F.col(LETTER).isNull()).drop(LETTER))
            if isinstance(self._sink, OpenTable):
                self._sink.check(rows)
            dead, count = self._count(kept)
            if dead or self._letters is not None:
                self._write_letters(kept, name, dead)
            # Without a row nothing is due to the sink.
            return self._write_rows(rows, name, count - dead) if count > dead else 0, dead
        finally:
            with suppress(Exception):  # a session that is gone has nothing persisted
                kept.unpersist()

    def _write_in_one_pass(self, block: DataFrame, sink: OpenTable, name: BlockId) -> tuple[int, int]:
        """Stage the rows and count the letters at once: should there be any, what is staged is thrown away."""
        seen = Observation()
        try:
            observed = block.observe(seen, F.count(LETTER).alias("dead"), F.count(F.lit(1)).alias("all"))
            staged = sink.table.stage(observed.where(F.col(LETTER).isNull()).drop(LETTER), name)
        except Exception as error:
            raise self._failed(error, SinkFailed, f"writing block {name.name} with {self._plan.sink}") from error
        counts = seen.get
        if counts["dead"] or not counts["all"]:
            staged.discard()
        if counts["dead"]:
            raise self._unrouted(block, counts["dead"])
        if not counts["all"]:
            return 0, 0
        try:
            staged.commit()
        except Exception as error:
            raise self._failed(error, SinkFailed, f"committing block {name.name} with {self._plan.sink}") from error
        return counts["all"], 0

    def _count(self, block: DataFrame) -> tuple[int, int]:
        try:
            counted = block.agg(F.count(LETTER), F.count(F.lit(1))).first()
        except Exception as error:
            raise self._failed(error, ProcessFailed, "reading a block") from error
        return (0, 0) if counted is None else (counted[0], counted[1])

    def _write_letters(self, block: DataFrame, name: BlockId, dead: int) -> None:
        if self._letters is None:
            raise self._unrouted(block, dead)
        table = self._letters.table
        try:
            before = table.find(name)
            if before is not None:
                _check_same_letters(before, dead, table.url)
            elif dead:
                at = int(time.time() * 1e6)
                letters = block.where(F.col(LETTER).isNotNull()).select(LETTER)
                staged = table.stage(map_in_arrow(letters, lambda batches: unpacked(batches, at), TABLE), name)
                # Another driver may have done the block meanwhile; what this one found, later, is not so any more.
                staged.discard() if self._sink.has(name) else staged.commit()
        except Exception as error:
            raise self._failed(error, DeadLetterRouteFailed, f"writing {dead} dead letters to {table.url}") from error

    def _transformed(self, rows: DataFrame) -> DataFrame:
        for fn in self._plan.transforms:
            try:
                made: object = fn(rows)
            except Exception as error:
                raise ProcessFailed(f"a transform failed: {type(error).__name__}: {error}") from error
            if not isinstance(made, DataFrame):
                raise ProcessFailed(f"a transform must return a DataFrame, and returned {type(made).__name__}")
            rows = made
        return rows

    def _write_rows(self, rows: DataFrame, name: BlockId, count: int) -> int:
        """Write a block's rows, and return how many the sink got: `count`, unless a transform made others of them."""
        try:
            written = self._sink.write(rows, name)
            if written is None:
                written = rows.count() if self._plan.transforms else count
        except SinkFailed:
            raise  # it has its cause
        except Exception as error:
            raise self._failed(error, SinkFailed, f"writing block {name.name} with {self._plan.sink}") from error
        return written

    def _unrouted(self, block: DataFrame, dead: int) -> DeadLettersUnrouted:
        some = block.where(F.col(LETTER).isNotNull()).select(LETTER).limit(_REASONS).collect()
        reasons = "; ".join(reason_in(bytes(row[0])) for row in some)
        return DeadLettersUnrouted(
            f"{dead} dead letters, and no place for them; the first reasons: {reasons}. Give the pipeline a table for "
            "them with dead_letters(...)"
        )

    def _failed(self, error: Exception, kind: type[EngineError], what: str) -> BaseException:
        """The error to raise: where reading or processing failed, on an executor, that; or else the place it was in."""
        found = our_error(error)
        if isinstance(found, _NOT_THE_SINKS) or (found is not error and isinstance(found, NotFound | CorruptData)):
            return found
        return kind(f"{what} failed: {type(error).__name__}: {error if found is None else found}")


def _check_same_letters(before: BlockCommit, dead: int, url: str) -> None:
    """Letters are committed before rows: when the block comes again, they must be those it had."""
    if before.rows is not None and before.rows != dead:
        raise DeadLetterRouteFailed(
            f"the block {before.block} has {before.rows} dead letters in {url} from a run before, and makes {dead} "
            "now: the pipeline was changed in between. Nothing of the block is acked: remove that block from the dead "
            "letters, and run again"
        )


def _check_apart(sink: object, letters: OpenTable | None) -> None:
    """Raise `InvalidInput` where one table is the other, or lies in it: by what their places really are."""
    if letters is None or not isinstance(sink, OpenTable):
        return
    one, other = (f"{table.place.rstrip('/')}/" for table in (sink.table, letters.table))
    if one.startswith(other) or other.startswith(one):
        raise InvalidInput(
            f"the table and its dead letters need places of their own: {letters.table.url} is {sink.table.url}, or one "
            "lies in the other"
        )


def _stop_quietly(query: StreamingQuery) -> None:
    with suppress(Exception):  # it ended, or Spark did: what that means is said elsewhere
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
