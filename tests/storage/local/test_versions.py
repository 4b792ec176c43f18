"""A version never comes again for different content, whatever inodes and clocks do."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import AlreadyExists, Conflict
from penstock.storage.local import LocalStore
from tests.support.processes import Parent, Start, let_go

STILL = 1_700_000_000.0
HOUR = 3_600.0


class Ledger:
    """Which content each version was given out for. All contents are different, and of one size."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self._count = 0

    def fresh(self) -> bytes:
        """Return a content that was never there before."""
        self._count += 1
        return b"%08d" % self._count

    def enter(self, version: str, content: bytes) -> None:
        """Write a version down; it must be a new one."""
        assert version not in self.contents, f"{version} was {self.contents[version]!r} and is {content!r} too"
        self.contents[version] = content


class Clock:
    """A host's clock that a test sets."""

    def __init__(self) -> None:
        self.now = STILL

    def __call__(self) -> float:
        """Tell the time."""
        return self.now


jumps = st.one_of(
    st.just(0.0),
    st.sampled_from([1e-6, -1e-6, 1.0, -1.0, HOUR, -HOUR, -24 * HOUR]),
    st.floats(-100 * HOUR, 100 * HOUR, allow_nan=False),
)
moves = st.tuples(
    st.sampled_from(["put", "put_if_absent", "put_if_match", "delete", "new store", "outsider deletes"]),
    st.sampled_from(["a", "b", "in/a"]),
    jumps,
)


@settings(max_examples=2 * settings().max_examples)
@given(st.lists(moves, min_size=2, max_size=25))
def test_no_version_comes_again_whatever_the_clock_does(story: list[tuple[str, str, float]]) -> None:
    ledger, clock = Ledger(), Clock()
    with tempfile.TemporaryDirectory() as root:
        store = LocalStore(root, sync=False, clock=clock)
        for move, path, jump in story:
            clock.now += jump
            content = ledger.fresh()
            there = {meta.path: meta.version for meta in store.list_objects()}
            match move:
                case "put":
                    ledger.enter(store.put(path, content), content)
                case "put_if_absent" if path not in there:
                    ledger.enter(store.put_if_absent(path, content), content)
                case "put_if_match" if path in there:
                    ledger.enter(store.put_if_match(path, content, there[path]), content)
                case "delete":
                    store.delete([path])
                case "outsider deletes" if path in there:
                    os.unlink(os.path.join(root, path))
                case "new store":
                    store = LocalStore(root, sync=False, clock=clock)
                case _:
                    pass
            for meta in store.list_objects():
                got = store.get(meta.path)
                assert (ledger.contents[meta.version], got.version) == (got.data, meta.version)


def test_no_version_comes_again_when_inodes_do_and_the_clock_stands_still(tmp_path: Path) -> None:
    ledger = Ledger()
    inodes = []
    for _ in range(300):
        # A store anew each time, as a program that is started again and again has.
        store = LocalStore(tmp_path, sync=False, clock=Clock())
        content = ledger.fresh()
        ledger.enter(store.put("object", content), content)
        inodes.append(os.stat(tmp_path / "object").st_ino)
        store.delete(["object"])
    if len(set(inodes)) == len(inodes):
        pytest.skip("this file system does not use an inode again, so this showed less than it should")


def write_and_delete(parent: Parent, root: str, name: str, now: float) -> list[tuple[str, bytes]]:
    """When the test says so, write and delete the same objects as others do; return the versions of this process."""
    store = LocalStore(root, sync=False, clock=lambda: now)
    parent.tell("ready")
    parent.wait()
    mine = []
    for number in range(150):
        content = b"%s-%04d" % (name.encode(), number)
        path = f"object-{number % 3}"
        try:
            match number % 4:
                case 0:
                    mine.append((store.put(path, content), content))
                case 1:
                    mine.append((store.put_if_absent(path, content), content))
                case 2:
                    mine.append((store.put_if_match(path, content, mine[-1][0]), content))
                case _:
                    store.delete([path])
        except (AlreadyExists, Conflict):
            continue
    return mine


def test_no_version_comes_again_across_processes_whose_clocks_disagree(tmp_path: Path, start: Start) -> None:
    clocks = {"a": STILL, "b": STILL, "c": STILL - HOUR, "d": STILL + HOUR}
    writing = [start(write_and_delete, str(tmp_path), name, now) for name, now in clocks.items()]
    let_go(writing)
    ledger = Ledger()
    for child in writing:
        for version, content in child.answer():
            ledger.enter(version, content)
    assert len(ledger.contents) > 200


@pytest.mark.parametrize("same_size", [True, False])
def test_an_object_that_an_outsider_edited_in_place_is_at_another_version(tmp_path: Path, same_size: bool) -> None:
    store = LocalStore(tmp_path)
    version = store.put("object", b"ours")
    (tmp_path / "object").write_bytes(b"edit" if same_size else b"edited")

    assert store.get("object").version != version
    with pytest.raises(Conflict):
        store.put_if_match("object", b"new", version)


def test_a_write_over_a_file_from_the_future_is_at_a_later_version_still(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, clock=Clock())
    store.put("object", b"1")
    later = int((STILL + HOUR) * 1e9)
    os.utime(tmp_path / "object", ns=(later, later))
    seen = store.get("object")
    store.put("object", b"2")

    assert store.get("object").last_modified > seen.last_modified


def test_no_version_comes_again_when_all_but_the_object_was_lost(tmp_path: Path) -> None:
    ledger, clock = Ledger(), Clock()
    for _ in range(20):
        store = LocalStore(tmp_path, sync=False, clock=clock)
        content = ledger.fresh()
        ledger.enter(store.put("object", content), content)
        shutil.rmtree(tmp_path / ".penstock")


def test_no_version_comes_again_between_stores_whose_roots_overlap(tmp_path: Path) -> None:
    # Each of the two has a clock of its own, and the host's clock was an hour ahead when the outer one began.
    ledger, clock = Ledger(), Clock()
    outer = LocalStore(tmp_path, sync=False, clock=clock)
    inner = LocalStore(tmp_path / "in", sync=False, clock=clock)
    clock.now = STILL + HOUR
    outer.put("in/object", b"")
    clock.now = STILL
    dice = random.Random(7)
    for _ in range(300):
        content = ledger.fresh()
        match dice.randrange(3):
            case 0:
                ledger.enter(outer.put("in/object", content), content)
            case 1:
                ledger.enter(inner.put("object", content), content)
            case _:
                inner.delete(["object"])
