"""`GarbageCollector`: deletes objects that no manifest names, and that none can name any more.

What may be deleted is for each version of the manifest to say. Why the rules are safe is in `docs/design/buffer.md` for
version 1, and in `docs/design/native-manifest.md` for 2.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from penstock.buffer.collector.report import GcDetails, GcReport
from penstock.buffer.collector.sweep import Sweep
from penstock.buffer.collector.turns import CollectorTurns, Turn
from penstock.buffer.config import ConsumerConfig
from penstock.buffer.locations import LAST_ULID_MS, folder_of, is_data_path, segment_time, ulid_prefix
from penstock.buffer.manifest.queue import BufferQueue, QueueView
from penstock.buffer.manifest.state import Collecting, Fate
from penstock.buffer.measures import Measures, label_of
from penstock.core import check_config, check_seconds, current, get_logger, refuse_in_child
from penstock.errors import StorageError
from penstock.storage import DeleteResult, ListsRanges, ObjectMeta, ObjectStore, open_store, url_of

_log = get_logger(__name__)


def never() -> bool:
    """Say no: for cycles that nothing stops."""
    return False


@dataclass(frozen=True, slots=True)
class Cycle:
    """How one cycle is run: for how long, over everything there is or what may have to go, and on whose turn."""

    is_stopped: Callable[[], bool] = never
    is_over: Callable[[], bool] = never
    lists_everything: bool = True
    dry_run: bool = False
    turn: Turn | None = None


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
        refuse_in_child(self._home, self, "make a GarbageCollector here")
        self._queue.own_prefix(self._prefix, claim=False)
        return self._run(Cycle(is_over=self._until(budget, never), dry_run=dry_run))

    def collect_if_due(self, *, budget: float | None = None, is_stopped: Callable[[], bool] = never) -> GcReport | None:
        """Run one cycle, if none was run for `gc_interval` seconds by any collector of the buffer; else return None.

        It lists no more than what may have to go, where the store can: `kept` counts what it has seen. Raises what
        `collect_once` raises.
        """
        refuse_in_child(self._home, self, "make a GarbageCollector here")
        self._queue.own_prefix(self._prefix, claim=False)  # before the mark: it would be another's
        view = self._queue.look()
        turn = None if view.version is None else self._turns.take(view.last_modified)
        if turn is None:
            return None
        return self._run(Cycle(is_stopped, self._until(budget, is_stopped), lists_everything=False, turn=turn))

    def _until(self, budget: float | None, is_stopped: Callable[[], bool]) -> Callable[[], bool]:
        if budget is None:
            return is_stopped
        check_seconds("budget", budget)
        until = self._uptime() + budget
        return lambda: is_stopped() or self._uptime() >= until

    def _run(self, cycle: Cycle) -> GcReport:
        started = time.perf_counter()
        view = self._queue.look()
        if view.version is None:
            # No manifest: whatever is there may be about to be enqueued.
            report = GcReport(0, 0, sum(1 for _ in self._data_objects(self._store.list_objects(self._prefix))))
        else:
            report = self._collect(view, cycle)
        self._measures.gc_duration.observe(time.perf_counter() - started)
        return report

    def _collect(self, view: QueueView, cycle: Cycle) -> GcReport:
        marked = None if cycle.turn is None else cycle.turn.taken_at
        rules = view.collecting(self._clock, self._config.gc_grace_period, marked)
        sweep = self._sweep(lambda listed: self._queue.kept(rules, listed, cycle.is_over), cycle)
        fates: Counter[Fate] = Counter()
        for meta in self._listed(rules, cycle):
            if cycle.is_over():
                sweep.is_complete = False
                break
            fate = rules.fate(meta)
            fates[fate] += 1
            if fate is Fate.DELETE:
                sweep.offer(meta)
        sweep.flush()
        if rules.warning is not None:
            _log.warning("%s", rules.warning)
        # Only now, when what was closed before is carried out.
        if rules.can_close and sweep.is_complete and not cycle.is_over() and not cycle.dry_run:
            self._queue.close_times(rules, cycle.is_over)
        details = GcDetails(
            deleted_bytes=sweep.deleted_bytes,
            named=rules.named,
            waiting=fates[Fate.WAITS],
            waits_until=rules.waits_until,
            later=fates[Fate.LATER],
            ahead=fates[Fate.AHEAD],
            floor=rules.floor,
            is_complete=sweep.is_complete,
        )
        return GcReport(sweep.deleted, sweep.failed, fates.total() - sweep.deleted - sweep.failed, details)

    def _listed(self, rules: Collecting, cycle: Cycle) -> Iterator[ObjectMeta]:
        """Data objects, and segments where there are some: all of them, or those that may have to go."""
        store, ranges = self._store, rules.ranges
        if isinstance(store, ListsRanges) and ranges is not None and not cycle.lists_everything:
            listed = store.list_ranges(
                self._prefix, [_paths_of(self._prefix, *one) for one in ranges if one[0] <= one[1]]
            )
        else:
            listed = store.list_objects(self._prefix)
        yield from self._data_objects(listed)
        if rules.has_segments:
            folder = folder_of(self._config.manifest_path)
            for meta in store.list_objects(folder):
                name = meta.path.rpartition("/")[2]
                if meta.path == f"{folder}/{name}" and segment_time(name) is not None:
                    yield meta

    def _data_objects(self, listed: Iterable[ObjectMeta]) -> Iterator[ObjectMeta]:
        return (meta for meta in listed if is_data_path(meta.path, self._prefix))

    def _sweep(self, named: Callable[[dict[str, ObjectMeta]], set[str]], cycle: Cycle) -> Sweep:
        return Sweep(named, self._delete, cycle.is_over, cycle.is_stopped, self._claim, dry_run=cycle.dry_run)

    def _claim(self) -> None:
        """Claim the prefix, so that from here on nobody else's data can be in it."""
        self._queue.own_prefix(self._prefix, claim=True)

    def _delete(self, paths: list[str]) -> list[str]:
        """Delete objects, and return those that could not be deleted."""
        try:
            results = self._store.delete(paths)
        except StorageError as error:
            results = [DeleteResult(path, error) for path in paths]
        for result in results:
            if result.error is not None:
                _log.warning(
                    "collecting %s from %s: %s; trying again later", result.path, url_of(self._store), result.error
                )
        failed = [result.path for result in results if result.error is not None]
        self._measures.gc_files_deleted.inc(len(paths) - len(failed))
        self._measures.gc_files_failed.inc(len(failed))
        return failed


def _paths_of(prefix: str, first: int, last: int) -> tuple[str, str]:
    """Between which paths the data objects of a range of times are."""
    end = ulid_prefix(last + 1) if last < LAST_ULID_MS else "8"
    return f"{prefix}/{ulid_prefix(first)}", f"{prefix}/{end}"
