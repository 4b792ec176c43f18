"""A backlog of any size is worked off in bounded memory: that of the JVM, and of each Python process.

The bounds are those of `docs/guides/cluster.md`. How large the backlog is has no part in them: that is what is shown.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from tests.conftest import SHORT_LIVED_JVM
from tests.engine.regulation.test_out_of_memory import Group
from tests.spark.memory import drain, read_alone
from tests.spark.memory.backlog import MIB, OBJECT, Backlog, make_backlog
from tests.support.process_sessions import Session, processes_of
from tests.support.repository import ROOT
from tests.support.spark_session import skip_without_java

HEAP = 1024 * MIB

BOUNDS = {"jvm": HEAP + 512 * MIB, "worker": 160 * MIB + 4 * OBJECT, "driver": 160 * MIB}
WHOLE = 2560 * MIB  # of all of them together, which the kernel enforces

# What the command of each kind of process has in it.
KINDS = {
    "jvm": "org.apache.spark",
    "worker": "pyspark.daemon",
    "driver": drain.__name__,
}


def kind_of(pid: int) -> str | None:
    """Which part of Spark a process is; None for one that is gone, or is about to become something else."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return None
    return next((kind for kind, word in KINDS.items() if word in words), None)


def peak_of(pid: int) -> int:
    """The most memory that a process ever had; 0 for one that is gone."""
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) << 10 if found else 0


@dataclass(frozen=True)
class Drained:
    """The driver's report, and the peak of each of its processes, the highest first."""

    report: dict[str, Any]
    peaks: dict[str, list[int]]


def drained(backlog: Backlog, sink: str, group: Group | None = None, seconds: float = 600) -> Drained:
    """Work a backlog off by a new driver, and look at its processes all the while."""
    words = [str(group.folder) if group else "", str(backlog.folder), sink, f"{HEAP // MIB}m"]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    for name in SHORT_LIVED_JVM:
        del environment[name]  # the memory of a JVM as it is by default
    session = Session([sys.executable, "-m", drain.__name__, *words], environment, ROOT)
    seen: dict[int, tuple[str, int]] = {}
    deadline = time.monotonic() + seconds
    try:
        while not session.has_ended():
            for pid in processes_of(session.id):
                kind = kind_of(pid)
                if kind is not None:
                    seen[pid] = kind, max(peak_of(pid), seen.get(pid, ("", 0))[1])
            assert time.monotonic() < deadline, f"it is not done in {seconds} s:\n{session.output}"
            time.sleep(0.2)  # between two looks: the kernel keeps each peak
        status = session.status(10)
    finally:
        session.kill()
    peaks = {kind: sorted((peak for of, peak in seen.values() if of == kind), reverse=True) for kind in KINDS}
    in_mib = {kind: [peak // MIB for peak in of] for kind, of in peaks.items()}
    print(f"{sink}: {in_mib} MiB at most; the group: {(group.peak or 0) // MIB if group else 'none'}")
    assert status == 0, session.output
    return Drained(json.loads((backlog.folder / drain.REPORT).read_text()), peaks)


def check(backlog: Backlog, result: Drained) -> None:
    print(result.report)
    assert (result.report["rows"], result.report["counted"]) == (backlog.rows, backlog.rows)
    assert result.report["left"] == 0
    for kind, bound in BOUNDS.items():
        assert result.peaks[kind], f"no process was seen as {kind}"
        assert result.peaks[kind][0] <= bound, f"{kind}: {result.peaks[kind][0] / MIB:.0f} MiB"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that is gone when the test is over: pytest would keep what is there."""
    skip_without_java()
    yield tmp_path
    shutil.rmtree(tmp_path)


@pytest.fixture
def group() -> Iterator[Group]:
    """A group whose processes may have `WHOLE` bytes together, and no swap."""
    group = Group.make(WHOLE)
    yield group
    group.remove()


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_a_backlog_is_worked_off_in_bounded_memory(folder: Path) -> None:
    backlog = make_backlog(folder, 256 * MIB)
    check(backlog, drained(backlog, "table"))


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("sink", ["table", "counted"])
def test_5_gib_are_worked_off_under_a_limit_of_the_kernel(sink: str, folder: Path, group: Group) -> None:
    backlog = make_backlog(folder, 5 << 30)
    result = drained(backlog, sink, group, seconds=1700)
    assert group.kills == 0, "the kernel has killed it"
    check(backlog, result)


@pytest.mark.parametrize("compression", ["none", pytest.param("zstd", marks=pytest.mark.slow)])
def test_a_task_holds_few_data_objects_at_a_time(compression: str, tmp_path: Path) -> None:
    backlog = make_backlog(tmp_path, 8 * OBJECT, compression)
    read = [sys.executable, "-m", read_alone.__name__, str(tmp_path / "events")]
    done = subprocess.run(read, cwd=ROOT, capture_output=True, text=True, check=False)
    shutil.rmtree(tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["rows"] == backlog.rows
    assert report["peak"] <= BOUNDS["worker"], f"{report['peak'] / MIB:.0f} MiB"
