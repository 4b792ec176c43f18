"""The tables of a pipeline file, and the keys of each. msgspec checks a file against them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from penstock.spark.pipeline.triggers import ASAP

Text: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\S")]
Options: TypeAlias = dict[str, Any]  # whose values are text, numbers, true or false

KINDS = ("parquet", "delta", "iceberg", "buffer", "function")
"""The keys of `[sink]` that say where rows go. One of them is set."""

GOES_WITH = {
    "partition_by": ("parquet", "delta", "iceberg"),
    "options": ("parquet", "delta", "buffer"),
    "catalog": ("iceberg",),
    "schema_evolution": ("parquet", "delta", "iceberg"),
    **dict.fromkeys(("merge_on", "order_by", "delete_when", "merge_max_bytes"), ("delta", "iceberg")),
}
"""The other keys of `[sink]`, and the kinds of sink that each goes with."""


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    def __repr__(self) -> str:
        return f"{type(self).__name__}(...)"  # there may be credentials among the options


class ParseTable(_Table, frozen=True, kw_only=True):
    """How records become columns."""

    format: Literal["json", "msgpack", "auto", "avro", "protobuf", "csv", "json-values"]
    schema: Text
    on_error: Literal["dlq", "skip", "fail"] = "dlq"
    mode: Literal["strict", "lenient"] = "strict"
    rescue: Text | None = None
    timestamp_unit: str | dict[str, str] | None = None
    avro_schema: Text | None = None
    protobuf_descriptors: Text | None = None
    protobuf_message: Text | None = None
    csv_columns: tuple[Text, ...] | None = None
    csv_delimiter: str = ","


class ProcessTable(_Table, frozen=True, kw_only=True):
    """A function of the user's; before parsing it gets records, after it columns."""

    function: Text
    schema: Text | None = None
    before_parse: bool = False


class DeduplicateTable(_Table, frozen=True, kw_only=True):
    """Which columns a row is known by, and for how long."""

    keys: tuple[Text, ...]
    within: Text = "1 hour"


class DeadLettersTable(_Table, frozen=True, kw_only=True):
    """Where dead letters go, where that is more than a place."""

    url: Text
    kind: Literal["parquet", "delta", "iceberg"] = "parquet"
    options: Options = {}
    catalog: Options | None = None


class SinkTable(_Table, frozen=True, kw_only=True):
    """Where the pipeline ends: one of the first five is set."""

    parquet: Text | None = None
    delta: Text | None = None
    iceberg: Text | None = None
    buffer: Text | None = None
    function: Text | None = None
    partition_by: tuple[Text, ...] | None = None
    options: Options = {}
    catalog: Options | None = None
    merge_on: tuple[Text, ...] | None = None
    order_by: Text | None = None
    delete_when: Text | None = None
    schema_evolution: Literal["add", "none"] = "add"
    merge_max_bytes: int | None = None


class MaintainTable(_Table, frozen=True, kw_only=True):
    """How often the table is compacted."""

    every: Text = "1 hour"
    target: Text = "128m"
    vacuum_older_than: Text | None = None


class SparkTable(_Table, frozen=True, kw_only=True):
    """The settings of the session."""

    master: Text | None = None
    app_name: Text | None = None
    config: Options = {}


class PipelineTable(_Table, frozen=True, kw_only=True):
    """The whole file."""

    source: Text
    checkpoint: Text | None = None
    trigger: Text = ASAP
    dead_letters: Text | DeadLettersTable | None = None
    options: Options = {}
    parse: ParseTable | None = None
    process: str | tuple[str | ProcessTable, ...] = ()
    deduplicate: DeduplicateTable | None = None
    sink: SinkTable | None = None
    maintain: MaintainTable | None = None
    spark: SparkTable = SparkTable()


TABLES: dict[str, type[_Table]] = {
    "": PipelineTable,
    "parse": ParseTable,
    "process": ProcessTable,
    "deduplicate": DeduplicateTable,
    "dead_letters": DeadLettersTable,
    "sink": SinkTable,
    "maintain": MaintainTable,
    "spark": SparkTable,
}
"""Every table, by its name."""
