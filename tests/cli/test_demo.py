"""The command: its demo, its version, its errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock import open_store
from penstock.cli.demo import COUNTER, WORST_MOMENTS
from penstock.storage import LocalStore


def run(*words: str) -> subprocess.CompletedProcess[str]:
    code = "from penstock.cli.app import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False, timeout=120
    )


def test_the_demo_counts_everything_once_although_writers_are_killed(tmp_path: Path) -> None:
    done = run("demo", str(tmp_path), "--workers", "2", "--increments", "20", "--kills", "5")
    assert done.returncode == 0, done.stdout + done.stderr
    tokens = json.loads(open_store(tmp_path).get(COUNTER).data)
    expected = {f"worker{worker}-{number}" for worker in range(2) for number in range(20)}
    assert expected | {f"victim{number}-done" for number in range(5)} <= set(tokens)
    assert len(tokens) == len(set(tokens))
    for moment in WORST_MOMENTS:
        assert f"killed a writer at '{moment}'" in done.stdout


def test_the_worst_moments_are_real_steps_of_a_write(tmp_path: Path) -> None:
    steps: list[str] = []
    LocalStore(tmp_path, step=steps.append).put(COUNTER, b"")
    assert set(WORST_MOMENTS) <= set(steps)


def test_a_second_demo_in_the_same_directory_starts_at_nothing(tmp_path: Path) -> None:
    for _ in range(2):
        done = run("demo", str(tmp_path), "--workers", "2", "--increments", "3", "--kills", "0")
        assert done.returncode == 0, done.stderr
    assert len(json.loads(open_store(tmp_path).get(COUNTER).data)) == 6


def test_the_version_is_the_packages() -> None:
    assert run("--version").stdout.strip() == f"penstock {penstock.__version__}"


@pytest.mark.parametrize("words", [("nonsense",), ("demo", "--workers", "1")])
def test_a_mistake_is_said_and_ends_with_status_2(words: tuple[str, ...]) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_an_error_of_ours_is_one_line_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run("demo", str(tmp_path / "file"))
    assert done.returncode == 1
    assert done.stderr.strip() == f"penstock: {tmp_path / 'file'} is a file, and a store needs a directory"
