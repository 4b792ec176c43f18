"""The lock excludes processes and threads, and goes with its holder."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from io import FileIO
from pathlib import Path

import pytest

from penstock.errors import AlreadyExists, Conflict, OutcomeUnknown, StorageError
from penstock.storage.local import LocalStore
from penstock.storage.local.folder import stripe_of
from penstock.storage.local.internal_directory import InternalDirectory
from penstock.storage.local.lock import locked, locked_if_free
from tests.storage.local.syncs import is_directory, is_file, watched_syncs
from tests.storage.local.writers import StopAt, contents_of, put, put_and_stop
from tests.support.interrupts import Interrupts
from tests.support.processes import Parent, Start
from tests.support.waiting import together


@contextmanager
def open_internal(path: str | Path) -> Iterator[InternalDirectory]:
    """The open directory of a lock file."""
    internal = InternalDirectory(os.path.dirname(path))
    try:
        yield internal
    finally:
        os.close(internal.descriptor)


def is_free(path: Path) -> bool:
    """Whether a lock is free."""
    with open_internal(path) as internal, locked_if_free(internal, path.name, FileIO) or nullcontext() as descriptor:
        return descriptor is not None


def hold(parent: Parent, path: str, forks: bool = False) -> None:
    """Take a lock, fork a child that ends at once if asked, and hold the lock until the test says so."""
    with open_internal(path) as internal, locked(internal, os.path.basename(path), FileIO):
        if forks:
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
        parent.tell("held")
        parent.wait()


@pytest.mark.parametrize("forks", [False, True], ids=["alone", "after a forked child has ended"])
def test_a_lock_that_another_process_holds_is_not_free_until_it_is_released(
    tmp_path: Path, start: Start, forks: bool
) -> None:
    holder = start(hold, str(tmp_path / "lock"), forks)
    holder.hear()
    assert not is_free(tmp_path / "lock")

    holder.tell("let go")
    holder.answer()
    assert is_free(tmp_path / "lock")


def test_the_lock_of_a_killed_holder_is_free_at_once(tmp_path: Path, start: Start) -> None:
    for _ in range(20):
        holder = start(hold, str(tmp_path / "lock"))
        holder.hear()
        assert not is_free(tmp_path / "lock")
        holder.kill()
        assert is_free(tmp_path / "lock")


def test_writes_that_fail_leave_neither_locks_nor_descriptors_behind(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("manifest", b"old")
    store.put("dir/object", b"")
    before = os.listdir("/dev/fd")
    for _ in range(20):
        with pytest.raises(Conflict):
            store.put_if_match("manifest", b"new", "stale")
        with pytest.raises(AlreadyExists):
            store.put_if_absent("manifest", b"new")
        with pytest.raises(StorageError):
            store.put("dir", b"new")
        with watched_syncs(is_file), pytest.raises(StorageError):
            store.put("manifest", b"new")
        with watched_syncs(is_directory), pytest.raises(OutcomeUnknown):
            store.put("manifest", b"old")
        with watched_syncs(is_directory), pytest.raises(StorageError):
            store.get("manifest")

    assert len(os.listdir("/dev/fd")) == len(before)
    assert all(is_free(lock) for lock in tmp_path.rglob("*.lock"))
    assert is_free(tmp_path / ".penstock" / "clock")


def test_a_thread_does_not_get_a_lock_that_another_thread_holds(tmp_path: Path) -> None:
    with open_internal(tmp_path / "lock") as internal, locked(internal, "lock", FileIO):
        assert not is_free(tmp_path / "lock")
    assert is_free(tmp_path / "lock")


def test_threads_of_one_process_count_together_without_losing_one(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, sync=False)
    store.put("counter", b"0")

    def count() -> None:
        for _ in range(50):
            while True:
                seen = store.get("counter")
                try:
                    store.put_if_match("counter", b"%d" % (int(seen.data) + 1), seen.version)
                    break
                except Conflict:
                    continue

    together(*[count] * 8)
    assert store.get("counter").data == b"400"


def write_and_fork(parent: Parent, root: str, step: str) -> None:
    """Write an object; at a step, or while the store's clock is locked, fork a child that lives on, and then stop."""

    def fork(name: str) -> None:
        if name != step:
            return
        if os.fork() == 0:
            parent.tell(os.getpid())
            signal.pause()
        parent.wait()

    def clock() -> float:
        fork("the clock is locked")
        return 0.0

    LocalStore(root, step=fork, clock=clock).put("manifest", b"lost")


@pytest.mark.parametrize("step", ["locked", "written", "marked", "the clock is locked"])
def test_a_child_that_outlives_a_killed_holder_does_not_keep_its_lock(tmp_path: Path, start: Start, step: str) -> None:
    LocalStore(tmp_path).put("manifest", b"old")
    holder = start(write_and_fork, str(tmp_path), step)
    orphan = holder.hear()
    try:
        holder.kill()
        assert is_free(tmp_path / ".penstock" / f"{stripe_of('manifest')}.lock")
        start(put, str(tmp_path), "manifest", b"new").answer()
        os.kill(orphan, 0)
    finally:
        os.kill(orphan, signal.SIGKILL)
    assert contents_of(str(tmp_path)) == {"manifest": b"new"}


