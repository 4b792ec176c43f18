"""A store on a directory and one on a directory inside it are safe to use side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import Conflict
from penstock.storage.local import LocalStore
from tests.storage.local.writers import files_below, increment
from tests.support.processes import Start, let_go


@pytest.mark.parametrize("sync", [True, False])
def test_nothing_is_lost_between_processes_that_count_through_overlapping_roots(
    tmp_path: Path, start: Start, sync: bool
) -> None:
    LocalStore(tmp_path).put("in/deep/counter", b"0")
    ways = [
        (tmp_path, "in/deep/counter"),
        (tmp_path / "in", "deep/counter"),
        (tmp_path / "in" / "deep", "counter"),
    ] * 2
    counting = [start(increment, str(root), path, 40, sync) for root, path in ways]
    let_go(counting)
    conflicts = sum(child.answer() for child in counting)

    for root, path in ways:
        assert LocalStore(root).get(path).data == b"240"
    assert conflicts, "they never met, so this showed nothing"
    assert not files_below(str(tmp_path), ".tmp")


def test_a_version_read_through_one_root_counts_through_the_other(tmp_path: Path) -> None:
    outer, inner = LocalStore(tmp_path), LocalStore(tmp_path / "in")
    outer.put("in/object", b"1")
    inner.put_if_match("object", b"2", outer.get("in/object").version)
    with pytest.raises(Conflict):
        outer.put_if_match("in/object", b"3", "stale")
    outer.put_if_match("in/object", b"3", inner.get("object").version)

    assert inner.get("object").data == b"3"


def test_neither_store_lists_the_internal_files_of_the_other(tmp_path: Path) -> None:
    outer, inner = LocalStore(tmp_path), LocalStore(tmp_path / "in")
    outer.put("a", b"")
    inner.put("b", b"")
    inner.put("c/d", b"")

    assert {meta.path for meta in outer.list_objects()} == {"a", "in/b", "in/c/d"}
    assert {meta.path for meta in inner.list_objects()} == {"b", "c/d"}
    assert {meta.path for meta in outer.list_objects("in")} == {"in/b", "in/c/d"}
