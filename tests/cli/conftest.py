"""What tests of several commands use."""

from __future__ import annotations

import pytest

from tests.support.command import Here


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str]) -> Here:
    """The command within this process."""
    return Here(capsys)
