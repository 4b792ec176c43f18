"""What a start costs: of `import penstock` and `penstock --help`, of `penstock run`, and of a run on a warm session.

The first two are in processor time (user and system) of a new process:

- `import penstock` brings every public name, and imports the module of a name when it is first used. The row with
  `Producer, Consumer` is what a program pays that uses a buffer: Arrow and the metrics are part of it.
- The peers of the imports are libraries that a program would import for the same work.
- The peer of the help is the least that typer and rich can do: a program of two commands that imports nothing else.

Every command runs in turns with the others. The time of Python itself is in all rows, and has a row of its own.

`bench/start_of_run.py` says what the others are. `docs/design/start-costs.md` has the results.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from bench import start_of_run

ROUNDS = 15
SMALLEST_TYPER = """
import typer
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
@app.command()
def first(): "The first."
@app.command()
def second(): "The second."
app()
"""


def cpu_seconds(command: list[str]) -> float:
    """User and system time of a command, with what it started and waited for."""
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, command
    return used.ru_utime + used.ru_stime


def measure(commands: Mapping[str, list[str]]) -> dict[str, list[float]]:
    """The times of each command, over rounds in which they take turns. The first fills caches, and is not counted."""
    times: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(ROUNDS + 1):
        for name, command in commands.items():
            used = cpu_seconds(command)
            if number:
                times[name].append(used)
    return times


def running(code: str, *words: str) -> list[str]:
    return [sys.executable, "-c", code, *words]


def importing(*names: str) -> dict[str, list[str]]:
    """The import of each library that is installed here."""
    found = [name for name in names if importlib.util.find_spec(name) is not None]
    return {f"import {name}": running(f"import {name}") for name in found}


def add(table: Table, title: str, times: Mapping[str, list[float]]) -> None:
    """Add rows, the first of which is ours."""
    ours = statistics.median(next(iter(times.values())))
    for number, (name, found) in enumerate(times.items()):
        median = statistics.median(found)
        ratio = "" if number == 0 else f"{ours / median:.2f}x"
        table.add_row("" if number else title, name, f"{median * 1000:.0f} ms", f"{min(found) * 1000:.0f} ms", ratio)
    table.add_section()


def run() -> None:
    table = Table(title=f"A start: processor time of a new process, {ROUNDS} rounds", title_justify="left")
    for column in ("what", "command", "median", "least", "Penstock takes"):
        table.add_column(column, justify="left" if column in {"what", "command"} else "right")
    imports = {
        "import penstock": running("import penstock"),
        "from penstock import Producer, Consumer": running("from penstock import Producer, Consumer"),
        "nothing: Python alone": running("pass"),
    }
    add(table, "import", measure(imports | importing("confluent_kafka", "pyarrow", "pyspark")))
    helps = {
        "penstock --help": running("from penstock.cli.app import main; main()", "--help"),
        "the smallest typer program --help": running(SMALLEST_TYPER, "--help"),
    }
    add(table, "help", measure(helps))
    Console(width=110).print(table)
    start_of_run.run()
