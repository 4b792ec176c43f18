"""A writer that is killed leaves the old object or the new one, whole, and nothing in anybody's way."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.storage.local import LocalStore
from tests.storage.local.writers import Lines, StopAt, contents_of, files_below, read_unlisted
from tests.support.processes import Parent, Start
from tests.support.repository import ROOT

NOTE = ROOT / "docs" / "design" / "local-disk.md"
OLD, NEW, NEXT = b"old " * 5_000, b"new " * 7_000, b"next " * 3_000  # each of several pages
NEIGHBOUR = "ingest/neighbour"
LAST = 50  # lines of a write: it is done some 20 before its end


@dataclass(frozen=True)
class Case:
    """A write, and the object it is about."""

    path: str
    write: Callable[[LocalStore, str, str], object]
    there_before: bool
    there_after: bool = True
    exists: bool = True

    def prepare(self, root: str) -> None:
        """Bring a store into the state before the write."""
        if not self.exists:
            return
        store = LocalStore(root)
        store.put(NEIGHBOUR, b"neighbour")
        if self.there_before:
            store.put(self.path, OLD)

    def before(self) -> dict[str, bytes]:
        """What the store has before the write."""
        return self._neighbours() | ({self.path: OLD} if self.there_before else {})

    def after(self) -> dict[str, bytes]:
        """What the store has after the write."""
        return self._neighbours() | ({self.path: NEW} if self.there_after else {})

    def _neighbours(self) -> dict[str, bytes]:
        return {NEIGHBOUR: b"neighbour"} if self.exists else {}


def _put(store: LocalStore, path: str, version: str) -> None:
    store.put(path, NEW)


def _put_if_absent(store: LocalStore, path: str, version: str) -> None:
    store.put_if_absent(path, NEW)


def _put_if_match(store: LocalStore, path: str, version: str) -> None:
    store.put_if_match(path, NEW, version)


def _delete(store: LocalStore, path: str, version: str) -> None:
    assert store.delete([path])[0].ok


CASES = {
    "put": Case("ingest/manifest", _put, there_before=True),
    "put_if_absent": Case("ingest/manifest", _put_if_absent, there_before=False),
    "put_if_match": Case("ingest/manifest", _put_if_match, there_before=True),
    "delete": Case("ingest/manifest", _delete, there_before=True, there_after=False),
    "put in a new directory": Case("a/b/c/manifest", _put, there_before=False),
    "put in a new store": Case("a/b/c/manifest", _put, there_before=False, exists=False),
}


def steps_of(case: Case, root: Path) -> list[str]:
    """Record the steps of a write that nothing happens to."""
    case.prepare(str(root))
    version = LocalStore(root).get(case.path).version if case.there_before else ""
    steps: list[str] = []
    case.write(LocalStore(root, step=steps.append), case.path, version)
    assert contents_of(str(root)) == case.after()
    return steps


def write_and_stop(parent: Parent, root: str, name: str, step: str, occurrence: int) -> None:
    """Do a write, and stop at a step of it."""
    case = CASES[name]
    version = LocalStore(root).get(case.path).version if case.there_before else ""
    case.write(LocalStore(root, step=StopAt(parent, step, occurrence)), case.path, version)


@pytest.mark.parametrize("listing", [True, False], ids=["listed first", "not listed first"])
@pytest.mark.parametrize("name", CASES)
def test_a_writer_killed_at_any_step_leaves_the_old_object_or_the_new_one(
    name: str, listing: bool, tmp_path: Path, start: Start
) -> None:
    case = CASES[name]
    steps = steps_of(case, tmp_path / "unharmed")
    outcomes = []
    for number, step in enumerate(steps):
        root = str(tmp_path / f"{number}")
        case.prepare(root)
        victim = start(write_and_stop, root, name, step, steps[: number + 1].count(step))
        assert victim.hear() == step
        victim.kill()

        after_kill = contents_of(root) if listing else read_unlisted(root)
        assert after_kill in (case.before(), case.after()), step
        outcomes.append(after_kill == case.after())

        LocalStore(root).put(case.path, NEXT)
        assert not files_below(root, ".tmp"), step
        assert contents_of(root) == case.before() | {case.path: NEXT}, step
    # It turns from old to new once, at the one step that changes the directory.
    assert outcomes == sorted(outcomes)
    assert steps[outcomes.index(True)] in {"moved", "unlinked"}


def write_to_line(parent: Parent, root: str, name: str, line: int) -> None:
    """Do a write, and stop before the given line of it."""
    case = CASES[name]
    version = LocalStore(root).get(case.path).version if case.there_before else ""
    store = LocalStore(root)

    def at(count: int) -> None:
        if count == line:
            parent.tell("here")
            parent.wait()

    Lines(at).watch(lambda: case.write(store, case.path, version))


def count_lines(parent: Parent, root: str, name: str) -> int:
    """Do a write, and say how many lines of the store's sources ran for it."""
    case = CASES[name]
    version = LocalStore(root).get(case.path).version if case.there_before else ""
    store = LocalStore(root)
    return Lines(lambda _: None).watch(lambda: case.write(store, case.path, version))


