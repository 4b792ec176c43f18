"""The part of `python -m bench against_kafka` that runs in the virtualenv of the Spark that has a Kafka source."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.spark_runs import EVENTS, ROUNDS, SCHEMA, Times, in_turns, session, timed_pipeline, timed_query

WARM_UPS = 2  # Spark's way is still getting faster after one


def main(events: Path, servers: str, topic: str, jars: Path) -> None:
    import pyspark
    from pyspark.sql.functions import col, from_json

    from penstock.spark import Pipeline

    with session({"spark.jars": ",".join(map(str, sorted(jars.glob("*.jar"))))}) as spark:
        contents = set[tuple[object, ...]]()

        def check(table: Path) -> None:
            """Both have to write every row, with the same values in all columns."""
            asked = ("count(id)", "sum(id)", "sum(hash(event))", "sum(unix_seconds(at))")
            contents.add(tuple(spark.read.parquet(str(table)).selectExpr(*asked).collect()[0]))
            assert len(contents) == 1, contents
            assert next(iter(contents))[0] == EVENTS, contents

        def records_of_kafka() -> Any:
            source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
            return source.option("subscribe", topic).option("startingOffsets", "earliest").load()

        def read_only(place: Path) -> Times:
            writer = records_of_kafka().select("value").writeStream.format("noop")
            return timed_query(spark, writer.option("checkpointLocation", str(place / "checkpoint")))

        def by_kafka(place: Path) -> Times:
            parsed = from_json(col("value").cast("string"), SCHEMA).alias("row")
            writer = records_of_kafka().select(parsed).select("row.*").writeStream.format("parquet")
            times = timed_query(spark, writer.option("checkpointLocation", str(place / "checkpoint")), place / "table")
            check(place / "table")
            return times

        def by_penstock(place: Path) -> Times:
            pipeline = Pipeline(place / "buffer", place / "checkpoint").parse("json", schema=SCHEMA)
            times = timed_pipeline(spark, pipeline.to_parquet(place / "table"), EVENTS)
            check(place / "table")
            return times

        ways = {"Penstock": by_penstock, "Spark's Kafka source": by_kafka}
        ways["Spark's Kafka source, only reading"] = read_only
        times = in_turns(events, ways, warm_ups=WARM_UPS)
        cores = spark.sparkContext.defaultParallelism
    ours = times["Penstock"]
    title = (
        f"JSON to Parquet, {EVENTS:,} events, Spark {pyspark.__version__}, {cores} cores, medians of {ROUNDS} rounds"
    )
    table = Table(title=f"{title} (goal: 2x)", title_justify="left")
    for column in ("who", "block, s", "run, s", "rows/s in the block", "block, Penstock is", "run, Penstock is"):
        table.add_column(column, justify="left" if column == "who" else "right")
    for who, one in times.items():
        ratios = ("", "") if one is ours else (f"{one.block / ours.block:.2f}x", f"{one.run / ours.run:.2f}x")
        table.add_row(who, f"{one.block:.2f}", f"{one.run:.2f}", f"{EVENTS / one.block:,.0f}", *ratios)
    Console(width=120).print(table)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4]))
