"""A process under a memory limit of the kernel works off a backlog of many times that, and is not killed.

The backlog is compressed: small on disk, and many times the limit when it is decoded. Page cache plays no part.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import Producer, ProducerConfig
from tests.engine.regulation import drain_in_group
from tests.support.repository import ROOT

LIMIT = 96 << 20
OBJECT_BYTES = 2 << 20  # of a data object, decoded
TEXT = b'{"user": "customer", "page": "/products/of/all/kinds", "took": 123}, '


@dataclass(frozen=True)
class Group:
    """A group of processes with a limit of memory, of either version of the interface."""

    folder: Path
    is_v2: bool

    @classmethod
    def make(cls, limit: int) -> Group:
        """Make one, or skip the test and say why."""
        if os.geteuid() != 0:
            pytest.skip("a cgroup with a limit of memory takes root")
        v1, v2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
        is_v2 = not (v1 / "memory.limit_in_bytes").exists()
        group = cls((v2 if is_v2 else v1) / f"penstock-test-{uuid.uuid4().hex}", is_v2)
        try:
            if is_v2 and "memory" not in (v2 / "cgroup.subtree_control").read_text().split():
                (v2 / "cgroup.subtree_control").write_text("+memory")
            group.folder.mkdir()
            (group.folder / ("memory.max" if is_v2 else "memory.limit_in_bytes")).write_text(str(limit))
            group.forbid_swap(limit)
        except OSError as error:
            if group.folder.is_dir():
                group.folder.rmdir()
            pytest.skip(f"this system has no memory controller that root may use: {error}")
        return group

    @property
    def kills(self) -> int:
        """How many processes in it the kernel has killed for want of memory."""
        text = (self.folder / ("memory.events" if self.is_v2 else "memory.oom_control")).read_text()
        return int(dict(line.split() for line in text.splitlines())["oom_kill"])

    @property
    def peak(self) -> int | None:
        """The most that was ever used; None where the kernel does not say."""
        file = self.folder / ("memory.peak" if self.is_v2 else "memory.max_usage_in_bytes")
        return int(file.read_text()) if file.exists() else None

    def remove(self) -> None:
        """Remove it, after killing the processes in it."""
        for pid in (self.folder / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        self.folder.rmdir()

    def forbid_swap(self, limit: int) -> None:
        name, value = ("memory.swap.max", 0) if self.is_v2 else ("memory.memsw.limit_in_bytes", limit)
        if (self.folder / name).exists():
            (self.folder / name).write_text(str(value))


@pytest.fixture
def group() -> Iterator[Group]:
    """A group whose processes may have `LIMIT` bytes together, and no swap."""
    group = Group.make(LIMIT)
    yield group
    group.remove()


@dataclass(frozen=True)
class Backlog:
    """A buffer, and how many records are in it."""

    folder: Path
    rows: int


def make_backlog(folder: Path, record_bytes: int, overload: int) -> Backlog:
    """Produce `overload` times the limit. Each record begins with its number; the rest compresses well."""
    text = (TEXT * (record_bytes // len(TEXT) + 1))[: record_bytes - 12]
    rows_per_object = OBJECT_BYTES // record_bytes
    rows = overload * LIMIT // record_bytes
    with Producer(folder, ProducerConfig(compression="zstd", flush_size_bytes=OBJECT_BYTES)) as producer:
        for first in range(0, rows, rows_per_object):
            numbered = [b"%012d" % number + text for number in range(first, first + rows_per_object)]
            producer.produce(pa.RecordBatch.from_arrays([pa.array(numbered, pa.binary())], ["value"]))
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    assert size < LIMIT / 2, "it would not fit into the page cache"
    return Backlog(folder, rows)


@dataclass(frozen=True)
class Ended:
    """How a process ended, and what it reported."""

    status: int
    report: dict[str, Any]
    log: str


@pytest.fixture
def drain(group: Group, tmp_path: Path) -> Callable[[Backlog, str, str], Ended]:
    """Work off a backlog by a new process in the group."""

    def drain(backlog: Backlog, kind: str, how: str) -> Ended:
        words = [str(group.folder), str(backlog.folder), kind, how, str(backlog.rows)]
        done = subprocess.run(
            [sys.executable, "-m", drain_in_group.__name__, *words],
            capture_output=True,
            text=True,
            timeout=240,
            cwd=ROOT,
        )
        print(how, kind, done.returncode, done.stdout, f"peak {(group.peak or 0) / LIMIT:.2f}", done.stderr)
        return Ended(done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr)

    return drain


# Records in columns are cheap, and small. A process that creates objects gets larger ones: it takes its time for each.
QUICK = ("columns", 1 << 10, 5)
SLOW = [("columns", 1 << 10, 20), ("objects", 4 << 10, 20)]
CHAOS = [(kind, size, 20) for kind in ("columns", "objects") for size in (256, 1 << 10, 64 << 10)]
CASES = [
    QUICK,
    *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW),
    *(pytest.param(*case, marks=pytest.mark.chaos) for case in CHAOS),
]


@pytest.mark.parametrize(("kind", "record_bytes", "overload"), CASES)
def test_a_regulated_process_works_off_many_times_its_memory(
    kind: str, record_bytes: int, overload: int, group: Group, tmp_path: Path, drain: Callable[..., Ended]
) -> None:
    backlog = make_backlog(tmp_path / "buffer", record_bytes, overload)
    ended = drain(backlog, kind, "regulated")
    assert group.kills == 0, "the kernel has killed it"
    assert ended.status == 0, ended.log
    assert ended.report["limit"] == LIMIT
    assert (ended.report["rows"], ended.report["in order"]) == (backlog.rows, True)
    assert ended.report["leased"] == 0
    assert group.peak is None or group.peak < LIMIT
    assert "no relief" not in ended.log, "it was held for 30 seconds"


@pytest.mark.parametrize(("kind", "record_bytes", "overload"), [QUICK, pytest.param(*SLOW[1], marks=pytest.mark.slow)])
def test_without_regulation_the_kernel_kills_it(
    kind: str, record_bytes: int, overload: int, group: Group, tmp_path: Path, drain: Callable[..., Ended]
) -> None:
    ended = drain(make_backlog(tmp_path / "buffer", record_bytes, overload), kind, "off")
    assert group.kills == 1
    assert ended.status == -signal.SIGKILL
    assert ended.report == {}
