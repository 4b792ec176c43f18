"""What several files of these tests use."""

from __future__ import annotations

import os

import pytest


@pytest.fixture
def nothing_is_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests without power cuts: a sync takes as long as all the rest."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)
