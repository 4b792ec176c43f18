from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


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
