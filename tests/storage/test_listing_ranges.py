"""`list_ranges`: what lies between paths, on every kind of store."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.storage import ListsRanges, LocalStore, MemoryStore, ObjectStore
from penstock.testing import FaultyStore

PATHS = ["a/0", "a/1", "a/10", "a/2/x", "a/2/y", "a/2.z", "a/3", "a/b", "a/é", "ab/1", "b"]


def between(store: ObjectStore, prefix: str, after: str = "", before: str = "") -> list[str]:
    assert isinstance(store, ListsRanges)
    return sorted(meta.path for meta in store.list_ranges(prefix, [(after, before)]))


@pytest.fixture
def filled(store: ObjectStore) -> ObjectStore:
    """A store of each kind, with a few objects."""
    for path in PATHS:
        store.put(path, b"data")
    return store


@pytest.mark.parametrize(
    ("after", "before", "expected"),
    [
        ("", "", ["a/0", "a/1", "a/10", "a/2.z", "a/2/x", "a/2/y", "a/3", "a/b", "a/é"]),
        ("a/1", "a/3", ["a/10", "a/2.z", "a/2/x", "a/2/y"]),
        ("a/10", "", ["a/2.z", "a/2/x", "a/2/y", "a/3", "a/b", "a/é"]),
        ("", "a/1", ["a/0"]),
        ("a/2/x", "a/2/z", ["a/2/y"]),
        ("a/2", "a/2/", ["a/2.z"]),
        ("a/20", "a/4", ["a/3"]),
        ("a/c", "a/d", []),
        ("a/9", "a/1", []),
        ("z", "", []),
    ],
)
def test_it_lists_what_is_above_one_path_and_below_the_other(
    filled: ObjectStore, after: str, before: str, expected: list[str]
) -> None:
    assert between(filled, "a", after, before) == expected


def test_it_says_of_an_object_what_a_whole_listing_says(filled: ObjectStore) -> None:
    assert isinstance(filled, ListsRanges)
    every = {meta.path: meta for meta in filled.list_objects("a")}
    for meta in filled.list_ranges("a", [("a/1", "a/3")]):
        assert meta == every[meta.path]


def test_it_lists_what_is_in_any_of_several_ranges(filled: ObjectStore) -> None:
    assert isinstance(filled, ListsRanges)
    found = filled.list_ranges("a", [("a/2/x", "a/3"), ("", "a/1"), ("a/b", "")])
    assert sorted(meta.path for meta in found) == ["a/0", "a/2/y", "a/é"]
    assert list(filled.list_ranges("a", [])) == []


def test_where_nothing_is_it_lists_nothing(store: ObjectStore) -> None:
    assert between(store, "nowhere", "nowhere/a", "nowhere/b") == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(
    paths=st.lists(st.lists(st.sampled_from(["a", "b", "0", "a0", "a.b"]), min_size=1, max_size=3), max_size=8),
    after=st.text("ab0./", max_size=5),
    before=st.text("ab0./", max_size=5),
)
def test_it_is_a_whole_listing_without_what_is_outside(
    tmp_path_factory: pytest.TempPathFactory, paths: list[list[str]], after: str, before: str
) -> None:
    store = LocalStore(tmp_path_factory.mktemp("store"), sync=False)
    names = {"p/" + "/".join(parts) for parts in paths}
    for name in names:
        if not any(other.startswith(name + "/") or name.startswith(other + "/") for other in names):
            store.put(name, b"")
    after, before = after and f"p/{after}", before and f"p/{before}"
    every = [meta.path for meta in store.list_objects("p")]
    assert between(store, "p", after, before) == sorted(
        path for path in every if path > after and (not before or path < before)
    )


def test_a_store_in_front_of_another_need_not_have_it() -> None:
    assert not isinstance(FaultyStore(MemoryStore("lists-ranges"), rates={}), ListsRanges)


def test_a_directory_of_many_files_is_not_looked_at_file_by_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path, sync=False)
    for number in range(50):
        store.put(f"p/{number:02}", b"")
    looked: list[str] = []
    real = __import__("os").stat

    def stat(path: object, *args: object, **more: object) -> object:
        looked.append(str(path))
        return real(path, *args, **more)

    monkeypatch.setattr("os.stat", stat)
    assert between(store, "p", "p/47") == ["p/48", "p/49"]
    assert len([path for path in looked if "/p/" in path]) == 2
