"""`open_store`: which places there are, how they are written, and what is refused."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest

from penstock.errors import InvalidInput, StorageError
from penstock.storage import LocalStore, MemoryStore, ObjectStore, open_store
from tests.support.servers import AZURE_ACCOUNT, AZURE_KEY, BUCKET, AzureServer, S3Server

# Memory


def test_memory_is_shared_by_name_within_the_process(fresh_name: str) -> None:
    one, other = open_store(f"memory://{fresh_name}"), open_store(f"memory://{fresh_name}-other")
    one.put("object", b"content")
    again = open_store(f"memory://{fresh_name}")
    assert isinstance(again, MemoryStore)
    assert again is not one
    assert again.get("object") == one.get("object")
    assert list(other.list_objects()) == []


def test_a_slash_at_the_end_of_a_memory_url_changes_nothing(fresh_name: str) -> None:
    open_store(f"memory://{fresh_name}").put("object", b"content")
    store = open_store(f"memory://{fresh_name}/")
    assert store.url == f"memory://{fresh_name}"
    assert store.get("object").data == b"content"


@pytest.mark.parametrize("name", ["a\x1b[2J", "a\nb", "a\x9b31m", "a\u202eb", "a\u2028b"])
def test_a_memory_store_has_a_name_that_is_safe_to_print(name: str) -> None:
    with pytest.raises(InvalidInput, match="must be printable") as caught:
        open_store(f"memory://{name}")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("url", ["memory://", "memory:///"])
def test_a_memory_store_needs_a_name(url: str) -> None:
    with pytest.raises(InvalidInput, match="name"):
        open_store(url)


# The local disk


def is_at(store: ObjectStore, directory: Path) -> bool:
    """Whether what is put into the store lands in the directory."""
    store.put("below/object", b"content")
    return (directory / "below" / "object").read_bytes() == b"content"


def test_a_directory_may_be_a_path_or_text_or_a_file_url(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    for where in (
        directory,
        str(directory),
        f"file://{directory}",
        f"file://localhost{directory}",
        f"file://{directory}/",
        f"file:{directory}",  # as Java writes it
    ):
        store = open_store(where)
        assert isinstance(store, LocalStore)
        assert is_at(store, directory)
        assert store.url == f"file://{directory}"
        (directory / "below" / "object").unlink()


def test_a_path_object_is_never_read_as_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_at(open_store(Path("memory://name")), tmp_path / "memory:" / "name")


@pytest.mark.parametrize("name", ["with space", "100%", "a#b", "a?b", "é", "%41"], ids=ascii)
def test_the_url_of_a_directory_opens_that_directory(tmp_path: Path, name: str) -> None:
    store = open_store(tmp_path / name)
    assert is_at(store, tmp_path / name)
    assert open_store(store.url).get("below/object").data == b"content"
    assert open_store(store.url).url == store.url


def test_a_file_url_is_percent_encoded_and_a_bare_path_is_not(tmp_path: Path) -> None:
    assert is_at(open_store(f"file://{tmp_path}/a%20b"), tmp_path / "a b")
    assert open_store(f"file:{tmp_path}/a%20b").url == f"file://{tmp_path}/a%20b"
    assert is_at(open_store(f"{tmp_path}/a%20b"), tmp_path / "a%20b")


@pytest.mark.parametrize("url", ["file://data/events", "file://relative", "file://host.example/data"])
def test_a_file_url_with_two_slashes_is_refused_and_says_three(url: str) -> None:
    with pytest.raises(InvalidInput, match="three slashes: file:///"):
        open_store(url)


@pytest.mark.parametrize("tail", ["?sync=false", "#part"])
def test_a_file_url_with_a_query_or_a_fragment_is_refused(tmp_path: Path, tail: str) -> None:
    with pytest.raises(InvalidInput, match="query or fragment"):
        open_store(f"file://{tmp_path}/store{tail}")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("where", ["", "file://", "a\0b", "file:///a%00b", "a\ud800b"], ids=ascii)
def test_no_path_at_all_and_a_path_with_nul_are_refused(where: str) -> None:
    with pytest.raises(InvalidInput, match="no place for a store"):
        open_store(where)


def test_a_relative_path_stays_where_it_was_when_the_process_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    store = open_store("store")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert store.url == f"file://{tmp_path}/store"
    assert is_at(store, tmp_path / "store")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_tilde_is_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert is_at(open_store("~/store"), tmp_path / "store")


def test_opening_a_directory_makes_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path / "not" / "yet")
    assert list(store.list_objects()) == []
    assert list(tmp_path.iterdir()) == []


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    for where in (str(tmp_path / "file"), tmp_path / "file", f"file://{tmp_path}/file"):
        with pytest.raises(InvalidInput, match="file is a file"):
            open_store(where)
    assert (tmp_path / "file").read_bytes() == b"content"


@pytest.mark.parametrize(
    ("value", "synced"),
    [
        (True, True),
        (False, False),
        ("true", True),
        ("false", False),
        ("False", False),
        ("0", False),
        (1, True),
        ("off", False),
    ],
)
def test_sync_may_be_written_as_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: object, synced: bool
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: calls.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    store = open_store(tmp_path / "store", sync=value)
    store.put("object", b"")
    assert any(call.startswith(str(tmp_path)) for call in calls) is synced
    assert ("sync=False" in repr(store)) is not synced


@pytest.mark.parametrize("value", ["maybe", "", None, 2], ids=repr)
def test_a_sync_that_is_neither_is_refused(tmp_path: Path, value: object) -> None:
    with pytest.raises(InvalidInput, match=r"sync must be true or false"):
        open_store(tmp_path, sync=value)


# Clouds


@pytest.mark.parametrize(
    ("where", "url"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3://bucket/some/prefix", "s3://bucket/some/prefix"),
        ("s3://bucket/some/prefix/", "s3://bucket/some/prefix"),
        ("s3://bucket/with space/%41", "s3://bucket/with space/%41"),
        ("gs://bucket/prefix", "gs://bucket/prefix"),
        ("az://container/prefix", "az://container/prefix"),
    ],
)
def test_a_bucket_and_a_prefix(where: str, url: str) -> None:
    account = {"account_name": "account", "account_key": "a2V5"} if where.startswith("az") else {}
    assert open_store(where, **account).url == url


@pytest.mark.parametrize("kind", ["s3", "azure"], indirect=True)
def test_a_prefix_in_the_url_is_a_part_of_every_path(
    store: ObjectStore, kind: str, request: pytest.FixtureRequest
) -> None:
    server: S3Server | AzureServer = request.getfixturevalue(f"{kind}_server")
    store.put("a/b/object", b"content")
    for deeper, path in (("a", "b/object"), ("a/b", "object"), ("a/b/", "object")):
        below = open_store(f"{store.url}/{deeper}", **server.options)
        assert [found.path for found in below.list_objects()] == [path]
        assert below.get(path).data == b"content"
        assert below.head(path).path == path


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        *((f"bucket/{prefix}", "prefix") for prefix in ("..", "a/../b", "a//b", "/a", "./a", "a/\0", "a\nb")),
        ("", "bucket"),
        ("/prefix", "bucket"),
        ("bucket?region=x", "as options"),
        ("bucket/prefix?x", "as options"),
        ("bucket/prefix#x", "as options"),
    ],
)
@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_a_cloud_url_without_a_bucket_or_with_more_than_a_prefix_is_refused(
    scheme: str, tail: str, reason: str
) -> None:
    with pytest.raises(InvalidInput, match=reason):
        open_store(f"{scheme}://{tail}")


@pytest.mark.parametrize("endpoint", ["localhost:9000", "127.0.0.1:9000", "not a url", "", "http://", "http://a b"])
@pytest.mark.parametrize("scheme", ["s3", "az"])
def test_an_endpoint_that_is_no_url_is_refused(scheme: str, endpoint: str) -> None:
    # The engine would panic at the first request to some of these: no Exception, and a stack of Rust on the terminal.
    account = {"account_name": "account", "account_key": "a2V5"} if scheme == "az" else {"region": "us-east-1"}
    with pytest.raises(InvalidInput, match="endpoint"):
        open_store(f"{scheme}://bucket", endpoint=endpoint, **account)


# Unknown places and options


@pytest.mark.parametrize(
    "url", ["ftp://host/x", "http://host/x", "hdfs://host/x", "s3a://bucket", "S3://bucket", "://x", "abfss://c@a/x"]
)
def test_an_unknown_scheme_is_refused_and_the_known_ones_are_named(url: str) -> None:
    with pytest.raises(InvalidInput, match="no place for a store") as caught:
        open_store(url)
    for scheme in ("memory://", "file:///", "s3://", "gs://", "az://"):
        assert scheme in str(caught.value)


@pytest.mark.parametrize("where", [None, 7, b"/tmp", ["s3://bucket"], object()], ids=lambda where: type(where).__name__)
def test_what_is_no_url_at_all_is_refused(where: object) -> None:
    with pytest.raises(InvalidInput, match=type(where).__name__):
        open_store(cast("str", where))


@pytest.mark.parametrize(
    "where", ["memory://name", "DIRECTORY", "file://DIRECTORY", "s3://bucket", "gs://bucket", "az://c"]
)
def test_an_unknown_option_is_refused_and_named(tmp_path: Path, where: str) -> None:
    account = {"account_name": "account", "account_key": "a2V5"} if where.startswith("az") else {}
    with pytest.raises(InvalidInput, match="frobnicate"):
        open_store(where.replace("DIRECTORY", f"{tmp_path}/store"), frobnicate=1, **account)
    assert list(tmp_path.iterdir()) == []


def test_the_known_options_are_named_beside_an_unknown_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"'synch'.*: sync"):
        open_store(tmp_path, synch=False)


# A store that is open already


def test_a_store_is_returned_as_it_is(store: ObjectStore) -> None:
    assert open_store(store) is store


def test_options_for_a_store_that_is_open_are_refused_and_named(fresh_name: str) -> None:
    with pytest.raises(InvalidInput, match=r"\(sync\)"):
        open_store(open_store(f"memory://{fresh_name}"), sync=False)


# Times are seconds


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that takes connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield int(listening.getsockname()[1])


def open_silent(port: int, **options: object) -> ObjectStore:
    """A store on a port that never answers."""
    endpoint = f"http://127.0.0.1:{port}"
    return open_store(
        "s3://bucket", endpoint=endpoint, allow_http=True, skip_signature=True, region="us-east-1", **options
    )


@pytest.mark.parametrize("timeout", [0.3, "0.3", "300ms", timedelta(seconds=0.3)], ids=repr)
def test_a_timeout_is_given_in_seconds(silent_port: int, timeout: object) -> None:
    store = open_silent(silent_port, max_retries=0, timeout=timeout)
    started = time.monotonic()
    with pytest.raises(StorageError):
        store.get("object")
    assert 0.25 <= time.monotonic() - started < 5


def test_retries_end_at_their_deadline_in_seconds(silent_port: int) -> None:
    store = open_silent(silent_port, max_retries=1000, timeout=0.2, retry_timeout=1)
    started = time.monotonic()
    with pytest.raises(StorageError):
        store.get("object")
    assert 0.9 <= time.monotonic() - started < 8


@pytest.mark.parametrize("name", ["timeout", "connect_timeout", "read_timeout", "pool_idle_timeout", "retry_timeout"])
@pytest.mark.parametrize("value", [0, -1, "0", "soon", "nan", "inf", float("nan"), 1e12], ids=repr)
def test_a_time_that_is_none_is_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidInput, match=rf"{name}|Duration"):
        open_store("s3://bucket", **{name: value})


@pytest.mark.parametrize("value", [-1, "x", 1.5, None], ids=repr)
def test_a_number_of_retries_that_is_none_is_refused(value: object) -> None:
    with pytest.raises(InvalidInput, match="max_retries"):
        open_store("s3://bucket", max_retries=value)


# The environment reaches the engine


S3_VARIABLES = {
    "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
    "AWS_ALLOW_HTTP": "true",
    "AWS_REGION": "us-east-1",
    "AWS_ACCESS_KEY_ID": "test-key-id",
    "AWS_SECRET_ACCESS_KEY": "test-secret-key",
}


@pytest.mark.parametrize(
    ("variables", "options"),
    [
        ({}, {}),
        ({"AWS_ALLOW_HTTP": None}, {"allow_http": True, "max_retries": 0}),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, {"endpoint": "ENDPOINT", "allow_http": True, "max_retries": 0}),
        (
            dict.fromkeys(S3_VARIABLES),
            {
                "aws_endpoint_url": "ENDPOINT",
                "aws_access_key_id": "test-key-id",
                "aws_secret_access_key": "test-secret-key",
                "aws_region": "us-east-1",
                "allow_http": "true",
            },
        ),
    ],
    ids=["the environment alone", "both together", "an option counts more", "options named as in the environment"],
)
def test_s3_is_set_up_by_environment_variables_and_options(
    s3_server: S3Server,
    fresh_name: str,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str | None],
    options: dict[str, object],
) -> None:
    for name, value in {**S3_VARIABLES, "AWS_ENDPOINT_URL": s3_server.endpoint, **variables}.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    filled = {name: s3_server.endpoint if value == "ENDPOINT" else value for name, value in options.items()}
    open_store(f"s3://{BUCKET}/{fresh_name}", **filled).put("object", b"content")
    assert open_store(f"s3://{BUCKET}/{fresh_name}", **s3_server.options).get("object").data == b"content"


def test_azure_may_be_set_up_by_environment_variables_alone(
    azure_server: AzureServer, fresh_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", AZURE_ACCOUNT)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", AZURE_KEY)
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", azure_server.endpoint)
    monkeypatch.setenv("AZURE_ALLOW_HTTP", "true")
    open_store(f"az://{BUCKET}/{fresh_name}").put("object", b"content")
    assert open_store(f"az://{BUCKET}/{fresh_name}", **azure_server.options).get("object").data == b"content"


def test_the_engine_of_the_clouds_is_loaded_only_for_them(tmp_path: Path) -> None:
    code = """
import sys
from penstock.storage import open_store
open_store(sys.argv[1]).put("object", b"")
open_store("memory://name").put("object", b"")
print("obstore" in sys.modules)
open_store("s3://bucket")
print("obstore" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, timeout=60, check=True)
    assert done.stdout.split() == [b"False", b"True"]


# Easy mistakes


@pytest.mark.parametrize("where", ["s3:/bucket", "gs:bucket", "az:/container", "memory:name"])
def test_a_url_without_its_slashes_is_not_taken_for_a_directory(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match="slashes"):
        open_store(where).put("object", b"")
    assert list(tmp_path.iterdir()) == []


def test_an_endpoint_that_is_not_encrypted_must_be_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ALLOW_HTTP", raising=False)
    with pytest.raises(InvalidInput, match="allow_http"):
        open_store("s3://bucket", endpoint="http://127.0.0.1:1")
    assert "endpoint='http://127.0.0.1:1'" in repr(
        open_store("s3://bucket", endpoint="http://127.0.0.1:1", allow_http=True)
    )
