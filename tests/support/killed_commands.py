"""The `penstock` command in processes that are killed by SIGKILL: at one of their calls of the system, or after a time.

The commands run in forks of one process that has imported everything, so that a kill meets their work, and not the
imports before it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.support.repository import ROOT

KILLED = -9

_SERVER = """
import contextlib, importlib, json, os, signal, sys, threading, time

import pyarrow.dataset, pyarrow.parquet
import penstock.cli.dlq, penstock.cli.ship, penstock.cli.table
from penstock.cli.app import main
from penstock.engine.letters import replay
from tests.support.dying_calls import die_at

for name in ("penstock.spark.tables.delta.table", "penstock.spark.tables.iceberg.iceberg_table"):
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
replay.MAX_LETTERS_PER_PLAN = 4  # several plans, of a few letters

def begin(command):
    child = os.fork()
    if child:
        return child
    output = os.open(command["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(command["directory"])
    sys.argv = ["penstock", *command["words"]]
    if command["at_call"] is not None:
        die_at(command["at_call"])
    status = 0
    try:
        main()
    except SystemExit as ended:
        status = int(ended.code or 0)
    except BaseException:
        import traceback
        traceback.print_exc()
        status = 70
    sys.stdout.flush()
    os._exit(status)

for line in sys.stdin:
    commands = json.loads(line)
    children = [begin(command) for command in commands]
    began = time.monotonic()
    for command, child in sorted(zip(commands, children), key=lambda both: both[0]["after"] or 0):
        if command["after"] is not None:
            time.sleep(max(began + command["after"] - time.monotonic(), 0))
            os.kill(child, signal.SIGKILL)
    statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    print(json.dumps([statuses, time.monotonic() - began]), flush=True)
"""


@dataclass(frozen=True)
class Command:
    """A command, and when it is killed: at a call of the system, counted from 0; after some seconds; or never."""

    words: Sequence[str]
    at_call: int | None = None
    after: float | None = None


class KilledCommands:
    """Runs commands, each in a process of its own, with one directory as theirs."""

    def __init__(self, server: subprocess.Popen[str], directory: Path) -> None:
        self._server = server
        self._directory = directory
        self._output = directory / "commands.log"
        self.seconds = 0.0
        """How long the last ones ran."""

    def run(self, *commands: Command) -> list[int]:
        """Run commands at once; return the status of each."""
        more = {"output": str(self._output), "directory": str(self._directory)}
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps([asdict(command) | more for command in commands]) + "\n")
        self._server.stdin.flush()
        statuses, self.seconds = json.loads(self._server.stdout.readline())
        assert 70 not in statuses, self.output()
        return list(statuses)

    def finish(self, *words: str, status: int = 0) -> None:
        """Run a command to its end."""
        assert self.run(Command(words)) == [status], self.output()

    def output(self) -> str:
        """The end of all that was printed."""
        return self._output.read_text(errors="replace")[-4000:]


@contextmanager
def killed_commands(directory: Path) -> Iterator[KilledCommands]:
    """A process that runs commands in forks of its own, in a directory."""
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as server:
        try:
            yield KilledCommands(server, directory)
        finally:
            assert server.stdin is not None
            server.stdin.close()
