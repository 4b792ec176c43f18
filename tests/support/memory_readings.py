"""Reading one metric, without those of every store and queue that other tests have made."""

from __future__ import annotations

from prometheus_client import REGISTRY


def reading(name: str) -> float:
    """What the metric with this name says; it has no labels."""
    families = REGISTRY.restricted_registry([name]).collect()
    (value,) = [sample.value for family in families for sample in family.samples if sample.name == name]
    return value
