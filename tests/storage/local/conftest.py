from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mount small file systems in memory, with the given options; only root may."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a file system takes root, and a `mount` command")
    points: list[Path] = []

    def mount(options: str) -> Path:
        point = tmp_path / f"mounted-{len(points)}"
        point.mkdir()
        tried = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(point)], capture_output=True, text=True, check=False
        )
        if tried.returncode:
            pytest.skip(f"this system does not let root mount a file system: {tried.stderr.strip()}")
        points.append(point)
        return point

    yield mount
    for point in reversed(points):
        subprocess.run(["umount", str(point)], check=True)


@pytest.fixture
def shared_dir() -> Iterator[Path]:
    """Make a directory that other users can reach, unlike pytest's own."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    yield directory
    for below, names, _ in os.walk(directory):
        for name in names:
            os.chmod(os.path.join(below, name), 0o700)
    shutil.rmtree(directory)
