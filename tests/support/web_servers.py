"""Real servers of applications, started from the command line as a user starts them, and clients that post events."""

from __future__ import annotations

import http.client
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.processes import PATIENCE
from tests.support.repository import ROOT
from tests.support.waiting import until

RECIPES = ROOT / "examples" / "recipes"
_ANNOUNCEMENT = re.compile(r"(?:running on|Listening at:) http://127\.0\.0\.1:(\d+)")
_COMPLAINTS = re.compile(r"Traceback|Warning\b|WARNING|\bERROR\b|CRITICAL|Exception ignored|Fatal Python")


class Program:
    """A process group of a program, whose output goes into a file."""

    def __init__(self, words: list[str], log: Path, folder: Path, environment: dict[str, str]) -> None:
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
                start_new_session=True,
            )

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for_output(self, pattern: str | re.Pattern[str], times: int = 1) -> list[str]:
        """Return what the first group of the pattern matched, as soon as it is in the output so often."""

        def found() -> list[str] | None:
            matches = re.findall(pattern, self.output())
            if len(matches) < times:
                assert self.process.poll() is None, f"it has ended:\n{self.output()}"
            return matches if len(matches) >= times else None

        return until(found, f"{pattern} in the output of {self.process.args!r}")

    def complaints(self) -> list[str]:
        """The lines of the output that speak of errors and warnings."""
        return [line for line in self.output().splitlines() if _COMPLAINTS.search(line)]

    def terminate(self) -> int:
        """End it as a service manager does, by SIGTERM; return its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> int:
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end:\n{self.output()}") from None

    def kill(self) -> None:
        """Kill the program and all its processes by SIGKILL; return when the group is gone."""
        if self.process.returncode is None or _is_there(self.process.pid):
            _kill_group(self.process.pid)
        self.process.wait(PATIENCE)
        until(lambda: None if _is_there(self.process.pid) else True, "the end of the processes")


class Server(Program):
    """A program that listens on a port of 127.0.0.1."""

    port: int

    def wait_until_it_answers(self) -> None:
        self.port = int(self.wait_for_output(_ANNOUNCEMENT)[0])
        until(self._answers, f"an answer of {self.process.args!r}")

    def _answers(self) -> int | None:
        assert self.process.poll() is None, f"it has ended:\n{self.output()}"
        try:
            return self.ask("GET", "/no-such-page")[0]
        except (OSError, http.client.HTTPException):
            return None

    def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def post(self, event: bytes) -> int:
        """Post an event; return the status of the answer."""
        return self.ask("POST", "/events", event)[0]


Run = Callable[..., Program]
Serve = Callable[..., Server]


class Clients:
    """Threads that post one event after the other, each event once, until they are stopped."""

    def __init__(self, server: Server, threads: int = 4) -> None:
        self.answered: list[bytes] = []
        """The events that were answered with 200."""
        self.statuses = set[int]()
        self._server = server
        self._numbers = itertools.count()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._post, daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def wait_for_answers(self, more: int) -> None:
        """Return when so many more events were answered with 200."""
        enough = len(self.answered) + more
        until(lambda: True if len(self.answered) >= enough else None, "answers", look_again=0.005)

    def stop(self) -> list[bytes]:
        """Stop when each request is answered or has failed; return what was answered with 200."""
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a request is not answered"
        return self.answered

    def _post(self) -> None:
        while not self._stop.is_set():
            event = b"event %d" % next(self._numbers)
            try:
                status = self._server.post(event)
            except (OSError, http.client.HTTPException):
                self._stop.wait(0.01)  # it is down, or died with this request
                continue
            self.statuses.add(status)
            if status == 200:
                self.answered.append(event)


@contextmanager
def programs(folder: Path) -> Iterator[Run]:
    """Start programs that are gone when the test is over: `run("celery", ..., BUFFER=...)`."""
    started: list[Program] = []

    def run(*words: str, kind: type[Program] = Program, at: Path = RECIPES, **environment: str) -> Program:
        program = kind(list(words), folder / f"output-{len(started)}.log", at, environment)
        started.append(program)
        return program

    try:
        yield run
    finally:
        for program in started:
            program.kill()


def _kill_group(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
