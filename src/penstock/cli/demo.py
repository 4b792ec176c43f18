"""`penstock demo`: everything end to end: services, queues, a buffer, a pipeline on Spark that is killed, tables."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from penstock.buffer import Manifest
from penstock.cli.output import console as new_console
from penstock.cli.run import check_java
from penstock.engine import ship
from penstock.errors import PenstockError, StorageError
from penstock.queue import DurableEventQueue
from penstock.storage import open_store

EVENTS_PER_PUSH = 50
SECONDS_BETWEEN_PUSHES = 0.07  # so that the services still push when the driver is killed
EVENTS_PER_BROKEN = 100  # one event in so many is no JSON
EVENTS_PER_WRONG = 150  # and one in so many is JSON that the process function sets apart
_POLL_SECONDS = 0.25
_LONGEST_WAIT_SECONDS = 300.0
_DRIVER_LOG = "driver.log"
_PIPELINE = """\
# What `penstock demo` runs. To run it again: penstock run {root}/pipeline.toml
source = "{root}/buffer"
checkpoint = "{root}/checkpoint"
dead_letters = "{root}/dead-letters"
trigger = "asap"

[options]
maxBytesPerTrigger = "{block}"

[parse]
format = "json"
schema = "event string, number bigint, at timestamp"

[[process]]
function = "penstock.cli.demo_process:add_service"
schema = "event string, number bigint, at timestamp, service string"

[sink]
parquet = "{root}/table"

[spark]
master = "local[*]"
app_name = "penstock demo"

