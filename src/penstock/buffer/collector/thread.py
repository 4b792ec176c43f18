"""The collector of a consumer: a thread that runs its cycles, and the last one when the consumer is closed."""

from __future__ import annotations

import itertools
import threading

from penstock.buffer.collector.collector import GarbageCollector
from penstock.core import get_logger

_log = get_logger(__name__)
_numbers = itertools.count(1)


class CollectorThread:
    """Runs a collector again and again. A cycle that fails is logged, and does not end it."""

    def __init__(self, collector: GarbageCollector, interval: float) -> None:
        self._collector = collector
        self._interval = interval
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"penstock-collector-{next(_numbers)}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and wait for its end; a cycle under way ends at its next step."""
        self._stopping.set()
        self._thread.join()

    def collect_at_end(self, budget: float) -> None:
        """After `stop`: run a cycle if one is due, for at most `budget` seconds. Logs errors, and raises none.

        Without it a process that always ends before an interval has passed would never collect.
        """
        if budget <= 0:
            return
        try:
            report = self._collector.collect_if_due(budget=budget)
        except Exception:  # noqa: BLE001  the consumer is closed in any case
            _log.exception("the last cycle of %r failed; the next process runs it", self._collector)
        else:
            _log.debug("%r, the last cycle: %s", self._collector, report)

    def _run(self) -> None:
        while not self._stopping.wait(self._interval):
            try:
                report = self._collector.collect_if_due(is_stopped=self._stopping.is_set)
            except BaseException:  # noqa: BLE001  no error of a store ends the thread
                _log.exception("a cycle of %r failed; the next one comes in %s s", self._collector, self._interval)
            else:
                _log.debug("%r: %s", self._collector, report)
