"""What a stream read shows of itself in Spark's progress: what waits, the budget, and how long memory held it.

The Python API has no `metrics` as Kafka's source has: a reader of 4.2 and 4.3 is asked for offsets and nothing else
(the calls of `pyspark/sql/streaming/python_streaming_source_runner.py`), and its class in the JVM is no
`ReportsSourceMetrics`. But the offset of `reportLatestOffset` goes into the progress as it is, and nowhere else. So
they are in that one, under the source's `latestOffset`.
"""

from __future__ import annotations

from typing import Any

from penstock.buffer import Waiting
from penstock.spark.source.admission import Admission


def source_metrics(waiting: Waiting, oldest_seconds: float | None, admission: Admission | None) -> dict[str, Any]:
    """What waits behind the last block, and the age of the oldest of it; the budget, if there is one.

    Numbers that are not known are None: events and bytes on a manifest of version 1, and the age where the first batch
    that waits has not been read from the manifest yet. Spark asks for them some 80 times a second while it idles, so
    they are those of the head of the manifest, and no list of batches is read for them.
    """
    age = 0.0 if not waiting.batches else oldest_seconds
    return {
        "backlogBatches": waiting.batches,
        "backlogEvents": waiting.records,
        "backlogBytes": waiting.size,
        "backlogSeconds": None if age is None else round(age, 3),
        "budgetBytes": None if admission is None else admission.byte_budget,
        "heldSeconds": 0.0 if admission is None else round(admission.held_seconds, 3),
    }
