"""The command, as somebody types it."""

from __future__ import annotations

import os
import subprocess
import sys


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
