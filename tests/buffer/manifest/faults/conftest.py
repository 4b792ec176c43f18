"""What the tests of faults share."""

from __future__ import annotations

import pytest

from tests.buffer.manifest.faults.scene import Scene


@pytest.fixture
def scene(fresh_name: str) -> Scene:
    """A queue and another one on its manifest, which is not there yet."""
    return Scene(fresh_name)
