"""`penstock table`: what is in a table, and keeping it small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock import Producer, ProducerConfig
from tests.support.command import Here, storage_options
from tests.support.servers import BUCKET, S3Server

pytest.importorskip("pyspark")

from penstock.spark.pipeline.block_loop import query_of
from penstock.spark.tables.parquet.table import open_table
from tests.support.plain_tables import ids, put_numbers


@pytest.fixture
def table(tmp_path: Path) -> str:
    url = str(tmp_path / "table")
    put_numbers(open_table(None, url), 0, 5)
    return url


def test_show_says_what_is_in_a_table(table: str, here: Here) -> None:
    shown = here("table", "show", table)
    assert (shown.status, shown.err) == (0, "")
    lines = dict(line.split(maxsplit=1) for line in shown.out.splitlines())
    assert lines["kind"] == "parquet"
    assert lines["rows"] == "5"
    assert lines["files"].startswith("5, ")
    assert lines["columns"] == "id bigint, event string"
    assert lines["query"] == "8f1c.default up to sequence 4, last block from 4 with 1 row"


def test_scripts_get_it_as_json(table: str, here: Here) -> None:
    shown = here("table", "show", table, "--json")
    assert (shown.status, shown.err) == (0, "")
    found = json.loads(shown.out)
    assert (found["kind"], found["rows"], found["files"], found["partition_by"]) == ("parquet", 5, 5, [])
    assert found["columns"] == [{"name": "id", "type": "bigint"}, {"name": "event", "type": "string"}]
    assert found["positions"]["8f1c.default"] == {"end": 5, "first": 4, "last": "ingest/4.arrow", "rows": 1}
    assert found["last_commit_at"].endswith("+00:00")


def test_show_says_how_far_the_table_is_behind_its_buffer(tmp_path: Path, here: Here) -> None:
    buffer, url = tmp_path / "events", str(tmp_path / "table")
    with Producer(buffer, ProducerConfig(manifest_format="native")) as producer:
        for number in range(8):
            producer.produce(b"%d" % number).result()
    here("groups", "create", str(buffer), "audit")
    identity = json.loads(here("status", str(buffer), "--json").out)["id"]
    query = query_of(identity, "default")
    put_numbers(open_table(None, url), 0, 5, query=query)
    shown = here("table", "show", url, "--source", str(buffer))
    assert (shown.status, shown.err) == (0, "")
    assert "group default 3 batches behind; the buffer's next sequence is 8" in shown.out
    assert "group audit   nothing of it is in this table" in shown.out
    found = json.loads(here("table", "show", url, "--source", str(buffer), "--json").out)
    assert found["lag"] == [
        {"group": "default", "position": 5, "next_sequence": 8, "batches": 3},
        {"group": "audit", "position": None, "next_sequence": 8, "batches": None},
    ]


def test_compact_and_vacuum_keep_every_row(table: str, here: Here) -> None:
    compacted = here("table", "compact", table, "--target", "64m")
    assert (compacted.status, compacted.err) == (0, "")
    assert compacted.out.startswith("5 files (")
    assert " became 1 file (" in compacted.out
    again = here("table", "compact", table)
    assert (again.status, again.out) == (0, "nothing to compact: no partition has two small files\n")
    young = here("table", "vacuum", table)
    assert (young.status, young.out) == (0, "removed 0 files, 0 B\n")
    shown = here("table", "vacuum", table, "--older-than", "0 seconds", "--dry-run")
    assert shown.out.startswith("would remove ")
    removed = here("table", "vacuum", table, "--older-than", "0", "--json")
    assert json.loads(removed.out)["files"] >= 5
    assert ids(open_table(None, table)) == list(range(5))


def test_compact_answers_in_json(table: str, here: Here) -> None:
    done = json.loads(here("table", "compact", table, "--json").out)
    assert (done["files_before"], done["files_after"]) == (5, 1)


def test_a_table_in_an_object_store_is_reached_with_the_stores_options(
    s3_server: S3Server, fresh_name: str, here: Here
) -> None:
    url = f"s3://{BUCKET}/{fresh_name}"
    options = {name: str(value).lower() for name, value in s3_server.options.items()}
    put_numbers(open_table(None, url, options=options), 0, 3)
    typed = storage_options(s3_server.options)
    assert json.loads(here("table", "show", url, "--json", *typed).out)["rows"] == 3
    assert json.loads(here("table", "compact", url, "--json", *typed).out)["files_after"] == 1
    assert json.loads(here("table", "vacuum", url, "--older-than", "0", "--json", *typed).out)["files"] == 3
    assert json.loads(here("table", "show", url, "--json", *typed).out)["files"] == 1


@pytest.mark.parametrize("command", ["show", "compact", "vacuum"])
def test_a_place_without_a_table_is_one_line(tmp_path: Path, here: Here, command: str) -> None:
    assert here("table", command, str(tmp_path / "nowhere")).is_error("there is no table at ")
    (tmp_path / "empty").mkdir()
    assert here("table", command, str(tmp_path / "empty")).is_error("there is no table at ")
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["compact", "--target", "small"], "--target must be a number of bytes"),
        (["vacuum", "--older-than", "soon"], "--older-than must be a time such as '7 days'"),
        (["show", "--kind", "csv"], "the kind of a table is one of parquet, delta, iceberg"),
        (["show", "--catalog", "type=sql"], "a catalog goes with the name of an Iceberg table"),
        (["show", "--source", "nowhere"], "there is no buffer at "),
    ],
)
def test_a_wrong_word_is_one_line(table: str, here: Here, words: list[str], problem: str) -> None:
    assert here("table", words[0], table, *words[1:]).is_error(problem)


def test_an_option_without_a_value_is_a_usage_error(table: str, here: Here) -> None:
    assert here("table", "show", table, "-o", "region").status == 2
    assert here("table", "show", "a.b.c", "--catalog", "warehouse").status == 2


def test_hadoops_file_systems_are_refused_in_one_line(here: Here) -> None:
    assert here("table", "compact", "hdfs://host/table").is_error("hdfs://host/table is reached by Spark's Hadoop only")
