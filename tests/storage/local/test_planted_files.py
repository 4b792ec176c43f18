"""What is not a plain file is no object: it hangs no reader, leaks nothing, and is in no writer's way."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import Conflict, InvalidInput, NotFound
from penstock.storage import open_store
from penstock.storage.local import LocalStore
from tests.storage.local.writers import contents_of
from tests.support.processes import Parent, Start

SECRET = b"secret"


def plant_socket(at: Path, secret: Path) -> None:
    # The name of a socket may be too short for the whole path.
    here = os.open(at.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as planted:
            planted.bind(f"/proc/self/fd/{here}/{at.name}")
    finally:
        os.close(here)


PLANTS: dict[str, Callable[[Path, Path], object]] = {
    "pipe": lambda at, secret: os.mkfifo(at),
    "socket": plant_socket,
    "link": lambda at, secret: at.symlink_to(secret),
    "dangling link": lambda at, secret: at.symlink_to(secret.with_name("not there")),
    "link to itself": lambda at, secret: at.symlink_to(at),
}


def open_descriptors() -> int:
    return len(os.listdir("/dev/fd"))


def use(parent: Parent, root: str) -> tuple[list[str], int]:
    """Do everything but a write with the name; return how that ended, and how many descriptors stayed open."""
    store = LocalStore(root)
    store.put("warm", b"")
    before = open_descriptors()
    ended = []
    for call in (
        lambda: store.get("dir/planted"),
        lambda: store.head("dir/planted"),
        lambda: store.put_if_match("dir/planted", b"new", "0-0-0"),
    ):
        try:
            ended.append(repr(call()))
        except (NotFound, Conflict) as error:
            ended.append(type(error).__name__)
    ended.append(repr([meta.path for meta in store.list_objects("dir")]))
    return ended, open_descriptors() - before


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(SECRET)
    return outside / "file"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    LocalStore(root).put("dir/object", b"object")
    return root


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_file_is_no_object_and_is_replaced_or_deleted_without_touching_another(
    root: Path, secret: Path, start: Start, plant: str
) -> None:
    planted = root / "dir" / "planted"
    PLANTS[plant](planted, secret)

    ended, leaked = start(use, str(root)).answer()
    assert ended == ["NotFound", "NotFound", "Conflict", "['dir/object']"]
    assert leaked == 0

    LocalStore(root).put_if_absent("dir/planted", b"new")
    assert contents_of(str(root)) == {"dir/object": b"object", "warm": b"", "dir/planted": b"new"}
    planted.unlink()
    PLANTS[plant](planted, secret)
    assert LocalStore(root).delete(["dir/planted"])[0].ok
    assert contents_of(str(root)) == {"dir/object": b"object", "warm": b""}
    assert secret.read_bytes() == SECRET
    assert os.listdir(secret.parent) == [secret.name]


CALLS: dict[str, Callable[[LocalStore, str], object]] = {
    "get": lambda store, link: store.get(f"{link}/file"),
    "head": lambda store, link: store.head(f"{link}/file"),
    "put": lambda store, link: store.put(f"{link}/file", b"new"),
    "put_if_absent": lambda store, link: store.put_if_absent(f"{link}/new", b"new"),
    "put_if_match": lambda store, link: store.put_if_match(f"{link}/file", b"new", "1"),
    "get below": lambda store, link: store.get(f"{link}/deeper/file"),
    "put below": lambda store, link: store.put(f"{link}/deeper/new", b"new"),
    "delete": lambda store, link: store.delete([f"{link}/file"]),
    "delete after another": lambda store, link: store.delete(["dir/object", f"{link}/file"]),
    "list": lambda store, link: list(store.list_objects(link)),
    "list below": lambda store, link: list(store.list_objects(f"{link}/deeper")),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("target", ["ROOT/../outside", "ROOT/../outside/..", "../../outside"])
def test_a_directory_link_that_leaves_the_store_is_refused(root: Path, secret: Path, call: str, target: str) -> None:
    (secret.parent / "deeper").mkdir()
    (secret.parent / "deeper" / "file").write_bytes(SECRET)
    (root / "dir" / "link").symlink_to(target.replace("ROOT", str(root)))

    with pytest.raises(InvalidInput, match="leaves the store"):
        CALLS[call](LocalStore(root), "dir/link")
    assert secret.read_bytes() == SECRET
    assert sorted(os.listdir(secret.parent)) == ["deeper", "file"]
    assert os.listdir(secret.parent / "deeper") == ["file"]
    assert contents_of(str(root)) == {"dir/object": b"object"}


def test_a_directory_link_that_leaves_the_store_is_not_followed_by_a_listing_from_above(
    root: Path, secret: Path
) -> None:
    (root / "dir" / "link").symlink_to(secret.parent)

    assert contents_of(str(root)) == {"dir/object": b"object"}


def test_a_file_whose_name_no_object_can_have_is_left_out_of_a_listing(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("dir/object", b"")
    for name in (b"new\nline", b"back\\slash", b"not-utf8-\xff"):
        (tmp_path / "dir" / os.fsdecode(name)).write_bytes(b"stray")

    # One stray file must not stop a caller that deletes what was listed.
    assert all(result.ok for result in store.delete(meta.path for meta in store.list_objects()))
    assert len(os.listdir(tmp_path / "dir")) == 4  # the strays, and the internal directory


def test_a_root_whose_name_is_not_utf8_is_a_root_all_the_same(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / os.fsdecode(b"root-\xff"))
    store.put("object", b"content")

    again = open_store(store.url)
    assert again.url == store.url
    assert again.get("object").data == b"content"
