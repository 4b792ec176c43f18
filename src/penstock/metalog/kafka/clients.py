"""Kafka's clients in a forked child: they are never freed there, for that waits for threads that the child has not."""

from __future__ import annotations

import ctypes
import os
import weakref
from functools import cache
from typing import Any

_living: weakref.WeakSet[Any] = weakref.WeakSet()


def client_of(kind: type, config: dict[str, Any]) -> Any:
    """A client of a class of `confluent_kafka`, which a forked child does not free."""
    client = _with_weak_references(kind)(config)
    _living.add(client)
    return client


@cache
def _with_weak_references(kind: type) -> type:
    return type(kind.__name__, (kind,), {})


def _leak_all() -> None:
    for client in list(_living):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))


os.register_at_fork(after_in_child=_leak_all)
