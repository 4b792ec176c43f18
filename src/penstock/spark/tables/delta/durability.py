"""Durability of a Delta table on local disk: delta-rs syncs nothing, so what it wrote is synced here.

A commit counts when its log entry, the files that it names, and the directories of both are on disk. Other drivers may
have been killed between their commit and its sync; so each driver that looks at a commit syncs it before it counts.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from urllib.parse import unquote

from penstock.errors import CorruptData, StorageError
from penstock.storage import sync_directory, sync_upwards

_LOG = "_delta_log"
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint.*\.parquet")
# Of a log that this process sees for the first time. Drivers that committed more have synced the ones before.
_MAX_COMMITS_TO_SYNC = 200
_PARALLEL_SYNCS = 8  # a disk answers fsyncs that wait at the same time together


class SyncedLog:
    """What of a table's log is known to be on disk. `path` is the table's directory; None if it is not on local disk.

    Objects in a store are durable when they are there.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._synced_through = -1

    def settle(self, version: int, active: Collection[str] = ()) -> None:
        """Sync the commits up to a version that this process has not synced, and the data files that they added.

        Raises `CorruptData` for a data file that a power cut has cut, among `active`: the paths of the table's files.
        """
        if self._path is None or version <= self._synced_through:
            return
        log = os.path.join(self._path, _LOG)
        try:
            commits, checkpoints = _versions(log)
            from_version = max(self._synced_through, version - _MAX_COMMITS_TO_SYNC)
            wanted = [name for one, name in commits.items() if from_version < one <= version]
            made = [name for one, name in checkpoints.items() if one > from_version]
            files = [os.path.join(log, name) for name in (*wanted, *made)]
            added = [(path, size) for name in wanted for path, size in _added(os.path.join(log, name))]
            with ThreadPoolExecutor(_PARALLEL_SYNCS) as pool:
                list(pool.map(self._sync_data, added, [path in active for path, _ in added]))
                list(pool.map(_sync, [*files, os.path.join(log, "_last_checkpoint")]))
            for folder in {os.path.dirname(path) for path, _ in added if os.path.dirname(path)}:
                with suppress(FileNotFoundError):
                    sync_directory(os.path.join(self._path, folder))
            sync_directory(log)
            sync_directory(self._path)
            if self._synced_through < 0:
                sync_upwards(self._path)  # the process that created them may have been killed before it synced them
        except OSError as error:
            raise StorageError(f"could not sync {log}: {error.strerror or error}") from error
        self._synced_through = version

    @property
    def is_first(self) -> bool:
        """Whether nothing of the log was synced by this process yet."""
        return self._path is not None and self._synced_through < 0

    def settle_checkpoint(self) -> None:
        """Sync a checkpoint that was made just now. One that is cut would keep every reader from the table."""
        if self._path is None:
            return
        log = os.path.join(self._path, _LOG)
        try:
            checkpoints = _versions(log)[1]
            for name in (*(checkpoints[one] for one in sorted(checkpoints)[-1:]), "_last_checkpoint"):
                _sync(os.path.join(log, name))
            sync_directory(log)
        except OSError as error:
            raise StorageError(f"could not sync {log}: {error.strerror or error}") from error

    def _sync_data(self, added: tuple[str, int], is_active: bool) -> None:
        path = os.path.join(self._path or "", added[0])
        found = _sync(path)
        if is_active and found != added[1]:
            has = "is not there" if found is None else f"has {found} bytes"
            raise CorruptData(
                f"{path} {has}, and the table's log says {added[1]}: it was being written when the power went. Restore "
                "the table to the version before (DeltaTable.restore), and run again"
            )


def _versions(log: str) -> tuple[dict[int, str], dict[int, str]]:
    """The names of commits and of checkpoints, by their versions."""
    names = os.listdir(log)
    commits = {int(found[1]): name for name in names if (found := _COMMIT.fullmatch(name))}
    return commits, {int(found[1]): name for name in names if (found := _CHECKPOINT.fullmatch(name))}


def _added(commit: str) -> Iterator[tuple[str, int]]:
    """The data files that a commit added, relative to the table, and their sizes."""
    try:
        with open(commit, encoding="utf-8") as lines:
            for line in lines:
                add = json.loads(line).get("add") if '"add"' in line else None
                if add and "://" not in add["path"]:
                    yield unquote(add["path"]), add["size"]
    except FileNotFoundError:
        return  # removed since, as expired: a checkpoint has it
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptData(f"{commit} is no commit of Delta's: {error}") from error


def _sync(path: str) -> int | None:
    """Sync a file and return its size; None if it is not there."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        os.fsync(descriptor)
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
