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
FOLDER_MARK = "penstock-workers"
"""The file in a folder in which queues of workers are made."""
WORKER_NAME = re.compile(r"worker-[0-9a-f]{16}")
REMOVED_NAME = re.compile(rf"{WORKER_NAME.pattern}\.removed")
"""What is left of a worker's queue that is being removed."""

_SIGNS = (_CURRENT, MARK_NAME, REPAIR_BEGUN, REPAIR_READY)  # one that has lost one of them is damaged


def is_queue(where: str | os.PathLike[str]) -> bool:
    """Whether a durable queue lies in this directory, whole or damaged. Raises `InvalidInput` for what is no path."""
    path = local_path(where)
    return is_of_worker(path) or any(os.path.exists(os.path.join(path, sign)) for sign in _SIGNS)


def is_of_worker(path: str) -> bool:
    """Whether the queue in a directory is a worker's. Where this user may not look, its name says so."""
    try:
        os.stat(os.path.join(path, WORKER_MARK))
    except PermissionError:
        return WORKER_NAME.fullmatch(os.path.basename(path)) is not None
    except OSError:
        return False
    return True


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
        if entry.is_dir() and is_queue(entry.path) and not REMOVED_NAME.fullmatch(entry.name)
    )
