"""Runs on Spark, timed: a streaming query of Spark's own, and a pipeline of ours, over the same events.

Two times are taken of each run: that of its blocks (reading, parsing, writing, committing: Spark's `addBatch`, and what
`Pipeline.on_block` reports), and that of the whole run, with its start and its end.

`PENSTOCK_BENCH_EVENTS` and `PENSTOCK_BENCH_ROUNDS` make a run smaller.
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock import Producer, ProducerConfig

EVENTS = int(os.environ.get("PENSTOCK_BENCH_EVENTS", "4_000_000"))
ROUNDS = int(os.environ.get("PENSTOCK_BENCH_ROUNDS", "3"))
BATCHES = 8
SCHEMA = "id bigint, event string, at timestamp"
BROKEN = b'{"id": 1, "event": '


@dataclass(frozen=True)
class Times:
    """Seconds of a run: of its blocks, and of all of it."""

    block: float
    run: float


Way = Callable[[Path], Times]
"""Does the work in a folder that has `buffer` and `files`, and says how long it took."""


def json_events(count: int, start: int, *, bad_in: int = 0) -> list[bytes]:
    """Events of about 60 bytes, the same with each call; one in `bad_in` is no JSON."""
    kinds = [b"click", b"view", b"order", b"search"]
    choose = random.Random(start).choice
    return [
        b'{"id": %d, "event": "%b", "at": "2026-11-%02dT12:%02d:%02dZ"}'
        % (number, choose(kinds), number % 28 + 1, number % 60, number // 60 % 60)
        if not bad_in or number % bad_in
        else BROKEN
        for number in range(start, start + count)
    ]


def write_buffer(place: Path, events: int, *, batches: int = BATCHES, bad_in: int = 0) -> None:
    """Write events into a buffer, in so many batches."""
    each = max(events // batches, 1)
    with Producer(place, ProducerConfig(flush_size_bytes=1 << 30)) as producer:
        for number in range(batches):
            producer.produce(json_events(each, number * each, bad_in=bad_in))
            producer.flush()


def write_files(place: Path, events: int) -> None:
    """Write the same events into files of lines, as many to a file as to a batch."""
    place.mkdir()
    each = events // BATCHES
    for number in range(BATCHES):
        lines = b"\n".join(json_events(each, number * each))
        (place / f"{number}.json").write_bytes(lines + b"\n")


@contextmanager
def fresh(root: Path) -> Iterator[Path]:
    """A copy of a folder for one run: links to the data, and manifests of its own, which runs write to."""
    place = Path(tempfile.mkdtemp(prefix="run-", dir=root.parent))

    def copy_or_link(old: str, new: str) -> None:
        shutil.copy(old, new) if "manifest" in old else os.link(old, new)

    try:
        shutil.copytree(root, place, copy_function=copy_or_link, dirs_exist_ok=True)
        yield place
    finally:
        shutil.rmtree(place)


@contextmanager
def session(settings: Mapping[str, str] | None = None) -> Iterator[Any]:
    """A session of this machine's cores."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[*]")
    plain = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "4g",
        "spark.sql.session.timeZone": "UTC",
    }
    for name, value in (plain | dict(settings or {})).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def timed_query(spark: Any, writer: Any, table: Path | None = None) -> Times:
    """Run a streaming query to the end of what is there."""
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class Listener(StreamingQueryListener):
        """Adds up how long the blocks of a query took."""

        def __init__(self) -> None:
            self.milliseconds = 0
            self.ended = threading.Event()

        def onQueryStarted(self, event: Any) -> None:  # noqa: N802
            pass

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802
            self.milliseconds += event.progress.durationMs.get("addBatch", 0)

        def onQueryIdle(self, event: Any) -> None:  # noqa: N802
            pass

        def onQueryTerminated(self, _event: Any) -> None:  # noqa: N802
            self.ended.set()

    listener = Listener()
    spark.streams.addListener(listener)
    try:
        started = time.perf_counter()
        writer.trigger(availableNow=True).start(*([] if table is None else [str(table)])).awaitTermination()
        seconds = time.perf_counter() - started
        assert listener.ended.wait(60)
    finally:
        spark.streams.removeListener(listener)
    return Times(listener.milliseconds / 1000, seconds)


def timed_pipeline(spark: Any, pipeline: Any, events: int) -> Times:
    """Run a pipeline to the end of what is there. It has to find that many events."""
    blocks: list[float] = []
    started = time.perf_counter()
    done = pipeline.on_block(lambda report: blocks.append(report.seconds)).run(spark, trigger="available_now")
    seconds = time.perf_counter() - started
    assert done.rows + done.dead_letters == events, done
    return Times(sum(blocks), seconds)


def spark_json_to_parquet(spark: Any) -> Way:
    """Spark's own stream of JSON files, into Parquet."""

    def work(place: Path) -> Times:
        rows = spark.readStream.schema(SCHEMA).json(str(place / "files"))
        writer = rows.writeStream.format("parquet").option("checkpointLocation", str(place / "checkpoint"))
        return timed_query(spark, writer, place / "table")

    return work


def in_turns(root: Path, ways: Mapping[str, Way], rounds: int = ROUNDS, warm_ups: int = 1) -> dict[str, Times]:
    """The median times of each way, over rounds in which they take turns. The first ones warm up and do not count."""
    found: dict[str, list[Times]] = {who: [] for who in ways}
    for number in range(rounds + warm_ups):
        for who, work in ways.items():
            with fresh(root) as place:
                times = work(place)
            if number >= warm_ups:
                found[who].append(times)
    return {
        who: Times(statistics.median(one.block for one in all_), statistics.median(one.run for one in all_))
        for who, all_ in found.items()
    }
