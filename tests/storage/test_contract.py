"""One contract for all stores: each test runs on memory, local disk (synced and not), S3 and Azure."""

from __future__ import annotations

import array
import hashlib
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import cast

import pytest

from penstock.errors import AlreadyExists, Conflict, InvalidInput, NotFound, StorageError
from penstock.storage import DeleteResult, Object, ObjectMeta, ObjectStore
from tests.support.waiting import together

ODD_NAMES = [
    "with space",
    " leading and trailing ",
    "100%",
    "a%20b",
    "a%2Fb",
    "%2e%2e",
    "%2e%2e/%2e%2e/x",
    "..%2fx",
    "#fragment",
    "a?b=c&d",
    "a+b",
    "~home",
    ".hidden",
    ".hidden/.file",
    "...",
    "..a",
    "a..",
    "a.",
    "a:b",
    "a;b,c",
    "a=b@c!$'()*",
    '<&>"{}|^`[]',
    "&amp;",
    "é",
    "e\u0301",
    "日本/語",
    "\U0001f600",
    "a\u0085b",
    "a\u2028b",
    "a\u00a0b",
    "-",
    "a" * 255,
    "/".join(["b" * 255] * 4),
]


WRITES: dict[str, Callable[[ObjectStore, str, bytes | bytearray | memoryview], str]] = {
    "put": lambda store, path, data: store.put(path, data),
    "put_if_absent": lambda store, path, data: store.put_if_absent(path, data),
    "put_if_match": lambda store, path, data: store.put_if_match(path, data, store.put(path, b"before")),
}


def paths(store: ObjectStore, prefix: str = "") -> list[str]:
    return sorted(found.path for found in store.list_objects(prefix))


def listed(store: ObjectStore, path: str) -> ObjectMeta:
    (found,) = [found for found in store.list_objects() if found.path == path]
    return found


# What was put is what is read


@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 3, b"\r\n\0\xff"], ids=["empty", "x", "bytes", "ends"])
def test_an_object_reads_back_as_it_was_put(store: ObjectStore, data: bytes) -> None:
    store.put("a/object", data)
    assert store.get("a/object").data == data
    assert type(store.get("a/object").data) is bytes
    assert store.head("a/object").size == len(data)
    assert listed(store, "a/object").size == len(data)


@pytest.mark.parametrize("write", WRITES)
def test_an_object_of_20_mib_goes_through_every_write(store: ObjectStore, write: str) -> None:
    data = random.Random(20).randbytes(20 << 20)
    version = WRITES[write](store, "large", data)
    found = store.get("large")
    assert hashlib.sha256(found.data).digest() == hashlib.sha256(data).digest()
    assert found.version == version == store.head("large").version
    assert store.head("large").size == len(data)


@pytest.mark.parametrize(
    ("data", "content"),
    [
        (bytearray(b"abc"), b"abc"),
        (memoryview(b"abc"), b"abc"),
        (memoryview(b"abcdef")[1:4], b"bcd"),
        (memoryview(b"abcdef")[::2], b"ace"),
        (memoryview(array.array("H", [1, 2])), array.array("H", [1, 2]).tobytes()),
        (memoryview(b""), b""),
    ],
    ids=["bytearray", "memoryview", "slice", "strided", "wide items", "empty"],
)
@pytest.mark.parametrize("write", WRITES)
def test_every_buffer_of_bytes_can_be_written(
    store: ObjectStore, write: str, data: bytearray | memoryview, content: bytes
) -> None:
    WRITES[write](store, "object", data)
    assert store.get("object").data == content


def test_an_object_does_not_change_with_the_buffer_it_was_written_from(store: ObjectStore) -> None:
    buffer = bytearray(b"before")
    store.put("object", buffer)
    buffer[:] = b"after!"
    assert store.get("object").data == b"before"


@pytest.mark.parametrize("data", ["text", None, 3, [1, 2]], ids=["str", "None", "int", "list"])
def test_data_that_is_not_bytes_is_refused_by_every_write(store: ObjectStore, data: object) -> None:
    store.put("object", b"before")
    for name, write in WRITES.items():
        with pytest.raises(InvalidInput, match=type(data).__name__):
            write(store, "new" if name == "put_if_absent" else "object", cast("bytes", data))
    assert paths(store) == ["object"]
    assert store.get("object").data == b"before"


@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
def test_odd_names_come_back_as_they_were_given(store: ObjectStore, name: str) -> None:
    path = f"odd/{name}" if len(name.encode()) < 1000 else name
    version = store.put_if_absent(path, b"first")
    version = store.put_if_match(path, b"second", version)
    assert store.get(path).data == b"second"
    assert (store.head(path).path, store.head(path).version) == (path, version)
    assert paths(store) == [path]
    assert paths(store, path.rpartition("/")[0]) == [path]
    assert store.delete([path]) == [DeleteResult(path)]
    assert paths(store) == []


# What is not there


def test_reading_what_is_not_there_is_not_found(store: ObjectStore) -> None:
    store.put("here", b"")
    store.put("below/here", b"")
    for path in ("gone", "below/gone", "below", "gone/gone"):
        with pytest.raises(NotFound, match=path):
            store.get(path)
        with pytest.raises(NotFound, match=path):
            store.head(path)


