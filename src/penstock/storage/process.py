"""Which process this is, so that what was made before a fork can tell that it is used after it."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(slots=True)
class _Process:
    number: int


current = _Process(os.getpid())
"""Its number is this process's, also after a fork; reading it costs no system call."""


def _forked() -> None:
    current.number = os.getpid()


os.register_at_fork(after_in_child=_forked)
