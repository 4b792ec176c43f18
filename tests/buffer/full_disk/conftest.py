"""Small file systems in memory, and on ext4."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.buffer.full_disk.small_disk import Disk


@pytest.fixture
def ext4(tmp_path: Path) -> Iterator[Callable[[], Path]]:
    """Mount a small ext4 file system, which takes root."""
    if os.geteuid() != 0 or shutil.which("mount") is None or shutil.which("mkfs.ext4") is None:
        pytest.skip("mounting an ext4 file system takes root, and the commands `mount` and `mkfs.ext4`")
    points: list[Path] = []

    def make() -> Path:
        image, point = tmp_path / "ext4.img", Path(tempfile.mkdtemp(prefix="penstock-mounted-"))
        with image.open("wb") as file:
            file.truncate(24 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", "-N", "512", str(image)], check=True)
        tried = subprocess.run(["mount", "-o", "loop", str(image), str(point)], capture_output=True, text=True)
        if tried.returncode:
            pytest.skip(f"this system does not let root mount a file: {tried.stderr.strip()}")
        points.append(point)
        return point

    yield make
    for point in points:
        subprocess.run(["umount", str(point)], check=True)
        point.rmdir()


@pytest.fixture(params=["no byte", "no inode"])
def full(request: pytest.FixtureRequest) -> str:
    """What the full disk has none of."""
    return str(request.param)


@pytest.fixture
def disk(mount: Callable[[str], Path], manifest: str, full: str) -> Disk:
    """A small file system in memory."""
    return Disk(mount("size=8m,nr_inodes=400"), manifest, full)


@pytest.fixture(params=["tmpfs", pytest.param("ext4", marks=pytest.mark.slow)])
def any_disk(request: pytest.FixtureRequest, manifest: str, full: str) -> Disk:
    """A small file system of each kind."""
    if request.param == "ext4":
        return Disk(request.getfixturevalue("ext4")(), manifest, full)
    return Disk(request.getfixturevalue("mount")("size=8m,nr_inodes=400"), manifest, full)
