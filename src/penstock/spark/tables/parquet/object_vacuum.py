"""The vacuum of a table in an object store: what no reader needs, and what was never committed."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from itertools import zip_longest

from penstock.errors import NotFound
from penstock.spark.tables.contract import Vacuumed
from penstock.spark.tables.parquet.commits import BLOCK, BlockCommit
from penstock.spark.tables.parquet.state import TableState, is_covered
from penstock.spark.tables.parquet.trees import MIN_ATTEMPT_SECONDS
from penstock.storage import ObjectMeta, ObjectStore

COMMITS = "_commits"
COMPACTED = "_compacted"
_FOLDER = re.compile(
    BLOCK + r"=(?:compacted\.(?P<generation>\d{12,})-[0-9a-f]{32}|(?P<query>.+)-(?P<slot>\d{12,}))/.*", re.DOTALL
)


def vacuum_objects(store: ObjectStore, url: str, state: TableState, older_than: float, dry_run: bool) -> Vacuumed:
    """Delete files, and commits that a compaction stands for, as far as no reader can need them.

    A reader needs a compaction, and what it lists, until the next one has been there for `older_than` seconds.
    """
    before = time.time() - older_than
    compactions = sorted(store.list_objects(COMPACTED), key=lambda found: found.path)
    # Those that were the last one at some time since `before`: the last of all, and each that was replaced later.
    needed = [
        one
        for one, next_one in zip_longest(compactions, compactions[1:])
        if next_one is None or _time(next_one) > before
    ]
    # Before the first compaction readers read the commits: so they do, if that one is young.
    has_old = bool(compactions) and (needed[0] != compactions[0] or _time(compactions[0]) <= before)
    read = [_read(store, url, found.path) for found in needed]
    oldest = read[0] if has_old else None
    commits = list(store.list_objects(COMMITS))
    unneeded = [found for found in commits if is_covered(_name(found.path, COMMITS), oldest)]
    listed = {file.path for commit in read if commit is not None for file in commit.files}
    for found in commits:
        if found not in unneeded and (commit := _read(store, url, found.path)) is not None:
            listed |= {file.path for file in commit.files}
    gone = list(_unlisted(store, listed, state, before))
    if not dry_run:
        last = [found.path for found in compactions if found not in needed]
        for paths in ([found.path for found in gone], [found.path for found in unneeded], last):
            for result in store.delete(paths):
                if result.error:
                    raise result.error
    return Vacuumed(len(gone), sum(found.size for found in gone))


def _unlisted(store: ObjectStore, listed: set[str], state: TableState, before: float) -> Iterator[ObjectMeta]:
    """The files that nothing lists, and that are old enough for that to stay so."""
    for found in store.list_objects():
        folder = _FOLDER.fullmatch(found.path)
        if folder is None or found.path in listed:
            continue
        if folder["generation"] is not None:
            has_lost = int(folder["generation"]) <= state.generation
        else:
            has_lost = int(folder["slot"]) <= state.last_slot(folder["query"])
        # A driver, or a compaction, at work commits into a slot, or a generation, that is not there yet.
        if _time(found) <= (before if has_lost else min(before, time.time() - MIN_ATTEMPT_SECONDS)):
            yield found


def _read(store: ObjectStore, url: str, path: str) -> BlockCommit | None:
    try:
        return BlockCommit.decode(store.get(path).data, f"{url}/{path}")
    except NotFound:  # another vacuum was faster
        return None


def _name(path: str, folder: str) -> str:
    return path.removeprefix(f"{folder}/").removesuffix(".json")


def _time(found: ObjectMeta) -> float:
    return found.last_modified.timestamp()
