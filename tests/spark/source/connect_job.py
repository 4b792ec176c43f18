"""What a user does with Spark Connect, against a server that this process starts. Prints what it found, as JSON.

python -m tests.spark.source.connect_job DIRECTORY
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from penstock import open_store
from penstock.buffer import Manifest
from penstock.spark import register
from penstock.spark.map_in_arrow import map_in_arrow
from penstock.spark.sessions import cores_of, is_session


def main(directory: Path) -> dict[str, Any]:
    builder = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.warehouse.dir", str(directory / "warehouse")).getOrCreate()
    events, copy = str(directory / "events"), str(directory / "copy")
    found: dict[str, Any] = {"kind": type(spark).__module__, "is_session": is_session(spark), "cores": cores_of(spark)}
    register(spark)
    rows = spark.createDataFrame([("a",), ("b",), ("c",)], "value string")
    rows.write.format("penstock").mode("append").save(events)
    found["read"] = _texts(spark.read.format("penstock").load(events))
    spark.sql(f"create temporary view seen using penstock options (path '{events}')")
    found["view"] = _texts(spark.table("seen"))

    def copy_once() -> None:
        stream = spark.readStream.format("penstock").load(events)
        writing = stream.select("value").writeStream.format("penstock")
        writing = writing.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True)
        query = writing.start(copy)
        assert query.awaitTermination(120), "the query is stuck"

    copy_once()
    rows.limit(1).write.format("penstock").mode("append").save(events)
    copy_once()
    copied = spark.read.format("penstock").load(copy)
    found["copied"] = _texts(copied)
    found["queued"] = [entry.sequence for entry in Manifest.read(open_store(events)).entries]
    found["mapped"] = map_in_arrow(copied.select("value"), lambda batches: batches, "value binary").count()
    found["errors"] = _errors(spark, rows, events, str(directory / "never"))
    spark.stop()
    return found


def _errors(spark: SparkSession, rows: Any, events: str, checkpoint: str) -> dict[str, str]:
    def stream() -> None:
        reading = spark.readStream.format("penstock").option("maxBytesPerTriger", "1").load(events)
        reading.writeStream.format("noop").option("checkpointLocation", checkpoint).start().awaitTermination(120)

    def view() -> None:
        spark.sql(f"create temporary view misspelt using penstock options (path '{events}', grup 'a')")
        spark.table("misspelt").collect()

    wrong: dict[str, Callable[[], object]] = {
        "read": lambda: spark.read.format("penstock").option("maxBytesPerTriger", "1").load(events).collect(),
        "stream": stream,
        "write": lambda: rows.write.format("penstock").mode("append").option("compresion", "zstd").save(events),
        "view": view,
        "table": lambda: spark.sql(f"create table seen_too using penstock options (path '{events}')"),
        "register": lambda: register(rows),
    }
    return {name: _error_of(call) for name, call in wrong.items()}


def _error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:
        return str(error)
    return ""


def _texts(frame: Any) -> list[str]:
    return sorted(bytes(row.value).decode() for row in frame.select("value").collect())


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))), flush=True)
