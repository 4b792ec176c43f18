"""Buffers that lose their last writes: an older copy is put in their place."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path


def copied(buffer: Path) -> Callable[[], None]:
    """Copy a buffer; what is returned puts the copy in its place, as after a power cut or from a backup."""
    copy = buffer.with_name("older-copy")
    shutil.copytree(buffer, copy)

    def restore() -> None:
        shutil.rmtree(buffer)
        shutil.copytree(copy, buffer)

    return restore
