"""`Pipeline`: from a buffer to a table, exactly once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.core import as_word, check_seconds
from penstock.engine import ParseFormat, ParseOptions, PayloadSchemas, check_schemas
from penstock.errors import InvalidInput
from penstock.spark.pipeline.block_loop import BlockReport
from penstock.spark.pipeline.deduplication import Deduplicate
from penstock.spark.pipeline.inferred_schema import INFER
from penstock.spark.pipeline.maintenance import Maintain
from penstock.spark.pipeline.plan import ParseStep, Plan, Target, Transform
from penstock.spark.pipeline.run import PipelineRun, Summary
from penstock.spark.pipeline.targets import Upsert, column_names, for_spark, place_of, table_target, target_at, texts
from penstock.spark.pipeline.triggers import Trigger, interval_of
from penstock.spark.sessions import is_session, use_this_python
from penstock.spark.source.options import OnError, ReadOptions, size_in_bytes
from penstock.spark.tables.buffer import BufferSink
from penstock.spark.tables.function import FunctionSink, SinkFunction
from penstock.spark.tables.opening import TableKind, kind_at, open_any_table
from penstock.storage import redact

_RESERVED = frozenset({"path", "format", "columns", "onerror"})


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
        checkpoint: str | os.PathLike[str] | None = None,
        *,
        options: Mapping[str, object] | None = None,
    ) -> None:
        given = texts(options)
        reserved = next((name for name in given if name.lower() in _RESERVED), None)
        if reserved is not None:
            raise InvalidInput(f"options cannot have {reserved!r}: a pipeline sets it itself")
        place = None if checkpoint is None else for_spark(place_of("checkpoint", checkpoint))
        self._plan = Plan(place_of("source", source), place, given)
        ReadOptions.of({"path": self._plan.source, **given})

    def __repr__(self) -> str:
        return redact(f"Pipeline(source={self._plan.source!r}, checkpoint={self._plan.checkpoint!r})")

    def parse(
        self,
        format: str,  # noqa: A002  as in Spark
        schema: str | StructType,
        on_error: str = "dlq",
        *,
        mode: str = "strict",
        rescue: str | None = None,
        timestamp_unit: str | Mapping[str, str] | None = None,
        payload_schemas: PayloadSchemas | None = None,
    ) -> Pipeline:
        """Parse payloads into the columns of a schema (DDL, a `StructType`, or `"infer"`).

        `format` is `json`, `msgpack`, `avro`, `protobuf`, `csv`, `auto` (each payload by the header `content-type`,
        or as JSON or MessagePack by its first byte) or `json-values` (any JSON value, into `value string`).
        `payload_schemas` has what Avro, Protobuf and CSV are written with.

        A payload that does not parse follows `on_error`: `dlq` makes it a dead letter, `skip` drops it, `fail` fails
        the run. With `mode="lenient"` a value that is not of its column's type goes in where it has one sensible
        meaning. `rescue` names a column of text for the fields that have no column. `timestamp_unit` (`s`, `ms`, `us`,
        `ns`) is what numbers count in columns of timestamps: one for all, or a mapping from columns.

        With `schema="infer"` the first events that wait are looked at, and what was found is logged and written beside
        the checkpoint; later runs read it there.
        """
        if self._plan.parse is not None:
            raise InvalidInput("parse is there already: a pipeline parses once")
        self._check_before_transform("parse")
        if schema == INFER and self._plan.checkpoint is None:
            raise InvalidInput("schema='infer' is written beside the checkpoint: Pipeline(..., checkpoint='...')")
        if schema == INFER and self._plan.on_records:
            raise InvalidInput(
                "schema='infer' looks at events as they are in the buffer, and process comes before parse here: give "
                "parse the columns of what it returns"
            )
        form = as_word("format", ParseFormat, format)
        options = ParseOptions(mode, rescue, timestamp_unit)
        schemas = PayloadSchemas() if payload_schemas is None else payload_schemas
        check_schemas("payload_schemas", schemas)
        schemas.check("format", form)
        action = as_word("on_error", OnError, on_error)
        return self._with(parse=ParseStep(form, _schema(schema), action, options, schemas))

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

    def deduplicate(self, keys: Sequence[str], within: str | float = "1 hour") -> Pipeline:
        """Leave out rows whose keys came before within a time, in the same block or an earlier one.

        The time is that at which events came into the buffer. A row with a null among its keys is kept. The keys that
        were let through are kept beside the checkpoint, which the pipeline needs for it.
        """
        columns = column_names("keys", keys)
        if not columns:
            raise InvalidInput("deduplicate needs the columns that a row is known by, such as ['id']")
        if self._plan.deduplicate is not None:
            raise InvalidInput("deduplicate is there already: a pipeline does it once")
        self._check_before_transform("deduplicate")
        if self._plan.checkpoint is None:
            raise InvalidInput("deduplicate keeps keys beside the checkpoint: Pipeline(..., checkpoint='...')")
        return self._with(deduplicate=Deduplicate(columns, interval_of("within", within)))

    def transform(self, fn: Transform) -> Pipeline:
        """Make another DataFrame of each block's rows.

        **It sees one block at a time, and keeps no state between them**: an aggregate is one of that block, and
        `dropDuplicates` finds duplicates within that block only. `deduplicate` finds them across blocks.
        """
        if not callable(fn):
            raise InvalidInput(f"transform takes a function of a DataFrame, not {type(fn).__name__}")
        return self._with(transforms=(*self._plan.transforms, fn))

    def dead_letters(
        self,
        url: str | os.PathLike[str],
        options: Mapping[str, object] | None = None,
        *,
        kind: str = "parquet",
        catalog: Mapping[str, object] | None = None,
    ) -> Pipeline:
        """Write dead letters into a table of their own, exactly once. Without one, a dead letter fails the run.

        `kind` is that of the table: `parquet`, `delta` or `iceberg`; for the last, `url` is the table's name, and
        `catalog` the properties of its catalog. The letters of a block are written in the same pass as its rows.
        """
        if self._plan.dead_letters is not None:
            raise InvalidInput("dead_letters is there already: a pipeline has one table for them")
        target = table_target("dead_letters", as_word("kind", TableKind, kind), url, options=options, catalog=catalog)
        return self._with(dead_letters=target)

    def to_parquet(
        self,
        url: str | os.PathLike[str],
        partition_by: Sequence[str] | None = None,
        options: Mapping[str, object] | None = None,
        *,
        schema_evolution: str = "add",
    ) -> Pipeline:
        """Write Parquet, exactly once: on a file system, or on an object store (`s3://`, `gs://`, `az://`).

        On a file system any reader sees each block whole or not at all. On an object store `read_table` does; others
        may see the files of an attempt that lost until they are swept. `options` are those of the store. With
        `schema_evolution="none"` a block with columns that the table does not have is refused.
        """
        return self._to(
            table_target(
                "to_parquet",
                TableKind.PARQUET,
                url,
                partition_by=partition_by,
                options=options,
                schema_evolution=schema_evolution,
            )
        )

    def to_delta(
        self,
        url: str | os.PathLike[str],
        partition_by: Sequence[str] | None = None,
        options: Mapping[str, object] | None = None,
        *,
        merge_on: Sequence[str] | None = None,
        order_by: str | None = None,
        delete_when: str | None = None,
        schema_evolution: str = "add",
        merge_max_bytes: int | None = None,
    ) -> Pipeline:
        """Write a Delta table, exactly once, without jars. Needs the extra `delta`.

        With `merge_on`, a row replaces the one with the same values in these columns: the last of a block wins, by
        `order_by` or in the order of the events; where `delete_when` is true, that row is deleted. `options` are those
        of the store.
        """
        upsert = Upsert.of(merge_on, order_by, delete_when, merge_max_bytes)
        return self._to(
            table_target(
                "to_delta",
                TableKind.DELTA,
                url,
                partition_by=partition_by,
                options=options,
                upsert=upsert,
                schema_evolution=schema_evolution,
            )
        )

    def to_iceberg(
        self,
        table: str,
        catalog: Mapping[str, object] | None = None,
        partition_by: Sequence[str] | None = None,
        *,
        merge_on: Sequence[str] | None = None,
        order_by: str | None = None,
        delete_when: str | None = None,
        schema_evolution: str = "add",
        merge_max_bytes: int | None = None,
    ) -> Pipeline:
        """Write an Iceberg table, exactly once, without jars. Needs the extra `iceberg`.

        The table is `catalog.namespace.table`. `catalog` has the properties of its catalog, as PyIceberg has them; with
        only a local `warehouse` there, it is an SQLite file in that directory, and without any PyIceberg's own
        configuration counts. `partition_by` takes transforms too: `days(at)`, `bucket(16, id)`. The rest is as for
        `to_delta`.
        """
        upsert = Upsert.of(merge_on, order_by, delete_when, merge_max_bytes)
        return self._to(
            table_target(
                "to_iceberg",
                TableKind.ICEBERG,
                table,
                partition_by=partition_by,
                catalog=catalog,
                upsert=upsert,
                schema_evolution=schema_evolution,
            )
        )

    def to_buffer(self, url: str | os.PathLike[str], options: Mapping[str, object] | None = None) -> Pipeline:
        """Append to another buffer, as the data source's writer does: `value` as it is, other columns as JSON."""
        place = place_of("to_buffer", url)
        if _is_same(place, self._plan.source):
            raise InvalidInput(
                f"to_buffer is the pipeline's own source, {place}: it would read what it writes for ever"
            )
        target = target_at("to_buffer", place, partial(BufferSink, options=texts(options)))
        return self._to(replace(target, unparsed=BufferSink.unparsed))

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

    def maintain(
        self,
        every: str | float = "1 hour",
        *,
        target: str | int = "128m",
        vacuum_older_than: str | float | None = None,
    ) -> Pipeline:
        """Compact the table every so often while the pipeline runs: small files into files of about `target`.

        A time is text (`10 minutes`) or a number of seconds, and a size is text (`128m`) or a number of bytes.

        With `vacuum_older_than` (`7 days`), files that were replaced that long ago are removed as well. Neither
        disturbs the pipeline or a reader.
        """
        if self._plan.maintain is not None:
            raise InvalidInput("maintain is there already: a pipeline has one table to maintain")
        older = None if vacuum_older_than is None else interval_of("vacuum_older_than", vacuum_older_than)
        step = Maintain(interval_of("every", every), size_in_bytes("target", target), older)
        return self._with(maintain=step)

    def on_block(self, fn: Callable[[BlockReport], object]) -> Pipeline:
        """Call a function with a report of each block that is committed, in the driver. What it raises is logged."""
        if not callable(fn):
            raise InvalidInput(f"on_block takes a function of a BlockReport, not {type(fn).__name__}")
        return self._with(listeners=(*self._plan.listeners, fn))

    def run(self, spark: SparkSession, trigger: str = "asap") -> Summary:
        """Run to the end of the queue (`available_now`), or until a signal (`asap`, or an interval: `10 seconds`).

        `available_now` processes what is queued when it starts, and acks all of it. SIGTERM or Ctrl-C finishes the
        block in hand, acks it, and returns; a second one stops at once, and that block comes again.

        Raises our own errors, with Spark's as their cause: `Fenced`, `SinkFailed`, `ProcessFailed`, `ParseFailed`,
        `DeadLettersUnrouted`, `DeadLetterRouteFailed`, `NotFound`, `CorruptData` and others; nothing of that block is
        acked then, and the next run does it again.
        """
        if not is_session(spark):
            raise InvalidInput(f"run takes a SparkSession, not {type(spark).__name__}")
        use_this_python(spark)
        return PipelineRun(self._plan, spark, Trigger.of(trigger)).run()

    @staticmethod
    def read_table(
        spark: SparkSession,
        url: str | os.PathLike[str],
        options: Mapping[str, object] | None = None,
        *,
        kind: str | None = None,
        catalog: Mapping[str, object] | None = None,
    ) -> DataFrame:
        """Read a table that a pipeline writes, dead letters too: committed blocks, each once. No jars are needed.

        `kind` is found by looking, unless it is given: an Iceberg table has a name and not a URL, and `catalog` is that
        of `to_iceberg`.
        """
        if kind is None:
            kind = TableKind.ICEBERG if catalog is not None else kind_at(place_of("url", url), texts(options))
        found = as_word("kind", TableKind, kind)
        where = str(url) if found is TableKind.ICEBERG else place_of("url", url)
        properties = None if catalog is None else texts(catalog)
        return open_any_table(spark, where, kind=found, options=texts(options), catalog=properties).read(spark)

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


def _is_same(one: str, other: str) -> bool:
    return for_spark(one).rstrip("/") == for_spark(other).rstrip("/")


def _schema(schema: object) -> str | StructType:
    if not isinstance(schema, StructType) and not (isinstance(schema, str) and schema.strip()):
        raise InvalidInput(f"schema must be columns such as 'id bigint, event string', not {schema!r}")
    return schema
