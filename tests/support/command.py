"""The `penstock` command: in a process of its own, or within this one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import pytest

from penstock.cli.app import main

MAIN = "from penstock.cli.app import main; main()"


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    return run_for(120, *words, **environment)


def run_for(seconds: float, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", MAIN, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
        env={**os.environ, **environment},
    )


@dataclass(frozen=True)
class Answer:
    """What a command printed, and its exit status."""

    status: int
    raw: bytes
    err: str

    @property
    def out(self) -> str:
        return self.raw.decode()

    def is_error(self, beginning: str = "") -> bool:
        """Whether the command failed with one line that begins so, and printed nothing else."""
        is_one_line = self.err.count("\n") == 1 and self.err.endswith("\n")
        return self.status == 1 and not self.raw and is_one_line and self.err.startswith(f"penstock: {beginning}")


def storage_options(options: Mapping[str, object]) -> list[str]:
    """The options of a store as they are typed."""
    return [word for name, value in options.items() for word in ("-o", f"{name}={str(value).lower()}")]


class Here:
    """Runs the command within this process: it prints the same, and no interpreter has to start."""

    def __init__(self, capture: pytest.CaptureFixture[bytes]) -> None:
        self._capture = capture

    def __call__(self, *words: str, stdin: bytes = b"", main: Callable[[], object] = main) -> Answer:
        self._capture.readouterr()
        with (
            _standard_input(stdin),
            patch.object(sys, "argv", ["penstock", *words]),
            pytest.raises(SystemExit) as ended,
        ):
            main()
        sys.stdout.flush()
        printed = self._capture.readouterr()
        return Answer(int(ended.value.code or 0), printed.out, printed.err.decode())


@contextmanager
def _standard_input(data: bytes) -> Iterator[None]:
    """Make this the content of the descriptor 0."""
    before = os.dup(0)
    try:
        with tempfile.TemporaryFile() as file:
            file.write(data)
            file.seek(0)
            os.dup2(file.fileno(), 0)
            yield
    finally:
        os.dup2(before, 0)
        os.close(before)
