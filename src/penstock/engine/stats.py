"""What an engine has done so far."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from penstock import metrics
from penstock.core import open_in_child


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counts of what an engine has done, over all its runs.

    `received`: records, with those that a receiver's filters dropped (`filtered`) or turned into dead letters.
    `processed`: records whose result the sink has. `errors`: records that could not be parsed, and blocks that failed.
    `dead_lettered`: letters that were routed or discarded; a parse error that became a dead letter is in both.
    `dropped_letters`: letters that `process` dropped with `drop_letter`. `bytes`: of payloads.
    """

    received: int = 0
    processed: int = 0
    errors: int = 0
    filtered: int = 0
    dead_lettered: int = 0
    bytes: int = 0
    dropped_letters: int = 0


_COUNTERS = {
    "received": metrics.engine_received,
    "processed": metrics.engine_processed,
    "errors": metrics.engine_errors,
    "filtered": metrics.engine_filtered,
    "dead_lettered": metrics.engine_dead_lettered,
    "bytes": metrics.engine_bytes,
    "dropped_letters": metrics.engine_dropped_letters,
}


class Tally:
    """Counts, for the stats and for the metrics. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = open_in_child(threading.Lock())
        self._counts = dict.fromkeys(_COUNTERS, 0)

    def add(self, **counts: int) -> None:
        """Count some more."""
        for name, count in counts.items():
            if count:
                with self._lock:
                    self._counts[name] += count
                _COUNTERS[name].inc(count)

    def stats(self) -> EngineStats:
        """The counts so far."""
        return EngineStats(**self._counts)
