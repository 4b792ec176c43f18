"""No credential shows in what `penstock table` and `penstock dlq` print, whatever goes wrong."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from penstock.buffer import Groups
from tests.support.command import Here
from tests.support.servers import BUCKET, S3Server

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

from penstock.spark.tables.existing import open_existing
from penstock.spark.tables.opening import TableKind, open_any_table
from tests.support.plain_tables import put_letters

KEY, SECRET, PASSWORD = "HUNTER-key-id", "HUNTER/secret+key=", "HUN@HUNTER5"
"""Each has HUNTER in it, and no output may."""

COMMANDS = [["table", "show"], ["table", "compact"], ["table", "vacuum"], ["dlq", "list"]]


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        return int(closed.getsockname()[1])


def options_of(server: S3Server) -> dict[str, str]:
    options = server.options | {"access_key_id": KEY, "secret_access_key": SECRET}
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}


def typed(options: dict[str, str]) -> list[str]:
    return [word for name, value in options.items() for word in ("-o", f"{name}={value}")]


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_nothing_shows_of_a_table_in_a_bucket(
    kind: str, s3_server: S3Server, fresh_name: str, tmp_path: Path, here: Here
) -> None:
    url, options = f"s3://{BUCKET}/{fresh_name}", options_of(s3_server)
    put_letters(open_any_table(None, url, kind=TableKind(kind), options=options), [{}, {}])
    buffer = str(tmp_path / "events")
    Groups(buffer).create("audit")
    printed = []
    for words in (
        ["table", "show", url, "--json"],
        ["table", "compact", url],
        ["table", "vacuum", url, "--dry-run"],
        ["dlq", "list", url, "--each", "--json"],
        ["dlq", "show", url, "nothing"],
        ["dlq", "replay", url, "--to", buffer, "--json"],
        ["dlq", "replay", url, "--to", f"s3://{BUCKET}/none", *typed(options)],
    ):
        answer = here(*words, *typed(options))
        printed.append(answer.out + answer.err)
    assert "HUNTER" not in "".join(printed)
    assert json.loads(printed[5])["replayed"] == 2
    assert "HUNTER" not in repr(open_existing(url, options=options))


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_nothing_shows_where_a_bucket_is_missing_or_does_not_answer(
    kind: str, command: list[str], s3_server: S3Server, closed_port: int, here: Here
) -> None:
    options = options_of(s3_server)
    quick = {"max_retries": "0", "retry_timeout": "1"}
    elsewhere = options | quick | {"endpoint": f"http://user:{PASSWORD}@127.0.0.1:{closed_port}"}
    for place in (["s3://missing/table", *typed(options)], ["s3://bucket/table", *typed(elsewhere)]):
        answer = here(*command, *place, "--kind", kind)
        assert answer.is_error("")
        assert "HUNTER" not in answer.err


@pytest.mark.parametrize(
    "properties",
    [
        {"type": "rest", "uri": "http://user:{password}@127.0.0.1:{port}", "token": SECRET},
        {"type": "rest", "uri": "http://127.0.0.1:{port}", "credential": f"{KEY}:{SECRET}"},
        {"type": "sql", "uri": "postgresql://user:{password}@127.0.0.1:{port}/db"},
        {"type": "sql", "uri": "unknown://host/db?user=one&password=HUNTER"},
        {"type": "sql", "uri": "no url but HUNTER:{password}"},
        {"type": "no such type", "uri": "http://user:{password}@host", "password": PASSWORD},
        {"warehouse": "s3://user:{password}@bucket/lake"},
        {"warehouse": "/no/lake?password=HUNTER"},
        {
            "type": "sql",
            "uri": "sqlite:///{top}/c.db",
            "warehouse": "s3://missing/lake",
            "s3.secret-access-key": SECRET,
        },
    ],
    ids=lambda properties: f"{properties.get('type', 'warehouse')} {properties.get('uri', '')[:12]}",
)
def test_nothing_shows_of_an_iceberg_catalog(
    properties: dict[str, str], closed_port: int, tmp_path: Path, here: Here
) -> None:
    filled = {
        name: value.format(password=PASSWORD, port=closed_port, top=tmp_path) for name, value in properties.items()
    }
    words = [word for name, value in filled.items() for word in ("--catalog", f"{name}={value}")]
    for command in (COMMANDS[0], COMMANDS[3]):
        answer = here(*command, "lake.web.letters", "--kind", "iceberg", *words)
        assert answer.is_error("")
        assert "HUNTER" not in answer.err


def test_a_place_is_shown_without_what_looks_like_a_password(here: Here, tmp_path: Path) -> None:
    shown = here("dlq", "list", f"{tmp_path}/none?password=HUNTER")
    assert shown.is_error("there is no table at ")
    assert "HUNTER" not in shown.err


def test_the_marks_of_replays_of_an_iceberg_table_are_reached_as_its_files_are(
    s3_server: S3Server, fresh_name: str, tmp_path: Path, here: Here
) -> None:
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"s3://{BUCKET}/{fresh_name}",
        "s3.endpoint": s3_server.endpoint,
        "s3.region": "us-east-1",
        "s3.access-key-id": KEY,
        "s3.secret-access-key": SECRET,
    }
    put_letters(open_any_table(None, "lake.web.letters", kind=TableKind.ICEBERG, catalog=catalog), [{}, {}])
    words = ["lake.web.letters", *(word for one in catalog.items() for word in ("--catalog", "=".join(one)))]
    buffer = str(tmp_path / "events")
    Groups(buffer).create("audit")
    for replayed in (2, 0):
        done = here("dlq", "replay", *words, "--to", buffer, "--json")
        assert json.loads(done.out)["replayed"] == replayed
    here("table", "vacuum", *words, "--older-than", "0")
    assert json.loads(here("dlq", "list", *words, "--json").out)["replayed"] == 2
