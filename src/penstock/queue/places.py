"""Where durable queues lie on this host's disk."""

from __future__ import annotations

import os
import re

from penstock.queue.checking import REPAIR_BEGUN, REPAIR_READY
from penstock.queue.mark import MARK_NAME
from penstock.storage import local_path

_CURRENT = "CURRENT"  # RocksDB makes this file last when it makes a database
WORKER_MARK = "penstock-worker"
"""The file that tells the queue of a worker from others; it is there before the queue is."""

_SIGNS = (_CURRENT, MARK_NAME, WORKER_MARK, REPAIR_BEGUN, REPAIR_READY)  # one that has lost one of them is damaged
_REMOVED = re.compile(r"worker-[0-9a-f]{16}\.removed")  # what is left of a worker's queue that is being removed


def is_queue(where: str | os.PathLike[str]) -> bool:
    """Whether a durable queue lies in this directory, whole or damaged. Raises `InvalidInput` for what is no path."""
    path = local_path(where)
    return any(os.path.exists(os.path.join(path, sign)) for sign in _SIGNS)


def opening_of(where: str | os.PathLike[str]) -> bytes | None:
    """Something that is another each time a queue was opened, by whomever; None where there is no queue."""
    try:
        with open(os.path.join(local_path(where), _CURRENT), "rb") as file:
            return file.read()  # RocksDB begins a new log of its files when it opens, and this names it
    except OSError:
        return None


def queues_in(folder: str | os.PathLike[str]) -> list[str]:
    """The directories in a folder in which a durable queue lies, by name."""
    path = local_path(folder)
    return sorted(
        entry.path
        for entry in os.scandir(path)
        if entry.is_dir() and is_queue(entry.path) and not _REMOVED.fullmatch(entry.name)
    )
