"""`Pipeline`: from a buffer to a table, exactly once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.core import as_word, check_seconds
from penstock.engine import ParseFormat
from penstock.errors import InvalidInput
from penstock.spark.pipeline.plan import ParseStep, Plan, Target, Transform
from penstock.spark.pipeline.run import PipelineRun, Summary
from penstock.spark.pipeline.triggers import spark_trigger
from penstock.spark.source.options import OnError, ReadOptions
from penstock.spark.tables.buffer import BufferSink
from penstock.spark.tables.contract import Sink
from penstock.spark.tables.delta import DeltaSink, check_delta
from penstock.spark.tables.function import FunctionSink, SinkFunction
from penstock.spark.tables.parquet.table import open_table, read_table
from penstock.storage import local_path, redact

_RESERVED = frozenset({"path", "format", "columns", "onerror", "controldirectory"})


class Pipeline:
    """Reads a buffer, parses, processes, separates dead letters, and writes a table: each event once.

    Every call returns a new pipeline with one more step; `run` runs it. The steps are in the order of the calls:
    `process` before `parse` gets a `WorkBatch` of raw records and returns one; after it, a `pyarrow.RecordBatch` of
    the parsed columns, and returns one with the columns of `schema` (by default the same), where rows with a non-null
    `_error` become dead letters. These functions run on the executors, and must be deterministic: a lost executor, or
    a crash, computes a block again. `transform` gets and returns a DataFrame: each block, on its own.

    `options` are the read options of the data source, and those of the source's store.

    Each call raises `InvalidInput` for what cannot be right.
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        checkpoint: str | os.PathLike[str],
        *,
        options: Mapping[str, object] | None = None,
    ) -> None:
        given = _texts(options)
        reserved = next((name for name in given if name.lower() in _RESERVED), None)
        if reserved is not None:
            raise InvalidInput(f"options cannot have {reserved!r}: a pipeline sets it itself")
        self._plan = Plan(_place("source", source), _for_spark(_place("checkpoint", checkpoint)), given)
        ReadOptions.of({"path": self._plan.source, **given})

    def __repr__(self) -> str:
        return redact(f"Pipeline(source={self._plan.source!r}, checkpoint={self._plan.checkpoint!r})")

    def parse(self, format: str, schema: str | StructType, on_error: str = "dlq") -> Pipeline:  # noqa: A002  as in Spark
        """Parse payloads (`json`, `msgpack`) into the columns of a schema (DDL, or a `StructType`).

        A payload that does not parse follows `on_error`: `dlq` makes it a dead letter, `skip` drops it, `fail` fails
        the run.
        """
        if self._plan.parse is not None:
            raise InvalidInput("parse is there already: a pipeline parses once")
        self._check_before_transform("parse")
        form = as_word("format", ParseFormat, format)
        return self._with(parse=ParseStep(form, _schema(schema), as_word("on_error", OnError, on_error)))

    def process(self, fn: Callable[[Any], Any], schema: str | StructType | None = None) -> Pipeline:
        """Run a function on the executors: on records before `parse`, on columns after it."""
        self._check_before_transform("process")
        if not callable(fn):
            raise InvalidInput(f"process takes a function, not {type(fn).__name__}")
        if self._plan.parse is not None:
            step = (fn, None if schema is None else _schema(schema))
            return self._with(on_columns=(*self._plan.on_columns, step))
        if schema is not None:
            raise InvalidInput("process takes a schema after parse only: before it there are records, and no columns")
        return self._with(on_records=(*self._plan.on_records, fn))

    def transform(self, fn: Transform) -> Pipeline:
        """Make another DataFrame of each block's rows. It sees one block at a time, and keeps no state between them."""
        if not callable(fn):
            raise InvalidInput(f"transform takes a function of a DataFrame, not {type(fn).__name__}")
        return self._with(transforms=(*self._plan.transforms, fn))

    def dead_letters(self, url: str | os.PathLike[str], options: Mapping[str, object] | None = None) -> Pipeline:
        """Write dead letters into a table of their own, exactly once. Without one, a dead letter fails the run."""
        if self._plan.dead_letters is not None:
            raise InvalidInput("dead_letters is there already: a pipeline has one table for them")
        return self._with(dead_letters=_target("dead_letters", url, partial(open_table, options=_texts(options))))

    def to_parquet(
        self,
        url: str | os.PathLike[str],
        partition_by: Sequence[str] | None = None,
        options: Mapping[str, object] | None = None,
    ) -> Pipeline:
        """Write Parquet, exactly once: on a file system, or on an object store (`s3://`, `gs://`, `az://`).

        On a file system any reader sees each block whole or not at all. On an object store `read_table` does; others
        may see the files of an attempt that lost until they are swept. `options` are those of the store.
        """
        open_at = partial(open_table, partition_by=_names(partition_by), options=_texts(options))
        return self._to(_target("to_parquet", url, open_at))

    def to_delta(self, url: str | os.PathLike[str], partition_by: Sequence[str] | None = None) -> Pipeline:
        """Append to a Delta table, exactly once. Raises `InvalidInput` where Delta's package is not there."""
        check_delta()
        columns = _names(partition_by)
        return self._to(_target("to_delta", url, lambda _spark, place: DeltaSink(place, columns)))

    def to_buffer(self, url: str | os.PathLike[str], options: Mapping[str, object] | None = None) -> Pipeline:
        """Append to another buffer, as the data source's writer does: `value` as it is, other columns as JSON."""
        place = _place("to_buffer", url)
        if _is_same(place, self._plan.source):
            raise InvalidInput(
                f"to_buffer is the pipeline's own source, {place}: it would read what it writes for ever"
            )
        return self._to(_target("to_buffer", place, partial(BufferSink, options=_texts(options))))

    def to(self, fn: SinkFunction) -> Pipeline:
        """Hand each block to `fn(df, block_id)`, which returns None when its rows are safe.

        Or it returns a `WriteHandle`, a `concurrent.futures.Future`, or a list of these, which are waited for. Anything
        else (a DataFrame, a generator, a coroutine, a number) is a `SinkFailed`, and nothing is acked.

        A block comes again, with the same `block_id` and the same rows, whenever anything failed after `fn` began. What
        `fn` owes for exactly once: to keep the id in one step with the rows, and to do nothing for one that it has.
        """
        if not callable(fn):
            raise InvalidInput(f"to takes a function of a DataFrame and a block id, not {type(fn).__name__}")
        sink = FunctionSink(fn)
        return self._to(Target(str(sink), lambda _spark: sink))

    def every(self, seconds: float, fn: Callable[[], object]) -> Pipeline:
        """Call a function every so often while the pipeline runs, in the driver. What it raises is logged."""
        check_seconds("seconds", seconds)
        if not callable(fn):
            raise InvalidInput(f"every takes a function, not {type(fn).__name__}")
        return self._with(ticks=(*self._plan.ticks, (seconds, fn)))

    def run(self, spark: SparkSession, trigger: str = "asap") -> Summary:
        """Run to the end of the queue (`available_now`), or until a signal (`asap`, or an interval: `10 seconds`).

        `available_now` processes what is queued when it starts, and acks all of it. SIGTERM or Ctrl-C finishes the
        block in hand, acks it, and returns; a second one stops at once, and that block comes again.

        Raises our own errors, with Spark's as their cause: `Fenced`, `SinkFailed`, `ProcessFailed`, `ParseFailed`,
        `DeadLettersUnrouted`, `DeadLetterRouteFailed`, `NotFound`, `CorruptData` and others; nothing of that block is
        acked then, and the next run does it again.
        """
        if not isinstance(spark, SparkSession):
            raise InvalidInput(f"run takes a SparkSession, not {type(spark).__name__}")
        return PipelineRun(self._plan, spark, spark_trigger(trigger)).run()

    @staticmethod
    def read_table(
        spark: SparkSession, url: str | os.PathLike[str], options: Mapping[str, object] | None = None
    ) -> DataFrame:
        """Read a table that `to_parquet` or `dead_letters` writes: committed blocks, each once."""
        return read_table(spark, _place("url", url), _texts(options))

    def _to(self, sink: Target) -> Pipeline:
        if self._plan.sink is not None:
            raise InvalidInput(f"a pipeline has one sink, and this one has {self._plan.sink.call} already")
        return self._with(sink=sink)

    def _check_before_transform(self, what: str) -> None:
        if self._plan.transforms:
            raise InvalidInput(f"{what} comes before transform: it runs where blocks are read")

    def _with(self, **changes: Any) -> Pipeline:
        changed = object.__new__(Pipeline)
        changed._plan = plan = replace(self._plan, **changes)
        letters, sink = plan.dead_letters, plan.sink
        if letters and sink and letters.url and sink.url and _is_same(letters.url, sink.url):
            raise InvalidInput(f"{letters.call} and {sink.call} are the same place: give each its own")
        return changed


