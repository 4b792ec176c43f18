"""Clients of `confluent_kafka` that a forked child never frees."""

from __future__ import annotations

from functools import cache
from typing import Any

from penstock.core import never_free_in_child


def client_of(kind: type, config: dict[str, Any]) -> Any:
    """A client of a class of `confluent_kafka`, which a forked child does not free."""
    client = _with_weak_references(kind)(config)
    never_free_in_child(client, lambda client: [client])
    return client


@cache
def _with_weak_references(kind: type) -> type:
    return type(kind.__name__, (kind,), {})