def test_there_is_nothing_below_an_object(store: ObjectStore) -> None:
    version = store.put("a/object", b"")
    with pytest.raises(NotFound):
        store.get("a/object/below")
    with pytest.raises(NotFound):
        store.head("a/object/below")
    with pytest.raises(Conflict):
        store.put_if_match("a/object/below", b"", version)
    assert store.delete(["a/object/below"]) == [DeleteResult("a/object/below")]
    assert paths(store, "a/object") == []
    assert paths(store) == ["a/object"]


def test_an_empty_store_lists_nothing(store: ObjectStore) -> None:
    assert paths(store) == paths(store, "") == paths(store, "some/prefix") == []


def test_an_error_names_the_object_and_the_store(store: ObjectStore) -> None:
    version = store.put("some/object", b"")
    store.put("some/object", b"newer")
    with pytest.raises(NotFound, match="some/gone") as not_found:
        store.get("some/gone")
    with pytest.raises(AlreadyExists, match="some/object") as exists:
        store.put_if_absent("some/object", b"")
    with pytest.raises(Conflict, match="some/object") as conflict:
        store.put_if_match("some/object", b"", version)
    for error in (not_found, exists, conflict):
        assert store.url in str(error.value)


# Versions


def versions_shown(store: ObjectStore) -> set[str]:
    return {store.get("object").version, store.head("object").version, listed(store, "object").version}


def test_a_write_returns_the_version_that_get_head_and_list_then_show(store: ObjectStore) -> None:
    written = store.put_if_absent("object", b"1")
    assert versions_shown(store) == {written}
    written = store.put_if_match("object", b"2", written)
    assert versions_shown(store) == {written}
    written = store.put("object", b"3")
    assert versions_shown(store) == {written}


def test_every_replacement_by_other_content_has_a_version_of_its_own(store: ObjectStore) -> None:
    versions = [store.put_if_absent("object", b"")]
    for count in range(1, 10):
        versions.append(store.put("object", b"x" * count))
        versions.append(store.put_if_match("object", b"y" * count, versions[-1]))
    store.delete(["object"])
    versions.append(store.put_if_absent("object", b"again"))
    assert len(set(versions)) == len(versions)
    assert all(version and type(version) is str for version in versions)


# Conditional writes


def test_put_if_absent_creates_once_and_again_after_a_delete(store: ObjectStore) -> None:
    store.put("object", b"")
    with pytest.raises(AlreadyExists):
        store.put_if_absent("object", b"")
    store.delete(["object"])
    store.put_if_absent("object", b"first")
    with pytest.raises(AlreadyExists):
        store.put_if_absent("object", b"second")
    assert store.get("object").data == b"first"


def test_put_if_match_conflicts_with_any_newer_version(store: ObjectStore) -> None:
    first = store.put("object", b"first")
    second = store.put("object", b"second")
    third = store.put_if_match("object", b"third", second)
    for old in (first, second):
        with pytest.raises(Conflict):
            store.put_if_match("object", b"late", old)
    assert store.get("object").data == b"third"
    assert store.get("object").version == third


def test_put_if_match_conflicts_with_an_object_that_is_gone_or_was_created_anew(store: ObjectStore) -> None:
    version = store.put("object", b"first")
    store.delete(["object"])
    for path in ("object", "never/was"):
        with pytest.raises(Conflict):
            store.put_if_match(path, b"late", version)
    assert paths(store) == []
    store.put("object", b"second")
    with pytest.raises(Conflict):
        store.put_if_match("object", b"late", version)
    assert store.get("object").data == b"second"


def test_versions_of_different_objects_do_not_match_each_other(store: ObjectStore) -> None:
    one = store.put("one", b"1")
    store.put("two", b"2")
    with pytest.raises(Conflict):
        store.put_if_match("two", b"late", one)


@pytest.mark.parametrize("version", [None, "", 7, b"bytes"], ids=repr)
def test_a_version_that_no_store_gives_out_is_refused(store: ObjectStore, version: object) -> None:
    store.put("object", b"before")
    with pytest.raises(InvalidInput, match="version"):
        store.put_if_match("object", b"after", cast("str", version))
    assert store.get("object").data == b"before"


@pytest.mark.parametrize("version", ["*", '"*"', "a\r\nX-Header: b", "\0", "é", ", ", "x" * 2000], ids=ascii)
def test_an_invented_version_never_matches(store: ObjectStore, version: str) -> None:
    # A version may have travelled in a file that others can write. In HTTP an If-Match of `*` means any version.
    store.put("object", b"before")
    with pytest.raises((Conflict, InvalidInput)):
        store.put_if_match("object", b"after", version)
    assert store.get("object").data == b"before"


def test_the_errors_of_the_contract_are_storage_errors() -> None:
    assert all(issubclass(error, StorageError) for error in (NotFound, AlreadyExists, Conflict))


# Listing


