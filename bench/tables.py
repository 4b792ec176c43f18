"""Tables, on this machine's disk: JSON into Parquet, Delta and Iceberg, beside Spark's own JSON file stream to Parquet.

- **JSON into a table**: 4 million events of about 60 bytes. A ratio says how many times as fast as Spark's stream.
- **Dead letters**: the same to Parquet, with and without a table of dead letters, where no event is bad, and where one
  in a hundred is. A ratio says how many times as long as the same events take without such a table; where events are
  bad, a pipeline without one has to skip them.
- **Upserts**: a stream of changes of keys in 8 blocks, one change in 50 a delete, beside the same events appended.
- **Small blocks**: 1,000 blocks of 50 events: files and the time to read all rows, before and after `compact`.

`PENSTOCK_BENCH_EVENTS`, `PENSTOCK_BENCH_ROUNDS` and `PENSTOCK_BENCH_SMALL_BLOCKS` make it smaller.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.spark_runs import (
    BATCHES,
    EVENTS,
    ROUNDS,
    SCHEMA,
    Times,
    Way,
    fresh,
    in_turns,
    session,
    spark_json_to_parquet,
    timed_pipeline,
    write_buffer,
    write_files,
)
from penstock import Producer, ProducerConfig

BAD_IN = 100
CHANGES = EVENTS // 10
KEYS = max(CHANGES // 4, 1)
DELETE_IN = 50
SMALL_BLOCKS = int(os.environ.get("PENSTOCK_BENCH_SMALL_BLOCKS", "1000"))
EVENTS_PER_SMALL_BLOCK = 50
KINDS = ("Parquet", "Delta", "Iceberg")
_NAME = "bench.events.rows"
_CHANGED = "id bigint, version bigint, deleted boolean"


def pipeline_to(kind: str, place: Path, schema: str = SCHEMA, *, on_error: str = "dlq", **options: Any) -> Any:
    """A pipeline from a buffer to a table, with its rows parsed."""
    from penstock.spark import Pipeline

    merge = options.pop("merge", {})
    pipeline = Pipeline(place / "buffer", place / "checkpoint", options=options)
    pipeline = pipeline.parse("json", schema=schema, on_error=on_error)
    if kind == "Parquet":
        return pipeline.to_parquet(place / "table")
    if kind == "Delta":
        return pipeline.to_delta(place / "table", **merge)
    return pipeline.to_iceberg(_NAME, catalog=_catalog(place), **merge)


def open_table(kind: str, place: Path, spark: Any) -> Any:
    """The table that such a pipeline wrote."""
    from penstock.spark.tables.opening import TableKind, open_any_table

    where = _NAME if kind == "Iceberg" else str(place / "table")
    catalog = _catalog(place) if kind == "Iceberg" else None
    return open_any_table(spark, where, kind=TableKind(kind.lower()), catalog=catalog)


def files_of(kind: str, place: Path) -> list[str]:
    """The data files of a table as it is now, as a stranger finds them: by the format's own library, or by a glob."""
    if kind == "Parquet":
        return [str(path) for path in (place / "table").glob("block=*/**/*.parquet")]
    if kind == "Delta":
        from deltalake import DeltaTable

        return [str(uri) for uri in DeltaTable(place / "table").file_uris()]
    from pyiceberg.catalog import load_catalog

    directory = place / "warehouse"
    uri = next(directory.glob("*.db"))
    table = load_catalog("bench", type="sql", uri=f"sqlite:///{uri}").load_table(_NAME.partition(".")[2])
    return [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]


def _catalog(place: Path) -> dict[str, str]:
    (place / "warehouse").mkdir(exist_ok=True)
    return {"warehouse": str(place / "warehouse")}


def json_into_tables(spark: Any, root: Path) -> Table:
    """Spark's stream first: the others are measured by it."""

    def ours(kind: str) -> Way:
        return lambda place: timed_pipeline(spark, pipeline_to(kind, place), EVENTS)

    ways: dict[str, Way] = {"Spark's JSON files to Parquet": spark_json_to_parquet(spark)}
    ways |= {f"Penstock to {kind}": ours(kind) for kind in KINDS}
    times = in_turns(root, ways)
    theirs = next(iter(times.values()))
    table = _table(
        f"JSON into a table, {EVENTS:,} events, medians of {ROUNDS} rounds (goals: 2x in the block, 1.5x in the run)",
        ("who",),
        ("block, s", "run, s", "rows/s in the block", "block, as fast", "run, as fast"),
    )
    for who, one in times.items():
        ratios = ("", "") if one is theirs else (f"{theirs.block / one.block:.2f}x", f"{theirs.run / one.run:.2f}x")
        table.add_row(who, f"{one.block:.2f}", f"{one.run:.2f}", f"{EVENTS / one.block:,.0f}", *ratios)
    return table


def dead_letters(spark: Any, good: Path, bad: Path) -> Table:
    """What a table of dead letters costs a block."""

    def without(place: Path) -> Times:
        return timed_pipeline(spark, pipeline_to("Parquet", place), EVENTS)

    def skipping(place: Path) -> Times:
        good_events = EVENTS - EVENTS // BAD_IN
        return timed_pipeline(spark, pipeline_to("Parquet", place, on_error="skip"), good_events)

    def with_letters(place: Path) -> Times:
        return timed_pipeline(spark, pipeline_to("Parquet", place).dead_letters(place / "letters"), EVENTS)

    table = _table(
        f"Dead letters, {EVENTS:,} events to Parquet (goal: at most 1.15 of the block without)",
        ("bad events", "who"),
        ("block, s", "run, s", "block takes", "run takes"),
    )
    for share, root, plain in (("none", good, without), (f"1 in {BAD_IN}", bad, skipping)):
        name = "without a dead-letter table" + (", bad events skipped" if plain is skipping else "")
        times = in_turns(root, {name: plain, "with a dead-letter table": with_letters})
        first = times[name]
        for who, one in times.items():
            ratios = ("", "") if one is first else (f"{one.block / first.block:.2f}x", f"{one.run / first.run:.2f}x")
            table.add_row(share, who, f"{one.block:.2f}", f"{one.run:.2f}", *ratios)
            share = ""
        table.add_section()
    return table


