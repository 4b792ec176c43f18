"""The metrics of one queue, bound to its label."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from penstock import metrics
from penstock.core import get_logger
from penstock.errors import CorruptEvent, PenstockError

_log = get_logger(__name__)

Owner = TypeVar("Owner")


class Measures:
    """Every metric of a queue, ready to be counted. The gauges ask the queue when they are read."""

    def __init__(self, label: str) -> None:
        self._label = label
        self.pushes = metrics.queue_pushes.labels(label)
        self.acks = metrics.queue_acks.labels(label)
        self.nacks = metrics.queue_nacks.labels(label)
        self._corrupt_skipped = metrics.queue_corrupt_skipped.labels(label)

    def note_skipped(self, corrupt: CorruptEvent) -> None:
        """Count what a call has gone past, and log it."""
        self._corrupt_skipped.inc()
        _log.warning("skipped: %s", corrupt)

    def watch(
        self,
        queue: Owner,
        ready: Callable[[Owner], float],
        in_flight: Callable[[Owner], float],
        oldest_age: Callable[[Owner], float],
    ) -> None:
        """Let the gauges ask the queue, as long as it lives."""
        for gauge, ask in zip(_GAUGES, (ready, in_flight, oldest_age), strict=True):
            gauge.labels(self._label).set_function(partial(_answer, weakref.ref(queue), ask))

    def unwatch(self) -> None:
        """Take the gauges away: a queue that is closed has nothing to say."""
        for gauge in _GAUGES:
            with suppress(KeyError):
                gauge.remove(self._label)


_GAUGES = (metrics.queue_ready, metrics.queue_in_flight, metrics.queue_oldest_age)


def _answer(queue: weakref.ref[Owner], ask: Callable[[Owner], float]) -> float:
    """The value of a gauge; not a number where there is none: reading metrics never fails for one queue."""
    owner = queue()
    try:
        return math.nan if owner is None else ask(owner)
    except PenstockError:
        return math.nan
