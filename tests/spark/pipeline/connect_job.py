"""Pipelines in a session of Spark Connect, whose server this process starts. Prints what it found, as JSON.

python -m tests.spark.pipeline.connect_job DIRECTORY
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  the usual name

from penstock.spark import Pipeline
from penstock.spark.pipeline.run import Summary
from tests.support.pipeline_places import Places
from tests.support.processes import PATIENCE

EVENTS = [[b'{"id": 1, "name": "a"}', b'{"id": 2, "name": "b"}'], [b"no JSON", b'{"id": 2, "name": "c"}']]
COLUMNS = "id bigint, name string"
HELD, RELEASED = "held", "released"  # pipes in the directory of a pipeline's places


FILE = """\
source = "{root}/events"
dead_letters = "{root}/dead-letters"
trigger = "available_now"

[parse]
format = "json"
schema = "id bigint, name string"

[sink]
parquet = "{root}/table"

[spark]
master = "sc://localhost:15002"
"""
OF_THIS_SESSION = ("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED")


class Lines(logging.Handler):
    """What the pipelines log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class Job:
    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark = spark
        self._directory = directory

    def places(self, name: str) -> Places:
        places = Places(self._directory / name)
        places.put(*EVENTS)
        return places

    def run(self, pipeline: Pipeline) -> dict[str, Any]:
        done: Summary = pipeline.run(self._spark, "available_now")
        return {name: value for name, value in asdict(done).items() if name in {"rows", "dead_letters", "blocks"}}

    def error_of(self, pipeline: Pipeline) -> list[str]:
        """What a run raises."""
        try:
            self.run(pipeline)
        except Exception as error:
            return [type(error).__name__, str(error)]
        return []

    def read(self, where: object, **how: Any) -> list[list[Any]]:
        """A table, as its users read it with the session."""
        return sorted(map(list, Pipeline.read_table(self._spark, where, **how).select("id", "name").collect()))  # type: ignore[arg-type]

    def tables(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        one = self.places("parquet")
        found["parquet"] = self.run(parsed(one).to_parquet(one.table, ["id"]))
        found["parquet-read"] = self.read(one.table)
        one = self.places("delta")
        found["delta"] = self.run(parsed(one).to_delta(one.table, merge_on=["id"]))
        found["delta-read"] = self.read(one.table)
        one = self.places("iceberg")
        catalog = {"warehouse": str(one.table)}
        pipeline = Pipeline(one.events).parse("json", COLUMNS)
        pipeline = pipeline.dead_letters("local.db.letters", kind="iceberg", catalog=catalog)
        found["iceberg"] = self.run(pipeline.to_iceberg("local.db.rows", catalog, ["bucket(4, id)"]))
        found["iceberg-read"] = self.read("local.db.rows", catalog=catalog)
        one = self.places("buffer")
        found["buffer"] = self.run(parsed(one).to_buffer(one.root / "copy"))
        return found

    def steps(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for kind in ("parquet", "delta"):
            one = self.places(f"transform-{kind}")
            pipeline = parsed(one).transform(lambda rows: rows.where("id > 1").withColumn("size", F.length("name")))
            found[f"transform-{kind}"] = self.run(getattr(pipeline, f"to_{kind}")(one.table))
        one = self.places("deduplicate")
        pipeline = parsed(one).process(lambda batch: batch).deduplicate(["id"]).to_parquet(one.table)
        found["deduplicate"] = [self.run(pipeline)]
        one.put([b'{"id": 1, "name": "again"}', b'{"id": 3, "name": "d"}'])
        found["deduplicate"].append(self.run(pipeline))
        one = self.places("function")
        rows: list[list[Any]] = []
        found["function"] = self.run(parsed(one).to(lambda df, _: rows.extend(map(list, df.collect()))))
        found["function-rows"] = rows
        one = self.places("infer")
        found["infer"] = self.run(one.pipeline().parse("json", "infer", "skip").to_parquet(one.table))
        one = self.places("warned")
        self.run(parsed(one).transform(lambda rows: rows.dropDuplicates(["id"])).to_parquet(one.table))
        return found

    def errors(self) -> dict[str, Any]:
        one = self.places("errors")
        in_hadoop = "hdfs://localhost:1/table"
        pipelines = {
            "hadoop": parsed(one).to_parquet(in_hadoop),
            "hadoop-checkpoint": Pipeline(one.events, in_hadoop).parse("json", COLUMNS, "skip").to_parquet(one.table),
            "no-column": parsed(one).transform(lambda rows: rows.select("nothing")).to_parquet(one.table),
            "rdd": parsed(one).transform(lambda rows: rows.rdd.toDF()).to_parquet(one.table),
            "no-frame": parsed(one).transform(lambda _: 3).to_parquet(one.table),  # type: ignore[arg-type,return-value]
            "process": parsed(one).process(failing).to_parquet(one.table),
            "sink": parsed(one).to(select_nothing),
            "unrouted": one.pipeline().parse("json", COLUMNS).to_parquet(one.table),
            "option": one.pipeline(maxBytesPerTriger=1).parse("json", COLUMNS).to_parquet(one.table),
        }
        return {name: self.error_of(pipeline) for name, pipeline in pipelines.items()} | {"queued": one.queued()}

    def command(self) -> list[str]:
        """What `penstock run` prints, which reaches the same server."""
        one = self.places("command")
        file = one.root / "pipeline.toml"
        file.write_text(FILE.format(root=one.root))
        environment = {name: value for name, value in os.environ.items() if name not in OF_THIS_SESSION}
        command = [str(Path(sys.executable).with_name("penstock")), "run", str(file)]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=180)
        return [ended.stdout, ended.stderr]

    def stopped(self) -> dict[str, Any]:
        """A run that two signals stop at once, in the middle of a task; and the one after it."""
        one = self.places("stopped")
        os.mkfifo(one.root / HELD)
        os.mkfifo(one.root / RELEASED)
        pipeline = parsed(one).process(holding(one.root)).to_parquet(one.table)
        stopping = threading.Thread(target=stop_at, args=[one.root / HELD], daemon=True)
        stopping.start()
        stopped = self.run(pipeline)
        stopping.join(PATIENCE)
        queued = one.queued()
        (one.root / HELD).unlink()
        return {"task-ended": not stopping.is_alive(), "run": stopped, "queued": queued, "next": self.run(pipeline)}


def parsed(places: Places) -> Pipeline:
    return places.pipeline().parse("json", COLUMNS).dead_letters(places.dead_letters)


def failing(_batch: Any) -> Any:
    raise ValueError("a process function that fails")


def select_nothing(df: Any, _block: str) -> None:
    df.select("nothing").collect()


def holding(root: Path) -> Callable[[Any], Any]:
    """Make a function that stays in its task, as long as there is the pipe by which it says so."""

    def hold(batch: Any) -> Any:
        if (root / HELD).exists():
            with (root / HELD).open("w"), (root / RELEASED).open() as pipe:
                pipe.read()
        return batch

    return hold


def stop_at(held: Path) -> None:
    """Send the two signals when a task is at the pipe, and return when the task is gone."""
    with held.open() as pipe:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        pipe.read()


def main(directory: Path) -> dict[str, Any]:
    logged = Lines()
    logging.getLogger("penstock").addHandler(logged)
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    job = Job(spark, directory)
    found = {**job.tables(), **job.steps(), "errors": job.errors(), "command": job.command(), "stopped": job.stopped()}
    spark.stop()
    return found | {"warnings": sum("a transform drops duplicates" in line for line in logged.lines)}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))), flush=True)
