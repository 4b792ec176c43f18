"""Data and version of one read belong together, whatever is replaced meanwhile."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.storage.local import LocalStore
from penstock.storage.object_store import Object
from tests.support.processes import Parent, Start

PATH = "ingest/manifest"
READS = 50_000
READERS, THREADS = 2, 2
ENOUGH = 500
"""Replaces that each reading thread has to see for this to show anything."""


def content(writer: int, number: int) -> bytes:
    """Data that says whose it is, of a length that differs between writes: from a few bytes to several pages."""
    return b"%d.%d " % (writer, number) * (1 + number % 1_500)


def replace_on_and_on(parent: Parent, root: str, writer: int) -> dict[str, bytes]:
    """Replace the object until the test stops it; return which data belongs to which version."""
    store = LocalStore(root, sync=False)
    parent.tell("ready")
    written = {}
    number = 0
    while not parent.wants():
        number += 1
        data = content(writer, number)
        written[store.put(PATH, data)] = data.split(b" ", 1)[0]
    return written


def read_on_and_on(parent: Parent, root: str, reads: int) -> set[tuple[str, bytes]]:
    """Read many times, in a few threads, until enough replaces were seen; return the pairs of version and data."""
    store = LocalStore(root, sync=False)
    seen: list[set[tuple[str, bytes]]] = [set() for _ in range(THREADS)]
    torn: list[bytes] = []

    def read(mine: set[tuple[str, bytes]]) -> None:
        done = 0
        while done < reads // THREADS or len(mine) <= ENOUGH:  # on a busy machine the writers take longer
            done += 1
            there = store.get(PATH)
            whose = there.data.split(b" ", 1)[0]
            if there.data != content(*map(int, whose.split(b"."))):
                torn.append(there.data)
            mine.add((there.version, whose))

    threads = [threading.Thread(target=read, args=(mine,)) for mine in seen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not torn, torn[0]
    return set().union(*seen)


def wrong_pairs(seen: set[tuple[str, bytes]], written: dict[str, bytes]) -> list[tuple[str, bytes]]:
    """Those pairs of version and data that no process wrote."""
    return [(version, data) for version, data in seen if written.get(version) != data]


@pytest.mark.slow
def test_fifty_thousand_reads_never_pair_old_data_with_a_new_version(tmp_path: Path, start: Start) -> None:
    first = content(0, 0)
    written = {LocalStore(tmp_path, sync=False).put(PATH, first): first.split(b" ", 1)[0]}
    writers = [start(replace_on_and_on, str(tmp_path), writer) for writer in (1, 2)]
    for child in writers:
        child.hear()
    readers = [start(read_on_and_on, str(tmp_path), READS // READERS) for _ in range(READERS)]
    seen = set().union(*(child.answer() for child in readers))
    for child in writers:
        child.tell("stop")
    for child in writers:
        theirs = child.answer()
        assert not written.keys() & theirs.keys()
        written |= theirs

    assert wrong_pairs(seen, written) == []
    assert len(seen) > ENOUGH


def between_system_calls(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Act before and after every system call by which a file can be opened or looked at."""
    acting = False

    def wrap(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal acting
            if acting:
                return real(*args, **kwargs)
            for moment in ("before", "after"):
                if moment == "after":
                    answer = real(*args, **kwargs)
                acting = True
                try:
                    act()
                finally:
                    acting = False
            return answer

        return call

    for name in ("open", "stat", "lstat", "fstat", "pread", "read", "close"):
        monkeypatch.setattr(os, name, wrap(getattr(os, name)))


@pytest.fixture
def written() -> dict[str, bytes]:
    """Which data belongs to which version."""
    return {}


@pytest.fixture
def replace(tmp_path: Path, written: dict[str, bytes]) -> Callable[[], None]:
    """Replace the object by one of another length, and write down what belongs together."""
    store = LocalStore(tmp_path, sync=False)

    def replace() -> None:
        data = b"x" * (1 + len(written))
        written[store.put(PATH, data)] = data

    return replace


def test_a_replace_between_any_two_system_calls_of_a_read_does_not_tear_it(
    tmp_path: Path,
    replace: Callable[[], None],
    written: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replace()
    store = LocalStore(tmp_path)
    with monkeypatch.context() as patch:
        between_system_calls(patch, replace)
        got = store.get(PATH)
        described = store.head(PATH)

    assert len(written) > 5
    assert wrong_pairs({(got.version, got.data)}, written) == []
    assert len(written[described.version]) == described.size


def test_a_reader_that_stats_the_path_after_reading_it_is_caught_by_the_same_check(
    tmp_path: Path, replace: Callable[[], None], written: dict[str, bytes]
) -> None:
    def read_then_stat() -> Object:
        data = (tmp_path / PATH).read_bytes()
        replace()
        meta = LocalStore(tmp_path).head(PATH)
        return Object(data, meta.version, meta.last_modified)

    replace()
    got = read_then_stat()

    assert wrong_pairs({(got.version, got.data)}, written) == [(got.version, got.data)]
