"""`GarbageCollector`: deletes objects that no manifest names, and that none can name any more.

What may be deleted is for each version of the manifest to say. Why the rules are safe is in `docs/design/buffer.md` for
version 1, and in `docs/design/native-manifest.md` for 2.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from penstock.buffer.collector.turns import CollectorTurns
from penstock.buffer.config import ConsumerConfig
from penstock.buffer.locations import LAST_ULID_MS, folder_of, is_data_path, segment_time, ulid_prefix
from penstock.buffer.manifest.queue import BufferQueue, QueueView
from penstock.buffer.manifest.state import Collecting, Fate
from penstock.buffer.measures import Measures, label_of
from penstock.core import check_config, check_seconds, current, get_logger, refuse_in_child
from penstock.errors import StorageError
from penstock.storage import DeleteResult, ListsRanges, ObjectMeta, ObjectStore, open_store, url_of

_CANDIDATES_PER_READ = 2_000  # of the manifest
_PATHS_PER_DELETE = 500

_log = get_logger(__name__)
_numbers = itertools.count(1)


def never() -> bool:
    """Say no: for cycles that nothing stops."""
    return False


@dataclass(frozen=True, slots=True)
class GcDetails:
    """Why a cycle kept what it kept, and when that may change. Times are milliseconds since 1970.

    `waiting`: deletable, once the floor's grace period is over, at `waits_until`. `later`: not named, and below the
    next floor. `ahead`: named by a clock that was ahead. `named`: how many entries the queue has. A cycle that was not
    complete ran out of time, or was stopped.
    """

    deleted_bytes: int = 0
    named: int = 0
    waiting: int = 0
    waits_until: int = 0
    later: int = 0
    ahead: int = 0
    floor: int = 0
    is_complete: bool = True


@dataclass(frozen=True, slots=True)
class GcReport:
    """What a cycle did with the data objects and segments it found: how many it deleted, could not delete, and kept.

    After a dry run, `deleted` is what a cycle would have deleted.
    """

    deleted: int
    failed: int
    kept: int
    details: GcDetails = field(default_factory=GcDetails, compare=False, repr=False)


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
        return self._cycle(self._queue.look(), None, never, is_over, lists_everything=True, dry_run=dry_run).run()

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
        return self._cycle(self._queue.look(), turn.taken_at, is_stopped, is_over).run()

    def _check_owner(self) -> None:
        refuse_in_child(self._home, self, "make a GarbageCollector here")
        self._queue.own_prefix(self._prefix, claim=False)

    def _until(self, budget: float | None, is_stopped: Callable[[], bool]) -> Callable[[], bool]:
        if budget is None:
            return is_stopped
        check_seconds("budget", budget)
        until = self._uptime() + budget
        return lambda: is_stopped() or self._uptime() >= until

    def _cycle(
        self,
        view: QueueView,
        marked: datetime | None,
        is_stopped: Callable[[], bool],
        is_over: Callable[[], bool],
        **options: bool,
    ) -> _Cycle:
        rules = view.collecting(self._clock, self._config.gc_grace_period, marked)
        return _Cycle(self._store, self._queue, self._config, rules, self._measures, is_stopped, is_over, **options)


@dataclass(eq=False)
class _Cycle:
    """How one cycle is run, and what it did so far. It lists everything, or only what may have to be deleted.

    Candidates are compared with the manifest and deleted in chunks: however many objects there are, it keeps a bounded
    number of paths in memory. When `is_over`, it ends at its next step, and still deletes once: so every cycle makes
    progress. When `is_stopped`, it deletes nothing more.
    """

    store: ObjectStore
    queue: BufferQueue
    config: ConsumerConfig
    rules: Collecting
    measures: Measures
    is_stopped: Callable[[], bool]
    is_over: Callable[[], bool]
    lists_everything: bool = False
    dry_run: bool = False
    _fates: Counter[Fate] = field(default_factory=Counter, init=False)
    _deleted: int = field(default=0, init=False)
    _deleted_bytes: int = field(default=0, init=False)
    _failed: int = field(default=0, init=False)
    _is_complete: bool = field(default=True, init=False)

    def run(self) -> GcReport:
        """Run it. Raises `InvalidInput` if the prefix belongs to another manifest, `StorageError` and `CorruptData`."""
        started = time.perf_counter()
        rules, fates = self.rules, self._fates
        candidates = self._candidates()
        while chunk := {meta.path: meta for meta in itertools.islice(candidates, _CANDIDATES_PER_READ)}:
            if self.is_stopped():
                self._is_complete = False
                break
            named = self.queue.kept(rules, chunk, self.is_over)  # by a manifest that is read after they were listed
            self._delete([meta for path, meta in chunk.items() if path not in named])
        if rules.warning is not None:
            _log.warning("%s", rules.warning)
        # Only now, when what was closed before is deleted.
        if rules.can_close and self._is_complete and not self.is_over() and not self.dry_run:
            self.queue.close_times(rules, self.is_over)
        details = GcDetails(
            deleted_bytes=self._deleted_bytes,
            named=rules.scope.entries,
            waiting=fates[Fate.WAITS],
            waits_until=rules.scope.waits_until,
            later=fates[Fate.LATER],
            ahead=fates[Fate.AHEAD],
            floor=rules.scope.floor,
            is_complete=self._is_complete,
        )
        self.measures.gc_duration.observe(time.perf_counter() - started)
        return GcReport(self._deleted, self._failed, fates.total() - self._deleted - self._failed, details)

    def _candidates(self) -> Iterator[ObjectMeta]:
        """What is to be deleted, of all that is listed."""
        for meta in self._listed():
            if self.is_over():
                self._is_complete = False
                return
            fate = self.rules.fate(meta)
            self._fates[fate] += 1
            if fate is Fate.DELETE:
                yield meta

    def _listed(self) -> Iterator[ObjectMeta]:
        """Data objects, and segments where there are some: all of them, or those that may have to be deleted."""
        store, prefix, ranges = self.store, self.config.data_path_prefix, self.rules.scope.ranges
        if isinstance(store, ListsRanges) and ranges is not None and not self.lists_everything:
            found = store.list_ranges(prefix, [_paths_of(prefix, *one) for one in ranges if one[0] <= one[1]])
        else:
            found = store.list_objects(prefix)
        yield from (meta for meta in found if is_data_path(meta.path, prefix))
        if self.rules.has_segments:
            folder = folder_of(self.config.manifest_path)
            for meta in store.list_objects(folder):
                name = meta.path.rpartition("/")[2]
                if meta.path == f"{folder}/{name}" and segment_time(name) is not None:
                    yield meta

    def _delete(self, candidates: list[ObjectMeta]) -> None:
        for start in range(0, len(candidates), _PATHS_PER_DELETE):
            if start and self.is_over():
                self._is_complete = False
                return
            sizes = {meta.path: meta.size for meta in candidates[start : start + _PATHS_PER_DELETE]}
            results = list[DeleteResult]()
            if not self.dry_run:
                if not self._deleted and not self._failed:
                    # Before the first delete: from here on no other buffer's data can be in the prefix.
                    self.queue.own_prefix(self.config.data_path_prefix, claim=True)
                try:
                    results = self.store.delete(list(sizes))
                except StorageError as error:
                    results = [DeleteResult(path, error) for path in sizes]
            failed = {result.path: result.error for result in results if result.error is not None}
            for path, problem in failed.items():
                _log.warning("collecting %s from %s: %s; trying again later", path, url_of(self.store), problem)
            self.measures.gc_files_deleted.inc(len(results) - len(failed))
            self.measures.gc_files_failed.inc(len(failed))
            self._deleted += len(sizes) - len(failed)
            self._failed += len(failed)
            self._deleted_bytes += sum(size for path, size in sizes.items() if path not in failed)


def _paths_of(prefix: str, first: int, last: int) -> tuple[str, str]:
    """Between which paths the data objects of a range of times are."""
    end = ulid_prefix(last + 1) if last < LAST_ULID_MS else "8"
    return f"{prefix}/{ulid_prefix(first)}", f"{prefix}/{end}"


class CollectorThread:
    """The thread of a consumer's collector. A cycle that fails is logged, and does not end it."""

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
