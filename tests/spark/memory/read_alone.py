"""What a task does, in a process of its own: it reads a whole backlog, and says how much memory that took."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from pyspark.sql.types import LongType, StringType, StructField, StructType

from penstock.buffer import Manifest
from penstock.engine import ParseFormat
from penstock.spark.pipeline.steps import Parse, PipelineRows
from penstock.spark.source.options import OnError, ReadOptions
from penstock.spark.source.partitions import BatchRun, Piece, measured
from penstock.spark.source.reading import read_run
from penstock.storage import open_store

SCHEMA = StructType(
    [StructField("id", LongType()), StructField("event", StringType()), StructField("text", StringType())]
)


def peak() -> int:
    """The most memory that this process ever had, in bytes."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) << 10


def main(url: str) -> None:
    """Read all batches as one partition, and print how many rows there were, and the peak."""
    store = open_store(url)
    batches = measured(store, Manifest.read(store).entries, count_records=False)
    rows = PipelineRows(SCHEMA, (), Parse(ParseFormat.JSON, SCHEMA, OnError.FAIL))
    run = BatchRun([Piece(batch) for batch in batches])
    count = sum(out.num_rows for out in read_run(run, ReadOptions.of({"path": url}), rows))
    print(json.dumps({"rows": count, "peak": peak()}))


if __name__ == "__main__":
    main(sys.argv[1])
