"""Spark's streaming on this machine: 4 million events of about 60 bytes, unparsed, in one `availableNow` query.

Beside the data source `penstock` stands what Spark has for files: its text stream. The files hold the same events, as
many to a file as to a batch. Two times are shown: that of the block itself (Spark's `addBatch`), and that of the whole
query, which for all of them includes starting it. `python -m bench tables` has what a `Pipeline` does.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.spark_runs import EVENTS, ROUNDS, Times, Way, in_turns, session, timed_query, write_buffer, write_files


def run() -> None:
    from penstock.spark import register

    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name, session() as spark:
        register(spark)
        events = Path(name) / "events"
        write_buffer(events / "buffer", EVENTS)
        write_files(events / "files", EVENTS)

        def stream(reader: Callable[[Path], Any]) -> Way:
            def work(place: Path) -> Times:
                writer = reader(place).writeStream.format("noop")
                return timed_query(spark, writer.option("checkpointLocation", str(place / "checkpoint")))

            return work

        def ours() -> Any:
            return spark.readStream.format("penstock")

        ways: dict[str, Way] = {
            "Penstock, value": stream(lambda place: ours().schema("value binary").load(str(place / "buffer"))),
            "Spark's text files": stream(lambda place: spark.readStream.text(str(place / "files"))),
            "Penstock, all columns": stream(lambda place: ours().load(str(place / "buffer"))),
        }
        table = Table(title=f"Spark, {EVENTS:,} events, local[*], medians of {ROUNDS} rounds", title_justify="left")
        for column in ("who", "block, s", "query, s", "rows/s in the block", "block", "query"):
            table.add_column(column, justify="left" if column == "who" else "right")
        times = in_turns(events, ways)
        first = next(iter(times.values()))
        for who, one in times.items():
            ratios = ("", "") if one is first else (f"{one.block / first.block:.2f}x", f"{one.run / first.run:.2f}x")
            table.add_row(who, f"{one.block:.2f}", f"{one.run:.2f}", f"{EVENTS / one.block:,.0f}", *ratios)
        Console(width=120).print(table)
        print("A ratio says how many times as long as the first it took.")
