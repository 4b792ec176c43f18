"""Delta tables in object stores, and the options by which they are reached."""

from __future__ import annotations

import builtins
import importlib.util
import logging
import random
import threading
from typing import Any

import deltalake
import pytest

from penstock.errors import InvalidInput, StorageError
from penstock.spark.tables.contract import Position
from penstock.spark.tables.delta.places import check_conditional_put
from penstock.spark.tables.delta.table import DeltaTable, open_delta
from penstock.storage import MemoryStore
from penstock.storage.object_store import Data
from tests.support.delta_blocks import QUERY, block, commit, ids, position
from tests.support.servers import BUCKET, S3Server


@pytest.fixture
def url(s3_server: S3Server, fresh_name: str) -> str:
    return f"s3://{BUCKET}/{fresh_name}"


def texts(options: dict[str, object]) -> dict[str, str]:
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}


@pytest.mark.parametrize("more", [{}, {"merge_on": ["id"]}, {"partition_by": ["event"]}], ids=str)
def test_blocks_are_committed_once_to_s3(s3_server: S3Server, url: str, more: dict[str, Any]) -> None:
    options = texts(s3_server.options)
    table = open_delta(url, options=options, **more)
    assert table.position(QUERY) is None
    assert commit(table, block(0, 5))
    assert not commit(table, block(0, 3))
    assert commit(table, block(5, 9))
    assert open_delta(url, options=options).position(QUERY) == Position(9, 5, "ingest/000009.arrow", 4)
    assert ids(url, options) == list(range(9))
    table.compact()
    assert table.vacuum(0).files > 0
    assert ids(url, options) == list(range(9))
    assert table.info().files == 1


@pytest.mark.slow
def test_drivers_at_once_on_s3_lose_nothing_and_have_nothing_twice(s3_server: S3Server, url: str) -> None:
    failed: list[BaseException] = []

    def drive(seed: int) -> None:
        chance = random.Random(seed)
        try:
            table = open_delta(url, options=s3_server.options)
            while (first := position(table)) < 20:
                commit(table, block(first, min(first + chance.randrange(1, 8), 20)))
        except BaseException as error:
            failed.append(error)

    drivers = [threading.Thread(target=drive, args=(seed,)) for seed in range(3)]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join()
    assert failed == []
    assert ids(url, texts(s3_server.options)) == list(range(20))


def test_no_credential_is_in_an_error_a_log_or_a_repr(
    s3_server: S3Server, fresh_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    options = s3_server.options | {"endpoint": "http://127.0.0.1:9", "max_retries": 0, "retry_timeout": 1}
    table = open_delta(f"s3://{BUCKET}/{fresh_name}", options=options)
    with pytest.raises(StorageError) as caught:
        table.position(QUERY)
    assert "could not look at the Delta table s3://" in str(caught.value)
    shown = f"{caught.value!r} {caught.value.__cause__!r} {caught.value.__context__!r} {table!r} {caplog.text}"
    assert "\x1b" not in shown
    for secret in ("test-secret-key", "test-key-id"):
        assert secret not in shown


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("memory://x", "a Delta table is at a path, or at file://"),
        ("hdfs://host/x", "a Delta table is at a path, or at file://"),
        ("s3a://bucket/x", "write s3:// for s3a://"),
        ("abfss://x@y/z", "write az:// for abfss://"),
    ],
)
def test_other_places_are_refused(given: str, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        open_delta(given)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"conditional_put": "disabled"}, "conditional_put must be 'etag' for a Delta table"),
        ({"default_headers": {"a": "b"}}, "the option default_headers is not for Delta tables"),
        ({"no_such": "x"}, "no_such"),
    ],
)
def test_options_that_are_not_for_a_table_are_refused(options: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        open_delta("s3://bucket/x", options={"region": "us-east-1"} | options)


def test_an_unsafe_rename_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "true")
    with pytest.raises(InvalidInput, match="AWS_S3_ALLOW_UNSAFE_RENAME lets two drivers overwrite"):
        open_delta("s3://bucket/x", options={"region": "us-east-1"})


def test_times_have_a_unit_for_delta_rs(s3_server: S3Server, url: str) -> None:
    options = s3_server.options | {"timeout": 20, "retry_timeout": 2.5, "max_retries": 3, "connect_timeout": "5s"}
    assert commit(open_delta(url, options=options), block(0, 2))


class ReplacingStore(MemoryStore):
    """As stores that do not know If-None-Match."""

    def put_if_absent(self, path: str, data: Data, **_: Any) -> str:
        return self.put(path, data)


def test_a_store_without_conditional_puts_is_refused(fresh_name: str) -> None:
    store = ReplacingStore(fresh_name)
    with pytest.raises(InvalidInput, match="replaces objects where it was asked to create them"):
        check_conditional_put(store, "_penstock_staging/probe")
    assert list(store.list_objects()) == []
    check_conditional_put(MemoryStore(fresh_name), "_penstock_staging/probe")


def test_a_table_in_a_store_is_checked_for_conditional_puts(fresh_name: str) -> None:
    opened = open_delta("/nowhere")
    table = DeltaTable(ReplacingStore(fresh_name), opened.log)
    with pytest.raises(InvalidInput, match="replaces objects where it was asked to create them"):
        commit(table, block(0, 1))


def test_without_delta_rs_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "deltalake" else find(name, *a))
    with pytest.raises(InvalidInput, match=r"Delta tables need the package deltalake: pip install 'penstock\[delta\]'"):
        open_delta(str(tmp_path))


def test_the_module_is_imported_without_delta_rs(start: Any) -> None:
    assert start(_import_without_delta).answer() == "imported"


def _import_without_delta(_parent: Any) -> str:
    import sys

    real = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "deltalake":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    for name in [name for name in sys.modules if name.startswith(("deltalake", "penstock.spark.tables.delta"))]:
        del sys.modules[name]
    builtins.__import__ = refuse
    import penstock.spark.tables.delta.files
    import penstock.spark.tables.delta.table  # noqa: F401

    return "imported"


def test_a_directory_of_other_files_is_no_place_for_a_new_table(tmp_path: Any) -> None:
    (tmp_path / "mine.csv").write_text("x")
    with pytest.raises(InvalidInput, match=r"has files, such as 'mine.csv', and is no Delta table"):
        commit(open_delta(str(tmp_path)), block(0, 1))
    assert not (tmp_path / "_delta_log").exists()


def test_a_link_and_its_target_are_one_place(tmp_path: Any) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "table")
    assert open_delta(str(tmp_path / "link")).place == open_delta(f"file://{tmp_path}/table").place
    assert commit(open_delta(str(tmp_path / "link")), block(0, 1))
    assert deltalake.DeltaTable(str(tmp_path / "table")).version() == 1
