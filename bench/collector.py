"""What a cycle of the collector costs as the backlog grows: seconds, and the most memory it holds at once.

The objects are empty files on this machine's disk, named by a native manifest; beside them are a thousand that nothing
names, which the cycle deletes. A cycle that is due looks for what may have to go; one by hand looks at everything.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from penstock.buffer import GarbageCollector, GcReport
from penstock.buffer.descriptors import Metadata, NewEntry
from penstock.buffer.locations import Names
from penstock.buffer.manifest.queue import BufferQueue
from penstock.storage import LocalStore

BACKLOGS = (10_000, 1_000_000)
GARBAGE = 1_000
_BULK = 10_000
_HOUR = 3_600.0
_A_GRACE_PERIOD = 601.0

CYCLES: dict[str, Callable[[GarbageCollector], GcReport | None]] = {
    "due": GarbageCollector.collect_if_due,
    "by hand": GarbageCollector.collect_once,
}


def fill(root: Path, backlog: int) -> None:
    """Make a buffer of so many entries."""
    names = Names(itertools.count(time.time() - _HOUR / 2, 0.001).__next__)
    queue = BufferQueue(LocalStore(root, sync=False), "ingest/manifest", "producer", names=names)
    (root / "ingest").mkdir()
    for start in range(0, backlog, _BULK):
        locations = [names.location("ingest") for _ in range(min(_BULK, backlog - start))]
        for location in locations:
            _touch(root / location)
        entries = [NewEntry(location, (Metadata(0, 0),), float("inf"), 0, 1) for location in locations]
        queue.enqueue(entries)


def litter(root: Path) -> None:
    """Leave objects of an hour ago there that no entry names."""
    names = Names(lambda: time.time() - _HOUR)
    for _ in range(GARBAGE):
        _touch(root / names.location("ingest"))


def _touch(path: Path) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))


def timed(cycle: Callable[[], GcReport | None]) -> float:
    """Seconds that a cycle takes."""
    started = time.perf_counter()
    report = cycle()
    if report is None or report.deleted != GARBAGE:
        raise AssertionError(f"the cycle was to delete {GARBAGE} objects, and this is what it did: {report}")
    return time.perf_counter() - started


def peak(cycle: Callable[[], GcReport | None]) -> float:
    """The most MiB that a cycle holds at once."""
    tracemalloc.start()
    try:
        cycle()
        return tracemalloc.get_traced_memory()[1] / (1 << 20)
    finally:
        tracemalloc.stop()


def measured(root: Path, cycle: Callable[[GarbageCollector], GcReport | None]) -> tuple[str, str]:
    """Seconds and MiB of a cycle that deletes what lies about, after one that has set the floor."""
    ahead = 0.0
    collector = GarbageCollector(
        LocalStore(root, sync=False), clock=lambda: time.time() + ahead, uptime=itertools.count(0.0, _HOUR).__next__
    )
    litter(root)
    cycle(collector)
    ahead = _A_GRACE_PERIOD
    seconds = timed(lambda: cycle(collector))
    litter(root)
    return f"{seconds:.2f}", f"{peak(lambda: cycle(collector)):.1f}"


def run() -> None:
    """Measure, and print a table."""
    table = Table("backlog", "cycle", "seconds", "peak MiB", title=f"The collector, {GARBAGE:,} objects to delete")
    for backlog in BACKLOGS:
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
            root = Path(directory)
            fill(root, backlog)
            for name, cycle in CYCLES.items():
                table.add_row(f"{backlog:,}", name, *measured(root, cycle))
    Console().print(table)
