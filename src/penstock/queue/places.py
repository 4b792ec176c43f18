"""Where durable queues lie on this host's disk."""

from __future__ import annotations

import os

from penstock.storage.opening import local_path

_SIGN = "CURRENT"  # RocksDB makes this file last when it makes a database


def is_queue(where: str | os.PathLike[str]) -> bool:
    """Whether a durable queue lies in this directory. Raises `InvalidInput` for what is no path."""
    return os.path.isfile(os.path.join(local_path(where), _SIGN))


def opening_of(where: str | os.PathLike[str]) -> bytes | None:
    """Something that is another each time a queue was opened, by whomever; None where there is no queue."""
    try:
        with open(os.path.join(local_path(where), _SIGN), "rb") as file:
            return file.read()  # RocksDB begins a new log of its files when it opens, and this names it
    except OSError:
        return None


def queues_in(folder: str | os.PathLike[str]) -> list[str]:
    """The directories in a folder in which a durable queue lies, by name."""
    path = local_path(folder)
    return sorted(entry.path for entry in os.scandir(path) if entry.is_dir() and is_queue(entry.path))
