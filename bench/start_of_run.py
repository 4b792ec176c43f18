"""What a pipeline's start costs: from `penstock run` to the first row, and on a session that runs already.

- **First row**: `bench/first_row.py`, in turns as it is, without the archive of the JVM's classes, and without our
  daemon of Spark's Python workers. The first start of all writes the archive, and is shown on its own.
- **Processes**: of the run with the median time, when each was started, and the processor time it used until the first
  row. Those that used less than 10 ms are left out.
- **Imports**: Python's own count (`-X importtime`) of `penstock run` until the first row, and of the daemon, by
  packages: the time that modules of a package take themselves, without what they import.
- **Warm session**: runs over one event, ours beside Spark's JSON file stream: the whole run, its block, and the rest,
  which is what a start and an end cost.

`PENSTOCK_BENCH_STARTS` says how many runs (5).
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.first_row import FirstRow, environment, first_row, make_place
from bench.spark_runs import (
    SCHEMA,
    Times,
    fresh,
    json_events,
    session,
    spark_json_to_parquet,
    timed_pipeline,
    write_buffer,
)

STARTS = int(os.environ.get("PENSTOCK_BENCH_STARTS", "5"))
AS_IT_IS = "as it is"
VARIANTS: Mapping[str, Mapping[str, str]] = {
    AS_IT_IS: {},
    "without the archive of classes": {"spark.driver.extraJavaOptions": "-Xshare:auto"},
    "without our daemon of workers": {"spark.python.daemon.module": "pyspark.daemon"},
}
TOP_IMPORTS = 15
_LEAST_CPU_SECONDS = 0.01
_IMPORT = re.compile(r"import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)")


def first_rows(root: Path) -> tuple[Table, FirstRow]:
    """The times to the first row, and the run of the median time as it is."""
    cache = root / "cache"
    table = _table("From `penstock run` to the first row in the table", "how", "median, s", "each, s")
    first = first_row(make_place(root / "first", {}), cache)
    table.add_row("the first start, which writes the archive", f"{first.seconds:.1f}", "")
    runs: dict[str, list[FirstRow]] = {name: [] for name in VARIANTS}
    for number in range(STARTS):
        for name, settings in VARIANTS.items():
            runs[name].append(first_row(make_place(root / f"{number} {name}", settings), cache))
    for name, some in runs.items():
        times = [one.seconds for one in some]
        table.add_row(name, f"{statistics.median(times):.1f}", " ".join(f"{one:.1f}" for one in times))
    median = statistics.median_low(one.seconds for one in runs[AS_IT_IS])
    return table, next(one for one in runs[AS_IT_IS] if one.seconds == median)


def processes(run: FirstRow) -> Table:
    """Every process of a run, in the order of their starts."""
    title = f"Processes until the first row, after {run.seconds * 1000:,.0f} ms"
    table = _table(title, "process", "started, ms", "ended, ms", "processor time, ms")
    for one in sorted(run.processes.values(), key=lambda one: one.started):
        if one.cpu >= _LEAST_CPU_SECONDS:
            ended = "" if one.ended is None else f"{one.ended * 1000:,.0f}"
            table.add_row(one.what, f"{max(one.started, 0) * 1000:,.0f}", ended, f"{one.cpu * 1000:,.0f}")
    return table


def imports(root: Path) -> Table:
    """What Python imports in `penstock run`, and in the daemon."""
    with_times = first_row(make_place(root / "imports", {}), root / "cache", ["-X", "importtime"])
    by_run, by_daemon = _by_package(with_times.stderr), _by_package(_imports_of_daemon(root / "cache"))
    table = Table(title="Imports, by packages", title_justify="left")
    for name in ("penstock run", "ms", "daemon of workers", "ms"):
        table.add_column(name, justify="right" if name == "ms" else "left")
    for (one, milliseconds), (other, more) in zip(by_run[:TOP_IMPORTS], by_daemon[:TOP_IMPORTS], strict=False):
        table.add_row(one, f"{milliseconds:.0f}", other, f"{more:.0f}")
    table.add_section()
    all_of_run, all_of_daemon = (sum(one for _, one in some) for some in (by_run, by_daemon))
    table.add_row("all", f"{all_of_run:.0f}", "all", f"{all_of_daemon:.0f}")
    return table


def _imports_of_daemon(cache: Path) -> str:
    """With the path that Spark gives it: archives of PySpark come first."""
    import pyspark

    archives = sorted(map(str, Path(pyspark.__file__).parent.glob("python/lib/*.zip")))
    path = os.pathsep.join([*archives, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])
    code = "from penstock.spark.worker_daemon import preload; preload()"
    command = [sys.executable, "-X", "importtime", "-c", code]
    done = subprocess.run(
        command, env=environment(cache) | {"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    return done.stderr


def _by_package(text: str) -> list[tuple[str, float]]:
    """Milliseconds by package, most first, of what `-X importtime` printed; of ours, by the packages in it."""
    found = defaultdict[str, float](float)
    for microseconds, module in _IMPORT.findall(text):
        parts = module.split(".")
        found[".".join(parts[: 2 if parts[0] == "penstock" else 1])] += int(microseconds) / 1000
    return sorted(found.items(), key=lambda one: -one[1])


def warm_starts(root: Path) -> Table:
    """Runs over one event, on a session that has run both before."""
    one_event = root / "one"
    write_buffer(one_event / "buffer", 1, batches=1)
    (one_event / "files").mkdir()
    (one_event / "files" / "0.json").write_bytes(json_events(1, 0)[0] + b"\n")
    with session() as spark:
        from penstock.spark import Pipeline

        def ours(place: Path) -> Times:
            pipeline = Pipeline(place / "buffer", place / "checkpoint").parse("json", schema=SCHEMA)
            return timed_pipeline(spark, pipeline.to_parquet(place / "table"), 1)

        ways = {"Penstock": ours, "Spark's JSON files": spark_json_to_parquet(spark)}
        runs: dict[str, list[Times]] = {name: [] for name in ways}
        for number in range(STARTS + 1):  # the first one warms up
            for name, work in ways.items():
                with fresh(one_event) as place:
                    times = work(place)
                if number:
                    runs[name].append(times)
    title = "A run over one event on a warm session (goal: ours within 0.8 s of Spark's)"
    table = _table(title, "who", "run, s", "block, s", "the rest, s", "each run, s")
    for name, some in runs.items():
        run = statistics.median(one.run for one in some)
        block = statistics.median(one.block for one in some)
        rest = statistics.median(one.run - one.block for one in some)
        each = " ".join(f"{one.run:.2f}" for one in some)
        table.add_row(name, f"{run:.2f}", f"{block:.2f}", f"{rest:.2f}", each)
    return table


def _table(title: str, text: str, *numbers: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(text)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def run() -> None:
    console = Console(width=120)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        root = Path(name)
        times, median = first_rows(root)
        console.print(times)
        console.print(processes(median))
        console.print(imports(root))
        console.print(warm_starts(root))
