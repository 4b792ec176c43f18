"""One contract for all stores: each test runs on memory, local disk (synced and not), S3 and Azure."""

from __future__ import annotations

import array
import hashlib
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TypeVar, cast

import pytest

from penstock.errors import AlreadyExists, Conflict, InvalidInput, NotFound, StorageError
from penstock.storage import DeleteResult, Object, ObjectMeta, ObjectStore

Answer = TypeVar("Answer")

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


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


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


@pytest.mark.parametrize("method", ["put", "put_if_absent", "put_if_match"])
def test_an_object_of_20_mib_goes_through_every_write(store: ObjectStore, method: str) -> None:
    data = random.Random(20).randbytes(20 << 20)
    if method == "put":
        version = store.put("large", data)
    elif method == "put_if_absent":
        version = store.put_if_absent("large", data)
    else:
        version = store.put_if_match("large", data, store.put("large", b"small"))
    found = store.get("large")
    assert digest(found.data) == digest(data)
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
@pytest.mark.parametrize("method", ["put", "put_if_absent", "put_if_match"])
def test_whatever_holds_bytes_can_be_written(
    store: ObjectStore, method: str, data: bytearray | memoryview, content: bytes
) -> None:
    if method == "put":
        store.put("object", data)
    elif method == "put_if_absent":
        store.put_if_absent("object", data)
    else:
        store.put_if_match("object", data, store.put("object", b"before"))
    assert store.get("object").data == content


def test_an_object_does_not_change_with_the_buffer_it_was_written_from(store: ObjectStore) -> None:
    buffer = bytearray(b"before")
    store.put("object", buffer)
    buffer[:] = b"after!"
    assert store.get("object").data == b"before"


@pytest.mark.parametrize("data", ["text", None, 3, [1, 2]], ids=["str", "None", "int", "list"])
def test_data_that_is_not_bytes_is_refused_by_every_write(store: ObjectStore, data: object) -> None:
    version = store.put("object", b"before")
    wrong = cast("bytes", data)
    with pytest.raises(InvalidInput, match=type(data).__name__):
        store.put("object", wrong)
    with pytest.raises(InvalidInput, match=type(data).__name__):
        store.put_if_absent("new", wrong)
    with pytest.raises(InvalidInput, match=type(data).__name__):
        store.put_if_match("object", wrong, version)
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
    assert list(store.list_objects()) == []
    assert list(store.list_objects("")) == []
    assert list(store.list_objects("some/prefix")) == []


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


def test_a_write_returns_the_version_that_get_head_and_list_then_show(store: ObjectStore) -> None:
    written = store.put_if_absent("object", b"1")
    for _ in range(2):
        assert store.get("object").version == written
        assert store.head("object").version == written
        assert listed(store, "object").version == written
        written = store.put_if_match("object", b"2", written)
    written = store.put("object", b"3")
    assert store.get("object").version == written
    assert store.head("object").version == written
    assert listed(store, "object").version == written


def test_a_version_from_any_reader_can_be_matched(store: ObjectStore) -> None:
    store.put("object", b"0")
    store.put_if_match("object", b"1", store.get("object").version)
    store.put_if_match("object", b"2", store.head("object").version)
    store.put_if_match("object", b"3", listed(store, "object").version)
    assert store.get("object").data == b"3"


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


def test_put_if_absent_creates_once(store: ObjectStore) -> None:
    store.put_if_absent("object", b"first")
    with pytest.raises(AlreadyExists):
        store.put_if_absent("object", b"second")
    assert store.get("object").data == b"first"


def test_put_if_absent_meets_what_put_wrote_even_if_it_is_empty(store: ObjectStore) -> None:
    store.put("object", b"")
    with pytest.raises(AlreadyExists):
        store.put_if_absent("object", b"")


def test_put_if_absent_creates_again_after_a_delete(store: ObjectStore) -> None:
    store.put_if_absent("object", b"first")
    store.delete(["object"])
    store.put_if_absent("object", b"second")
    assert store.get("object").data == b"second"


def test_put_if_match_replaces_what_is_at_that_version(store: ObjectStore) -> None:
    version = store.put("object", b"first")
    store.put_if_match("object", b"second", version)
    assert store.get("object").data == b"second"


def test_put_if_match_conflicts_with_any_newer_version(store: ObjectStore) -> None:
    first = store.put("object", b"first")
    second = store.put("object", b"second")
    third = store.put_if_match("object", b"third", second)
    for old in (first, second):
        with pytest.raises(Conflict):
            store.put_if_match("object", b"late", old)
    assert store.get("object").data == b"third"
    assert store.get("object").version == third


def test_put_if_match_conflicts_with_an_object_that_was_made_anew(store: ObjectStore) -> None:
    version = store.put("object", b"first")
    store.delete(["object"])
    store.put("object", b"second")
    with pytest.raises(Conflict):
        store.put_if_match("object", b"late", version)
    assert store.get("object").data == b"second"


