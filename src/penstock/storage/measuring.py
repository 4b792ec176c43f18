"""Counts and times every call of a store, and gives whatever it raises a name in the metrics."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Concatenate, ParamSpec, TypeVar, cast

from prometheus_client import Counter, Histogram

from penstock import metrics
from penstock.storage.object_store import DeleteResult, Object, ObjectMeta, ObjectStore

Self = TypeVar("Self", bound=ObjectStore)
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
            _measures_of(self).count(operation, type(error).__name__, time.perf_counter() - started)
            raise
        measures = _measures_of(self)
        if isinstance(answer, Object):
            measures.bytes_read().inc(len(answer.data))
        measures.count(operation, _outcome(answer), time.perf_counter() - started)
        return answer

    return call


def measured_listing(
    method: Callable[Concatenate[Self, Arguments], Iterator[ObjectMeta]],
) -> Callable[Concatenate[Self, Arguments], Iterator[ObjectMeta]]:
    """Do the same for a listing, which has ended when it was read to its end, or failed on the way, or was dropped."""
    operation = method.__name__

    @functools.wraps(method)
    def call(self: Self, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Iterator[ObjectMeta]:
        return _counted(_measures_of(self), operation, method(self, *args, **kwargs))

    return call


def _counted(measures: _Measures, operation: str, found: Iterator[ObjectMeta]) -> Iterator[ObjectMeta]:
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
                spent += time.perf_counter() - started  # the store's time, not its reader's
            if meta is None:
                return
            yield meta
    finally:
        measures.count(operation, outcome, spent)


def _outcome(answer: object) -> str:
    if isinstance(answer, list):
        errors = [result.error for result in answer if isinstance(result, DeleteResult) and result.error]
        return type(errors[0]).__name__ if errors else "ok"
    return "ok"


class _Measures:
    """The metrics of one store. Each is looked up by its labels once: that takes longer than to count."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._bytes_read: Counter | None = None
        self._calls: dict[tuple[str, str], tuple[Counter, Histogram]] = {}

    def bytes_read(self) -> Counter:
        if self._bytes_read is None:
            self._bytes_read = metrics.storage_bytes_read.labels(self._url)
        return self._bytes_read

    def count(self, operation: str, outcome: str, seconds: float) -> None:
        calls = self._calls.get((operation, outcome))
        if calls is None:
            calls = self._calls[operation, outcome] = (
                metrics.storage_operations.labels(self._url, operation, outcome),
                metrics.storage_operation_seconds.labels(self._url, operation),
            )
        calls[0].inc()
        calls[1].observe(seconds)


def _measures_of(store: ObjectStore) -> _Measures:
    kept = vars(store)
    if "_measures" not in kept:
        kept["_measures"] = _Measures(store.url)
    return cast("_Measures", kept["_measures"])
