"""A missing permission is an error that names it, for reads, writes, deletes and lists."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.errors import StorageError
from penstock.storage.local import LocalStore
from tests.storage.local.writers import contents_of
from tests.support.processes import Parent, Start

OTHER_USER = 65_534
READ = {
    "get": lambda store, version: store.get("closed/deep/object").data,
    "head": lambda store, version: store.head("closed/deep/object").size,
    "list": lambda store, version: [meta.path for meta in store.list_objects("closed/deep")],
}
WRITE = {
    "put": lambda store, version: store.put("closed/deep/object", b"new"),
    "put_if_absent": lambda store, version: store.put_if_absent("closed/deep/new", b"new"),
    "put_if_match": lambda store, version: store.put_if_match("closed/deep/object", b"new", version),
    "put in a new directory": lambda store, version: store.put("closed/deep/er/object", b"new"),
    "delete": lambda store, version: store.delete(["closed/deep/object"])[0],
}
CALLS: dict[str, Callable[[LocalStore, str], object]] = READ | WRITE


def call_as_other_user(parent: Parent, root: str, name: str, version: str) -> str:
    """Do something with a store as a user without rights; return how it ended."""
    store = LocalStore(root)  # before: the interpreter may lie where only root can import from
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(OTHER_USER)
        os.setuid(OTHER_USER)
    try:
        answer = CALLS[name](store, version)
    except StorageError as error:
        return f"{type(error).__name__}: {error}"
    except Exception as error:
        return f"not an error of ours: {error!r}"
    error_in_result = getattr(answer, "error", None)
    if error_in_result is not None:
        return f"{type(error_in_result).__name__}: {error_in_result}"
    return f"answered {answer!r}"


@pytest.fixture
def version(root: Path) -> str:
    """The version of the object, read before anything was closed."""
    return LocalStore(root).head("closed/deep/object").version


@pytest.fixture
def root(shared_dir: Path) -> Iterator[Path]:
    """A store with an object, in which a user without rights may do everything so far."""
    LocalStore(shared_dir).put("closed/deep/object", b"old")
    if os.geteuid() == 0:
        for directory, names, files in os.walk(shared_dir):
            for name in (".", *names, *files):
                os.chown(os.path.join(directory, name), OTHER_USER, OTHER_USER)
    yield shared_dir
    for closed in ("closed", "closed/deep"):
        (shared_dir / closed).chmod(0o755)
    # Nothing was lost.
    assert contents_of(str(shared_dir)) == {"closed/deep/object": b"old"}


@pytest.mark.parametrize(
    ("closed", "mode", "names"),
    [
        ("closed", 0o000, CALLS),
        ("closed/deep", 0o000, CALLS),
        ("closed/deep", 0o400, CALLS),
        ("closed/deep", 0o500, WRITE),
    ],
    ids=["above, not to be entered", "not to be entered", "to be listed only", "not to be written"],
)
def test_a_directory_without_a_permission_is_an_error_that_names_it(
    root: Path, version: str, start: Start, closed: str, mode: int, names: dict[str, object]
) -> None:
    internal = root / closed / ".penstock"
    if mode == 0o500:
        internal.chmod(mode)
    (root / closed).chmod(mode)
    ended = {name: start(call_as_other_user, str(root), name, version).answer() for name in names}
    (root / closed).chmod(0o755)
    if mode == 0o500:
        internal.chmod(0o755)
    for name, error in ended.items():
        assert error.startswith("StorageError: could not"), name
        assert "Permission denied" in error, name


@pytest.mark.parametrize(("name", "answer"), [("get", "b'old'"), ("head", "3"), ("list", "['closed/deep/object']")])
def test_a_directory_that_may_only_be_read_can_be_read(
    root: Path, version: str, start: Start, name: str, answer: str
) -> None:
    (root / "closed" / "deep").chmod(0o500)
    (root / "closed" / "deep" / ".penstock").chmod(0o500)

    ended = start(call_as_other_user, str(root), name, version).answer()
    (root / "closed" / "deep" / ".penstock").chmod(0o755)
    assert ended == f"answered {answer}"


def test_an_object_that_may_not_be_read_is_an_error_that_names_it(root: Path, version: str, start: Start) -> None:
    (root / "closed" / "deep" / "object").chmod(0o000)

    ended = start(call_as_other_user, str(root), "get", version).answer()
    (root / "closed" / "deep" / "object").chmod(0o644)
    assert ended.startswith("StorageError: could not read")
    assert "Permission denied" in ended
