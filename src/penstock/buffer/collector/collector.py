"""`GarbageCollector`: deletes objects that nobody refers to, and that nobody can refer to any more.

Why its rules are safe is in `docs/design/buffer.md` for version 1, and in `docs/design/native-manifest.md` for 2.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta

from penstock.buffer.collector.report import GcDetails, GcReport
from penstock.buffer.collector.sweep import Sweep
from penstock.buffer.collector.times import Closing, CycleTimes, floor_for, ulid_time_of
from penstock.buffer.collector.turns import CollectorTurns, Turn
from penstock.buffer.config import ConsumerConfig
from penstock.buffer.locations import LAST_ULID_MS, is_data_path, location_time, ulid_prefix
from penstock.buffer.manifest.queue import BufferQueue
from penstock.buffer.manifest.state import QueueView
from penstock.buffer.manifest.time_ranges import RangesToClose
from penstock.buffer.manifest.v2.head import Head
from penstock.buffer.manifest.v2.named_objects import named_objects
from penstock.buffer.manifest.v2.queue import NativeView
from penstock.buffer.manifest.v2.segments import folder_of, segment_time
from penstock.buffer.measures import Measures, label_of
from penstock.core import check_config, check_seconds, current, get_logger, refuse_in_child
from penstock.errors import StorageError
from penstock.storage import DeleteResult, ListsRanges, ObjectMeta, ObjectStore, open_store, url_of

_DEFAULTS = ConsumerConfig()
_NAMES_PER_LOOK_AT_THE_TIME = 1_000  # more than a head has by itself: without segments to open it is read whole

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
    producer of the buffer uses.

    >>> GarbageCollector("memory://doctest-collector").collect_once()
    GcReport(deleted=0, failed=0, kept=0)
    """

    def __init__(
        self,
        where: str | os.PathLike[str] | ObjectStore,
        config: ConsumerConfig = _DEFAULTS,
        *,
        clock: Callable[[], float] = time.time,
        uptime: Callable[[], float] = time.monotonic,
    ) -> None:
        check_config(config, ConsumerConfig)
        self._store = open_store(where)
        self._queue = BufferQueue.of(self._store, config, "consumer", clock=clock)
        self._config = config
        self._clock = clock
        self._uptime = uptime
        self._measures = Measures(label_of(self._store, config.manifest_path))
        self._turns = CollectorTurns(
            self._store, config.data_path_prefix, config.gc_interval, clock=clock, uptime=uptime
        )
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
        self._queue.own_prefix(self._config.data_path_prefix, claim=False)
        return self._run(Cycle(is_over=self._until(budget, never), dry_run=dry_run))

    def collect_if_due(self, *, budget: float | None = None, is_stopped: Callable[[], bool] = never) -> GcReport | None:
        """Run one cycle, if none was run for `gc_interval` seconds by any collector of the buffer; else return None.

        It lists no more than what may have to go, where the store can: `kept` counts what it has seen. Raises what
        `collect_once` raises.
        """
        refuse_in_child(self._home, self, "make a GarbageCollector here")
        self._queue.own_prefix(self._config.data_path_prefix, claim=False)  # before the mark: it would be another's
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
        prefix = self._config.data_path_prefix
        view = self._queue.look()
        if view.version is None:
            # No manifest: whatever is there may be about to be enqueued.
            report = GcReport(0, 0, sum(is_data_path(meta.path, prefix) for meta in self._store.list_objects(prefix)))
        elif isinstance(view, NativeView):
            report = self._collect_native(view, cycle)
        else:
            report = self._collect_opendata(view, cycle)
        self._measures.gc_duration.observe(time.perf_counter() - started)
        return report

    # Version 1: what no manifest names, and was written long before the manifest.

    def _collect_opendata(self, view: QueueView, cycle: Cycle) -> GcReport:
        prefix, named = self._config.data_path_prefix, _names(view)
        sweep = self._sweep(self._named_or_young, cycle)
        found = 0
        for meta in self._store.list_objects(prefix):
            if cycle.is_over():
                sweep.is_complete = False
                break
            if is_data_path(meta.path, prefix):
                found += 1
                if _name(meta.path) not in named and self._is_old(meta, view):
                    sweep.offer(meta)
        sweep.flush()
        return _report(sweep, found, GcDetails(named=len(named)))

    def _named_or_young(self, listed: dict[str, ObjectMeta]) -> set[str]:
        """Which of the objects the manifest names, or is too young to judge; read after they were listed."""
        view = self._queue.look()
        if view.version is None or isinstance(view, NativeView):
            return set(listed)  # gone, or upgraded: the next cycle goes by what is there then
        named = _names(view)
        return {path for path, meta in listed.items() if _name(path) in named or not self._is_old(meta, view)}

    def _is_old(self, meta: ObjectMeta, view: QueueView) -> bool:
        """Whether the manifest was written long after an object: both are the store's times."""
        grace = timedelta(seconds=self._config.gc_grace_period)
        return view.last_modified is not None and meta.last_modified <= view.last_modified - grace

    # Version 2: what is below the floor or in a closed range, once that has been so for a grace period.

    def _collect_native(self, view: NativeView, cycle: Cycle) -> GcReport:
        head, times = view.head, CycleTimes(self._clock, self._config.gc_grace_period, view, cycle.turn)
        now = times.now()
        waits_until = head.floor_set_at + times.grace if head.floor or head.closed else 0
        next_floor = max(floor_for(head, now - times.grace), head.floor)
        sweep = self._sweep(lambda listed: self._named(listed, cycle), cycle)
        to_close = RangesToClose(head.closed)
        found = waiting = later = 0
        ahead: list[int] = [0, 0]  # how many, and the last of them
        for meta, at in self._list_native(head, next_floor, times.horizon, cycle):
            if cycle.is_over():
                sweep.is_complete = False
                break
            found += 1
            if not head.may_name(at):
                if now < waits_until:
                    waiting += 1
                else:
                    sweep.offer(meta)
            elif at < next_floor:
                later += 1
            elif at > now + times.grace:
                ahead = [ahead[0] + 1, max(ahead[1], at)]
                # Not what a producer may be about to enqueue: that is safe too, but it would be written twice.
                if at > times.horizon and times.is_old(meta):
                    to_close.add(at)
        sweep.flush()
        self._warn_of_the_future(ahead[0], ahead[1] - now, is_full=to_close.is_full)
        # Only now, when the floor before is carried out: else collectors that run often would put it off for ever.
        if now >= waits_until and sweep.is_complete and not cycle.is_over() and not cycle.dry_run:
            self._close_times(later, to_close, view, times, cycle)
        return _report(
            sweep,
            found,
            GcDetails(
                named=head.next_sequence - head.first_sequence,
                waiting=waiting,
                waits_until=waits_until,
                later=later,
                ahead=ahead[0],
                floor=head.floor,
            ),
        )

    def _list_native(self, head: Head, floor: int, horizon: int, cycle: Cycle) -> Iterator[tuple[ObjectMeta, int]]:
        """Data objects and segments with their ULID times: all, or those that may be neither queued nor young."""
        prefix, folder = self._config.data_path_prefix, folder_of(self._config.manifest_path)
        store = self._store
        if isinstance(store, ListsRanges) and not cycle.lists_everything:
            closed = [(max(first, floor), min(last, horizon)) for first, last in head.closed]
            ranges = [(0, floor - 1), *closed, (max(horizon + 1, floor), LAST_ULID_MS)]
            listed = store.list_ranges(prefix, [_paths_of(prefix, *one) for one in ranges if one[0] <= one[1]])
        else:
            listed = store.list_objects(prefix)
        for meta in listed:
            at = location_time(meta.path) if is_data_path(meta.path, prefix) else None
            if at is not None:
                yield meta, at
        for meta in store.list_objects(folder):
            name = meta.path.rpartition("/")[2]
            if meta.path == f"{folder}/{name}" and (at := segment_time(name)) is not None:
                yield meta, at

    def _named(self, listed: dict[str, ObjectMeta], cycle: Cycle) -> set[str]:
        """Which of the objects the head names, whatever its floor says; it is read after they were listed.

        In a sound head nothing is as old as what is below its floor, and so no segment is opened to find out.
        """
        view = self._queue.look()
        if view.version is None or not isinstance(view, NativeView):
            return set(listed)
        newest = max(ulid_time_of(path) for path in listed)
        named = set()
        for count, path in enumerate(named_objects(view.head, view.segments, through=newest), 1):
            if path in listed:
                named.add(path)
            if count % _NAMES_PER_LOOK_AT_THE_TIME == 0 and cycle.is_over():
                return set(listed)
        if named:
            _log.error(
                "%d objects are named by %s/%s and collectable by its floor, such as %s: they are kept; the manifest "
                "is damaged, or a program that does not know the floor has written it",
                len(named),
                url_of(self._store),
                self._config.manifest_path,
                min(named),
            )
        return named

    def _close_times(
        self, later: int, to_close: RangesToClose, view: NativeView, times: CycleTimes, cycle: Cycle
    ) -> None:
        queue = self._queue.native
        if queue is None or not (later or to_close.ranges):
            return
        latest = times.now() - times.grace if later else 0
        closing = Closing(to_close, view.segments, cycle.is_over)
        queue.close_times(lambda head: floor_for(head, latest), closing.ranges_for, times.now)

    def _warn_of_the_future(self, count: int, ahead_ms: int, *, is_full: bool) -> None:
        if count:
            _log.warning(
                "%d objects of %s are dated up to %.0f s ahead of this clock: some host's clock is or was wrong; they "
                "are kept until that time has come, or, dated more than a day ahead, until they are acked%s",
                count,
                url_of(self._store),
                ahead_ms / 1000,
                "; some of these have to wait too, for the head has no place for more such ranges" if is_full else "",
            )

    # Both.

    def _sweep(self, named: Callable[[dict[str, ObjectMeta]], set[str]], cycle: Cycle) -> Sweep:
        return Sweep(named, self._delete, cycle.is_over, cycle.is_stopped, self._claim, dry_run=cycle.dry_run)

    def _claim(self) -> None:
        """Claim the prefix, so that from here on nobody else's data can be in it."""
        self._queue.own_prefix(self._config.data_path_prefix, claim=True)

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


def _names(view: QueueView) -> set[str]:
    """The file names of what a manifest names. A ULID is unique, and the folders of a path depend on the store's root.

    So a live object is kept even where the manifest is opened from another root, and no owner says so.
    """
    return {_name(entry.location) for entry in view.entries(view.first_sequence, view.next_sequence)}


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _report(sweep: Sweep, found: int, details: GcDetails) -> GcReport:
    details = replace(details, deleted_bytes=sweep.deleted_bytes, is_complete=sweep.is_complete)
    return GcReport(sweep.deleted, sweep.failed, found - sweep.deleted - sweep.failed, details)
