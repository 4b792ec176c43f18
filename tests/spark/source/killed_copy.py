"""Copies a buffer into another by a stream read as Spark 4.0 and 4.1 have it, until it is killed.

Usage: killed_copy.py EVENTS COPY CHECKPOINT. Prints each block that is done.
"""

from __future__ import annotations

import sys

from penstock.spark.source.data_source import PenstockDataSource, known_to
from tests.support.spark_session import local_session


class CommittingSource(PenstockDataSource):
    """A source whose stream reader is the one of Spark 4.0 and 4.1."""

    has_admission = False


def main(events: str, copy: str, checkpoint: str) -> None:
    spark = local_session()
    spark.dataSource.register(known_to(spark, CommittingSource))
    stream = (
        spark.readStream.format("penstock").option("maxBatchesPerTrigger", 2).option("pollInterval", 0).load(events)
    )
    query = stream.select("value").writeStream.format("penstock").option("checkpointLocation", checkpoint).start(copy)
    while not query.awaitTermination(1):
        done = query.lastProgress
        if done is not None:
            print("block", done["batchId"], flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
