"""A driver as the test that kills it sees it: a process that tells where it is."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from tests.spark.kills.job import Job
from tests.spark.kills.marks import Deed, Fate, Mark, kill
from tests.support.processes import PATIENCE
from tests.support.repository import ROOT

SPARKS_PATIENCE = 4 * PATIENCE  # a JVM and several Pythons start between two marks; on a busy machine that takes long


class Driver:
    """A driver process, which leads a group of its own: its JVM is in it."""

    def __init__(self, job: Job, fate: Fate | None = None) -> None:
        self._log = job.root / "driver.log"
        self._logged = self._log.stat().st_size if self._log.exists() else 0
        self._pipe, theirs = os.pipe()
        self._unread = b""
        self._is_over = False
        self.marks: list[tuple[Mark, int]] = []
        command = [sys.executable, "-m", "tests.spark.kills.driver"]
        arguments = [str(job.root), job.kind, str(theirs), *([str(fate)] if fate else [])]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *arguments],
                cwd=ROOT,
                env={**os.environ, "PYSPARK_PYTHON": sys.executable},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=[theirs],
                start_new_session=True,
            )
        os.close(theirs)  # so that its end is the end of the pipe: the JVM does not inherit it

    @property
    def output(self) -> str:
        """What the driver and its JVM wrote into the log."""
        return self._log.read_bytes()[self._logged :].decode(errors="replace")

    @property
    def was_overtaken(self) -> bool:
        """Whether it ended because another driver has taken over."""
        return "penstock.errors.Fenced" in self.output

    def reaches(self, mark: Mark, first: int | None = None, *, times: int = 1) -> bool:
        """Wait until the driver is at a mark, of any block or of one; False if it ended before."""
        heard, until = 0, time.monotonic() + SPARKS_PATIENCE
        while heard < times and not self._is_over:
            assert time.monotonic() < until, f"the driver does not come to {mark}: {self.marks[-3:]}"
            heard += sum(one is mark and first in (None, of) for one, of in self._hear())
        return heard >= times

    def wait(self) -> int:
        """Wait until it has ended, and return its exit code."""
        while not self._is_over:
            self._hear()
        return self._process.wait(SPARKS_PATIENCE)

    def lives_for(self, seconds: float) -> bool:
        """Let it go on for so long; False if it ended meanwhile."""
        until = time.monotonic() + seconds
        while not self._is_over and (seconds_to_go := until - time.monotonic()) > 0:
            self._hear(seconds_to_go)
        return not self._is_over

    def kill(self, deed: Deed) -> None:
        """Kill Python, and its JVM too if that is the deed, and return when Python is gone.

        Nobody asks for its exit code before all is over: until then its number, which is that of the group its JVM may
        still be in, is given to no other process.
        """
        kill(deed, self._process.pid)
        while not self._is_over:
            self._hear()

    def pause(self, buffer: Path) -> None:
        """Stop a driver that waits at a mark, and its JVM, at a moment at which it holds no lock of the buffer.

        Its collector may hold one for a moment. A directory's lock belongs to the host: a host that sleeps leaves no
        other driver that could wait for it, and one that is killed gives it back.
        """
        until = time.monotonic() + PATIENCE
        self._stop()
        while not _is_unlocked(buffer):
            assert time.monotonic() < until, f"the driver never lets go of the locks of {buffer}"
            os.killpg(self._process.pid, signal.SIGCONT)
            self._stop()

    def go_on(self) -> None:
        """Let it go on after a pause."""
        os.killpg(self._process.pid, signal.SIGCONT)
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def clear_away(self) -> None:
        """Leave nothing of it behind, its JVM neither."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(PATIENCE)
        if self._process.stdin is not None:
            self._process.stdin.close()
        os.close(self._pipe)

    def _stop(self) -> None:
        os.killpg(self._process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)  # returns when every thread of it has stopped

    def _hear(self, patience: float | None = None) -> list[tuple[Mark, int]]:
        """Wait for what it tells next; without an end to the patience it must tell something."""
        ready, _, _ = select.select([self._pipe], [], [], SPARKS_PATIENCE if patience is None else patience)
        if not ready:
            assert patience is not None, f"the driver is stuck after {self.marks[-3:]}:\n{self.output[-4000:]}"
            return []
        data = os.read(self._pipe, 65536)
        self._is_over = not data
        *lines, self._unread = (self._unread + data).split(b"\n")
        heard = [(Mark(mark), int(first)) for mark, first in (line.decode().split() for line in lines)]
        self.marks += heard
        return heard


def _is_unlocked(directory: Path) -> bool:
    """Whether no process holds a lock of a file in a directory, asked by taking each of them for a moment."""
    for path in directory.rglob("*.lock"):
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
    return True


StartDriver: TypeAlias = Callable[..., Driver]
