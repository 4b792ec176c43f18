"""A compaction on a local file system: a new tree beside the table, and one exchange of the two directories.

```text
/data/.table.staging                     its lock: shared by drivers that rename a block, exclusive for the exchange
/data/.table.staging/.maintenance        its lock: held while a compaction, or a vacuum, runs
/data/.table.staging/compacting-<nonce>  the new tree; after the exchange, for a moment, the old one
/data/.table.staging/replaced-<nonce>    an old tree, until the vacuum
```
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from penstock.errors import InvalidInput, StorageError
from penstock.spark.tables.contract import Vacuumed
from penstock.spark.tables.destinations import InDirectory
from penstock.spark.tables.parquet.commits import BLOCK, BlockCommit, BlockFile, compacted_name
from penstock.spark.tables.parquet.compaction import CommittedFile
from penstock.spark.tables.parquet.exchange import DirectoryLock, check_exchange, exchange
from penstock.spark.tables.parquet.state import TableState, is_covered
from penstock.storage import sync_directory, sync_upwards

COMMIT = "_commit.json"
POINTER = "_compacted"
_MAINTENANCE = ".maintenance"
_COMPACTING, _REPLACED = "compacting-", "replaced-"
_ATTEMPT = re.compile(r"(?:\.swept-)?(?P<query>.+)-(?P<slot>\d{12,})-[0-9a-f]{32}(?:\.tasks)?")
MIN_ATTEMPT_SECONDS = 86_400.0
"""How old files are at least before they count as those of a process that was killed: one at work may need them."""


class TreeAttempt:
    """One try to compact a table on a local file system."""

    def __init__(self, root: str, staging: str, url: str, state: TableState, nonce: str) -> None:
        self._root = root
        self._staging = staging
        self._url = url
        self._state = state
        self._nonce = nonce
        self._top = f"{staging}/{_COMPACTING}{nonce}"
        self._block = f"{self._top}/{BLOCK}={compacted_name(state.generation + 1)}"
        self._is_exchanged = False
        self._held: DirectoryLock | None = None

    def __enter__(self) -> TreeAttempt:
        self._held = lock_maintenance(self._staging, self._url)
        try:
            check_exchange(f"{self._top}-try", self._url)
        except BaseException:
            self._held.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_exchanged:
            shutil.rmtree(self._top, ignore_errors=True)
        if self._held is not None:
            self._held.close()

    def destination(self, directory: str) -> InDirectory:
        """Below the new tree."""
        return InDirectory("/".join(filter(None, [self._block, directory])))

    def placed(self, directory: str, file: BlockFile) -> BlockFile:
        """With its path below the block."""
        return replace(file, path="/".join(filter(None, [directory, file.path])))

    def kept(self, file: CommittedFile) -> BlockFile:
        """It is linked into the block, under the path that it had in its own."""
        return file.file

    def commit(self, commit: BlockCommit, kept: Sequence[CommittedFile]) -> bool:
        """Exchange the table's directory for the new tree."""
        try:
            for one in kept:
                self._link_file(one)
            _write(f"{self._block}/{COMMIT}", commit.encode())
            _sync_directories(self._block)
            with DirectoryLock(self._staging):
                if not self._add_the_rest(commit):
                    return False
                exchange(self._top, self._root)
                self._is_exchanged = True
            # The exchange is durable before the old tree gets its name, and long before it is removed.
            sync_upwards(os.path.dirname(self._root))
            sync_directory(self._staging)
            os.rename(self._top, f"{self._staging}/{_REPLACED}{self._nonce}")
        except OSError as error:
            raise StorageError(f"could not compact {self._url}: {error}") from error
        return True

    def _link_file(self, one: CommittedFile) -> None:
        target = f"{self._block}/{one.file.path}"
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.link(f"{self._root}/{BLOCK}={one.block}/{one.file.path}", target)

    def _add_the_rest(self, commit: BlockCommit) -> bool:
        """Link all that the compaction does not stand for, such as blocks that came meanwhile; False if it is late."""
        last = self._state.compacted
        if _pointer(self._root) != (None if last is None else last.block):
            return False
        for name in os.listdir(self._root):
            block = name.removeprefix(f"{BLOCK}=")
            is_replaced = name == POINTER or (last is not None and block == last.block) or is_covered(block, commit)
            if not is_replaced:
                _link_tree(f"{self._root}/{name}", f"{self._top}/{name}")
        _write(f"{self._top}/{POINTER}", commit.block.encode())
        shutil.copymode(self._root, self._top)
        sync_directory(self._top)
        return True


def lock_maintenance(staging: str, url: str) -> DirectoryLock:
    """Lock the table against other compactions and vacuums. Raises `InvalidInput` while one of them runs."""
    try:
        return DirectoryLock(f"{staging}/{_MAINTENANCE}", wait=False)
    except BlockingIOError as error:
        raise InvalidInput(
            f"{url} is being compacted or vacuumed by another process: try again when that is done"
        ) from error
    except OSError as error:
        raise StorageError(f"could not lock {staging}/{_MAINTENANCE}: {error.strerror or error}") from error


def vacuum_staging(staging: str, state: TableState, older_than: float, dry_run: bool) -> Vacuumed:
    """Remove replaced trees, and what killed processes have left, as far as it is old enough."""
    if not os.path.isdir(staging):
        return Vacuumed()
    files = size = 0
    with lock_maintenance(staging, staging):
        for name in sorted(os.listdir(staging)):
            path = f"{staging}/{name}"
            if not os.path.isdir(path) or not _may_go(name, path, state, older_than):
                continue
            for found in _files_below(path):
                files += 1
                size += found.st_size if found.st_nlink == 1 else 0  # else a block of the table has it too
            if not dry_run:
                shutil.rmtree(path, ignore_errors=True)
    return Vacuumed(files, size)


def _may_go(name: str, path: str, state: TableState, older_than: float) -> bool:
    # Renaming a directory sets the time of its inode: since then it has been replaced.
    age = time.time() - max((max(found.st_mtime, found.st_ctime) for found in _directories(path)), default=0.0)
    if name.startswith((_REPLACED, _COMPACTING)):
        return age >= older_than
    attempt = _ATTEMPT.fullmatch(name)
    if attempt is None:
        return False
    has_lost = int(attempt["slot"]) <= state.last_slot(attempt["query"])
    return age >= (older_than if has_lost else max(older_than, MIN_ATTEMPT_SECONDS))


def _pointer(root: str) -> str | None:
    try:
        with open(f"{root}/{POINTER}", "rb") as file:
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return None


def _link_tree(source: str, target: str) -> None:
    """Make the same directories, with links to the same files, durably."""
    if not stat.S_ISDIR(os.lstat(source).st_mode):
        os.link(source, target, follow_symlinks=False)
        return
    os.mkdir(target)
    for name in os.listdir(source):
        _link_tree(f"{source}/{name}", f"{target}/{name}")
    shutil.copymode(source, target)
    sync_directory(target)


def _write(path: str, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_directories(top: str) -> None:
    for directory, _, _ in os.walk(top, topdown=False):
        sync_directory(directory)


def _directories(top: str) -> Iterator[os.stat_result]:
    for directory, _, _ in os.walk(top):
        with suppress(FileNotFoundError):
            yield os.stat(directory)


def _files_below(top: str) -> Iterator[os.stat_result]:
    for directory, _, names in os.walk(top):
        for name in names:
            with suppress(FileNotFoundError):
                yield os.lstat(f"{directory}/{name}")