[spark.config]
"spark.ui.enabled" = "false"
"spark.sql.shuffle.partitions" = "2"
"spark.driver.host" = "127.0.0.1"
"spark.driver.bindAddress" = "127.0.0.1"
"""

_spawn = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Pushed:
    """What the services push."""

    run: str
    services: int
    events: int

    @property
    def total(self) -> int:
        """Every event."""
        return self.services * self.events

    @property
    def dead(self) -> int:
        """Those that must end as dead letters."""
        return self.services * sum(is_broken(number) or is_wrong(number) for number in range(self.events))


def is_broken(number: int) -> bool:
    """Whether the event of this number is no JSON."""
    return number % EVENTS_PER_BROKEN == 0


def is_wrong(number: int) -> bool:
    """Whether the event of this number is JSON that cannot be used."""
    return not is_broken(number) and number % EVENTS_PER_WRONG == 1


def demo_command(
    directory: Annotated[
        Path | None,
        typer.Argument(help="Where the demo keeps everything; a new temporary directory by default."),
    ] = None,
    producers: Annotated[int, typer.Option(min=1, max=64, help="How many services push at once.")] = 4,
    events: Annotated[int, typer.Option(min=1, max=1_000_000, help="How many events each of them pushes.")] = 25_000,
    kills: Annotated[int, typer.Option(min=0, max=1_000, help="How often the pipeline's driver is killed.")] = 1,
) -> None:
    """Run everything on this machine: services, queues, a buffer, Spark, tables. The driver is killed on the way."""
    if not run_demo(directory, producers=producers, events=events, kills=kills, console=new_console()):
        raise typer.Exit(1)


def run_demo(directory: Path | None, *, producers: int, events: int, kills: int, console: Console) -> bool:
    """Run the demo, and return whether every event came, once, as a row or as a dead letter."""
    check_java()
    root = make_place(directory)
    pushed = Pushed(uuid.uuid4().hex[:8], producers, events)
    (root / "pipeline.toml").write_text(_PIPELINE.format(root=root, block=max(pushed.total * 20, 100_000)))
    console.print(f"Everything is in {root}", highlight=False, soft_wrap=True)
    console.print(f"Services that push into durable queues, and ship these into a buffer: {producers}.")
    console.print(f"Events that each of them pushes: {events:,}.")
    console.print("A pipeline on Spark parses them into a Parquet table; broken ones go into a table of dead letters.")
    started = time.monotonic()
    watch = Watch(root, pushed, console, started)
    with _running(root, pushed) as services:
        for kill in range(kills):
            with _driver(root, kill + 1, console) as driver:
                watch.until_some_came(driver, services)
                driver.kill()
                driver.wait()
            watch.say(f"killed the pipeline's driver with SIGKILL ({kill + 1} of {kills}); starting it again")
        epoch = Manifest.read(root / "buffer").epoch
        with _driver(root, kills + 1, console) as driver:
            watch.until_all_came(driver, services, epoch)
            driver.send_signal(signal.SIGTERM)
            code = driver.wait(_LONGEST_WAIT_SECONDS)
    watch.say(f"stopped the driver with SIGTERM: it ended with exit code {code}")
    return _show(console, root, pushed, time.monotonic() - started) and code == 0


def make_place(directory: Path | None) -> Path:
    """Make the directory that the demo keeps everything in. Raises `PenstockError` where none can be."""
    root = Path(directory or tempfile.mkdtemp(prefix="penstock-demo-")).absolute()
    open_store(root)  # which refuses what is no directory
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"the directory {root} cannot be made: {error.strerror}") from error
    return root


class Watch:
    """Counts the rows of the tables while they grow, as any reader could, and prints the progress."""

    def __init__(self, root: Path, pushed: Pushed, console: Console, started: float) -> None:
        self._root = root
        self._pushed = pushed
        self._console = console
        self._started = started
        self._last_progress = ""

    def say(self, what: str) -> None:
        """Print a line, with the time."""
        since = time.monotonic() - self._started
        self._console.print(f"  {since:5.1f} s  {what}", highlight=False, soft_wrap=True)

    def until_some_came(self, driver: subprocess.Popen[bytes], services: list[BaseProcess]) -> None:
        """Wait until a block more than before is in the table."""
        before = self._count()[0]
        self._wait(driver, services, lambda rows, _: rows > before)

    def until_all_came(self, driver: subprocess.Popen[bytes], services: list[BaseProcess], epoch: int) -> None:
        """Wait until as many rows and dead letters are there as events were pushed."""

        def done(rows: int, dead: int) -> bool:
            if rows + dead < self._pushed.total:
                return False
            # The last block is acked a moment after it is in the table. A driver that runs has a new epoch.
            manifest = Manifest.read(self._root / "buffer")
            return not manifest.entries and manifest.epoch > epoch

        self._wait(driver, services, done)

    def _count(self) -> tuple[int, int]:
        return rows_in(self._root / "table"), rows_in(self._root / "dead-letters")

    def _wait(
        self, driver: subprocess.Popen[bytes], services: list[BaseProcess], done: Callable[[int, int], bool]
    ) -> None:
        until = time.monotonic() + _LONGEST_WAIT_SECONDS
        while True:
            rows, dead = self._count()
            working = sum(service.is_alive() for service in services)
            progress = f"rows: {rows:,}; dead letters: {dead:,}; services that still push: {working}"
            if progress != self._last_progress:
                self.say(progress)
                self._last_progress = progress
            if done(rows, dead):
                return
            if driver.poll() is not None:
                raise PenstockError(
                    f"the driver ended by itself, with exit code {driver.returncode}: see {self._root / _DRIVER_LOG}"
                )
            if any(service.exitcode for service in services):
                raise PenstockError("a service failed")
            if time.monotonic() > until:
                raise PenstockError(
                    f"nothing more came for {_LONGEST_WAIT_SECONDS:.0f} s: see {self._root / _DRIVER_LOG}"
                )
            time.sleep(_POLL_SECONDS)


def rows_in(table: Path) -> int:
    """How many rows a plain reader of Parquet finds in a table now."""
    import pyarrow.dataset as ds

    if not table.is_dir():
        return 0
    return ds.dataset(table, format="parquet", partitioning="hive").count_rows()


@contextmanager
def _driver(root: Path, number: int, console: Console) -> Iterator[subprocess.Popen[bytes]]:
    """The pipeline's driver: `penstock run`, in a process of its own."""
    console.print(f"  starting the driver: penstock run {root}/pipeline.toml", highlight=False, soft_wrap=True)
    with (root / _DRIVER_LOG).open("ab") as log:
        log.write(b"--- driver %d\n" % number)
        log.flush()
        driver = subprocess.Popen(  # noqa: S603  our own command
            [sys.executable, "-m", "penstock.cli", "run", str(root / "pipeline.toml")],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield driver
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()


@contextmanager
def _running(root: Path, pushed: Pushed) -> Iterator[list[BaseProcess]]:
    """The services, each in a process of its own."""
    running: list[BaseProcess] = []
    try:
        for number in range(pushed.services):
            running.append(_spawn.Process(target=serve, args=(root, pushed, number)))
            running[-1].start()
        yield running
    finally:
        for service in running:
            if sys.exc_info()[0] is not None:
                service.kill()
            service.join()


def serve(root: Path, pushed: Pushed, number: int) -> None:
    """Push events into a durable queue, and ship it at the same time: what a service does."""
    name = f"{pushed.run}/service{number}"
    with DurableEventQueue(root / "queues" / name.replace("/", "-")) as queue:
        stop = threading.Event()
        shipper = threading.Thread(target=ship, args=(queue, root / "buffer"), kwargs={"stop": stop}, name="shipper")
        shipper.start()
        for start in range(0, pushed.events, EVENTS_PER_PUSH):
            queue.push_many([event(name, one) for one in range(start, min(start + EVENTS_PER_PUSH, pushed.events))])
            time.sleep(SECONDS_BETWEEN_PUSHES)
        stop.set()
        shipper.join()
        ship(queue, root / "buffer", until_idle=True)


def event(name: str, number: int) -> bytes:
    """The bytes of one event. Some are broken."""
    if is_broken(number):
        return b'{"event": "%b/%d", this is no JSON' % (name.encode(), number)
    value = -1 if is_wrong(number) else number
    return msgspec.json.encode({"event": f"{name}/{number}", "number": value, "at": "2026-11-16T12:00:00Z"})


def _show(console: Console, root: Path, pushed: Pushed, seconds: float) -> bool:
    """Compare what was pushed with what the tables have, event by event, and print the result."""
    import pyarrow.dataset as ds

    rows = ds.dataset(root / "table", format="parquet", partitioning="hive").to_table(columns=["event"])
    letters = ds.dataset(root / "dead-letters", format="parquet", partitioning="hive").to_table(columns=["payload"])
    services = [f"{pushed.run}/service{number}" for number in range(pushed.services)]
    wanted = {f"{service}/{number}" for service in services for number in range(pushed.events)}
    found = [str(name) for name in rows.column("event").to_pylist()]
    came = [name for name in found if name.startswith(pushed.run)]
    dead = [name for name in map(_name_in, letters.column("payload").to_pylist()) if name.startswith(pushed.run)]
    ours = came + dead
    lost, twice = len(wanted - set(ours)), len(ours) - len(set(ours))
    table = Table(title=str(root), title_justify="left")
    table.add_column("what")
    table.add_column("how many", justify="right")
    for what, count in {
        "events pushed": f"{pushed.total:,}",
        "rows in the table": f"{len(came):,}",
        "dead letters": f"{len(dead):,}",
        "lost": f"{lost:,}",
        "twice": f"{twice:,}",
        "rows/s, from the first push to the last block, with every start of Spark": f"{len(found) / seconds:,.0f}",
    }.items():
        table.add_row(what, count)
    console.print(table)
    manifest = Manifest.read(root / "buffer")
    console.print(f"Batches: {manifest.next_sequence}, of which not acked: {len(manifest.entries)}. The files:")
    for what, where in {
        "the queues": root / "queues",
        "the buffer": f"{root / 'buffer'}   (penstock status {root / 'buffer'})",
        "the table": f"{root / 'table'}   (any reader of Parquet)",
        "the dead letters": root / "dead-letters",
        "the pipeline": f"{root / 'pipeline.toml'}   (penstock run)",
        "the driver's log": root / _DRIVER_LOG,
    }.items():
        console.print(f"  {what:17} {where}", highlight=False, soft_wrap=True)
    return not lost and not twice and len(manifest.entries) == 0


def _name_in(payload: object) -> str:
    """The name of the event that a dead letter was."""
    return bytes(payload).decode().split('"event":')[1].split('"')[1] if isinstance(payload, bytes) else ""
