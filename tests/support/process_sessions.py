"""Sessions of real processes: whatever one starts stays in its session, and is measured and killed with it.

Spark's Python workers leave the group of the process that started them, and not its session.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.processes import PATIENCE
from tests.support.waiting import until


def session_of(pid: int) -> int | None:
    """Which session a process is in; None if there is no such process, or only a zombie."""
    try:
        state, _, _, session = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
    except (OSError, ValueError):
        return None
    return None if state in {"Z", "X"} else int(session)


def processes_of(session: int) -> list[int]:
    """Every process of a session that is alive."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if session_of(pid) == session]


class Session:
    """A process with all that it starts, and what they say."""

    def __init__(self, words: Sequence[str | Path], environment: Mapping[str, str], folder: Path) -> None:
        self._process = subprocess.Popen(
            words,
            env=dict(environment),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._lines: list[str] = []
        self._more = threading.Condition()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @property
    def id(self) -> int:
        """The id of the session, which is that of its first process."""
        return self._process.pid

    @property
    def output(self) -> str:
        """All output so far."""
        with self._more:
            return "".join(self._lines)

    def hear(self, pattern: str, seconds: float = PATIENCE) -> re.Match[str]:
        """Wait for a line that has the pattern in it."""
        deadline = time.monotonic() + seconds
        seen = 0
        with self._more:
            while True:
                for line in self._lines[seen:]:
                    if found := re.search(pattern, line):
                        return found
                seen = len(self._lines)
                seconds_to_go = deadline - time.monotonic()
                assert seconds_to_go > 0, f"no line has {pattern!r}:\n{''.join(self._lines)}"
                assert self._process.poll() is None, f"it has ended without {pattern!r}:\n{''.join(self._lines)}"
                self._more.wait(min(seconds_to_go, 1.0))

    def has_ended(self) -> bool:
        """Whether the first process is gone."""
        return self._process.poll() is not None

    def status(self, seconds: float) -> int:
        """Wait for the first process to end, and return how."""
        status = self._process.wait(seconds)
        self._listener.join(PATIENCE)
        return status

    def kill(self) -> int:
        """Kill every process of the session by SIGKILL, those too that have left the group; say how many there were."""
        killed = set[int]()

        def is_gone() -> bool | None:
            alive = processes_of(self.id)
            for pid in alive:
                os.kill(pid, signal.SIGKILL)
            killed.update(alive)
            return None if alive else True

        until(is_gone, f"the end of session {self.id}")
        self._process.wait(PATIENCE)
        self._listener.join(PATIENCE)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return len(killed)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._more:
                self._lines.append(line)
                self._more.notify_all()
