"""A hook that raises."""

from __future__ import annotations

from penstock.errors import StorageError


class FailingHook:
    """Raises a numbered error, so that a test sees which one it got."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1
        raise StorageError(f"refusal {self.times}")
