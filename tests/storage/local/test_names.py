"""On a disk a name is an object or holds objects, never both: the second is a clear error, and the first stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import Conflict, NotFound, StorageError
from penstock.storage.local import LocalStore
from tests.storage.local.writers import contents_of, files_below

CLEAR = "cannot be an object and also hold objects"


@pytest.fixture(params=[True, False], ids=["sync", "no sync"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> LocalStore:
    return LocalStore(tmp_path, sync=request.param)


@pytest.mark.parametrize("below", ["a/b", "a/b/c", "a/b/c/d"])
def test_nothing_can_be_written_below_an_object(tmp_path: Path, store: LocalStore, below: str) -> None:
    version = store.put("a", b"object")
    for _ in range(2):
        with pytest.raises(StorageError, match=CLEAR):
            store.put(below, b"")
        with pytest.raises(StorageError, match=CLEAR):
            store.put_if_absent(below, b"")
        with pytest.raises(Conflict):
            store.put_if_match(below, b"", version)

    assert not files_below(str(tmp_path), ".tmp")
    assert contents_of(str(tmp_path)) == {"a": b"object"}
    assert store.get("a").version == version


@pytest.mark.parametrize("below", ["a/b", "a/b/c", "a/b/c/d"])
def test_what_would_lie_below_an_object_is_not_found_and_deleting_it_is_a_success(
    store: LocalStore, below: str
) -> None:
    store.put("a", b"object")

    assert store.delete([below])[0].ok
    assert list(store.list_objects(below)) == []
    assert list(store.list_objects("a")) == []
    with pytest.raises(NotFound):
        store.get(below)
    with pytest.raises(NotFound):
        store.head(below)
    assert store.get("a").data == b"object"


@pytest.mark.parametrize("above", ["a", "a/b"])
def test_no_object_can_be_written_over_a_directory(tmp_path: Path, store: LocalStore, above: str) -> None:
    store.put("a/b/c", b"object")
    for _ in range(2):
        with pytest.raises(StorageError, match=CLEAR):
            store.put(above, b"")
        with pytest.raises(StorageError, match=CLEAR):
            store.put_if_absent(above, b"")

    assert not files_below(str(tmp_path), ".tmp")
    assert contents_of(str(tmp_path)) == {"a/b/c": b"object"}


@pytest.mark.parametrize("above", ["a", "a/b"])
def test_a_directory_is_not_found_as_an_object_and_deleting_it_touches_nothing(
    tmp_path: Path, store: LocalStore, above: str
) -> None:
    store.put("a/b/c", b"object")

    with pytest.raises(NotFound):
        store.get(above)
    with pytest.raises(NotFound):
        store.head(above)
    assert store.delete([above])[0].ok
    assert contents_of(str(tmp_path)) == {"a/b/c": b"object"}


def test_the_longest_names_a_disk_takes_are_written_and_longer_ones_refused(tmp_path: Path, store: LocalStore) -> None:
    longest = "é" * 127 + "e"
    store.put(f"{longest}/{longest}", b"long")

    assert contents_of(str(tmp_path)) == {f"{longest}/{longest}": b"long"}
    with pytest.raises(ValueError, match="255"):
        store.put(longest + "e", b"")
