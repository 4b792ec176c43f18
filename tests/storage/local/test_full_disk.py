"""A full disk, or one that may only be read: clear errors, and nothing is lost or remains."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import StorageError
from penstock.storage.local import LocalStore
from tests.storage.local.writers import contents_of, files_below, put_and_stop
from tests.support.processes import Start

Mount = Callable[[str], Path]
MEGABYTE = 1 << 20


def fill(store: LocalStore) -> list[str]:
    """Write ballast until not one more byte fits; return its paths."""
    paths: list[str] = []
    size = 1 * MEGABYTE
    while size:
        path = f"ballast-{len(paths)}"
        try:
            store.put(path, b"b" * size)
            paths.append(path)
        except StorageError:
            size //= 2
    return paths


def test_a_write_to_a_full_disk_fails_and_the_old_object_stays_whole(mount: Mount) -> None:
    root = mount("size=2m")
    store = LocalStore(root)
    old = b"old " * 1_000
    version = store.put("manifest", old)
    ballast = fill(store)
    files = files_below(str(root))

    for size in (1, 10_000, 4 * MEGABYTE):
        with pytest.raises(StorageError, match="full") as caught:
            store.put_if_match("manifest", b"n" * size, version)
        assert type(caught.value) is StorageError
        with pytest.raises(StorageError, match="full"):
            store.put_if_absent("other", b"n" * size)

    assert not files_below(str(root), ".tmp")
    assert store.get("manifest").data == old
    assert store.get("manifest").version == version
    assert {meta.path for meta in store.list_objects()} == {"manifest", *ballast}
    assert {name for name in files_below(str(root)) - files if not name.endswith(".lock")} == set()


def test_after_space_was_freed_on_a_full_disk_writing_works_again(mount: Mount) -> None:
    root = mount("size=2m")
    store = LocalStore(root)
    store.put("manifest", b"old")
    ballast = fill(store)
    with pytest.raises(StorageError):
        store.put("manifest", b"new" * 10_000)

    assert all(result.ok for result in store.delete(ballast)), "a full disk must let go of what is deleted"
    store.put("manifest", b"new" * 10_000)
    assert contents_of(str(root)) == {"manifest": b"new" * 10_000}


def test_a_disk_that_fills_up_in_the_middle_of_a_write_leaves_the_old_object(mount: Mount, start: Start) -> None:
    root = mount("size=2m")
    store = LocalStore(root)
    store.put("manifest", b"old")
    with pytest.raises(StorageError, match="full"):
        store.put("manifest", b"n" * 4 * MEGABYTE)

    assert not files_below(str(root), ".tmp")
    assert contents_of(str(root)) == {"manifest": b"old"}
    store.put("manifest", b"n" * MEGABYTE)


def test_a_disk_without_free_inodes_fails_writes_and_goes_on_after_deletes(mount: Mount) -> None:
    root = mount("size=2m,nr_inodes=40")
    store = LocalStore(root)
    store.put("manifest", b"old")
    paths: list[str] = []
    with pytest.raises(StorageError, match="full"):  # noqa: PT012 - which of the writes is the one too many is not known
        for number in range(100):
            store.put(f"object-{number}", b"")
            paths.append(f"object-{number}")
    assert paths
    with pytest.raises(StorageError, match="full"):
        store.put("a/new/directory", b"")

    assert not files_below(str(root), ".tmp")
    assert set(contents_of(str(root))) == {"manifest", *paths}
    assert all(result.ok for result in store.delete(paths))
    store.put("manifest", b"new")
    assert contents_of(str(root)) == {"manifest": b"new"}


@pytest.fixture
def read_only(mount: Mount, start: Start) -> Path:
    """Make a store on a disk that then may only be read, after writers were killed there."""
    root = mount("size=2m")
    LocalStore(root).put("manifest", b"old")
    for path, step in (("manifest", "moved"), ("other", "written")):
        victim = start(put_and_stop, str(root), path, b"new", step)
        victim.hear()
        victim.kill()
    subprocess.run(["mount", "-o", "remount,ro", str(root)], check=True)
    return root


def test_what_a_killed_writer_had_moved_can_be_read_from_a_read_only_disk(read_only: Path) -> None:
    assert LocalStore(read_only).get("manifest").data == b"new"


def test_what_lies_on_a_read_only_disk_can_be_listed_though_litter_cannot_be_removed(read_only: Path) -> None:
    assert [meta.path for meta in LocalStore(read_only).list_objects()] == ["manifest"]


def test_a_write_to_a_read_only_disk_is_a_clear_error(read_only: Path) -> None:
    with pytest.raises(StorageError, match="ead-only"):
        LocalStore(read_only).put("manifest", b"newer")
    (result,) = LocalStore(read_only).delete(["manifest"])
    assert "ead-only" in str(result.error)
