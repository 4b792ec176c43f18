"""What an enqueue costs as the backlog grows: manifest version 1 beside version 2, on this machine's disk, synced.

Each number is the median of single enqueues, consumers opened, and entries read in the middle of the backlog, every
one by a queue that has nothing in its cache but, for an enqueue, the head that it wrote last. After each enqueue the
oldest entry is acked, which is not timed: the backlog stays as long as it is. Bytes are those written for one enqueue,
on average: with the segments that it seals. A plot of the times goes into `docs/images`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from rich.console import Console
from rich.table import Table

from bench.growth_plot import Line, plot
from penstock import Consumer, ConsumerConfig, ObjectStore, open_store
from penstock.buffer import ManifestFormat
from penstock.buffer.descriptors import Metadata, NewEntry
from penstock.buffer.locations import Names
from penstock.buffer.manifest.queue import BufferQueue

BACKLOGS = (10, 1_000, 10_000, 100_000)
PATH = "ingest/manifest"
PLOT = Path(__file__).parents[1] / "docs" / "images" / "growth.svg"
_BULK = 250
_ROUNDS = 10
_ENQUEUES = 52  # in a round: two sealings and more in all of them
_READS = 20


@dataclass(frozen=True)
class Cost:
    """What one version costs at one backlog: seconds, and bytes."""

    enqueue: float
    written: float
    open: float
    read: float

    @property
    def both(self) -> float:
        """A consumer that opens, and reads somewhere."""
        return self.open + self.read


class CountingStore:
    """Counts the bytes that are written."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.written = 0

    def __getattr__(self, name: str) -> object:
        if not name.startswith("put"):
            return getattr(self._store, name)
        write: Callable[..., object] = getattr(self._store, name)

        def counted(path: str, data: bytes, *more: object) -> object:
            self.written += len(data)
            return write(path, data, *more)

        return counted


class Buffer:
    """A buffer with a backlog of entries that have no data behind them."""

    def __init__(self, root: str, version: ManifestFormat) -> None:
        self.store = CountingStore(open_store(root))
        self.version = version
        self.names = Names()
        self.writer = self.queue()
        self.length = 0

    def queue(self) -> BufferQueue:
        return BufferQueue(self.store, PATH, "producer", self.version, names=self.names)  # type: ignore[arg-type]

    def add(self, count: int) -> None:
        entries = [
            NewEntry(
                self.names.location("ingest"), (Metadata(0, int(time.time() * 1000)),), float("inf"), 1 << 20, 9000
            )
            for _ in range(count)
        ]
        self.writer.enqueue(entries)
        self.length += count

    def grow_to(self, length: int) -> None:
        while self.length < length:
            self.add(min(_BULK, length - self.length))


class Measured:
    """A buffer whose backlog stays as long as it is, and what was measured there."""

    def __init__(self, root: str, version: ManifestFormat, backlog: int) -> None:
        self._buffer = Buffer(root, version)
        self._buffer.grow_to(backlog)
        self._config = ConsumerConfig(gc=False, manifest_format=version)
        self._enqueues: list[float] = []
        self._written: list[int] = []
        self._opened: list[float] = []
        self._reads: list[float] = []

    def go_on(self) -> None:
        """Measure each of them a few times more."""
        buffer = self._buffer
        view = buffer.writer.claim("earliest", None, allow_gap=True)
        for sequence in range(view.first_sequence, view.first_sequence + _ENQUEUES):
            before = buffer.store.written
            self._enqueues.append(_timed(lambda: buffer.add(1)))
            self._written.append(buffer.store.written - before)
            buffer.writer.dequeue(view.epoch, sequence)
        for _ in range(_READS):
            self._opened.append(_timed(lambda: Consumer(buffer.store, self._config)))  # type: ignore[arg-type]
        view = buffer.queue().look()
        middle = (view.first_sequence + view.next_sequence) // 2
        for _ in range(_READS):
            self._reads.append(_timed(lambda: buffer.queue().look().entries(middle, middle + 1)))

    @property
    def cost(self) -> Cost:
        return Cost(median(self._enqueues), mean(self._written), median(self._opened), median(self._reads))


def run() -> None:
    versions = (ManifestFormat.OPENDATA, ManifestFormat.NATIVE)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as root:
        all_of_them = {
            (version, backlog): Measured(f"{root}/{version}-{backlog}", version, backlog)
            for backlog in BACKLOGS
            for version in versions
        }
        for _ in range(_ROUNDS):  # in turns: a disk is not as fast at one time as at another
            for measured in all_of_them.values():
                measured.go_on()
        ones, twos = ([all_of_them[version, backlog].cost for backlog in BACKLOGS] for version in versions)
    table = Table(
        "backlog", "", "enqueue, ms", "bytes written", "open, ms", "read, ms", "both, ms", title="As the backlog grows"
    )
    for backlog, one, two in zip(BACKLOGS, ones, twos, strict=True):
        for name, cost in (("version 1", one), ("version 2", two)):
            times = [f"{seconds * 1e3:,.2f}" for seconds in (cost.enqueue, cost.open, cost.read, cost.both)]
            table.add_row(f"{backlog:,}", name, times[0], f"{cost.written:,.0f}", *times[1:])
        table.add_section()
    for name, of in (("version 1", ones), ("version 2", twos)):
        ratios = [
            getattr(of[-1], what) / getattr(of[0], what) for what in ("enqueue", "written", "open", "read", "both")
        ]
        table.add_row("100,000 : 10", name, *(f"{ratio:,.2f}x" for ratio in ratios))
    Console(width=110).print(table)
    lines = [
        Line("version 1", [(backlog, cost.enqueue * 1e3) for backlog, cost in zip(BACKLOGS, ones, strict=True)]),
        Line("version 2", [(backlog, cost.enqueue * 1e3) for backlog, cost in zip(BACKLOGS, twos, strict=True)]),
    ]
    PLOT.parent.mkdir(exist_ok=True)
    PLOT.write_text(plot("ms for one enqueue", "batches in the backlog", lines))
    print(f"the plot is {PLOT.relative_to(PLOT.parents[2])}")


def _timed(work: Callable[[], object]) -> float:
    before = time.perf_counter()
    work()
    return time.perf_counter() - before
