"""Counts and times every call of a store, and gives whatever it raises a name in the metrics."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from penstock import metrics
from penstock.storage.object_store import Object


class HasUrl(Protocol):
    """Whatever says where it is."""

    @property
    def url(self) -> str:
        """Where it is, without credentials."""
        ...


Self = TypeVar("Self", bound=HasUrl)
Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def measured(
    method: Callable[Concatenate[Self, Arguments], Answer],
) -> Callable[Concatenate[Self, Arguments], Answer]:
    """Wrap a store's method so that the storage metrics know of each call."""
    operation = method.__name__

    @functools.wraps(method)
    def call(self: Self, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        started = time.perf_counter()
        outcome = "ok"
        try:
            answer = method(self, *args, **kwargs)
        except BaseException as error:
            outcome = type(error).__name__
            raise
        else:
            if isinstance(answer, Object):
                metrics.storage_bytes_read.labels(self.url).inc(len(answer.data))
            return answer
        finally:
            metrics.storage_operations.labels(self.url, operation, outcome).inc()
            metrics.storage_operation_seconds.labels(self.url, operation).observe(time.perf_counter() - started)

    return call
