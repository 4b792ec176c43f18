"""A hook that refuses."""

from __future__ import annotations

from penstock.errors import StorageError


class FailingHook:
    """Raises, numbered, so that it can be told which one arrived."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1
        raise StorageError(f"refusal {self.times}")
