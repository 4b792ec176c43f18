"""What a stream read shows of itself in Spark's progress: what waits, the budget, and how long memory held it.

The Python API has no `metrics` as Kafka's source has: a reader of 4.2 and 4.3 is asked for offsets and nothing else
(the calls of `pyspark/sql/streaming/python_streaming_source_runner.py`), and its class in the JVM is no
`ReportsSourceMetrics`. But the offset of `reportLatestOffset` goes into the progress as it is, and nowhere else. So
they are in that one, under the source's `latestOffset`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from penstock.buffer import BatchDescriptor


def source_metrics(
    waiting: Sequence[BatchDescriptor],
    batches: int,
    *,
    byte_budget: int | None,
    held_seconds: float,
    now: float | None = None,
) -> dict[str, Any]:
    """What is behind the last block: so many batches, of which the first are known.

    Events and bytes are of those; they are None where the manifest does not say (version 1). The seconds are the age of
    the oldest.
    """
    now = time.time() if now is None else now
    times = [item.ingestion_time_ms for batch in waiting[:1] for item in batch.metadata]
    return {
        "backlogBatches": batches,
        "backlogEvents": _sum([batch.records for batch in waiting]),
        "backlogBytes": _sum([batch.size for batch in waiting]),
        "backlogSeconds": round(max(now - min(times) / 1000, 0.0), 3) if times else 0.0 if not batches else None,
        "budgetBytes": byte_budget,
        "heldSeconds": round(held_seconds, 3),
    }


def _sum(numbers: Sequence[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None
