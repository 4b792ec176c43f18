"""Everything that a pipeline knows before it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.engine import ColumnFunction, ParseFormat, ParseOptions, PayloadSchemas, Ticks
from penstock.spark.pipeline.steps import RecordFunction
from penstock.spark.source.options import OnError
from penstock.spark.source.schemas import UNPARSED
from penstock.spark.tables.contract import Sink

if TYPE_CHECKING:
    from penstock.spark.pipeline.block_loop import BlockReport
    from penstock.spark.pipeline.deduplication import Deduplicate
    from penstock.spark.pipeline.maintenance import Maintain

Transform: TypeAlias = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True)
class ParseStep:
    """How payloads are parsed."""

    form: ParseFormat
    schema: str | StructType
    on_error: OnError
    options: ParseOptions = field(default_factory=ParseOptions)
    payload_schemas: PayloadSchemas = field(default_factory=PayloadSchemas)


@dataclass(frozen=True, slots=True)
class Target:
    """A sink that a run opens: the call that named it, for messages, how to open it, and its URL if it has one.

    `shown_url` and the call have no credentials in them.
    """

    call: str
    open: Callable[[SparkSession], Sink] = field(repr=False)
    url: str | None = field(default=None, repr=False)
    shown_url: str = ""
    unparsed: StructType = UNPARSED
    """The columns that it gets from a pipeline that neither parses nor processes."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A pipeline's source, its steps in their order, and where its rows and dead letters go."""

    source: str
    checkpoint: str | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    on_records: tuple[RecordFunction, ...] = ()
    parse: ParseStep | None = None
    on_columns: tuple[tuple[ColumnFunction, str | StructType | None], ...] = ()
    deduplicate: Deduplicate | None = None
    transforms: tuple[Transform, ...] = ()
    dead_letters: Target | None = None
    sink: Target | None = None
    ticks: tuple[Ticks, ...] = ()
    maintain: Maintain | None = None
    listeners: tuple[Callable[[BlockReport], object], ...] = ()
