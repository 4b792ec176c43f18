"""Who can read and write the files of a local store: the owner, its group, and others only if asked for."""

from __future__ import annotations

import os
import pickle
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import InvalidInput, StorageError
from penstock.storage import LocalStore, Reserve, open_store
from tests.storage.local.writers import contents_of
from tests.support.processes import Parent, Start

USER, GROUP, OTHER_GROUP = 65_533, 65_532, 65_531


@pytest.fixture
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    """Set the umask of this process for a test: 0, unless the test says another."""
    before = os.umask(getattr(request, "param", 0))
    yield
    os.umask(before)


def modes_below(root: Path) -> dict[str, set[int]]:
    """The permission bits of all directories, and of all files, from the root of a store on."""
    paths = [root, *root.rglob("*")]
    directories = {stat.S_IMODE(path.stat().st_mode) for path in paths if path.is_dir()}
    files = {stat.S_IMODE(path.stat().st_mode) for path in paths if path.is_file()}
    return {"directories": directories, "files": files}


def write(store: LocalStore) -> None:
    """Have a store create every kind of file that it has."""
    version = store.put_if_absent("a/b/manifest", b"1", reserve=Reserve.KEEP)
    store.put_if_match("a/b/manifest", b"2", version, reserve=Reserve.USE)
    store.put("object", b"content")
    store.delete(["a/b/other"])


@pytest.mark.usefixtures("umask")
def test_all_that_a_store_creates_is_closed_to_others_by_default(tmp_path: Path) -> None:
    write(LocalStore(tmp_path / "new" / "store"))
    assert modes_below(tmp_path / "new") == {"directories": {0o750}, "files": {0o640}}


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize(
    ("mode", "directories"), [(0o600, 0o700), (0o660, 0o770), (0o644, 0o755), (0o666, 0o777), ("0o600", 0o700)]
)
def test_a_mode_that_was_asked_for_counts_for_every_file_and_directory(
    tmp_path: Path, mode: int | str, directories: int
) -> None:
    store = open_store(tmp_path / "store", mode=mode)
    assert isinstance(store, LocalStore)
    write(store)
    files = mode if isinstance(mode, int) else int(mode, 8)
    assert modes_below(tmp_path / "store") == {"directories": {directories}, "files": {files}}


@pytest.mark.parametrize("umask", [0o077], indirect=True)
@pytest.mark.usefixtures("umask")
def test_the_umask_takes_rights_away_and_gives_none(tmp_path: Path) -> None:
    write(LocalStore(tmp_path / "store", mode=0o666))
    assert modes_below(tmp_path / "store") == {"directories": {0o700}, "files": {0o600}}


def write_pickled(parent: Parent, pickled: bytes) -> None:
    """Write with a store that came from another process."""
    os.umask(0)
    write(pickle.loads(pickled))


def test_a_mode_travels_with_a_pickled_store(tmp_path: Path, start: Start) -> None:
    store = LocalStore(tmp_path / "store", mode=0o600)
    assert repr(pickle.loads(pickle.dumps(store))) == repr(store) == f"LocalStore({store.url}, mode=0o600)"
    start(write_pickled, pickle.dumps(store)).answer()
    assert modes_below(tmp_path / "store") == {"directories": {0o700}, "files": {0o600}}


@pytest.mark.parametrize("mode", [0o400, 0o777, 0o1640, -1, True, 6.4, "rw", "999", None, ""])
def test_a_mode_that_no_store_can_have_is_refused(tmp_path: Path, mode: object) -> None:
    with pytest.raises(InvalidInput, match="mode must be permission bits of files such as 0o640"):
        open_store(tmp_path, mode=mode)


def call_as(parent: Parent, root: str, mode: int, groups: list[int], call: str) -> object:
    """Use a store as another user, who is in some groups."""
    store = LocalStore(root, mode=mode)
    os.umask(0o007)
    os.setgroups(groups)
    os.setgid(OTHER_GROUP)
    os.setuid(USER)
    try:
        match call:
            case "read":
                return store.get("dir/object").data
            case "list":
                return [meta.path for meta in store.list_objects()]
            case _:
                return store.put_if_match("dir/object", b"new", store.head("dir/object").version)
    except StorageError as error:
        return f"{error}"


@pytest.fixture
def shared_root(shared_dir: Path, umask: None) -> Path:
    """A directory of root's, whose new files belong to a group."""
    if os.geteuid() != 0:
        pytest.skip("giving files to a group and acting as another user takes root")
    os.chown(shared_dir, 0, GROUP)
    shared_dir.chmod(0o2775)
    return shared_dir


@pytest.mark.parametrize(("call", "answer"), [("read", b"old"), ("list", ["dir/object"])])
def test_a_member_of_the_group_can_read_by_default(shared_root: Path, start: Start, call: str, answer: object) -> None:
    LocalStore(shared_root).put("dir/object", b"old")
    assert start(call_as, str(shared_root), 0o640, [GROUP], call).answer() == answer


@pytest.mark.parametrize("call", ["read", "write"])
def test_a_user_outside_the_group_can_do_nothing_by_default(shared_root: Path, start: Start, call: str) -> None:
    LocalStore(shared_root).put("dir/object", b"old")
    assert "Permission denied" in str(start(call_as, str(shared_root), 0o640, [], call).answer())


def test_members_of_a_group_that_may_write_use_each_others_locks(shared_root: Path, start: Start) -> None:
    store = LocalStore(shared_root, mode=0o660)
    store.put("dir/object", b"old")
    version = start(call_as, str(shared_root), 0o660, [GROUP], "write").answer()
    assert store.head("dir/object").version == version
    store.put("dir/object", b"root again")
    assert contents_of(str(shared_root)) == {"dir/object": b"root again"}
