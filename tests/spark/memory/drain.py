"""A driver that works off a buffer with a pipeline, and says what came out; see `test_bounded_memory`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

REPORT = "report.json"


def main(group: str, folder: str, sink: str, heap: str) -> None:
    """Join the group, if there is one, drain the buffer into a sink of that kind, and write down what the run did."""
    if group:
        Path(group, "cgroup.procs").write_text(str(os.getpid()))
    from penstock.buffer import Manifest
    from penstock.spark import Pipeline
    from penstock.storage import open_store
    from tests.spark.memory.backlog import COLUMNS
    from tests.support.spark_session import local_session

    spark = local_session(
        spark_driver_memory=heap,
        spark_local_dir=f"{folder}/spark",
        spark_sql_warehouse_dir=f"{folder}/warehouse",
        spark_sql_adaptive_enabled="false",
    )
    counted = 0

    def count(rows: Any, _block_id: str) -> None:
        nonlocal counted
        counted += rows.count()

    pipeline = Pipeline(source=f"{folder}/events", checkpoint=f"{folder}/checkpoint")
    pipeline = pipeline.parse("json", schema=COLUMNS)
    pipeline = pipeline.to(count) if sink == "counted" else pipeline.to_parquet(f"{folder}/table")
    done = pipeline.run(spark, trigger="available_now")
    if sink == "table":
        counted = spark.read.parquet(f"{folder}/table").count()
    queued = len(Manifest.read(open_store(f"{folder}/events")).entries)
    report = {"rows": done.rows, "counted": counted, "blocks": done.blocks, "seconds": done.seconds, "left": queued}
    Path(folder, REPORT).write_text(json.dumps(report))  # what is printed, Spark's log comes in between
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
