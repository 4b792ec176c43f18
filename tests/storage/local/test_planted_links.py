"""Links inside a store's own folders are refused by every call that enters them, and lead nowhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.errors import InvalidInput
from penstock.storage import Reserve
from penstock.storage.local import LocalStore
from penstock.storage.local.folder import stripe_of
from tests.storage.local.writers import contents_of

LOCK = f"{stripe_of('object')}.lock"
CALLS: dict[str, Callable[[LocalStore, str], object]] = {
    "get": lambda store, version: store.get("dir/object"),
    "get what is not there": lambda store, version: store.get("dir/object.not"),
    "head": lambda store, version: store.head("dir/object"),
    "put": lambda store, version: store.put("dir/object", b"new"),
    "put another object": lambda store, version: store.put("dir/other", b"new"),
    "put_if_absent": lambda store, version: store.put_if_absent("dir/new", b"new"),
    "put_if_match": lambda store, version: store.put_if_match("dir/object", b"new", version),
    "put with the reserve": lambda store, version: store.put_if_match(
        "dir/object", b"new", version, reserve=Reserve.USE
    ),
    "delete": lambda store, version: store.delete(["dir/object"]),
    "list": lambda store, version: list(store.list_objects("dir")),
    "list from above": lambda store, version: list(store.list_objects()),
}


class Elsewhere:
    """A directory that is not the store's, with files of the names that a store uses."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        for name in ("00-1.tmp", "draft.tmp", LOCK, "clock", "synced", "reserve.lock", "reserve-0"):
            (path / name).write_bytes(b"precious")
        self._before = self.contents()

    def contents(self) -> dict[str, bytes]:
        """Every file of it."""
        return {path.name: path.read_bytes() for path in self.path.iterdir()}

    def is_untouched(self) -> bool:
        """Whether nothing was added, changed or removed."""
        return self.contents() == self._before


@pytest.fixture
def elsewhere(tmp_path: Path) -> Elsewhere:
    return Elsewhere(tmp_path / "elsewhere")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    LocalStore(root).put_if_absent("dir/object", b"object", reserve=Reserve.KEEP)
    return root


def plant(at: Path, target: Path) -> None:
    """Put a link in the place of what is there, which is kept beside it."""
    if at.exists():
        at.rename(at.with_name(at.name + ".before"))
    at.symlink_to(target)


@pytest.mark.parametrize("target", ["elsewhere", "not there"])
@pytest.mark.parametrize("call", CALLS)
def test_an_internal_directory_that_is_a_link_is_refused_by_every_call_and_leads_nowhere(
    root: Path, elsewhere: Elsewhere, call: str, target: str
) -> None:
    version = LocalStore(root).head("dir/object").version
    plant(root / "dir" / ".penstock", elsewhere.path.with_name(target))

    with pytest.raises(InvalidInput, match=r"'.*/dir/\.penstock' is refused: .* a link"):
        CALLS[call](LocalStore(root), version)
    assert elsewhere.is_untouched()
    assert not elsewhere.path.with_name("not there").exists()
    assert (root / "dir" / "object").read_bytes() == b"object"


@pytest.mark.parametrize("call", ["put", "delete", "list from above"])
def test_the_internal_directory_of_the_root_is_refused_as_a_link_too(
    root: Path, elsewhere: Elsewhere, call: str
) -> None:
    version = LocalStore(root).head("dir/object").version
    plant(root / ".penstock", elsewhere.path)

    with pytest.raises(InvalidInput, match="refused"):
        CALLS[call](LocalStore(root), version)
    assert elsewhere.is_untouched()


@pytest.mark.parametrize(
    ("name", "target", "call"),
    [
        *((LOCK, LOCK, call) for call in ("get", "head", "put", "put_if_match", "delete")),
        *(
            ("synced", target, call)
            for target in ("synced", "not there")
            for call in ("put", "put_if_absent", "put_if_match", "delete")
        ),
        ("reserve.lock", "reserve.lock", "put another object"),
    ],
)
def test_a_lock_file_or_a_sync_mark_that_is_a_link_is_refused(
    root: Path, elsewhere: Elsewhere, name: str, target: str, call: str
) -> None:
    version = LocalStore(root).head("dir/object").version
    plant(root / "dir" / ".penstock" / name, elsewhere.path / target)

    with pytest.raises(InvalidInput, match=rf"{name}' is refused: it is a link"):
        CALLS[call](LocalStore(root), version)
    assert elsewhere.is_untouched()
    (root / "dir" / ".penstock" / name).unlink()
    assert contents_of(str(root)) == {"dir/object": b"object"}


@pytest.mark.parametrize("name", [".penstock/clock", "dir/.penstock/reserve.lock"])
def test_a_clock_and_a_reserve_that_are_links_are_refused(root: Path, elsewhere: Elsewhere, name: str) -> None:
    store = LocalStore(root)
    version = store.head("dir/object").version
    (root / "dir" / ".penstock" / "reserve-0").unlink()  # so that the reserve is entered
    plant(root / name, elsewhere.path / Path(name).name)

    with pytest.raises(InvalidInput, match="it is a link"):
        store.put_if_match("dir/object", b"new", version, reserve=Reserve.KEEP)
    assert elsewhere.is_untouched()
    assert contents_of(str(root)) == {"dir/object": b"object"}


def test_links_in_the_place_of_a_spare_or_a_temporary_file_are_removed_and_lead_nowhere(
    root: Path, elsewhere: Elsewhere
) -> None:
    internal = root / "dir" / ".penstock"
    plant(internal / "reserve-0", elsewhere.path / "reserve-0")
    inode = (internal / LOCK).stat().st_ino
    plant(internal / f"{stripe_of('object')}-{inode:x}.tmp", elsewhere.path / "draft.tmp")
    plant(internal / "63-1.tmp", elsewhere.path / "00-1.tmp")

    store = LocalStore(root)
    store.put_if_match("dir/object", b"new", store.head("dir/object").version, reserve=Reserve.KEEP)
    list(store.list_objects())

    assert elsewhere.is_untouched()
    assert contents_of(str(root)) == {"dir/object": b"new"}
    assert not (internal / "reserve-0").is_symlink()
    assert not list(internal.glob("*.tmp"))


@pytest.mark.parametrize("call", ["put", "put_if_match", "put with the reserve", "delete"])
def test_a_link_that_is_planted_in_the_middle_of_a_call_leads_nowhere(
    root: Path, elsewhere: Elsewhere, call: str
) -> None:
    internal, steps = root / "dir" / ".penstock", list[str]()
    version = LocalStore(root).head("dir/object").version
    CALLS[call](LocalStore(root, step=steps.append), version)
    for number in range(len(steps)):
        LocalStore(root).put("dir/object", b"object")
        version = LocalStore(root).head("dir/object").version
        reached: list[str] = []

        def swap(name: str, number: int = number, reached: list[str] = reached) -> None:
            reached.append(name)
            if len(reached) == number + 1:
                internal.rename(internal.with_name("moved away"))
                internal.symlink_to(elsewhere.path)

        with suppress(InvalidInput):  # or it was past the point where that matters
            CALLS[call](LocalStore(root, step=swap), version)
        assert len(reached) > number
        assert elsewhere.is_untouched(), steps[number]
        internal.unlink()
        os.rename(internal.with_name("moved away"), internal)