def test_put_if_match_conflicts_when_the_object_is_gone(store: ObjectStore) -> None:
    version = store.put("object", b"first")
    store.delete(["object"])
    with pytest.raises(Conflict):
        store.put_if_match("object", b"second", version)
    with pytest.raises(Conflict):
        store.put_if_match("never/was", b"second", version)
    assert paths(store) == []


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
def test_a_made_up_version_never_matches(store: ObjectStore, version: str) -> None:
    # A version may have travelled in a file that others can write. In HTTP an If-Match of `*` means any version.
    store.put("object", b"before")
    with pytest.raises((Conflict, InvalidInput)):
        store.put_if_match("object", b"after", version)
    assert store.get("object").data == b"before"


@pytest.mark.parametrize("error", [NotFound, AlreadyExists, Conflict])
def test_the_errors_of_the_contract_are_storage_errors(error: type[Exception]) -> None:
    assert issubclass(error, StorageError)


# Listing


def test_a_list_by_prefix_goes_by_whole_segments(store: ObjectStore) -> None:
    for path in ("a/1", "a/b/2", "ab/c", "a.b", "b/a/3", "a b/4"):
        store.put(path, b"")
    assert paths(store, "a") == ["a/1", "a/b/2"]
    assert paths(store, "a/b") == ["a/b/2"]
    assert paths(store, "b") == ["b/a/3"]


def test_a_slash_at_the_end_of_a_prefix_changes_nothing(store: ObjectStore) -> None:
    for path in ("a/1", "a/b/2", "ab/c"):
        store.put(path, b"")
    assert paths(store, "a/") == ["a/1", "a/b/2"]
    assert paths(store, "a/b/") == ["a/b/2"]


def test_a_prefix_that_names_an_object_does_not_list_it(store: ObjectStore) -> None:
    store.put("a/object", b"")
    assert paths(store, "a/object") == []
    assert paths(store, "a/object/") == []


def test_an_empty_prefix_lists_everything(store: ObjectStore) -> None:
    everything = ["a", "b/c", "b/d/e", ".f/.g"]
    for path in everything:
        store.put(path, b"")
    assert paths(store) == sorted(everything)
    assert paths(store, "") == sorted(everything)


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
    for path in ("a/1", "a/2", "ab", "b"):
        store.put(path, b"")
    store.delete(["a", "a/1", "ab"])
    assert paths(store) == ["a/2", "b"]


def test_a_single_string_given_to_delete_is_one_path(store: ObjectStore) -> None:
    for path in ("abc", "a", "b", "c"):
        store.put(path, b"")
    assert store.delete("abc") == [DeleteResult("abc")]
    assert paths(store) == ["a", "b", "c"]


def test_delete_takes_any_iterable_and_nothing_too(store: ObjectStore) -> None:
    for path in ("a", "b", "c"):
        store.put(path, b"")
    assert store.delete([]) == []
    assert store.delete(path for path in ("a", "b")) == [DeleteResult("a"), DeleteResult("b")]
    assert paths(store) == ["c"]


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


def in_threads(count: int, work: Callable[[int], Answer]) -> list[Answer]:
    """Run `work(number)` in that many threads, all starting together."""
    start = threading.Barrier(count)

    def run(number: int) -> Answer:
        start.wait(30)
        return work(number)

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(run, range(count)))


def test_increments_by_compare_and_set_from_eight_threads_are_all_counted(store: ObjectStore) -> None:
    store.put("counter", b"0")

    def count(_: int) -> None:
        for _ in range(20):
            while True:
                found = store.get("counter")
                try:
                    store.put_if_match("counter", b"%d" % (int(found.data) + 1), found.version)
                    break
                except Conflict:
                    continue

    in_threads(8, count)
    assert store.get("counter").data == b"160"


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

    outcomes = in_threads(8, create)
    for round_ in range(5):
        winners = [number for number, won in enumerate(outcomes) if won[round_]]
        assert [b"%d" % winner for winner in winners] == [store.get(f"round/{round_}").data]


def test_a_reader_sees_whole_objects_with_the_version_of_their_content(store: ObjectStore) -> None:
    contents = [bytes([65 + number]) * (200_000 + 50_000 * number) for number in range(10)]
    versions = {store.put("object", contents[0]): contents[0]}
    done = threading.Event()
    seen: list[Object] = []

    def work(number: int) -> None:
        if number == 0:
            try:
                for _ in range(3):
                    for content in contents:
                        versions[store.put("object", content)] = content
            finally:
                done.set()
            return
        while not done.is_set():
            seen.append(store.get("object"))

    in_threads(4, work)
    assert seen
    for found in seen:
        assert versions[found.version] == found.data


@pytest.mark.parametrize("name", ["NoSuchBucket", "ContainerNotFound", "a/NoSuchBucket"])
def test_a_missing_object_whose_name_sounds_like_an_error_is_only_missing(store: ObjectStore, name: str) -> None:
    with pytest.raises(NotFound):
        store.get(name)
