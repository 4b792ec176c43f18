"""A backlog of any size is worked off in bounded memory: that of the JVM, and of each Python process.

The bounds are for two tasks at once and data objects of 64 MiB. They do not know how large the backlog is: that is
what is shown.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.buffer import ProducerConfig
from penstock.buffer.appending import BlockAppender, WrittenObject
from penstock.buffer.locations import new_location
from penstock.records import values_to_arrow
from penstock.storage import open_store
from tests.engine.test_out_of_memory import Group

pytest.importorskip("pyspark")

from tests.spark.cluster.standalone import Session, processes_of
from tests.spark.memory import drain

MIB = 1 << 20
OBJECT = 64 * MIB
ROOT = Path(__file__).parents[3]
HEAP = 1024  # MiB, of the JVM

# MiB. The JVM's own parts beside its heap, and Arrow's buffers; a Python worker: the libraries, a data object twice
# while the next one comes, and what parsing makes of 8 MiB.
BOUNDS = {"jvm": HEAP + 512, "worker": 448, "planner": 192, "driver": 192}
WHOLE = 2560  # MiB, of all of them together, as a limit that the kernel enforces


@dataclass(frozen=True)
class Backlog:
    """A folder with a buffer in it, and how many records that has."""

    folder: Path
    rows: int


def make_backlog(folder: Path, size: int) -> Backlog:
    """A backlog of JSON of about 1 KiB. All its data objects are one file by many names: each is read in full."""
    line = b'{"id": %12d, "event": "click", "text": "%s"}'
    text = b"somebody looked at a page of products " * 25
    values = [line % (number, text) for number in range(OBJECT // len(line % (0, text)))]
    events = folder / "events"
    config = ProducerConfig()
    appender = BlockAppender(open_store(events), config)
    first = appender.write(values_to_arrow(values))
    objects = [first]
    for _ in range(size // OBJECT - 1):
        location = new_location(config.data_path_prefix, first.began)
        os.link(events / first.location, events / location)
        objects.append(WrittenObject(location, first.records, first.size, first.began))
    assert appender.append(objects)
    return Backlog(folder, first.records * len(objects))


def kind_of(pid: int) -> str | None:
    """Which part of Spark a process is; None for one that is gone, or is about to become something else."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return None
    kinds = {"jvm": r"org\.apache\.spark", "planner": "streaming", "worker": r"pyspark\.daemon", "driver": "drain"}
    return next((kind for kind, pattern in kinds.items() if re.search(pattern, words)), None)


def peak_of(pid: int) -> int:
    """The most memory that a process ever had, in MiB."""
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) // 1024 if found else 0


@dataclass(frozen=True)
class Drained:
    """What the driver said, and the peak of each of its processes."""

    said: dict[str, Any]
    peaks: dict[str, list[int]]


def drained(backlog: Backlog, sink: str, group: Group | None = None, seconds: float = 240) -> Drained:
    """Work a backlog off by a new driver, and look at its processes all the while."""
    words = [str(group.folder) if group else "", str(backlog.folder), sink, f"{HEAP}m"]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    session = Session([sys.executable, "-m", drain.__name__, *words], environment, ROOT)
    peaks: dict[int, tuple[str, int]] = {}
    deadline = time.monotonic() + seconds
    try:
        while not session.has_ended():
            for pid in processes_of(session.id):
                kind = kind_of(pid)
                if kind is not None:
                    peaks[pid] = kind, max(peak_of(pid), peaks.get(pid, ("", 0))[1])
            assert time.monotonic() < deadline, f"it is not done in {seconds} s:\n{session.said}"
            time.sleep(0.05)  # between two looks: the kernel keeps each peak
        status = session.status(10)
        by_kind = {
            kind: sorted((peak for is_of, peak in peaks.values() if is_of == kind), reverse=True) for kind in BOUNDS
        }
        print(f"{sink}: MiB at most: {by_kind}; group: {(group.peak or 0) // MIB if group else '-'}\n{session.said}")
        assert status == 0, session.said
    finally:
        session.kill()
    return Drained(json.loads(session.said.splitlines()[-1]), by_kind)


def check(backlog: Backlog, result: Drained) -> None:
    assert (result.said["rows"], result.said["counted"]) == (backlog.rows, backlog.rows)
    assert result.said["left"] == 0
    for kind, bound in BOUNDS.items():
        assert result.peaks[kind], f"no process was seen as {kind}"
        assert result.peaks[kind][0] <= bound, f"{kind}: {result.peaks[kind]} MiB"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that is gone when the test is over: pytest would keep what lies there."""
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)


def test_a_backlog_is_worked_off_in_bounded_memory(folder: Path) -> None:
    backlog = make_backlog(folder, 256 * MIB)
    check(backlog, drained(backlog, "table"))
