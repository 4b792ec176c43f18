"""A directory is durable before anything in it counts: it is synced, and so is everything above it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from penstock.errors import StorageError
from penstock.storage.local import LocalStore
from tests.storage.local.syncs import Inode, inode_of, watched_syncs
from tests.storage.local.writers import contents_of, put_and_stop
from tests.support.processes import Parent, Start

PATH = "a/b/c/object"


def put_and_say_what_was_synced(parent: Parent, root: str) -> list[Inode]:
    """Write the object; return what was synced, in order."""
    with watched_syncs() as syncs:
        LocalStore(root).put(PATH, b"new")
    return syncs.done


def directories(root: Path) -> list[Inode]:
    """The directory of the object and those above it, up to the one that was there before the store."""
    return [inode_of(directory) for directory in (root / "a/b/c", root / "a/b", root / "a", root, root.parent)]


def test_a_new_path_syncs_each_directory_it_made_and_its_parent_before_the_object_is_there(tmp_path: Path) -> None:
    root = tmp_path / "store"
    before_the_move: list[Inode] = []
    with watched_syncs() as syncs:

        def step(name: str) -> None:
            if name == "locked":
                before_the_move.extend(syncs.done)

        LocalStore(root, step=step).put(PATH, b"new")

    assert set(directories(root)) <= set(before_the_move)


@pytest.mark.parametrize("occurrence", ["root", "nested"])
def test_directories_of_a_maker_that_was_killed_before_syncing_them_are_synced_by_the_next_writer(
    tmp_path: Path, start: Start, occurrence: str
) -> None:
    root = tmp_path / "store"
    if occurrence == "nested":
        LocalStore(root).put("other", b"")
    victim = start(put_and_stop, str(root), PATH, b"lost", "directory made")
    victim.hear()
    victim.kill()
    assert (root / "a/b/c").is_dir() == (occurrence == "nested")

    synced = start(put_and_say_what_was_synced, str(root)).answer()

    assert set(directories(root)) <= set(synced)
    assert contents_of(str(root))[PATH] == b"new"


def test_a_directory_that_someone_else_made_is_synced_too(tmp_path: Path) -> None:
    (tmp_path / "store/a/b/c").mkdir(parents=True)
    with watched_syncs() as syncs:
        LocalStore(tmp_path / "store").put(PATH, b"new")

    assert set(directories(tmp_path / "store")) <= set(syncs.done)


def test_a_directory_made_by_a_store_without_sync_is_synced_by_one_with(tmp_path: Path) -> None:
    root = tmp_path / "store"
    LocalStore(root, sync=False).put("a/b/c/other", b"")
    with watched_syncs() as syncs:
        LocalStore(root).put(PATH, b"new")

    assert set(directories(root)) <= set(syncs.done)


def test_a_directory_that_was_synced_once_is_not_synced_again_with_all_above(tmp_path: Path) -> None:
    LocalStore(tmp_path).put(PATH, b"old")
    with watched_syncs() as syncs:
        LocalStore(tmp_path).put(PATH, b"new")

    assert syncs.done == [inode_of(tmp_path / PATH), inode_of(tmp_path / "a/b/c")]


@pytest.mark.parametrize("failing", ["store/a/b/c", "store/a/b", "store/a", "store", "."])
def test_a_directory_that_cannot_be_synced_fails_the_write_and_is_synced_by_the_next(
    tmp_path: Path, failing: str
) -> None:
    root = tmp_path / "store"
    store = LocalStore(root)
    (root / "a/b/c").mkdir(parents=True)
    broken = inode_of(tmp_path / failing)

    with (
        watched_syncs(lambda found: (found.st_dev, found.st_ino) == broken),
        pytest.raises(StorageError) as caught,
    ):
        store.put(PATH, b"lost")
    assert type(caught.value) is StorageError
    assert contents_of(str(root)) == {}

    with watched_syncs() as syncs:
        store.put(PATH, b"new")
    assert set(directories(root)) <= set(syncs.done)


@pytest.mark.parametrize("gone", ["store", "store/a", "store/a/b/c", "store/a/b/c/.penstock"])
def test_directories_that_someone_removed_are_made_and_synced_anew(tmp_path: Path, gone: str) -> None:
    root = tmp_path / "store"
    store = LocalStore(root)
    store.put(PATH, b"old")
    shutil.rmtree(tmp_path / gone)

    with watched_syncs() as syncs:
        store.put(PATH, b"new")
    assert set(directories(root)) <= set(syncs.done)
    assert contents_of(str(root)) == {PATH: b"new"}


def test_a_delete_whose_room_someone_removes_meanwhile_is_no_success_while_the_object_is_there(tmp_path: Path) -> None:
    LocalStore(tmp_path).put(PATH, b"old")

    def remove(name: str) -> None:
        if name == "internal directory made":
            shutil.rmtree(tmp_path / "a/b/c/.penstock", ignore_errors=True)

    (result,) = LocalStore(tmp_path, step=remove).delete([PATH])
    assert result.ok == (not (tmp_path / PATH).exists())


def test_a_write_whose_room_someone_removes_meanwhile_makes_it_again(tmp_path: Path) -> None:
    internal = tmp_path / "a/b/c/.penstock"
    LocalStore(tmp_path).put(PATH, b"old")
    existed: list[bool] = []

    def remove_once(name: str) -> None:
        if name == "internal directory made":
            existed.append(internal.exists())
            if len(existed) == 2:  # the first is the one of the root
                shutil.rmtree(internal)

    store = LocalStore(tmp_path, step=remove_once)
    store.put(PATH, b"new")
    assert existed == [True, True, True]
    assert contents_of(str(tmp_path)) == {PATH: b"new"}


def test_a_directory_remade_by_a_store_without_sync_is_synced_by_one_that_knew_it_before(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = LocalStore(root)
    store.put(PATH, b"old")
    shutil.rmtree(root / "a")
    LocalStore(root, sync=False).put("a/b/c/other", b"")

    with watched_syncs() as syncs:
        store.put(PATH, b"new")
    assert set(directories(root)[:-1]) <= set(syncs.done)


def test_syncing_stops_at_the_mount_point(tmp_path: Path) -> None:
    with watched_syncs() as syncs:
        LocalStore(tmp_path).put(PATH, b"new")

    assert {device for device, _ in syncs.done} == {os.stat(tmp_path).st_dev}