def _target(call: str, where: object, open_at: Callable[..., Sink]) -> Target:
    url = _place(call, where)
    return Target(redact(f"{call}({url!r})"), lambda spark: open_at(spark, url), url, redact(url))


def _place(name: str, where: object) -> str:
    if not isinstance(where, str | os.PathLike) or not os.fspath(where):
        raise InvalidInput(f"{name} must be a path or a URL, not {where!r}")
    place = os.fsdecode(where)
    if place.startswith("memory:"):
        raise InvalidInput(f"{name} cannot be {place!r}: Spark works in several processes, and memory is of one")
    return place if "://" in place else local_path(place)


def _for_spark(place: str) -> str:
    """A place as Spark writes it: a bare path is on this host's disk for us, and may be elsewhere for Spark."""
    is_local = "://" not in place or place.startswith("file:")
    return f"file://{local_path(place)}" if is_local else place


def _is_same(one: str, other: str) -> bool:
    return _for_spark(one).rstrip("/") == _for_spark(other).rstrip("/")


def _schema(schema: object) -> str | StructType:
    if not isinstance(schema, StructType) and not (isinstance(schema, str) and schema.strip()):
        raise InvalidInput(f"schema must be columns such as 'id bigint, event string', not {schema!r}")
    return schema


def _names(names: object) -> tuple[str, ...]:
    if names is None:
        return ()
    columns = tuple(names) if isinstance(names, Iterable) and not isinstance(names, str) else (None,)
    if not all(isinstance(name, str) for name in columns):
        raise InvalidInput(f"partition_by must be a list of column names, not {names!r}")
    return columns


def _texts(options: object) -> dict[str, str]:
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise InvalidInput(f"options must be a dict, not {type(options).__name__}")
    wrong = next((name for name in options if not isinstance(name, str)), None)
    if wrong is not None:
        raise InvalidInput(f"options must have text for names, not {wrong!r}")
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