def upserts(spark: Any, root: Path) -> Table:
    """Changes of keys, merged and appended."""
    changes = root / "changes"
    _write_changes(changes / "buffer")
    merge = {"merge_on": ["id"], "order_by": "version", "delete_when": "deleted"}

    def work(kind: str, rule: dict[str, Any]) -> Way:
        def run(place: Path) -> Times:
            return timed_pipeline(
                spark, pipeline_to(kind, place, _CHANGED, merge=rule, maxBatchesPerTrigger=1), CHANGES
            )

        return run

    ways: dict[str, Way] = {}
    for kind in KINDS[1:]:
        ways |= {f"{kind}, merged": work(kind, merge), f"{kind}, appended": work(kind, {})}
    times = in_turns(changes, ways)
    table = _table(
        f"Upserts: {CHANGES:,} changes of {KEYS:,} keys in {BATCHES} blocks",
        ("who",),
        ("blocks, s", "run, s", "rows/s in the blocks"),
    )
    for who, one in times.items():
        table.add_row(who, f"{one.block:.2f}", f"{one.run:.2f}", f"{CHANGES / one.block:,.0f}")
    return table


def _write_changes(place: Path) -> None:
    each = CHANGES // BATCHES
    with Producer(place, ProducerConfig(flush_size_bytes=1 << 30)) as producer:
        for batch in range(BATCHES):
            numbers = range(batch * each, (batch + 1) * each)
            producer.produce(
                [
                    b'{"id": %d, "version": %d, "deleted": %b}'
                    # A prime: the keys of a block are spread over all of them.
                    % (number * 7919 % KEYS, number, b"false" if number % DELETE_IN else b"true")
                    for number in numbers
                ]
            )
            producer.flush()


def small_blocks(spark: Any, root: Path) -> Table:
    """What many small blocks cost a reader, and what `compact` changes."""
    events = SMALL_BLOCKS * EVENTS_PER_SMALL_BLOCK
    small = root / "small"
    write_buffer(small / "buffer", events, batches=SMALL_BLOCKS)
    table = _table(
        f"{SMALL_BLOCKS:,} blocks of {EVENTS_PER_SMALL_BLOCK} events: files, and seconds to read all rows",
        ("kind", "when"),
        ("files", "DuckDB, s", "Spark, s", "a block took, ms", "compact took, s"),
    )
    for kind in KINDS:
        with fresh(small) as place:
            one = timed_pipeline(spark, pipeline_to(kind, place, maxBatchesPerTrigger=1), events)
            per_block = f"{one.block / SMALL_BLOCKS * 1000:.0f}"
            table.add_row(kind, "before compact", *_read_times(kind, place, spark, events), per_block, "")
            opened = open_table(kind, place, spark)
            if not hasattr(opened, "compact"):
                table.add_row("", "after compact", "it has no compact", "", "", "", "")
            else:
                started = time.perf_counter()
                opened.compact()
                seconds = time.perf_counter() - started
                table.add_row("", "after compact", *_read_times(kind, place, spark, events), "", f"{seconds:.2f}")
        table.add_section()
    return table


def _read_times(kind: str, place: Path, spark: Any, events: int) -> Sequence[str]:
    """How many files, and the times of DuckDB and Spark, each with finding the files."""
    import duckdb

    from penstock.spark import Pipeline

    def by_duckdb() -> int:
        with duckdb.connect() as connection:
            asked = 'select count(id), max(event), max(epoch_us("at")) from read_parquet(?, hive_partitioning = false)'
            found = connection.execute(asked, [files_of(kind, place)]).fetchone()
        return int(found[0]) if found else 0

    def by_spark() -> int:
        catalog = _catalog(place) if kind == "Iceberg" else None
        rows = Pipeline.read_table(spark, _NAME if catalog else place / "table", kind=kind.lower(), catalog=catalog)
        return int(rows.selectExpr("count(id)", "max(event)", "max(at)").collect()[0][0])

    return [f"{len(files_of(kind, place)):,}", _median_seconds(by_duckdb, events), _median_seconds(by_spark, events)]


def _median_seconds(read: Callable[[], int], events: int) -> str:
    seconds = []
    for _ in range(ROUNDS + 1):  # the first one warms up
        started = time.perf_counter()
        assert read() == events
        seconds.append(time.perf_counter() - started)
    return f"{statistics.median(seconds[1:]):.2f}"


def _table(title: str, texts: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in texts:
        table.add_column(name)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def run() -> None:
    console = Console(width=120)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name, session() as spark:
        root = Path(name)
        good, bad = root / "good", root / "bad"
        write_buffer(good / "buffer", EVENTS)
        write_files(good / "files", EVENTS)
        write_buffer(bad / "buffer", EVENTS, bad_in=BAD_IN)
        console.print(json_into_tables(spark, good))
        console.print(dead_letters(spark, good, bad))
        console.print(upserts(spark, root))
        console.print(small_blocks(spark, root))
