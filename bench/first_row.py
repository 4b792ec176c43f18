"""From `penstock run` to the first row in a table, and every process that is started on the way.

The pipeline is like that of `penstock demo`: JSON with a process function, dead letters, Parquet, `local[*]`. A buffer
with a few events is there before. A row counts when any reader sees its file.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock import Producer

EVENTS = 2000
_POLL_SECONDS = 0.01
_MAX_SECONDS = 300.0
_TICKS = os.sysconf("SC_CLK_TCK")
_DAEMON, _WORKER = "Python: daemon of workers", "Python: worker"
_PIPELINE = """\
source = "{place}/buffer"
checkpoint = "{place}/checkpoint"
dead_letters = "{place}/dead-letters"
trigger = "asap"

[parse]
format = "json"
schema = "event string, number bigint, at timestamp"

[[process]]
function = "penstock.cli.demo_process:add_service"
schema = "event string, number bigint, at timestamp, service string"

[sink]
parquet = "{place}/table"

[spark]
master = "local[*]"

[spark.config]
"spark.ui.enabled" = "false"
"spark.driver.host" = "127.0.0.1"
"spark.driver.bindAddress" = "127.0.0.1"
"""


@dataclass
class Process:
    """A process below `penstock run`: what it is, when it was started, how long it lived, what it used."""

    what: str
    started: float
    ended: float | None = None
    cpu: float = 0.0


@dataclass
class FirstRow:
    """One run: seconds to the first row, and its processes by id and command, in the order of their start."""

    seconds: float = 0.0
    stderr: str = ""
    processes: dict[tuple[int, str], Process] = field(default_factory=dict)
    strangers: set[int] = field(default_factory=set, repr=False)


def make_place(place: Path, settings: Mapping[str, str]) -> Path:
    """A buffer with events, and a pipeline file beside it with these settings of Spark."""
    place.mkdir(parents=True)
    more = "".join(f'"{name}" = "{value}"\n' for name, value in settings.items())
    (place / "pipeline.toml").write_text(_PIPELINE.format(place=place) + more)
    event = b'{"event": "demo/service-%d", "number": %d, "at": "2026-11-18T12:00:00Z"}'
    with Producer(place / "buffer") as producer:
        producer.produce([event % (number % 4, number) for number in range(EVENTS)])
    return place


def environment(cache: Path) -> dict[str, str]:
    """As a user has it: with bytecode on disk, and with a cache of its own for the classes of the JVM."""
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return plain | {"XDG_CACHE_HOME": str(cache)}


def first_row(place: Path, cache: Path, python_options: Sequence[str] = ()) -> FirstRow:
    """Run the pipeline until a row is in its table, then stop it by SIGTERM, and wait for all of its processes."""
    found = FirstRow()
    command = [sys.executable, *python_options, "-m", "penstock.cli", "run", str(place / "pipeline.toml")]
    began, boot = time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)
    with (place / "stderr").open("wb") as stderr:
        driver = subprocess.Popen(command, stdout=stderr, stderr=stderr, env=environment(cache), start_new_session=True)
        try:
            while not _has_row(place / "table"):
                _check_runs(driver, began, place / "stderr")
                _look(driver.pid, boot, found)
                time.sleep(_POLL_SECONDS)
            found.seconds = time.monotonic() - began
            _look(driver.pid, boot, found)
            driver.send_signal(signal.SIGTERM)
            driver.wait(_MAX_SECONDS)
            _wait_for_end(driver.pid)
        except BaseException:
            _kill_all(driver.pid)
            raise
    found.stderr = (place / "stderr").read_text(errors="replace")
    return found


def _check_runs(driver: subprocess.Popen[bytes], began: float, stderr: Path) -> None:
    if driver.poll() is not None or time.monotonic() - began > _MAX_SECONDS:
        raise RuntimeError(f"penstock run made no row:\n{stderr.read_text()[-3000:]}")


def _has_row(table: Path) -> bool:
    return next(table.glob("block=*/*.parquet"), None) is not None


def _look(root: int, boot: float, found: FirstRow) -> None:
    """Note the processes of a session as they are now."""
    now = time.clock_gettime(time.CLOCK_BOOTTIME) - boot
    alive = set[tuple[int, str]]()
    for pid, stat in _processes_of(root, found.strangers):
        parent = next((name for one, name in found.processes if one == int(stat[1])), None)
        what = _named(pid, parent)
        if what is None:
            continue
        key = (pid, what)
        alive.add(key)
        if key not in found.processes:
            is_same = any(one == pid for one, _ in found.processes)  # a shell that became a JVM
            found.processes[key] = Process(what, now if is_same else int(stat[19]) / _TICKS - boot)
        found.processes[key].cpu = (int(stat[11]) + int(stat[12])) / _TICKS
    for key, process in found.processes.items():
        if key not in alive and process.ended is None:
            process.ended = now


def _processes_of(session: int, strangers: set[int] | None = None) -> list[tuple[int, list[str]]]:
    """The processes of a session: their ids, and their fields of `/proc/<id>/stat` from the third on.

    Those that are of another session are remembered, and not looked at again: a look must cost little.
    """
    strangers = set() if strangers is None else strangers
    found = []
    for name in os.listdir("/proc"):
        if not name.isdecimal() or int(name) in strangers:
            continue
        try:
            stat = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        if int(stat[3]) != session:
            strangers.add(int(name))
        elif stat[0] != "Z":
            found.append((int(name), stat))
    return found


def _named(pid: int, parent: str | None) -> str | None:
    """What a process of `penstock run` is; None for one that has ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    program, text = os.path.basename(words[0]), " ".join(words)
    if program == "java":
        if "org.apache.spark.launcher.Main" in words:
            return "JVM: Spark's launcher, which prints the command of the next"
        return "JVM: java -version" if "-version" in words else "JVM: Spark"
    if program.startswith("python"):
        if "penstock.cli" in words:
            return "Python: penstock run"
        return _WORKER if parent in {_DAEMON, _WORKER} else _DAEMON if "daemon" in text else "Python: another"
    return f"shell: {' '.join(os.path.basename(word) for word in words[:2])}" if text else None


def _wait_for_end(session: int) -> None:
    """Wait for what outlives the driver: the JVM writes its archive of classes when it ends."""
    ends = time.monotonic() + _MAX_SECONDS
    while _processes_of(session):
        if time.monotonic() > ends:
            raise RuntimeError("processes of penstock run do not end")
        time.sleep(0.05)


def _kill_all(session: int) -> None:
    for pid, _ in _processes_of(session):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
