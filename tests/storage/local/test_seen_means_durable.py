"""A change that can be seen is on disk: a reader syncs what a writer did not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import NotFound, OutcomeUnknown, StorageError
from penstock.storage.local import LocalStore
from tests.storage.local.syncs import Inode, inode_of, is_directory, is_file, never, watched_syncs
from tests.storage.local.writers import delete_and_stop, files_below, put_and_stop, put_and_stop_twice
from tests.support.processes import Parent, Start

PATH = "ingest/manifest"
OLD, NEW = b"old", b"new"


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = LocalStore(tmp_path)
    store.put(PATH, OLD)
    return store


def fail_to_sync_a_put(store: LocalStore) -> None:
    """Replace the object, with a directory that cannot be synced."""
    with watched_syncs(is_directory) as syncs, pytest.raises(OutcomeUnknown):
        store.put(PATH, NEW)
    assert syncs.failed


def fail_to_sync_a_delete(store: LocalStore) -> None:
    """Delete the object, with a directory that cannot be synced."""
    with watched_syncs(is_directory) as syncs:
        (result,) = store.delete([PATH])
    assert isinstance(result.error, OutcomeUnknown)
    assert syncs.failed


def read(parent: Parent, root: str, method: str, failing: bool) -> tuple[object, list[Inode]]:
    """Read in a process that knows nothing; return what came of it, and what was synced before."""
    with watched_syncs(is_directory if failing else never) as syncs:
        answer = read_with(LocalStore(root), method)
    return answer, syncs.done


def read_with(store: LocalStore, method: str) -> object:
    """Return the data (or the size) of the object, or the name of the error."""
    try:
        return store.get(PATH).data if method == "get" else store.head(PATH).size
    except StorageError as error:
        return type(error).__name__


@pytest.mark.parametrize(("method", "answer"), [("get", NEW), ("head", len(NEW))])
def test_after_a_failed_sync_the_next_read_in_any_process_syncs_before_it_answers(
    tmp_path: Path, store: LocalStore, start: Start, method: str, answer: object
) -> None:
    fail_to_sync_a_put(store)
    directory = inode_of(tmp_path / "ingest")

    seen, synced = start(read, str(tmp_path), method, False).answer()

    assert seen == answer
    assert directory in synced


def test_after_a_failed_sync_the_store_that_saw_it_fail_syncs_before_it_answers_too(
    tmp_path: Path, store: LocalStore
) -> None:
    fail_to_sync_a_put(store)

    with watched_syncs() as syncs:
        assert store.get(PATH).data == NEW
    assert inode_of(tmp_path / "ingest") in syncs.done


@pytest.mark.parametrize("method", ["get", "head"])
@pytest.mark.parametrize("change", [fail_to_sync_a_put, fail_to_sync_a_delete])
def test_a_reader_that_cannot_sync_what_it_saw_says_so_instead_of_answering(
    tmp_path: Path, store: LocalStore, start: Start, method: str, change: Callable[[LocalStore], None]
) -> None:
    change(store)

    assert start(read, str(tmp_path), method, True).answer() == ("StorageError", [])
    with watched_syncs(is_directory):
        assert read_with(store, method) == "StorageError"


def test_the_absence_of_a_deleted_object_is_durable_before_it_is_told(
    tmp_path: Path, store: LocalStore, start: Start
) -> None:
    fail_to_sync_a_delete(store)

    seen, synced = start(read, str(tmp_path), "get", False).answer()

    assert seen == NotFound.__name__
    assert inode_of(tmp_path / "ingest") in synced


@pytest.mark.parametrize("change", [fail_to_sync_a_put, fail_to_sync_a_delete])
def test_after_a_good_sync_readers_do_not_sync_again(
    tmp_path: Path, store: LocalStore, start: Start, change: Callable[[LocalStore], None]
) -> None:
    change(store)
    read_with(store, "get")

    assert start(read, str(tmp_path), "get", False).answer()[1] == []
    with watched_syncs() as syncs:
        read_with(store, "get")
    assert syncs.done == []


def test_a_reader_that_could_not_sync_leaves_the_mark_for_the_next_one(tmp_path: Path, store: LocalStore) -> None:
    fail_to_sync_a_put(store)
    with watched_syncs(is_directory):
        read_with(store, "get")

    with watched_syncs() as syncs:
        assert store.get(PATH).data == NEW
    assert inode_of(tmp_path / "ingest") in syncs.done


def test_a_write_that_went_well_leaves_readers_nothing_to_sync(tmp_path: Path, store: LocalStore) -> None:
    store.put(PATH, NEW)
    store.delete(["ingest/never there"])

    with watched_syncs() as syncs:
        assert LocalStore(tmp_path).get(PATH).data == NEW
    assert syncs.done == []


@pytest.mark.parametrize("step", ["moved", "directory synced"])
def test_what_a_killed_writer_had_moved_is_synced_by_the_first_reader_and_not_by_the_second(
    tmp_path: Path, store: LocalStore, start: Start, step: str
) -> None:
    victim = start(put_and_stop, str(tmp_path), PATH, NEW, step)
    victim.hear()
    victim.kill()

    seen, synced = start(read, str(tmp_path), "get", False).answer()
    assert (seen, inode_of(tmp_path / "ingest") in synced) == (NEW, True)
    assert start(read, str(tmp_path), "get", False).answer() == (NEW, [])


def test_what_a_killed_writer_had_deleted_is_synced_by_the_first_reader(
    tmp_path: Path, store: LocalStore, start: Start
) -> None:
    victim = start(delete_and_stop, str(tmp_path), PATH, "unlinked")
    victim.hear()
    victim.kill()

    seen, synced = start(read, str(tmp_path), "get", False).answer()
    assert (seen, inode_of(tmp_path / "ingest") in synced) == ("NotFound", True)
    assert start(read, str(tmp_path), "get", False).answer() == ("NotFound", [])


def test_what_a_living_writer_has_moved_is_synced_by_a_reader_that_does_not_wait_for_it(
    tmp_path: Path, store: LocalStore, start: Start
) -> None:
    writer = start(put_and_stop, str(tmp_path), PATH, NEW, "moved")
    writer.hear()

    for _ in range(2):  # the mark is the writer's, and stays while it is at it
        seen, synced = start(read, str(tmp_path), "get", False).answer()
        assert (seen, inode_of(tmp_path / "ingest") in synced) == (NEW, True)

    writer.tell("go on")
    assert writer.answer() == store.head(PATH).version
    assert start(read, str(tmp_path), "get", False).answer() == (NEW, [])


def test_what_was_moved_right_before_it_was_opened_is_synced_before_it_is_told(
    tmp_path: Path, store: LocalStore, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = start(put_and_stop_twice, str(tmp_path), PATH, NEW, "synced", "moved")
    assert writer.hear() == "synced"
    real_open = os.open

    def move_and_open(path: str, *args: int, dir_fd: int | None = None) -> int:
        if path == str(tmp_path / PATH):
            writer.tell("go on")
            assert writer.hear() == "moved"
        return real_open(path, *args, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", move_and_open)
    with watched_syncs() as syncs:
        assert store.get(PATH).data == NEW
    assert inode_of(tmp_path / "ingest") in syncs.done


def test_the_next_good_write_makes_up_for_a_failed_sync(tmp_path: Path, store: LocalStore) -> None:
    fail_to_sync_a_put(store)
    store.put(PATH, b"next")

    with watched_syncs() as syncs:
        assert store.get(PATH).data == b"next"
    assert syncs.done == []


def test_a_write_refused_after_a_failed_sync_does_not_take_the_mark_off(tmp_path: Path, store: LocalStore) -> None:
    fail_to_sync_a_put(store)
    with pytest.raises(StorageError):
        store.put_if_absent(PATH, b"refused")
    with watched_syncs(is_file), pytest.raises(StorageError):
        store.put(PATH, b"fails")

    with watched_syncs() as syncs:
        assert store.get(PATH).data == NEW
    assert inode_of(tmp_path / "ingest") in syncs.done


def test_a_move_that_fails_after_an_earlier_failed_sync_does_not_take_the_mark_off(
    tmp_path: Path, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_to_sync_a_put(store)

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no move today")

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(StorageError):
        store.put(PATH, b"not moved")

    with watched_syncs() as syncs:
        assert store.get(PATH).data == NEW
    assert inode_of(tmp_path / "ingest") in syncs.done


def test_content_that_cannot_be_synced_is_an_error_and_the_old_object_stays(tmp_path: Path, store: LocalStore) -> None:
    before = store.get(PATH)
    writes: list[Callable[[], str]] = [
        lambda: store.put(PATH, NEW),
        lambda: store.put_if_match(PATH, NEW, before.version),
        lambda: store.put_if_absent("ingest/other", NEW),
    ]
    for write in writes:
        with watched_syncs(is_file) as syncs, pytest.raises(StorageError) as caught:
            write()
        assert syncs.failed
        assert type(caught.value) is StorageError, "nothing happened, so the outcome is known"
        assert not files_below(str(tmp_path), ".tmp")

    assert store.get(PATH) == before
    assert [meta.path for meta in store.list_objects()] == [PATH]
    assert store.put_if_match(PATH, NEW, before.version) == store.head(PATH).version


def test_content_is_synced_before_it_is_moved_and_the_directory_after(
    tmp_path: Path, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[list[Inode]] = []
    rename = os.rename

    with watched_syncs() as syncs:

        def watch(source: str, target: str, *, src_dir_fd: int) -> None:
            moved.append(list(syncs.done))
            rename(source, target, src_dir_fd=src_dir_fd)

        monkeypatch.setattr(os, "rename", watch)
        store.put(PATH, NEW)

    assert moved == [[inode_of(tmp_path / PATH)]]
    assert syncs.done == [inode_of(tmp_path / PATH), inode_of(tmp_path / "ingest")]


def test_many_deletes_in_one_call_each_say_that_their_outcome_is_unknown(tmp_path: Path, store: LocalStore) -> None:
    paths = [f"ingest/{number}" for number in range(100)]
    for path in paths:
        store.put(path, b"")
    with watched_syncs(is_directory):
        results = store.delete([*paths, PATH])

    assert [result.path for result in results] == [*paths, PATH]
    assert all(isinstance(result.error, OutcomeUnknown) for result in results)


def test_a_store_without_sync_syncs_nothing(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, sync=False)
    with watched_syncs() as syncs:
        version = store.put("a/b/c", OLD)
        store.put_if_match("a/b/c", NEW, version)
        store.get("a/b/c")
        store.delete(["a/b/c"])
    assert syncs.done == []
