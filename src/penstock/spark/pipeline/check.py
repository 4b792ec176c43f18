"""`penstock run --check`: everything that can be known of a pipeline before it runs, without a Spark session.

Only reads: no group is claimed or created, and no table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from pyspark.sql.types import StructType

from penstock.buffer import BufferQueue
from penstock.errors import InvalidInput, NotFound, PenstockError
from penstock.spark.pipeline.block_loop import query_of
from penstock.spark.pipeline.ddl import columns_in
from penstock.spark.pipeline.dead_letters import TABLE as LETTERS
from penstock.spark.pipeline.file import PipelineFile
from penstock.spark.source.options import ReadOptions
from penstock.spark.source.schemas import RECORD_FIELDS, UNPARSED
from penstock.spark.tables.contract import Table
from penstock.spark.tables.parquet.table import open_table
from penstock.storage import open_store, redact

_REACHED_BY_US = ("file", "s3", "gs", "az")


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found. `is_right` is None for what only a run can tell."""

    is_right: bool | None
    text: str


def check_pipeline(file: PipelineFile) -> Iterator[Finding]:
    """Check a pipeline's source, columns, tables and places, one after the other."""
    try:
        file.pipeline()
    except InvalidInput as error:
        yield Finding(False, str(error))
        return
    yield Finding(True, _steps(file))
    try:
        source, query = _check_source(file)
    except PenstockError as error:
        source, query = Finding(False, f"the source: {error}"), None
    yield source
    columns: StructType | None = None
    try:
        columns = _columns(file)
        if columns is None:
            yield Finding(None, "the schema has types or clauses that only Spark can read")
    except InvalidInput as error:
        yield Finding(False, str(error))
        return
    yield from _guarded("the sink", lambda: _check_sink(file, columns, query))
    letters = file.table.dead_letters
    if letters is not None:
        yield from _guarded("the dead letters", lambda: _check_letters(str(letters), query))
    elif file.table.parse is not None and file.table.parse.on_error == "dlq":
        yield Finding(True, "there is no dead_letters: an event that does not parse ends the run")


def _steps(file: PipelineFile) -> str:
    table = file.table
    steps = [f"{step.function} on records" for step in file.process if step.before_parse]
    steps += [] if table.parse is None else [f"parse {table.parse.format}"]
    steps += [f"{step.function} on columns" for step in file.process if not step.before_parse]
    return f"{file.path}: {', '.join(steps) or 'events as they are'}; trigger {table.trigger}"


def _guarded(what: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """What a check finds; and what it raises, as a finding."""
    try:
        yield from check()
    except PenstockError as error:
        yield Finding(False, f"{what}: {error}")


def _check_source(file: PipelineFile) -> tuple[Finding, str | None]:
    """The buffer and its group; and the name under which tables know them."""
    options = ReadOptions.of({"path": file.table.source, **{name: _text(one) for name, one in _options(file).items()}})
    where = redact(options.where)
    store = options.store
    try:
        store.head(options.manifest_path)
    except NotFound:
        return Finding(False, f"there is no buffer at {where}: no manifest {options.manifest_path!r}"), None
    view = BufferQueue(store, options.manifest_path, "consumer").look()
    query = query_of(str(view.buffer_id), options.group)
    group = view.groups.get(options.group)
    if group is None:
        start = "earliest" if options.starting_sequence is None else options.starting_sequence
        names = ", ".join(view.groups)
        said = f"the buffer {where} has no group {options.group!r} yet ({names}): the run creates it, at {start}"
        return Finding(True, said), query
    waiting = view.waiting_from(group.acked_through + 1)
    events = "" if waiting.records is None else f", {waiting.records} events"
    return Finding(True, f"source {where}, group {options.group!r}: {waiting.batches} batches{events} wait"), query


def _columns(file: PipelineFile) -> StructType | None:
    """The columns of the output; None where only Spark can say."""
    table = file.table
    schema: StructType | None = UNPARSED
    if table.sink is not None and table.sink.buffer is not None:
        schema = StructType(list(RECORD_FIELDS))
    if table.parse is not None:
        schema = columns_in(table.parse.schema)
    elif file.process:
        schema = StructType(list(RECORD_FIELDS))
    for step in file.process:
        if step.schema is not None:
            schema = columns_in(step.schema)
    return schema


def _check_sink(file: PipelineFile, columns: StructType | None, query: str | None) -> Iterator[Finding]:
    sink = file.table.sink
    if sink is None:
        return
    options = {name: _text(value) for name, value in sink.options.items()}
    partition_by = sink.partition_by or ()
    if sink.parquet is not None:
        if not _is_reached(sink.parquet):
            yield Finding(None, f"the table {redact(sink.parquet)} is reached by Spark only")
            return
        table = open_table(None, sink.parquet, partition_by=partition_by, options=options)
        yield from _check_table("parquet", table, columns, query)
    elif sink.delta is not None:
        module: Any = import_module("penstock.spark.tables.delta.table")
        yield from _check_table("delta", module.open_delta(sink.delta, partition_by=partition_by), columns, query)
    elif sink.buffer is not None:
        store = open_store(sink.buffer, **options)
        try:
            store.head(ReadOptions.of({"path": sink.buffer}).manifest_path)
            yield Finding(True, f"appends to the buffer {redact(sink.buffer)}")
        except NotFound:
            yield Finding(True, f"the buffer {redact(sink.buffer)} is not there yet: the run creates it")
    else:
        yield Finding(True, f"hands blocks to {sink.function}")


def _check_letters(url: str, query: str | None) -> Iterator[Finding]:
    if not _is_reached(url):
        yield Finding(None, f"the dead letters' table {redact(url)} is reached by Spark only")
        return
    yield from _check_table("dead letters, parquet", open_table(None, url), LETTERS, query)


def _check_table(kind: str, table: Table, columns: StructType | None, query: str | None) -> Iterator[Finding]:
    if columns is not None:
        table.check(columns)
    fits = "its columns fit" if columns is not None else "its columns are checked by the run"
    place = getattr(table, "url", table)
    try:
        info = table.info()
    except InvalidInput:
        yield Finding(True, f"table {place} ({kind}) is not there yet: the first block creates it")
        return
    position = None if query is None else info.positions.get(query)
    at = "it has nothing of this group yet" if position is None else f"it is at sequence {position.end}"
    count = "" if info.rows is None else f" {info.rows} rows,"
    yield Finding(True, f"table {place} ({kind}):{count} {info.files} files; {fits}; {at}")


def _is_reached(url: str) -> bool:
    scheme, separator, _ = url.partition("://")
    return not separator or scheme in _REACHED_BY_US


def _options(file: PipelineFile) -> dict[str, Any]:
    return dict(file.table.options)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
