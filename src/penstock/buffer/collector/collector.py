"""`GarbageCollector`: deletes objects that no manifest names, and that none can name any more.

What may be deleted is for each version of the manifest to say. Why the rules are safe is in `docs/design/buffer.md` for
version 1, and in `docs/design/native-manifest.md` for 2.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import datetime

from penstock.buffer.collector.cycle import Cycle, GcReport, data_objects
from penstock.buffer.collector.turns import CollectorTurns
from penstock.buffer.config import ConsumerConfig
from penstock.buffer.manifest.queue import BufferQueue, QueueView
from penstock.buffer.measures import Measures, label_of
from penstock.core import check_config, check_seconds, current, refuse_in_child
from penstock.storage import ObjectStore, open_store, url_of


def never() -> bool:
    """Say no: for cycles that nothing stops."""
    return False


class GarbageCollector:
    """Deletes what is dequeued or was never enqueued. It takes no epoch, and any number of them may run.

    A `ConsumerConfig` says where, and with which grace period; its `enqueue_deadline` must be the longest that any
    producer of the buffer uses. `queue` is one that a consumer has already: what that has read is not parsed again.

    >>> GarbageCollector("memory://doctest-collector").collect_once()
    GcReport(deleted=0, failed=0, kept=0)
    """

    def __init__(
        self,
        where: str | os.PathLike[str] | ObjectStore,
        config: ConsumerConfig | None = None,
        *,
        clock: Callable[[], float] = time.time,
        uptime: Callable[[], float] = time.monotonic,
        queue: BufferQueue | None = None,
    ) -> None:
        config = ConsumerConfig() if config is None else config
        check_config(config, ConsumerConfig)
        self._store = open_store(where)
        self._queue = queue or BufferQueue.of(self._store, config, "consumer", clock=clock)
        self._config = config
        self._prefix = config.data_path_prefix
        self._clock = clock
        self._uptime = uptime
        self._measures = Measures(label_of(self._store, config.manifest_path))
        self._turns = CollectorTurns(self._store, self._prefix, config.gc_interval, clock=clock, uptime=uptime)
        self._home = current.number

    def __repr__(self) -> str:
        return f"GarbageCollector({url_of(self._store)})"

    def collect_once(self, *, budget: float | None = None, dry_run: bool = False) -> GcReport:
        """Run one cycle now, over everything there is. A delete that fails is counted, logged, and left to the next.

        With a budget of seconds it ends early, at its next step. A dry run writes and deletes nothing.

        Raises `InvalidInput` if the prefix belongs to another manifest, `StorageError` or `CorruptData` if the objects
        cannot be listed or the manifest not be read; what was listed last is not deleted then.
        """
        self._check_owner()
        is_over = self._until(budget, never)
        return self._run(self._queue.look(), never, is_over, lists_everything=True, dry_run=dry_run)

    def collect_if_due(self, *, budget: float | None = None, is_stopped: Callable[[], bool] = never) -> GcReport | None:
        """Run one cycle, if none was run for `gc_interval` seconds by any collector of the buffer; else return None.

        It lists no more than what may have to go, where the store can: `kept` counts what it has seen. Raises what
        `collect_once` raises.
        """
        self._check_owner()  # before the mark: it would be another's
        view = self._queue.look()
        turn = None if view.version is None else self._turns.take(view.last_modified)
        if turn is None:
            return None
        is_over = self._until(budget, is_stopped)
        return self._run(self._queue.look(), is_stopped, is_over, marked=turn.taken_at)

    def _check_owner(self) -> None:
        refuse_in_child(self._home, self, "make a GarbageCollector here")
        self._queue.own_prefix(self._prefix, claim=False)

    def _until(self, budget: float | None, is_stopped: Callable[[], bool]) -> Callable[[], bool]:
        if budget is None:
            return is_stopped
        check_seconds("budget", budget)
        until = self._uptime() + budget
        return lambda: is_stopped() or self._uptime() >= until

    def _run(
        self,
        view: QueueView,
        is_stopped: Callable[[], bool],
        is_over: Callable[[], bool],
        *,
        marked: datetime | None = None,
        lists_everything: bool = False,
        dry_run: bool = False,
    ) -> GcReport:
        started = time.perf_counter()
        if view.version is None:
            # Without a manifest every object may be about to be enqueued.
            report = GcReport(0, 0, sum(1 for _ in data_objects(self._store.list_objects(self._prefix), self._prefix)))
        else:
            rules = view.collecting(self._clock, self._config.gc_grace_period, marked)
            cycle = Cycle(
                self._store,
                self._queue,
                self._config,
                rules,
                self._measures,
                is_stopped,
                is_over,
                lists_everything,
                dry_run,
            )
            report = cycle.run()
        self._measures.gc_duration.observe(time.perf_counter() - started)
        return report
