"""A path that would leave the store is refused: by every method of every store, and before anything is done."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.errors import InvalidInput
from penstock.storage import LocalStore, ObjectStore

REFUSED = [
    "..",
    "../x",
    "a/../b",
    "a/..",
    "../../../../../../../../tmp/x",
    ".",
    "./x",
    "a/./b",
    "a/.",
    "/abs",
    "/",
    "//host/share",
    "",
    "a//b",
    "a/",
    "a\0b",
    "\0",
    "a\nb",
    "a\rb",
    "a\tb",
    "a\x1bb",
    "a\x7fb",
    "a\ud800b",
    "\udcff",
    "a" * 1025,
    "é" * 513,
    None,
    7,
    b"bytes",
    Path("x"),
    ["x"],
]
# No name that XML can carry, and every cloud lists its objects in XML.
NOT_IN_XML = ["a\ufffeb", "a\uffffb"]
# Azure takes a backslash for a slash: `..\x` becomes an object `../x` that no listing of the container survives.
BACKSLASHES = ["..\\x", "a\\..\\..\\b", "\\x", "a\\\\b", "a\\b"]

METHODS: dict[str, Callable[[ObjectStore, str], object]] = {
    "get": lambda store, path: store.get(path),
    "head": lambda store, path: store.head(path),
    "put": lambda store, path: store.put(path, b"bad"),
    "put_if_absent": lambda store, path: store.put_if_absent(path, b"bad"),
    "put_if_match": lambda store, path: store.put_if_match(path, b"bad", "1"),
    "delete": lambda store, path: store.delete([path]),
    "delete after a good one": lambda store, path: store.delete(["kept", path]),
    # The call itself raises, not the first step of the iteration: that may come much later, or never.
    "list_objects": lambda store, path: store.list_objects(path),
}


def refuses(call: Callable[[ObjectStore, str], object], store: ObjectStore, path: object) -> None:
    with pytest.raises(InvalidInput, match=r"path|prefix"):
        call(store, cast("str", path))


def is_good_prefix(method: str, path: object) -> bool:
    return method == "list_objects" and path in ("", "a/")


@pytest.mark.parametrize("path", REFUSED, ids=lambda path: ascii(path)[:20])
def test_a_bad_path_is_refused_by_every_method_and_nothing_is_done(store: ObjectStore, path: object) -> None:
    version = store.put("kept", b"kept")
    for name, method in METHODS.items():
        if not is_good_prefix(name, path):
            refuses(method, store, path)
    assert [found.path for found in store.list_objects()] == ["kept"]
    assert (store.get("kept").data, store.get("kept").version) == (b"kept", version)


@pytest.mark.parametrize("path", [path for path in REFUSED if isinstance(path, str)], ids=lambda path: ascii(path)[:20])
def test_a_bad_path_given_to_delete_by_itself_is_refused(store: ObjectStore, path: str) -> None:
    store.put("a", b"")
    with pytest.raises(InvalidInput, match="path"):
        store.delete(path)
    assert [found.path for found in store.list_objects()] == ["a"]


@pytest.mark.parametrize("paths", [None, 7], ids=repr)
def test_delete_refuses_what_is_no_list_of_paths(store: ObjectStore, paths: object) -> None:
    with pytest.raises(InvalidInput, match="path"):
        store.delete(cast("list[str]", paths))


@pytest.mark.parametrize("path", [*NOT_IN_XML, *BACKSLASHES], ids=ascii)
def test_a_name_that_a_store_cannot_keep_is_refused_and_no_other_name_suffers(store: ObjectStore, path: str) -> None:
    store.put("kept", b"kept")
    try:
        store.put(path, b"content")
    except InvalidInput:
        for method in METHODS.values():
            refuses(method, store, path)
        return
    assert sorted(found.path for found in store.list_objects()) == sorted(["kept", path])
    assert store.get(path).data == b"content"
    assert store.delete([path])[0].ok
    assert [found.path for found in store.list_objects()] == ["kept"]


def test_a_refusal_says_which_path_and_why(store: ObjectStore) -> None:
    with pytest.raises(InvalidInput, match=r"'a/\.\./b'.*'\.\.'"):
        store.get("a/../b")
    with pytest.raises(InvalidInput, match=r"'/abs'.*absolute"):
        store.get("/abs")
    with pytest.raises(InvalidInput, match="empty"):
        store.get("")
    with pytest.raises(InvalidInput, match="int"):
        store.get(cast("str", 7))


# Any string at all, on the local disk

PIECES = st.sampled_from(
    ["..", ".", "/", "//", "\\", "\0", "a", "é", "%2e%2e", "%2f", "~", ".penstock", "\n", "\ud800"]
)
ANY_PATH = st.text(st.characters()) | st.lists(PIECES, max_size=8).map("".join) | st.text("./a", max_size=8)


@given(path=ANY_PATH)
@example(path="a" * 255)
@example(path="a" * 256)
@example(path="\U0001f600" * 64)
@example(path="/".join(["é" * 127] * 4))
@example(path=".penstock")
@example(path="a/.penstock/00.tmp")
@settings(max_examples=3 * settings().max_examples)
def test_any_string_is_refused_or_is_a_file_inside_the_root_that_reads_back(path: str) -> None:
    with tempfile.TemporaryDirectory() as above:
        root = Path(above, "root")
        store = LocalStore(root, sync=False)
        try:
            version = store.put(path, b"content")
        except InvalidInput:
            # Whatever a write refuses, a read and a delete refuse too; and there is no trace of it.
            refuses(METHODS["get"], store, path)
            refuses(METHODS["delete"], store, path)
            assert list(Path(above).iterdir()) == []
            return
        assert [found.name for found in Path(above).iterdir()] == ["root"]
        files = [found for found in root.rglob("*") if found.is_file() and ".penstock" not in found.parts]
        assert files == [root.joinpath(*path.split("/"))]
        assert files[0].read_bytes() == b"content"
        assert store.get(path).data == b"content"
        assert [(found.path, found.version) for found in store.list_objects()] == [(path, version)]
        assert store.delete([path])[0].ok
        assert list(store.list_objects()) == []


# Links, on the local disk; those that leave the store are in `local/test_planted_files`


def test_a_link_that_stays_inside_the_root_is_followed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, sync=False)
    store.put("real/object", b"content")
    (tmp_path / "link").symlink_to("real")
    assert store.get("link/object").data == b"content"


def test_a_root_that_is_a_link_is_a_root_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "outside")
    store = LocalStore(tmp_path / "root", sync=False)
    store.put("a/b", b"content")
    assert store.get("a/b").data == b"content"
    assert (tmp_path / "outside" / "a" / "b").read_bytes() == b"content"
