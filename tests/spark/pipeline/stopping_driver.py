"""A pipeline's driver that a test stops: it runs what its standard input says, and reports where it is.

python -m tests.spark.pipeline.stopping_driver ROOT
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.support.pipeline_places import Places
from tests.support.spark_session import local_session

HELD, RELEASED = "held", "released"  # pipes that a task and the test meet at


def tell(what: str) -> None:
    os.write(1, f"{what}\n".encode())  # in one piece, from any thread


class TellOfSignals(logging.Handler):
    """Tells when the run has noticed a signal, which it logs."""

    def emit(self, record: logging.LogRecord) -> None:
        tell(f"noticed: {record.getMessage()}")


def held_up(df: Any) -> Any:
    """Stand in the middle of a block until the test says so."""
    tell("in the block")
    sys.stdin.readline()
    return df


def holding(root: Path) -> Callable[[Any], Any]:
    """Make a function that stands in the middle of a task, as long as there are the pipes to stand at."""

    def hold(batch: Any) -> Any:
        if (root / HELD).exists():
            with (root / HELD).open("w"):
                pass
            with (root / RELEASED).open() as pipe:
                pipe.read()
        return batch

    return hold


def idling(places: Places) -> Callable[[], None]:
    """Make a function that tells, once, that the first block is acked and the run waits for the next one."""
    reported: list[str] = []

    def look() -> None:
        if not reported and places.table.exists() and places.queued() == []:
            reported.append("idle")
            tell("idle")

    return look


def run(spark: SparkSession, places: Places, how: str, trigger: str) -> None:
    pipeline = places.pipeline(pollInterval=0.05).parse("json", "id bigint").dead_letters(places.dead_letters)
    if how == "in-a-task":
        pipeline = places.pipeline().parse("json", "id bigint").process(holding(places.root))
        pipeline = pipeline.dead_letters(places.dead_letters)
    elif how == "in-the-driver":
        pipeline = pipeline.transform(held_up)
    else:
        pipeline = pipeline.every(0.05, idling(places))
    summary = pipeline.to_parquet(places.table).run(spark, trigger)
    tell(f"done {summary.rows} {summary.blocks}")


def main(root: str) -> None:
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    logger = logging.getLogger("penstock.spark.pipeline.run")
    logger.setLevel(logging.INFO)
    logger.addHandler(TellOfSignals())
    spark = local_session()
    while order := sys.stdin.readline().split(maxsplit=2):
        name, how, trigger = order
        run(spark, Places(Path(root) / name), how, trigger.strip())
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