def test_a_list_by_prefix_goes_by_whole_segments(store: ObjectStore) -> None:
    everything = ["a/1", "a/b/2", "ab/c", "a.b", "b/a/3", "a b/4", ".f/.g"]
    for path in everything:
        store.put(path, b"")
    assert paths(store) == paths(store, "") == sorted(everything)
    for slash in ("", "/"):
        assert paths(store, f"a{slash}") == ["a/1", "a/b/2"]
        assert paths(store, f"a/b{slash}") == ["a/b/2"]
        assert paths(store, f"b{slash}") == ["b/a/3"]
        assert paths(store, f"a/1{slash}") == []


def test_a_list_shows_what_head_shows(store: ObjectStore) -> None:
    for size, path in enumerate(("a", "b/c", "b/d/e")):
        store.put(path, b"x" * size)
    for found in store.list_objects():
        seen = store.head(found.path)
        assert (found.path, found.size, found.version) == (seen.path, seen.size, seen.version)


def test_a_list_shows_the_newest_state_at_once(store: ObjectStore) -> None:
    store.put("a/1", b"old")
    store.put("a/1", b"newer")
    store.put("a/2", b"")
    assert paths(store) == ["a/1", "a/2"]
    assert listed(store, "a/1").size == 5
    store.delete(["a/1"])
    assert paths(store) == ["a/2"]


@pytest.mark.parametrize("kind", ["memory", "disk", "disk-unsynced", "s3"], indirect=True)
def test_more_than_a_thousand_objects_are_listed_and_deleted(store: ObjectStore) -> None:
    # A page of S3, and a bulk delete of S3, have 1,000.
    many = [f"many/{number:04}" for number in range(1010)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda path: store.put(path, b""), many))
    store.put("other", b"")
    assert paths(store, "many") == many
    assert paths(store) == [*many, "other"]
    assert store.delete(many) == [DeleteResult(path) for path in many]
    assert paths(store) == ["other"]


# Deleting


def test_deleting_gives_one_result_a_path_in_order(store: ObjectStore) -> None:
    for path in ("c", "a", "b/x"):
        store.put(path, b"")
    asked = ["c", "gone", "a", "c", "b/x", "gone/too", "gone"]
    results = store.delete(asked)
    assert [result.path for result in results] == asked
    assert all(result.ok and result.error is None for result in results)
    assert paths(store) == []


def test_deleting_takes_only_what_was_named(store: ObjectStore) -> None:
    """By any iterable; a single string is one path."""
    for path in ("a/1", "a/2", "ab", "b", "abc", "c"):
        store.put(path, b"")
    assert store.delete([]) == []
    assert store.delete(path for path in ("a", "a/1")) == [DeleteResult("a"), DeleteResult("a/1")]
    assert store.delete("abc") == [DeleteResult("abc")]
    assert paths(store) == ["a/2", "ab", "b", "c"]


# Times


def test_last_modified_is_aware_of_its_time_zone_and_near_now(store: ObjectStore) -> None:
    second = timedelta(seconds=1)  # S3 and Azure tell times in whole seconds
    before = datetime.now(UTC) - second
    store.put("object", b"")
    after = datetime.now(UTC) + second
    for found in (store.get("object"), store.head("object"), listed(store, "object")):
        assert found.last_modified.utcoffset() is not None
        assert before <= found.last_modified <= after


# Threads


def test_increments_by_compare_and_set_from_eight_threads_are_all_counted(store: ObjectStore) -> None:
    store.put("counter", b"0")

    def count() -> None:
        for _ in range(5):
            while True:
                found = store.get("counter")
                try:
                    store.put_if_match("counter", b"%d" % (int(found.data) + 1), found.version)
                    break
                except Conflict:
                    continue

    together(*[count] * 8)
    assert store.get("counter").data == b"40"


def test_of_eight_threads_that_create_one_object_one_wins(store: ObjectStore) -> None:
    def create(number: int) -> list[bool]:
        won = []
        for round_ in range(5):
            try:
                store.put_if_absent(f"round/{round_}", b"%d" % number)
                won.append(True)
            except AlreadyExists:
                won.append(False)
        return won

    outcomes = together(*[partial(create, number) for number in range(8)])
    for round_ in range(5):
        winners = [number for number, won in enumerate(outcomes) if won[round_]]
        assert [b"%d" % winner for winner in winners] == [store.get(f"round/{round_}").data]


def test_a_reader_sees_whole_objects_with_the_version_of_their_content(store: ObjectStore) -> None:
    contents = [bytes([65 + number]) * (200_000 + 50_000 * number) for number in range(10)]
    versions = {store.put("object", contents[0]): contents[0]}
    done = threading.Event()
    seen: list[Object] = []

    def write() -> None:
        try:
            for content in contents * 3:
                versions[store.put("object", content)] = content
        finally:
            done.set()

    def read() -> None:
        while not done.is_set():
            seen.append(store.get("object"))

    together(write, read, read, read)
    assert seen
    for found in seen:
        assert versions[found.version] == found.data


@pytest.mark.parametrize("name", ["NoSuchBucket", "ContainerNotFound", "a/NoSuchBucket"])
def test_a_missing_object_whose_name_sounds_like_an_error_is_only_missing(store: ObjectStore, name: str) -> None:
    with pytest.raises(NotFound):
        store.get(name)
