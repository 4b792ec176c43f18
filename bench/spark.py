"""Spark on this machine: a stream of 4 million events of about 60 bytes, worked off in one `availableNow` query.

Beside ours stands what Spark has for files: its text stream for unparsed events, and its JSON stream into Parquet. The
files hold the same events, as many to a file as to a batch. Two times are shown: that of the block itself (Spark's
`addBatch`: reading, parsing, writing), and that of the whole query, which for all of them includes starting it.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from penstock import Producer, ProducerConfig

EVENTS = 4_000_000
BATCHES = 8
ROUNDS = 3
SCHEMA = "id bigint, event string, at timestamp"

Way = Callable[[Path], None]


def json_events(count: int, start: int) -> list[bytes]:
    """Events of about 60 bytes."""
    kinds = ["click", "view", "order", "search"]
    return [
        b'{"id": %d, "event": "%b", "at": "2026-11-%02dT12:%02d:%02dZ"}'
        % (number, random.choice(kinds).encode(), number % 28 + 1, number % 60, number // 60 % 60)
        for number in range(start, start + count)
    ]


def run() -> None:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryListener

    from penstock.spark import Pipeline, register

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[*]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "4g")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)

    class Listener(StreamingQueryListener):
        """Adds up how long the blocks of a query took."""

        def __init__(self) -> None:
            self.milliseconds = 0
            self.rows = 0
            self.ended = threading.Event()

        def onQueryStarted(self, event: Any) -> None:  # noqa: N802
            pass

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802
            self.milliseconds += event.progress.durationMs.get("addBatch", 0)
            self.rows += event.progress.numInputRows

        def onQueryIdle(self, event: Any) -> None:  # noqa: N802
            pass

        def onQueryTerminated(self, _event: Any) -> None:  # noqa: N802
            self.ended.set()

    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        root = Path(name)
        _write_events(root)

        def stream(reader: Any) -> Way:
            def work(place: Path) -> None:
                writer = (
                    reader(place).writeStream.format("noop").option("checkpointLocation", str(place / "checkpoint"))
                )
                writer.trigger(availableNow=True).start().awaitTermination()

            return work

        def pipeline(place: Path) -> None:
            one = Pipeline(place / "buffer", place / "checkpoint").parse("json", schema=SCHEMA)
            one.to_parquet(place / "table").run(spark, trigger="available_now")

        def pipeline_with_dead_letters(place: Path) -> None:
            one = Pipeline(place / "buffer", place / "checkpoint").parse("json", schema=SCHEMA)
            one.dead_letters(place / "letters").to_parquet(place / "table").run(spark, trigger="available_now")

        def spark_json(place: Path) -> None:
            rows = spark.readStream.schema(SCHEMA).json(str(place / "files"))
            writer = rows.writeStream.format("parquet").option("checkpointLocation", str(place / "checkpoint"))
            writer.trigger(availableNow=True).start(str(place / "table")).awaitTermination()

        ours = spark.readStream.format("penstock")
        contests: dict[str, dict[str, Way]] = {
            "unparsed": {
                "Penstock, value": stream(lambda place: ours.schema("value binary").load(str(place / "buffer"))),
                "Spark's text files": stream(lambda place: spark.readStream.text(str(place / "files"))),
                "Penstock, all columns": stream(
                    lambda place: spark.readStream.format("penstock").load(str(place / "buffer"))
                ),
            },
            "JSON to Parquet": {
                "Penstock": pipeline,
                "Spark's JSON files": spark_json,
                "Penstock, with a dead-letter table": pipeline_with_dead_letters,
            },
        }
        table = Table(title=f"Spark, {EVENTS:,} events, local[*], medians of {ROUNDS} rounds", title_justify="left")
        for column in ("work", "who", "block, s", "query, s", "rows/s in the block", "block", "query"):
            table.add_column(column, justify="left" if column in {"work", "who"} else "right")
        for title, ways in contests.items():
            times: dict[str, list[tuple[float, float]]] = {who: [] for who in ways}
            for number in range(ROUNDS + 1):  # the first one warms up
                for who, work in ways.items():
                    place = _fresh(root)
                    listener = Listener()
                    spark.streams.addListener(listener)
                    started = time.perf_counter()
                    work(place)
                    seconds = time.perf_counter() - started
                    assert listener.ended.wait(60)
                    spark.streams.removeListener(listener)
                    if number:
                        times[who].append((listener.milliseconds / 1000, seconds))
                    shutil.rmtree(place)
            medians = {who: tuple(map(statistics.median, zip(*found, strict=True))) for who, found in times.items()}
            first = next(iter(medians.values()))
            for who, (block, query) in medians.items():
                ratios = (
                    ("", "") if (block, query) == first else (f"{block / first[0]:.2f}x", f"{query / first[1]:.2f}x")
                )
                table.add_row(title, who, f"{block:.2f}", f"{query:.2f}", f"{EVENTS / block:,.0f}", *ratios)
                title = ""
            table.add_section()
        Console(width=120).print(table)
        print("A ratio says how many times as long as Penstock, the first of each work, it took.")
    spark.stop()


def _write_events(root: Path) -> None:
    (root / "files").mkdir()
    with Producer(root / "buffer", ProducerConfig(flush_size_bytes=1 << 30)) as producer:
        for number in range(BATCHES):
            some = json_events(EVENTS // BATCHES, number * (EVENTS // BATCHES))
            (root / "files" / f"{number}.json").write_bytes(b"\n".join(some) + b"\n")
            producer.produce(some)
            producer.flush()


def _fresh(root: Path) -> Path:
    """A copy for one query: links to the data, and a manifest of its own."""
    place = Path(tempfile.mkdtemp(dir=root))

    def copy_or_link(old: str, new: str) -> None:
        shutil.copy(old, new) if "manifest" in old else os.link(old, new)

    shutil.copytree(root / "buffer", place / "buffer", copy_function=copy_or_link)
    shutil.copytree(root / "files", place / "files", copy_function=copy_or_link)
    return place
