"""The command, as somebody types it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from unittest.mock import patch

import pytest

from penstock.cli.app import main


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_for(120, *words, **environment)


def run_for(patience: float, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    code = "from penstock.cli.app import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=patience,
        env={**os.environ, **environment},
    )


@dataclass(frozen=True)
class Said:
    """What a command answered."""

    status: int
    out: str
    err: str


class Here:
    """The command within this process: what it prints is the same, and no interpreter has to start."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str) -> Said:
        self._capsys.readouterr()
        with patch.object(sys, "argv", ["penstock", *words]), pytest.raises(SystemExit) as left:
            main()
        said = self._capsys.readouterr()
        return Said(int(left.value.code or 0), said.out, said.err)
