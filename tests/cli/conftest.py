"""What tests of several commands use."""

from __future__ import annotations

import pytest

from tests.support.command import Here


@pytest.fixture
def here(capfdbinary: pytest.CaptureFixture[bytes]) -> Here:
    """The command within this process."""
    return Here(capfdbinary)