def before_lines(count: int, apart: int) -> list[int]:
    """Every so many lines, and each one of the last: there the old object becomes the new one."""
    return [*range(1, count - LAST, apart), *range(max(count - LAST, 1), count + 1)]


# The other writes run through the same lines.
@pytest.mark.parametrize("apart", [11, pytest.param(1, marks=pytest.mark.chaos)], ids=["some lines", "every line"])
@pytest.mark.slow
@pytest.mark.parametrize("name", ["put_if_match", "delete", "put in a new store"])
def test_a_writer_killed_before_any_line_of_the_store_leaves_the_old_object_or_the_new_one(
    name: str, apart: int, tmp_path: Path, start: Start
) -> None:
    # Finer than the steps: also inside the lock, the clock, the making of directories. Each line runs once a write or
    # so, and the same one in a loop counts anew.
    case = CASES[name]
    case.prepare(str(tmp_path / "unharmed"))
    lines = start(count_lines, str(tmp_path / "unharmed"), name).answer()
    outcomes = []
    for line in before_lines(lines, apart):
        root = str(tmp_path / f"{line}")
        case.prepare(root)
        victim = start(write_to_line, root, name, line)
        victim.hear()
        victim.kill()

        after_kill = read_unlisted(root)
        assert after_kill in (case.before(), case.after()), line
        outcomes.append(after_kill == case.after())

        LocalStore(root).put(case.path, NEXT)
        assert not files_below(root, ".tmp"), line
        assert contents_of(root) == case.before() | {case.path: NEXT}, line
    assert outcomes == sorted(outcomes)
    assert outcomes.count(False) > 10
    assert outcomes.count(True) > 10


def write_on_and_on(parent: Parent, root: str) -> None:
    """Replace and delete an object, telling the test of each write after it was done."""
    store = LocalStore(root)
    number = 0
    while True:
        number += 1
        data = b"%d " % number * 5_000
        store.put("ingest/manifest", data)
        parent.tell(data)
        store.delete(["ingest/manifest"])
        parent.tell(b"")


def test_a_writer_killed_at_an_instant_of_nobodys_choosing_leaves_whole_objects(tmp_path: Path, start: Start) -> None:
    root = str(tmp_path)
    for kill in range(25):
        victim = start(write_on_and_on, root)
        done = b""
        for _ in range(1 + kill % 7):
            done = victim.hear()
        victim.kill()
        number = int(done.split(b" ")[0]) if done else None

        there = read_unlisted(root).get("ingest/manifest", b"")
        if there:
            found = int(there.split(b" ")[0])
            assert there == b"%d " % found * 5_000
            # It may have got further than we heard, never less far.
            assert number is None or found >= number
        LocalStore(root).put("ingest/manifest", b"next")
        assert not files_below(root, ".tmp")
        assert contents_of(root) == {"ingest/manifest": b"next"}


def test_the_design_note_names_every_step_of_a_write(tmp_path: Path) -> None:
    named = set(re.findall(r"`([a-z ]+)`", NOTE.read_text()))
    steps = {step for name, case in CASES.items() for step in steps_of(case, tmp_path / name)}

    assert steps - named == set()