def fork_and_write_in_both(parent: Parent, root: str) -> tuple[int, int]:
    """While a write holds its lock, fork a child that writes too, and tell how both ended."""
    children: list[int] = []

    def fork(name: str) -> None:
        if name == "written" and not children:
            child = os.fork()
            if child == 0:
                try:
                    LocalStore(root).put("elsewhere/manifest", b"child")
                finally:
                    os._exit(0)
            children.append(child)
            os.waitpid(child, 0)

    LocalStore(root, step=fork).put("manifest", b"parent")
    return len(LocalStore(root).get("manifest").data), len(LocalStore(root).get("elsewhere/manifest").data)


def test_a_child_forked_in_the_middle_of_a_write_does_not_let_go_of_its_parents_lock(
    tmp_path: Path, start: Start
) -> None:
    assert start(fork_and_write_in_both, str(tmp_path)).answer() == (6, 5)


def is_waited_for(inode: int) -> bool:
    """Whether a process waits for a lock on a file."""
    with open("/proc/locks", encoding="ascii") as locks:
        return any("->" in line and f":{inode} " in line for line in locks)


@pytest.mark.skipif(not os.path.exists("/proc/locks"), reason="the system does not show who waits for a lock")
def test_a_process_that_waited_for_a_deleted_lock_file_then_waits_for_the_new_one(tmp_path: Path, start: Start) -> None:
    path = tmp_path / "lock"
    first = start(hold, str(path))
    first.hear()
    waiting = start(hold, str(path))
    while not is_waited_for(path.stat().st_ino):
        pass
    path.unlink()
    second = start(hold, str(path))
    second.hear()

    first.tell("let go")
    first.answer()
    while not is_waited_for(path.stat().st_ino):
        assert not waiting.has_spoken(), "two hold the lock"
    second.tell("let go")
    second.answer()
    assert waiting.hear() == "held"
    waiting.tell("let go")
    waiting.answer()


def try_to_put(parent: Parent, root: str, data: bytes, step: str) -> str | None:
    """Write the manifest, stopping at a step on the way; return its version, or nothing if that failed."""
    try:
        return LocalStore(root, step=StopAt(parent, step)).put("manifest", data)
    except StorageError:
        return None


@pytest.mark.parametrize("step", ["temporary file made", "written"])
def test_a_lock_file_deleted_in_the_middle_of_a_write_never_lets_a_part_of_an_object_be_seen(
    tmp_path: Path, start: Start, step: str
) -> None:
    LocalStore(tmp_path).put("manifest", b"old")
    contents = {b"old", b"a" * 10_000, b"b" * 20_000}
    first = start(try_to_put, str(tmp_path), b"a" * 10_000, "marked")
    first.hear()
    (tmp_path / ".penstock" / f"{stripe_of('manifest')}.lock").unlink()
    second = start(try_to_put, str(tmp_path), b"b" * 20_000, step)
    second.hear()

    first.tell("go on")
    first_version = first.answer()
    seen = LocalStore(tmp_path).get("manifest")
    assert seen.data in contents, f"{len(seen.data)} bytes that no writer wrote"
    assert first_version in (None, seen.version)
    second.tell("go on")
    second_version = second.answer()
    seen = LocalStore(tmp_path).get("manifest")
    assert seen.data in contents
    assert second_version in (None, seen.version)


def test_a_lock_file_deleted_between_writes_is_made_again(tmp_path: Path, start: Start) -> None:
    store = LocalStore(tmp_path)
    for number in range(5):
        store.put("manifest", b"%d" % number)
        for lock in (tmp_path / ".penstock").glob("*.lock"):
            lock.unlink()
        assert store.get("manifest").data == b"%d" % number


def test_writers_of_names_under_different_locks_do_not_wait_for_each_other(tmp_path: Path, start: Start) -> None:
    names = [str(number) for number in range(200)]
    other = next(name for name in names if stripe_of(name) != stripe_of("manifest"))
    writer = start(put_and_stop, str(tmp_path), "manifest", b"new", "written")
    writer.hear()

    start(put, str(tmp_path), other, b"other").answer()
    writer.tell("go on")
    writer.answer()
    assert contents_of(str(tmp_path)) == {"manifest": b"new", other: b"other"}


# An interrupted call may have other files open; they are closed as garbage, which Python warns of.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("work", ["put", "put_if_match", "delete", "get", "list"])
def test_a_process_that_is_interrupted_as_any_function_is_entered_and_lives_on_keeps_no_lock(
    tmp_path: Path, work: str
) -> None:
    calls: dict[str, Callable[[LocalStore], object]] = {
        "put": lambda store: store.put("dir/object", b"new"),
        "put_if_match": lambda store: store.put_if_match("dir/object", b"new", store.head("dir/object").version),
        "delete": lambda store: store.delete(["dir/object"]),
        "get": lambda store: store.get("dir/object"),
        "list": lambda store: list(store.list_objects()),
    }
    for number in itertools.count():
        store = LocalStore(tmp_path)
        store.put("dir/object", b"old")
        interrupts = Interrupts(number, lambda _: True, lambda _, event: event == "call")
        # The error is kept, and its traceback keeps every frame: nothing is released as garbage.
        error = interrupts.during(lambda: calls[work](store))  # noqa: B023
        kept = [path for path in tmp_path.rglob(".penstock/*") if path.suffix == ".lock" or path.name == "clock"]
        assert len(kept) >= 2
        assert all(is_free(path) for path in kept), f"interrupted in {interrupts.place}"
        if error is None:
            break
    assert number > 10
