"""The temporary files of killed writers are never listed, and the next writer removes them and no other files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.storage.local import LocalStore
from penstock.storage.local.folder import stripe_of
from tests.storage.local.writers import contents_of, files_below, put_and_stop
from tests.support.processes import Parent, Start

LITTERING = ("temporary file made", "written", "stamped", "synced", "marked")


def name_in_another_stripe_than(name: str) -> str:
    """Find a name that is locked by another lock."""
    return next(other for other in map(str, range(1_000)) if stripe_of(other) != stripe_of(name))


def name_in_the_same_stripe_as(name: str) -> str:
    """Find a name that is locked by the same lock."""
    return next(other for other in map(str, range(100_000)) if stripe_of(other) == stripe_of(name))


@pytest.fixture
def littered(tmp_path: Path, start: Start) -> Path:
    """Make a store in which a writer was killed in each of a few directories."""
    store = LocalStore(tmp_path)
    store.put("ingest/kept", b"kept")
    for number, step in enumerate(LITTERING):
        victim = start(put_and_stop, str(tmp_path), f"ingest/{number}/manifest", b"lost", step)
        victim.hear()
        victim.kill()
    assert len(files_below(str(tmp_path), ".tmp")) == len(LITTERING)
    return tmp_path


def test_litter_is_never_listed_and_listing_removes_it(littered: Path) -> None:
    assert [meta.path for meta in LocalStore(littered).list_objects()] == ["ingest/kept"]
    assert not files_below(str(littered), ".tmp")


def test_litter_cannot_be_read_written_or_deleted_as_an_object(littered: Path) -> None:
    store = LocalStore(littered)
    for file in files_below(str(littered), ".tmp"):
        with pytest.raises(ValueError, match="refused"):
            store.get(file)
        with pytest.raises(ValueError, match="refused"):
            store.put(file, b"")
        with pytest.raises(ValueError, match="refused"):
            store.delete([file])
        with pytest.raises(ValueError, match="refused"):
            list(store.list_objects(file.rpartition("/")[0]))


def test_objects_with_names_like_litter_are_objects_and_stay(littered: Path) -> None:
    store = LocalStore(littered)
    names = ["0.tmp", f"{stripe_of('manifest')}.tmp", "07.lock", "clock", "synced", "penstock", ".penstock.tmp"]
    for name in names:
        store.put(f"names/{name}", name.encode())

    assert {meta.path for meta in LocalStore(littered).list_objects("names")} == {f"names/{name}" for name in names}
    assert [store.get(f"names/{name}").data.decode() for name in names] == names


def test_litter_is_removed_by_the_next_writer_of_its_name(littered: Path) -> None:
    for number in range(len(LITTERING)):
        LocalStore(littered).put(f"ingest/{number}/manifest", b"next")
    assert not files_below(str(littered), ".tmp")


def test_litter_is_removed_by_a_new_stores_first_write_to_its_directory(littered: Path) -> None:
    store = LocalStore(littered)
    for number in range(len(LITTERING)):
        store.put(f"ingest/{number}/{name_in_another_stripe_than('manifest')}", b"")
    assert not files_below(str(littered), ".tmp")


def test_litter_is_removed_by_the_deletion_of_an_object_that_never_came_to_be(littered: Path) -> None:
    store = LocalStore(littered)
    assert all(result.ok for result in store.delete([f"ingest/{number}/manifest" for number in range(len(LITTERING))]))
    assert not files_below(str(littered), ".tmp")


def test_a_store_that_is_open_removes_litter_before_it_writes_under_the_same_lock(tmp_path: Path, start: Start) -> None:
    store = LocalStore(tmp_path)
    store.put("manifest", b"old")
    victim = start(put_and_stop, str(tmp_path), "manifest", b"lost", "synced")
    victim.hear()
    victim.kill()

    store.put(name_in_the_same_stripe_as("manifest"), b"")
    assert not files_below(str(tmp_path), ".tmp")
    assert store.get("manifest").data == b"old"


def bustle(parent: Parent, root: str) -> set[str]:
    """List everything, and write and delete other names, with a new store each time."""
    other = name_in_another_stripe_than("manifest")
    for number in range(10):
        list(LocalStore(root).list_objects())
        list(LocalStore(root).list_objects("ingest"))
        LocalStore(root).put(f"ingest/{other}", b"%d" % number)
        LocalStore(root).delete([f"ingest/{other}"])
        LocalStore(root).put("elsewhere/manifest", b"%d" % number)
    return {meta.path for meta in LocalStore(root).list_objects()}


@pytest.mark.parametrize("step", LITTERING)
def test_what_a_living_writer_is_writing_is_never_swept(tmp_path: Path, start: Start, step: str) -> None:
    LocalStore(tmp_path).put("ingest/manifest", b"old")
    writer = start(put_and_stop, str(tmp_path), "ingest/manifest", b"new", step)
    writer.hear()
    (temporary,) = files_below(str(tmp_path), ".tmp")

    assert start(bustle, str(tmp_path)).answer() == {"ingest/manifest", "elsewhere/manifest"}
    assert files_below(str(tmp_path), ".tmp") == {temporary}

    writer.tell("go on")
    assert writer.answer() == LocalStore(tmp_path).head("ingest/manifest").version
    assert contents_of(str(tmp_path))["ingest/manifest"] == b"new"
    assert not files_below(str(tmp_path), ".tmp")


def fail_in(step: str) -> Callable[[str], None]:
    """A step hook that raises at one step, as Ctrl-C would."""

    def hook(name: str) -> None:
        if name == step:
            raise KeyboardInterrupt

    return hook


@pytest.mark.parametrize("step", ["locked", *LITTERING])
def test_a_write_that_is_interrupted_clears_away_after_itself(tmp_path: Path, step: str) -> None:
    LocalStore(tmp_path).put("manifest", b"old")
    with pytest.raises(KeyboardInterrupt):
        LocalStore(tmp_path, step=fail_in(step)).put("manifest", b"new")

    assert not files_below(str(tmp_path), ".tmp")
    assert contents_of(str(tmp_path)) == {"manifest": b"old"}
    LocalStore(tmp_path).put("manifest", b"next")
