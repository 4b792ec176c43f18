"""Calls of methods and of their twins."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.buffer.producer.capacity import Capacity
from tests.support.call_hooks import hooks_at
from tests.support.waiting import Bell


@pytest.fixture
def in_line() -> Iterator[Bell]:
    """Rings when a call has to wait for space; before `call`, for a loop's thread that starts later."""
    bell = Bell()
    with hooks_at(Capacity.line_up, after=bell):
        yield bell
