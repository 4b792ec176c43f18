"""The job of `test_cluster`: it says where it is with a chosen record, and then waits there to be killed.

It is run as `job.py DATA CHECKPOINT`, with the command of the documentation. `DATA/hold` says in which step to wait,
and `DATA/kind` which kind the tables are of. The hosts have none of the other files of the tests.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from penstock.spark import Pipeline

BATCHES, RECORDS, BLOCK = 24, 50, 8  # batches of so many records, and how many of them are a block
CHOSEN = 2 * BLOCK * RECORDS - 2  # in the last batch of block 1: everything before it is done on both workers
MARK, AGAIN = "mark", "again"


def enrich(events: pa.RecordBatch) -> pa.RecordBatch:
    """Add a column, and refuse each tenth event."""
    compute: Any = pc
    numbers: list[Any] = events.column("id").to_pylist()
    refused = [f"{number} is refused" if number % 10 == 3 else None for number in numbers]
    place = compute.binary_join_element_wise(events.column("event"), "at home", "-")
    return events.append_column("place", place).append_column("_error", pa.array(refused, pa.string()))


def holding(folder: Path) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A step that leaves its session's id in `MARK` when the chosen record comes, and the second time in `AGAIN`."""

    def hold(events: pa.RecordBatch) -> pa.RecordBatch:
        if CHOSEN not in events.column("id").to_pylist():
            return events
        mark = folder / MARK
        has_come_before = mark.exists()
        part = folder / f".{os.getpid()}.part"
        part.write_text(str(os.getsid(0)))
        os.replace(part, folder / AGAIN if has_come_before else mark)
        while not has_come_before:
            signal.pause()
        return events

    return hold


def into_tables(pipeline: Pipeline, kind: str, data: str) -> Pipeline:
    """The pipeline, into two tables of that kind: where the readers of `kills.kinds` look for them."""
    if kind == "iceberg":
        catalog = {"warehouse": f"{data}/warehouse"}
        letters = pipeline.dead_letters("lake.kills.letters", kind=kind, catalog=catalog)
        return letters.to_iceberg("lake.kills.table", catalog=catalog)
    letters = pipeline.dead_letters(f"{data}/letters", kind=kind)
    return letters.to_delta(f"{data}/table") if kind == "delta" else letters.to_parquet(f"{data}/table")


def main(data: str, checkpoint: str) -> None:
    """Run the pipeline."""
    from pyspark.sql import SparkSession

    from penstock.spark import Pipeline
    from penstock.spark.map_in_arrow import map_in_arrow

    hold, columns = holding(Path(data)), "id bigint, event string, place string"

    def hold_each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return map(hold, batches)

    pipeline = (
        Pipeline(
            source=f"{data}/events",
            checkpoint=checkpoint,
            options={"maxBatchesPerTrigger": BLOCK, "targetPartitionBytes": 3000},
        )
        .parse("json", schema="id bigint, event string", on_error="dlq")
        .process(enrich, schema=columns)
    )
    if Path(data, "hold").read_text() == "reading":
        pipeline = pipeline.process(hold)
    else:
        pipeline = pipeline.transform(lambda rows: map_in_arrow(rows, hold_each, columns))
    pipeline = into_tables(pipeline, Path(data, "kind").read_text(), data)
    spark = SparkSession.builder.getOrCreate()
    print(pipeline.run(spark, trigger="available_now"))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
