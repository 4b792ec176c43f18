"""The parent: starts workers, saves the input of every finding, adds up what came of the others."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from fuzz.corpus import corpus
from fuzz.mutations import make_input
from fuzz.worker import ALARMS, PLACE, load_targets

ENDLESS = 1 << 40
_ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that must not be, and the file with the first input that showed it."""

    target: str
    what: str
    number: int
    file: Path


@dataclass(slots=True)
class Report:
    """What came of all inputs. `findings` has one of each sort."""

    seed: int
    tried: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def lines(self) -> list[str]:
        """A short summary for people."""
        shown = [f"{self.tried} inputs from seed {self.seed}"]
        shown += [f"{count:>9}  {outcome}" for outcome, count in self.outcomes.most_common() if ": !" not in outcome]
        for found in self.findings:
            times = self.outcomes[f"{found.target}: !{found.what}"]
            shown.append(f"FOUND by {found.target}, input {found.number} of seed {self.seed}: {found.what}")
            shown.append(f"      {found.file}" + (f", and {times - 1} more" if times > 1 else ""))
        return shown


def run(
    seed: int,
    *,
    seconds: float = 60,
    inputs: int = ENDLESS,
    alarm: float = 5,
    memory: int = 384 << 20,
    deaths: int = 10,
    targets: str = "fuzz.targets:TARGETS",
    folder: Path | None = None,
) -> Report:
    """Try inputs until there were so many, the time is over, or so many workers died.

    A worker that dies was ended by its alarm (a hang) or by the input it was at (a crash); another goes on behind it.
    Inputs that found something are saved in the folder, a temporary one if none is given.
    """
    report = Report(seed)
    folder = folder or Path(tempfile.mkdtemp(prefix="penstock-fuzz-"))
    place = folder / "place"
    end = time.monotonic() + seconds
    start = 0
    while start < inputs and deaths and (seconds := end - time.monotonic()) > 0:
        place.write_bytes(PLACE.pack(start, 0))
        settings = {
            "seed": seed,
            "start": start,
            "stop": inputs,
            "seconds": seconds,
            "alarm": alarm,
            "memory": memory,
        }
        command = [sys.executable, "-m", "fuzz.worker", f"--targets={targets}", f"--place={place}"]
        command += [f"--{name}={value}" for name, value in settings.items()]
        # Arrow's own pools reserve address space ahead, and so do glibc's arenas: the limit would not bite.
        env = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1"}
        worker = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=_ROOT, env=env, check=False)
        at = _add(report, worker.stdout, folder)
        if worker.returncode == 0:
            report.tried = at
            break
        if worker.returncode > 0:
            raise RuntimeError(f"a worker ended with {worker.returncode}, after input {at} of seed {seed}: see above")
        number, which = PLACE.unpack(place.read_bytes())
        target = load_targets(targets)[which].name
        _found(report, folder, target, _death(-worker.returncode), number)
        report.tried = start = number + 1
        deaths -= 1
    place.unlink(missing_ok=True)
    if not report.findings:
        folder.rmdir()
    return report


def _add(report: Report, printed: str, folder: Path) -> int:
    at = 0
    for line in printed.splitlines():
        message = json.loads(line)
        if "finding" in message:
            _found(report, folder, message["target"], message["finding"], message["number"])
        else:
            report.outcomes.update(message["outcomes"])
            at = message["at"]
    return at


def _found(report: Report, folder: Path, target: str, what: str, number: int) -> None:
    if any(_sort(found.what) == _sort(what) and found.target == target for found in report.findings):
        return
    file = folder / f"seed-{report.seed}-input-{number}.bin"
    file.write_bytes(make_input(corpus(), report.seed, number).data)
    report.findings.append(Finding(target, what, number, file))


def _sort(what: str) -> str:
    return re.sub(r"\d+", "N", what)


def _death(number: int) -> str:
    if number in ALARMS.values():
        return "a hang: its time was over"
    return f"a crash: the worker died of {signal.Signals(number).name}"
