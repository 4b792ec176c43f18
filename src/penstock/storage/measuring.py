"""Counts and times every call of a store, and gives whatever it raises a name in the metrics."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from penstock import metrics
from penstock.storage.object_store import DeleteResult, Object, ObjectMeta


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
        try:
            answer = method(self, *args, **kwargs)
        except BaseException as error:
            _count(self.url, operation, type(error).__name__, time.perf_counter() - started)
            raise
        if isinstance(answer, Object):
            metrics.storage_bytes_read.labels(self.url).inc(len(answer.data))
        _count(self.url, operation, _outcome(answer), time.perf_counter() - started)
        return answer

    return call


def measured_listing(
    method: Callable[Concatenate[Self, Arguments], Iterator[ObjectMeta]],
) -> Callable[Concatenate[Self, Arguments], Iterator[ObjectMeta]]:
    """Do the same for a listing, which has ended when it was read to its end, or failed on the way, or was dropped."""
    operation = method.__name__

    @functools.wraps(method)
    def call(self: Self, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Iterator[ObjectMeta]:
        return _counted(self.url, operation, method(self, *args, **kwargs))

    return call


def _counted(url: str, operation: str, found: Iterator[ObjectMeta]) -> Iterator[ObjectMeta]:
    outcome, spent = "ok", 0.0
    try:
        while True:
            started = time.perf_counter()
            try:
                meta = next(found, None)
            except BaseException as error:
                outcome = type(error).__name__
                raise
            finally:
                spent += time.perf_counter() - started  # the store's time, not that of whoever reads
            if meta is None:
                return
            yield meta
    finally:
        _count(url, operation, outcome, spent)


def _outcome(answer: object) -> str:
    if isinstance(answer, list):
        errors = [result.error for result in answer if isinstance(result, DeleteResult) and result.error]
        return type(errors[0]).__name__ if errors else "ok"
    return "ok"


def _count(url: str, operation: str, outcome: str, seconds: float) -> None:
    metrics.storage_operations.labels(url, operation, outcome).inc()
    metrics.storage_operation_seconds.labels(url, operation).observe(seconds)
