"""Everything that a pipeline knows before it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.engine import ColumnFunction, ParseFormat, Ticks
from penstock.spark.pipeline.steps import RecordFunction
from penstock.spark.source.options import OnError
from penstock.spark.tables.contract import Sink

Transform: TypeAlias = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True)
class ParseStep:
    """How payloads are parsed."""

    form: ParseFormat
    schema: str | StructType
    on_error: OnError


@dataclass(frozen=True, slots=True)
class Target:
    """A sink that a run opens: the call that named it, for messages, how to open it, and its URL if it has one.

    `shown_url` and the call have no credentials in them.
    """

    call: str
    open: Callable[[SparkSession], Sink] = field(repr=False)
    url: str | None = field(default=None, repr=False)
    shown_url: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """A pipeline's source, its steps in their order, and where its rows and dead letters go."""

    source: str
    checkpoint: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    on_records: tuple[RecordFunction, ...] = ()
    parse: ParseStep | None = None
    on_columns: tuple[tuple[ColumnFunction, str | StructType | None], ...] = ()
    transforms: tuple[Transform, ...] = ()
    dead_letters: Target | None = None
    sink: Target | None = None
    ticks: tuple[Ticks, ...] = ()
