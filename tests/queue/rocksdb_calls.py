"""RocksDB's calls in the hands of a test: what a queue does when one of them fails, stalls or is the last."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import pytest
from rocksdict import Rdict

WRITES = ("put", "write")
SYNCS = ("flush_wal",)

Real = Callable[..., Any]


def replace_calls(patch: pytest.MonkeyPatch, names: Iterable[str], call: Callable[..., Any]) -> None:
    """Let these calls of every database go through `call(real, database, *args, **kwargs)`."""
    for name in names:
        real = getattr(Rdict, name)

        @wraps(real)
        def replaced(database: Rdict, *args: Any, real: Real = real, **kwargs: Any) -> Any:
            return call(real, database, *args, **kwargs)

        patch.setattr(Rdict, name, replaced)


def flush_after_sync(real: Real, database: Rdict, *args: Any, **kwargs: Any) -> None:
    """Sync, and let RocksDB write a table of what is in its log."""
    real(database, *args, **kwargs)
    database.flush()
