"""Reading the metrics of one queue."""

from __future__ import annotations

from typing import Any

from penstock import DurableEventQueue, metrics


def samples(name: str, queue: DurableEventQueue[Any]) -> list[float]:
    """The values of a metric for a queue, without asking all the other metrics for theirs: one, or none."""
    return [
        sample.value
        for metric in metrics.ALL
        if name.startswith(metric._name)
        for family in metric.collect()
        for sample in family.samples
        if sample.name == name and f"DurableEventQueue({sample.labels['queue']!r})" == repr(queue)
    ]


def sample(name: str, queue: DurableEventQueue[Any]) -> float:
    """The value of a metric for a queue."""
    (value,) = samples(name, queue)
    return value
