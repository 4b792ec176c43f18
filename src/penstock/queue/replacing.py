"""Putting the files of a repaired queue in the place of the damaged ones. A kill at any step can be gone on from.

The queue's lock is held. The steps are in "Damage" in the design note.
"""

from __future__ import annotations

import os
from dataclasses import replace

from penstock.queue.checking import REPAIR_BEGUN, REPAIR_READY
from penstock.queue.mark import MARK_NAME
from penstock.queue.report import QueueRepair
from penstock.queue.rocks import is_database_file
from penstock.storage import sync_directory

_ASIDE = "damaged-"
_REPORT = "report.json"


def is_replacing(path: str) -> bool:
    """Whether a repair was interrupted when it had begun to replace files."""
    return any(os.path.isdir(os.path.join(path, name)) for name in (REPAIR_BEGUN, REPAIR_READY))


def replace_files(path: str, new: str, report: QueueRepair) -> QueueRepair:
    """Move the files of a queue aside, and those in the folder `new` to their place. Raises `OSError`."""
    aside = _make_aside(path)
    report = replace(report, damaged_files=aside)
    _write(os.path.join(aside, _REPORT), report.as_json())
    for one in (aside, new, path):
        sync_directory(one)
    os.rename(new, os.path.join(path, REPAIR_BEGUN))
    sync_directory(path)
    return finish_replacing(path)


def finish_replacing(path: str) -> QueueRepair:
    """Go on where it stopped. Raises `OSError`."""
    import msgspec  # here: most queues are never repaired

    begun, ready = os.path.join(path, REPAIR_BEGUN), os.path.join(path, REPAIR_READY)
    aside = os.path.join(path, _asides(path)[-1])
    if os.path.isdir(begun):
        for name in _files(path):
            os.rename(os.path.join(path, name), os.path.join(aside, name))
        sync_directory(aside)
        os.rename(begun, ready)
        sync_directory(path)
    # The mark last: without it nothing takes this for a queue.
    for name in sorted(_files(ready), key=lambda name: name == MARK_NAME):
        os.rename(os.path.join(ready, name), os.path.join(path, name))
    sync_directory(path)
    for name in os.listdir(ready):
        os.unlink(os.path.join(ready, name))  # RocksDB's lock file
    os.rmdir(ready)
    sync_directory(path)
    with open(os.path.join(aside, _REPORT), "rb") as file:
        return msgspec.json.decode(file.read(), type=QueueRepair)


def _files(folder: str) -> list[str]:
    return [name for name in os.listdir(folder) if is_database_file(name) or name == MARK_NAME]


def _make_aside(path: str) -> str:
    """A folder for the damaged files: a new one, or the last if a repair was killed before it moved any there."""
    asides = _asides(path)
    if asides and set(os.listdir(os.path.join(path, asides[-1]))) <= {_REPORT}:
        return os.path.join(path, asides[-1])
    aside = os.path.join(path, f"{_ASIDE}{_number(asides[-1]) + 1 if asides else 1}")
    os.mkdir(aside)
    return aside


def _asides(path: str) -> list[str]:
    found = [name for name in os.listdir(path) if name.startswith(_ASIDE) and name[len(_ASIDE) :].isdecimal()]
    return sorted(found, key=_number)


def _number(aside: str) -> int:
    return int(aside[len(_ASIDE) :])


def _write(where: str, data: bytes) -> None:
    with open(where, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
